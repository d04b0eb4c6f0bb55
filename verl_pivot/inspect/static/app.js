// The page: the view that the address names, keys, and what is new.

import { get, onNews } from "./api.js";
import { number } from "./dom.js";
import { drawFrame, hideMessage, main, nameTab, tell } from "./frame.js";
import { go, note, place } from "./place.js";
import { marked } from "./list.js";
import { showComparison } from "./compare.js";
import { showHistory } from "./history.js";
import { showRollouts } from "./rollouts.js";
import { showRollout } from "./trajectory.js";
import { showRun } from "./run.js";
import { loadDisputes } from "./verdicts.js";

const VIEWS = { run: showRun, rollouts: showRollouts, rollout: showRollout, compare: showComparison, history: showHistory };
const SECONDS_BETWEEN_LOOKS = 1;

const KEYS = [
  ["j, k", "next and previous rollout, in the list and in a trajectory"],
  ["n, p", "next and previous group"],
  ["[, ]", "rollouts of the previous and next step; in the view through training, the step on the right"],
  ["{, }", "in the view through training, the step on the left"],
  ["Enter", "open the rollout"],
  ["Esc", "back to the list"],
  ["x", "mark the rollout, or remove the mark"],
  ["c", "compare the two marked rollouts"],
  ["w", "mark the verdict as wrong, or remove that mark"],
  ["m", "tokens and mask of a rollout"],
  ["h", "the rollout's pivot or prompt through training"],
  ["/", "search for words"],
  ["r, l", "go to the run, to the list of rollouts"],
  ["Home, End, Page Up, Page Down", "move in the list"],
  ["?", "show these keys"],
];

let info = null;
let view = null;
let drawing = 0;

async function show() {
  const mine = ++drawing;
  const before = document.activeElement;
  const focused = before?.matches?.(".filters select") ? before.name : null;
  view?.leave();
  view = null;
  hideMessage();
  const { view: name, params } = place();
  for (const each of ["run", "rollouts"]) {
    const link = document.getElementById(`to-${each}`);
    if (name.startsWith(each === "run" ? "run" : "rollout")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (info === null) [info] = await Promise.all([get("run"), loadDisputes().catch(tell)]);
    const shown = await (VIEWS[name] ?? showRun)(main, params, info);
    if (mine !== drawing) return shown.leave();
    view = shown;
    if (focused) main.querySelector(`.filters [name="${focused}"]`)?.focus();
    nameTab();
  } catch (error) {
    if (mine === drawing) tell(error);
  }
}

// ---- what is new

let isLooking = false;
let isStale = false;

async function look() {
  if (isLooking) return void (isStale = true);
  isLooking = true;
  try {
    do {
      isStale = false;
      info = await get("run");
      document.getElementById("reading").textContent = info.num_unread
        ? `reading: ${number(info.num_files - info.num_unread)} of ${number(info.num_files)} dumps, ${number(info.num_rollouts)} rollouts`
        : "";
      await view?.refresh(info);
      await new Promise((resolve) => setTimeout(resolve, 1000 * SECONDS_BETWEEN_LOOKS));
    } while (isStale);
  } catch (error) {
    tell(error);
  } finally {
    isLooking = false;
  }
}

// ---- keys

function onKey(event) {
  const actions = {
    "/": () => (document.getElementById("words") ?? go("rollouts"))?.focus?.(),
    c: compare,
    r: () => go("run"),
    l: () => go("rollouts"),
  };
  return view?.key(event) || (actions[event.key] ? (actions[event.key](), true) : false);
}

function compare() {
  const [a, b] = marked();
  if (b === undefined) return tell(new Error("mark two rollouts with x before comparing them with c"));
  const { place: _, ...params } = place().params;
  return go("compare", { ...params, a, b });
}

drawFrame({ run: "Run", rollouts: "Rollouts" }, KEYS, onKey);
window.addEventListener("hashchange", show);
if (!location.hash) note("run", {});
await show();
onNews(look);
