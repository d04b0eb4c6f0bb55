// Two rollouts side by side, from the first turn in which they differ; words that only one has are marked.

import { get } from "./api.js";
import { el, number, visible } from "./dom.js";
import { address, go, parsed } from "./place.js";
import { outcome, turnBox } from "./trajectory.js";

const MOST_WORDS = 1500;

export async function showComparison(main, params) {
  const [first, second] = await Promise.all([params.a, params.b].map((name) => get("rollout", parsed(name))));
  const same = numEqualTurns(first.turns, second.turns);
  const numTurns = Math.max(first.turns.length, second.turns.length);
  const isOnePrompt = first.row.prompt_id !== null && first.row.prompt_id === second.row.prompt_id;
  const isTextless = [...first.turns, ...second.turns].some((turn) => !turn.has_text);
  const sentence = isTextless
    ? "pivot.record left texts out, so it is unknown where the rollouts differ."
    : same === numTurns
      ? "All turns are the same."
      : `${same === 0 ? "They differ from the first turn on" : same === 1 ? "The first turn is the same" : `Turns 1 to ${same} are the same`}; ${
          isOnePrompt ? "both have the same prompt." : "it is not known whether their prompts are the same."
        }`;
  const rows = [];
  for (let at = same; at < numTurns; at += 1) {
    const [left, right] = [first.turns[at], second.turns[at]];
    const common = left && right ? commonWords(left.text, right.text) : null;
    rows.push(side(left, at, first.turns.length, common?.[0]), side(right, at, second.turns.length, common?.[1]));
  }
  main.replaceChildren(
    el("h1", {}, "Two rollouts"),
    el("p", {}, `${sentence} `, el("a", { href: address("rollouts", params) }, "Back to the list")),
    el("div", { class: "pair" }, head(first, params.a, params), head(second, params.b, params), rows),
  );
  main.focus({ preventScroll: true });
  return {
    key: (event) => (event.key === "Escape" ? (go("rollouts", { ...params, a: null, b: null }), true) : false),
    refresh: async () => {},
    leave: () => {},
  };
}

function head(opened, name, params) {
  const { row, fields } = opened;
  const { a: _, b: __, ...rest } = params;
  return el(
    "div",
    { class: "side" },
    el("h2", {}, el("a", { href: address("rollout", { ...rest, place: name }) }, `step ${number(row.step)}, ${visible(row.file_name)}, line ${row.line}`)),
    outcome(row, fields),
  );
}

function side(turn, at, numTurns, common) {
  if (!turn) return el("div", { class: "side absent" }, `no turn ${at + 1}`);
  return el("div", { class: "side" }, turnBox(turn, at, numTurns, common ? (text) => marked(text, common) : null));
}

function numEqualTurns(first, second) {
  const end = Math.min(first.length, second.length);
  const isSame = (at) => first[at].has_text && JSON.stringify([first[at].text, first[at].observations]) === JSON.stringify([second[at].text, second[at].observations]);
  let at = 0;
  while (at < end && isSame(at)) at += 1;
  return at;
}

const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

/** Positions of the words that both texts have in the same order, for each of them; null for texts that are too long. */
export function commonWords(left, right) {
  const [a, b] = [words(left), words(right)];
  if (a.length > MOST_WORDS || b.length > MOST_WORDS) return null;
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] =
        a[i] === b[j]
          ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const [inLeft, inRight] = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      inLeft.add(i++);
      inRight.add(j++);
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return [inLeft, inRight];
}

function marked(text, common) {
  const fragment = document.createDocumentFragment();
  let run = "";
  let isCommon = true;
  const end = () => {
    if (run) fragment.append(isCommon ? visible(run) : el("mark", {}, visible(run)));
    run = "";
  };
  words(text).forEach((word, at) => {
    if (common.has(at) !== isCommon) end();
    isCommon = common.has(at);
    run += word;
  });
  end();
  return fragment;
}
