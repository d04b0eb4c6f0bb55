// Where the time of a rollout went, and which of its tokens the policy sampled, drawn to scale.

import { el, number, svg, visible } from "./dom.js";

const WIDTH = 1000;
const LANE = 16;
const MOST_BARS = 400;
const MOST_ROWS = 150;

const finite = (value) => (Number.isFinite(value) ? value : 0);
const seconds = (turn) => finite(turn.seconds);
const toolSeconds = (turn) => finite(turn.tool_seconds);
const nameOfCall = (call) => visible(call.name || "no tool");

/** Turns, calls and waiting for the router over time; null where turns have no seconds. */
export function timeLine(turns, fields) {
  if (!turns.length || turns.some((turn) => turn.seconds === null)) return null;
  const total = turns.reduce((sum, turn) => sum + seconds(turn) + toolSeconds(turn), 0);
  if (total <= 0) return null;
  const waited = Number.isFinite(fields.journey?.wait_seconds) ? fields.journey.wait_seconds : null;
  const bars = [];
  let at = 0;
  turns.forEach((turn, index) => {
    bars.push({ lane: 0, name: "policy", from: at, took: seconds(turn), what: `turn ${index + 1}: ${number(seconds(turn))} s` });
    at += seconds(turn);
    bars.push(...callBars(turn, at));
    at += toolSeconds(turn);
  });
  if (waited > 0) {
    bars.push({ lane: 2, name: "router", from: 0, took: Math.min(waited, total), what: `waiting for the router: ${number(waited)} s in total, included in the turns' time` });
  }
  const rows = turns.map((turn, index) => [
    `turn ${index + 1}`, number(turn.seconds), number(turn.tool_seconds),
    turn.calls.map((call) => `${nameOfCall(call)} ${number(finite(call.seconds))}`).join(", "),
  ]);
  return el(
    "details",
    { class: "timeline", open: true },
    el("summary", {}, `Time: ${number(total)} s`, waited === null ? "" : `, of which ${number(waited)} s waiting for the router`),
    drawing(bars, total, ["policy", "tools", waited > 0 ? "router" : null].filter(Boolean)),
    el("details", {}, el("summary", {}, "As a table"), table(["", "policy, s", "tools, s", "calls, s"], rows)),
  );
}

/** Calls one after the other within the waiting for tools, or all from its beginning where they ran at once. */
function callBars(turn, from) {
  const took = turn.calls.map((call) => finite(call.seconds));
  const isInTurn = took.reduce((sum, each) => sum + each, 0) <= toolSeconds(turn) * 1.05 + 1e-3;
  let at = from;
  const bars = turn.calls.map((call, index) => {
    const bar = { lane: 1, name: call.status === "ok" ? "tools" : "failed", from: at, took: took[index], what: `${nameOfCall(call)}: ${number(took[index])} s` };
    if (isInTurn) at += took[index];
    return bar;
  });
  return bars.length || !toolSeconds(turn) ? bars : [{ lane: 1, name: "tools", from, took: toolSeconds(turn), what: `tools: ${number(toolSeconds(turn))} s` }];
}

function drawing(bars, total, lanes) {
  const scale = (value) => (value / total) * WIDTH;
  return el(
    "div",
    { class: "lanes" },
    el("div", { class: "names", "aria-hidden": "true" }, lanes.map((lane) => el("span", {}, lane))),
    bars.length > MOST_BARS ? el("p", { class: "count" }, `The first ${MOST_BARS} of ${number(bars.length)} parts are drawn.`) : null,
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${lanes.length * LANE}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      bars.slice(0, MOST_BARS).map(({ lane, name, from, took, what }) =>
        svg(
          "rect",
          { class: `bar ${name}`, x: scale(from).toFixed(2), y: lane * LANE + 2, width: Math.max(1, scale(took)).toFixed(2), height: LANE - 4 },
          svg("title", {}, what),
        ),
      ),
    ),
  );
}

/** Stretches of the response that the policy sampled, and those that it read; null where they are not known. */
export function tokenMap(rows) {
  const known = rows.filter((row) => row.sampled_spans.length);
  if (!known.length) return null;
  return el(
    "details",
    { class: "tokens", id: "tokens" },
    el("summary", {}, "Tokens and mask ", el("kbd", {}, "m")),
    known.map((row, at) => rowTokens(row, known.length > 1 ? `Row ${at + 1} of ${known.length}` : "Response")),
  );
}

function rowTokens(row, title) {
  const stretches = stretchesOf(row);
  const total = row.sampled_spans.at(-1)[1];
  const sampled = row.sampled_spans.reduce((sum, [from, to]) => sum + to - from, 0);
  const bars = stretches.map(({ from, to, turn, isSampled }) => ({
    lane: 0, name: isSampled ? "policy" : "read", from, took: to - from, what: `tokens ${from} to ${to}: ${isSampled ? `sampled in turn ${turn}` : "read"}`,
  }));
  return el(
    "section",
    { "aria-label": title },
    el("p", {}, `${title}: ${number(total)} tokens, of which the policy sampled ${number(sampled)} (with a loss) and read ${number(total - sampled)} (masked).`),
    drawing(bars, total, [""]),
    el("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Stretches of tokens" },
      table(["tokens", "number", ""], stretches.map(({ from, to, turn, isSampled }) => [
        `${from} to ${to}`, number(to - from), isSampled ? `sampled, turn ${turn}` : "read, masked",
      ]))),
  );
}

/** All stretches of a response in order, each with the turn that it was sampled in, from 1. */
export function stretchesOf({ sampled_spans: spans, turn_ends: ends }) {
  const found = [];
  let before = 0;
  for (const [from, to] of spans) {
    if (from > before) found.push({ from: before, to: from, turn: null, isSampled: false });
    found.push({ from, to, turn: ends.findIndex((end) => to <= end) + 1, isSampled: true });
    before = to;
  }
  return found;
}

function table(head, rows) {
  const hidden = rows.length - MOST_ROWS;
  return el("table", {},
    hidden > 0 ? el("caption", {}, `The first ${MOST_ROWS} of ${number(rows.length)} rows`) : null,
    el("thead", {}, el("tr", {}, head.map((each) => el("th", { scope: "col" }, each)))),
    el("tbody", {}, rows.slice(0, MOST_ROWS).map((cells) => el("tr", {}, cells.map((cell, at) => (at ? el("td", {}, cell) : el("th", { scope: "row" }, cell)))))));
}
