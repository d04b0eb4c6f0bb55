// The page of a profile, pivots and trajectories: distribution, a strip of turns per trajectory, and one turn opened.

import { get } from "./api.js";
import { el, longText, number, svg, visible } from "./dom.js";
import { drawFrame, hideMessage, main, nameTab, tell } from "./frame.js";
import { address, go, place } from "./place.js";

const KEYS = [
  ["j, k", "next and previous turn, in the list and in a turn"],
  ["n, p", "next and previous trajectory"],
  ["Enter", "open the turn"],
  ["Esc", "back to the list"],
  ["/", "search for a part of an id"],
  ["?", "show these keys"],
];
const MARKS = { "always right": "●", mixed: "◐", "always wrong": "○", undecided: "?", overlong: "…" };
const DECISIONS = ["kept", "not kept", "dropped"];

let about = null;
let listed = { key: null, found: [], total: 0 };
let shown = null;
let drawing = 0;

const filters = ({ turn: _, trajectory: __, ...rest }) => rest;

async function show() {
  const mine = ++drawing;
  hideMessage();
  const { view, params } = place();
  try {
    about ??= await get("files");
    await list(filters(params));
    const next = view === "turn" ? await turnView(params) : listView(params);
    if (mine !== drawing) return;
    shown = next;
    main.replaceChildren(...next.nodes);
    nameTab();
    next.ready?.();
  } catch (error) {
    if (mine === drawing) tell(error);
  }
}

// ---- the list

async function list(wanted) {
  const key = JSON.stringify(wanted);
  if (listed.key === key) return;
  const body = await get("trajectories", wanted);
  listed = { key, found: body.trajectories, total: body.num_found };
}

async function more(params) {
  const body = await get("trajectories", { ...filters(params), first: listed.found.length });
  listed.found.push(...body.trajectories);
  await show();
}

/** [num_turns] {trajectory, turn} of all turns that are listed, along which keys go. */
const allTurns = () => listed.found.flatMap((each) => each.turns.map((turn) => ({ trajectory: each.id, turn: turn.index })));

function listView(params) {
  const rest = listed.total - listed.found.length;
  const nodes = [
    el("h1", {}, "Turns"),
    el("p", { class: "count" }, about.files.map(visible).join(", ")),
    distribution(params),
    filterForm(params),
    el("p", { class: "count", role: "status" }, counts()),
    el("div", { class: "strips" }, listed.found.map((each) => trajectoryRow(each, params))),
    rest > 0 ? el("button", { type: "button", class: "more", on: { click: () => more(params).catch(tell) } }, `${number(rest)} more trajectories`) : null,
  ].filter(Boolean);
  const cells = () => [...main.querySelectorAll(".strip a")];
  const step = (direction, isSame) => {
    const all = cells();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return all[0]?.focus();
    const row = all[at].closest(".trajectory");
    let next = at + direction;
    if (!isSame) while (all[next] && all[next].closest(".trajectory") === row) next += direction;
    all[next]?.focus();
  };
  return {
    nodes,
    keys: {
      j: () => step(1, true),
      k: () => step(-1, true),
      n: () => step(1, false),
      p: () => step(-1, false),
      "/": () => document.getElementById("id").focus(),
    },
    ready: () => {
      const opened = cells().find((each) => each.dataset.name === nameOf(params.trajectory, params.turn));
      (opened ?? main).focus({ preventScroll: !opened });
    },
  };
}

const nameOf = (trajectory, turn) => `${turn}:${trajectory}`;

function counts() {
  const { num_trajectories: all, num_turns: turns, num_kept: kept, num_dropped: dropped } = about;
  const of = listed.total === all ? "" : ` of ${number(all)}`;
  return [
    `${number(listed.total)}${of} trajectories, ${number(turns)} turns in all`,
    about.selection ? `${number(kept)} selected` : null,
    dropped ? `${number(dropped)} trajectories dropped by filter` : null,
  ].filter(Boolean).join(", ");
}

function distribution(params) {
  const { bins } = about;
  const most = Math.max(...bins);
  if (most === 0) return null;
  const width = 40;
  const height = 90;
  const title = (at) => (at === 0 ? "0" : at === bins.length - 1 ? "1" : `to ${(at / 10).toFixed(1)}`);
  const bars = bins.map((count, at) => {
    const tall = (height * count) / most;
    const chosen = String(params.bin ?? "") === String(at);
    const target = address("list", { ...filters(params), bin: chosen ? null : at });
    return svg(
      "a",
      { href: target, "aria-label": `${count} turns of pass rate ${title(at)}`, class: chosen ? "bar chosen" : "bar" },
      svg("rect", { x: at * width + 3, y: 14 + height - tall, width: width - 6, height: Math.max(tall, 1) }),
      svg("text", { x: at * width + width / 2, y: 10 + height - tall, "text-anchor": "middle" }, count ? number(count) : ""),
      svg("text", { x: at * width + width / 2, y: height + 28, "text-anchor": "middle" }, title(at)),
    );
  });
  return el(
    "figure",
    { class: "distribution" },
    el("figcaption", {}, "Turns by pass rate"),
    svg("svg", { viewBox: `0 0 ${bins.length * width} ${height + 34}`, role: "group", "aria-label": "Turns by pass rate" }, bars),
  );
}

function filterForm(params) {
  const form = el("form", { class: "filters", role: "search", "aria-label": "Filters" });
  const changed = () => go("list", { bin: params.bin, ...Object.fromEntries(new FormData(form)) });
  form.addEventListener("submit", (event) => (event.preventDefault(), changed()));
  form.addEventListener("change", changed);
  const select = (name, title, values) =>
    el(
      "label",
      {},
      title,
      el(
        "select",
        { name },
        el("option", { value: "" }, "all"),
        values.map(([value, label]) => el("option", { value, selected: params[name] === value }, label)),
      ),
    );
  const outcomes = Object.entries(about.outcomes).map(([name, count]) => [name, `${MARKS[name]} ${name} (${number(count)})`]);
  form.append(
    ...[
      outcomes.length ? select("outcome", "Outcome", outcomes) : null,
      select("decision", "Decision", DECISIONS.map((name) => [name, name])),
      el("label", {}, "Id", el("input", { name: "id", id: "id", type: "search", value: params.id ?? "", "aria-keyshortcuts": "/" })),
      el("a", { class: "clear", href: "#/list" }, "clear"),
      el("button", { class: "submit" }, "Apply"),
    ].filter(Boolean),
  );
  return form;
}

function trajectoryRow(each, params) {
  const passed = each.passed === null ? "" : each.passed ? ", right outcome" : ", wrong outcome";
  const note = each.dropped ? `dropped by ${each.dropped.filter}: ${each.dropped.reason}. ${each.dropped.detail}` : "";
  const turns = each.num_turns === null ? "" : `, ${number(each.num_turns)} turns`;
  return el(
    "section",
    { class: "trajectory", "aria-label": visible(each.id) },
    el("span", { class: "name" }, visible(each.id), el("small", {}, `${turns}${passed}`)),
    strip(each, params, null),
    note ? el("p", { class: "problem" }, visible(note)) : null,
  );
}

/** A mark for each turn that leads to it. */
function strip(each, params, current) {
  const cells = each.turns.map((turn) =>
    el(
      "a",
      {
        href: address("turn", { ...filters(params), trajectory: each.id, turn: turn.index }),
        class: outcomeClass(turn) + (turn.is_kept ? " kept" : ""),
        "data-name": nameOf(each.id, turn.index),
        "aria-current": turn.index === current ? "true" : null,
        title: summary(turn),
        "aria-label": `turn ${turn.index}: ${summary(turn)}`,
      },
      MARKS[turn.outcome] ?? "·",
    ),
  );
  return el("nav", { class: "strip", "aria-label": "Turns" }, cells);
}

const CLASSES = { "always right": "right", mixed: "undecided", "always wrong": "wrong" };
const outcomeClass = (turn) => CLASSES[turn.outcome] ?? "unmeasured";

function summary(turn) {
  const rate = turn.pass_rate === null ? null : `pass rate ${number(turn.pass_rate)}`;
  return [turn.outcome ?? "no profile", rate, turn.is_kept ? `selected, ${turn.split}` : null].filter(Boolean).join(", ");
}

// ---- a turn

async function turnView(params) {
  const opened = await get("turn", { trajectory_id: params.trajectory, turn_index: params.turn });
  const { trajectory, candidate, verdict, state, expert, tools, verifier, provenance, samples } = opened;
  const { dropped } = trajectory;
  const json = (value) => JSON.stringify(value, null, 1);
  const fold = (title, text) =>
    el("details", {}, el("summary", {}, `${title}, ${number(text.length)} characters`), longText(text, { label: title }));
  const nodes = [
    el("h1", {}, `Turn ${params.turn} of ${visible(params.trajectory)}`),
    el("p", { class: "position" }, el("a", { href: address("list", params) }, "Back to the list")),
    facts(candidate, verdict),
    dropped ? el("p", { class: "problem" }, visible(`Dropped by ${dropped.filter}: ${dropped.reason}. ${dropped.detail}`)) : null,
    strip(trajectory, params, Number(params.turn)),
    state
      ? el("details", { class: "prompt", open: true }, el("summary", {}, `State, ${number(state.length)} messages`), state.map(messageBox))
      : el("p", { class: "count" }, "The given files do not contain the state: give the trajectories too."),
    tools?.length ? fold(`Tools, ${number(tools.length)}`, json(tools)) : null,
    expert ? el("section", { class: "expert", "aria-label": "Expert" }, el("h2", {}, "Expert's action"), messageBox(expert)) : null,
    expert ? fold(`Verifier ${visible(verifier.verifier)}`, json(verifier.options)) : null,
    provenance ? fold(provenance.synthesis ? "Provenance of a synthetic row" : "Provenance", json(provenance)) : null,
    el("h2", {}, samples.length ? `${number(samples.length)} samples` : "No samples"),
    el("div", { class: "samples" }, samples.map(sampleBox)),
  ].filter(Boolean);
  const open = (next) => next && go("turn", { ...filters(params), ...next });
  const all = allTurns();
  const at = all.findIndex((each) => each.trajectory === params.trajectory && String(each.turn) === params.turn);
  const other = (direction) => {
    const named = listed.found.filter((each) => each.id === params.trajectory || each.turns.length);
    const next = named[named.findIndex((each) => each.id === params.trajectory) + direction];
    return next && { trajectory: next.id, turn: next.turns[0].index };
  };
  return {
    nodes,
    keys: {
      j: () => open(all[at + 1]),
      k: () => at > 0 && open(all[at - 1]),
      n: () => open(other(1)),
      p: () => open(other(-1)),
      Escape: () => go("list", params),
    },
    ready: () => {
      window.scrollTo(0, 0);
      main.focus({ preventScroll: true });
    },
  };
}

function facts(candidate, verdict) {
  const values = [
    ["outcome", candidate.outcome],
    ["pass rate", number(candidate.pass_rate)],
    ["mean reward", number(candidate.reward_mean)],
    ["decided samples", number(candidate.num_scores)],
    ["tokens of the prompt", number(candidate.num_prompt_tokens)],
    ["select", verdict.decision === "unknown" ? null : `${verdict.decision}: ${verdict.reason}`],
  ].filter(([, value]) => value);
  return el("dl", { class: "inline" }, values.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, visible(value))]));
}

function messageBox(each) {
  const calls = (each.tool_calls ?? []).map((call) =>
    longText(`${call.function.name} ${JSON.stringify(call.function.arguments, null, 1)}`, { label: "Call" }),
  );
  return el(
    "div",
    { class: "message" },
    el("h3", {}, visible([each.role, each.name].filter(Boolean).join(" "))),
    each.reasoning_content ? longText(each.reasoning_content, { label: "Thinking" }) : null,
    each.content ? longText(each.content, { label: each.role }) : null,
    calls,
  );
}

function sampleBox(sample, at) {
  const kind = sample.score === null ? "undecided" : sample.score >= 1 ? "right" : "wrong";
  const score = sample.score === null ? "undecided" : `score ${number(sample.score)}`;
  return el(
    "article",
    { class: "sample" },
    el(
      "div",
      { class: `outcome ${kind}` },
      el("p", {}, el("strong", {}, visible(`${at + 1}: ${score}, ${sample.reason}`)), el("small", {}, ` ${number(sample.num_tokens)} tokens`)),
      sample.detail ? longText(sample.detail, { label: "Explanation" }) : null,
    ),
    longText(sample.text, { label: `Sample ${at + 1}` }),
  );
}

// ---- keys

function onKey(event) {
  const action = shown?.keys[event.key];
  action?.();
  return action !== undefined;
}

drawFrame({ list: "Trajectories" }, KEYS, onKey);
window.addEventListener("hashchange", show);
await show();
