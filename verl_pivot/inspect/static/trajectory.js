// One rollout, turn by turn: what the policy wrote, what it called and read, and what came of it.

import { get } from "./api.js";
import { el, longText, number, visible } from "./dom.js";
import { address, go, listed, nameOf, note, parsed } from "./place.js";
import * as rollouts from "./list.js";
import { tell } from "./frame.js";
import { timeLine, tokenMap } from "./timeline.js";
import { disputed, toggleDispute } from "./verdicts.js";

const TURNS_AT_ONCE = 40;
const NO_PROMPT = "The files do not contain the prompt: pivot.record may have left it out, or an earlier version of verl-pivot did not write it.";

export async function showRollout(main, params, info) {
  const view = new Trajectory(main, params);
  await view.load(info);
  return view;
}

class Trajectory {
  constructor(main, params) {
    this.main = main;
    this.params = params;
  }

  async load(info) {
    this.info = info;
    const [opened] = await Promise.all([get("rollout", parsed(this.params.place)), rollouts.list(this.params, info.generation)]);
    this.opened = opened;
    this.at = rollouts.positionOf(opened.row);
    this.draw();
  }

  /** The rollout stays as it is; its place in the list may be another one. */
  async refresh(info) {
    this.info = info;
    this.list = await rollouts.list(this.params, info.generation);
    this.at = rollouts.positionOf(this.opened.row);
    this.drawPosition();
  }

  draw() {
    const { row, turns, prompt, fields, rows } = this.opened;
    this.position = el("p", { class: "position", role: "status" });
    this.drawPosition();
    this.turns = el("div", { class: "turns" });
    this.main.replaceChildren(
      el("h1", {}, `${row.part === "validation" ? "Validation" : "Rollout"}, step ${number(row.step)}`),
      this.position,
      outcome(row, fields),
      (this.verdict = el("p", { class: "verdict", role: "status" })),
      this.strip(),
      facts(row, fields, this.links()),
      timeLine(turns, fields) ?? "",
      tokenMap(rows) ?? "",
      prompt.length ? promptBox(prompt) : el("p", { class: "count" }, NO_PROMPT),
      this.turns,
    );
    this.drawVerdict();
    this.numShown = 0;
    this.showTurns(turns);
    window.scrollTo(0, 0);
    this.main.focus({ preventScroll: true });
  }

  drawPosition() {
    const { row } = this.opened;
    const of = this.at >= 0 ? `${number(this.at + 1)} in the list` : "not in the filtered list";
    const mark = rollouts.isMarked(row) ? ", marked" : "";
    this.position.replaceChildren(
      `${visible(row.file_name)}, line ${row.line}; ${of}${mark}. `,
      el("a", { href: address("rollouts", this.params) }, "Back to the list"),
    );
  }

  /** Whether the verdict is marked as wrong, and a button that changes it. */
  drawVerdict() {
    const score = disputed(this.opened.row);
    const button = el("button", { type: "button", "aria-keyshortcuts": "w", "aria-pressed": String(score !== null), on: { click: () => this.dispute() } },
      score === null ? "Mark the verdict as wrong " : "Remove the mark ", el("kbd", {}, "w"));
    this.verdict.replaceChildren(...(score === null ? [] : [el("strong", {}, `Marked as wrong: it should have scored ${number(score)}.`), " "]), button);
  }

  async dispute() {
    const { row } = this.opened;
    try {
      await toggleDispute(row);
    } catch (error) {
      return tell(error);
    }
    if (this.opened.row === row) this.drawVerdict();
  }

  showTokens() {
    const box = document.getElementById("tokens");
    if (!box) return;
    box.open = !box.open;
    if (box.open) box.scrollIntoView({ block: "nearest" });
  }

  openHistory() {
    const followed = rollouts.followedBy(this.opened.row);
    if (followed) go("history", followed);
  }

  /** Outcomes of the group, each leading to its rollout. */
  strip() {
    const { group, row } = this.opened;
    if (group.length < 2) return el("p", { class: "strip" });
    const links = group.map((each) =>
      el(
        "a",
        {
          href: address("rollout", { ...this.params, place: nameOf(each) }),
          class: `${outcomeClass(each)}${each.kept === false ? " left-out" : ""}`,
          "aria-current": each.id === row.id ? "true" : null,
          title: `${each.reason ?? ""} ${each.left_out ?? ""}`.trim() || null,
        },
        each.score === null ? "?" : number(each.score),
      ),
    );
    const more = group.length >= 200 ? " and perhaps more" : "";
    return el("nav", { class: "strip", "aria-label": "Group" }, el("span", {}, "Group"), links, more);
  }

  links() {
    const { row } = this.opened;
    const found = [];
    if (row.group_name) found.push(["group", { group_name: row.group_name }]);
    if (row.prompt_id) found.push(["this prompt in all steps", { prompt_id: row.prompt_id, sort: "step" }]);
    if (row.trajectory_id !== null && row.turn_index !== null) {
      found.push(["this pivot in all steps", { trajectory_id: row.trajectory_id, turn_index: row.turn_index, sort: "step" }]);
    }
    const links = found.map(([title, params]) => el("a", { href: address("rollouts", params) }, title));
    const followed = rollouts.followedBy(row);
    if (followed) links.push(el("a", { href: address("history", followed) }, "through training"));
    return links;
  }

  showTurns(turns) {
    const end = Math.min(turns.length, this.numShown + TURNS_AT_ONCE);
    const added = turns.slice(this.numShown, end).map((turn, at) => turnBox(turn, this.numShown + at, turns.length));
    this.more?.remove();
    this.turns.append(...added);
    this.numShown = end;
    if (end === turns.length) return;
    this.more = el(
      "button",
      { type: "button", class: "more", on: { click: () => this.showTurns(turns) } },
      `${Math.min(TURNS_AT_ONCE, turns.length - end)} of ${number(turns.length - end)} more turns`,
    );
    this.turns.append(this.more);
    added[0]?.focus?.({ preventScroll: true });
  }

  async goTo(at) {
    if (this.at < 0 || this.isMoving) return;
    const { ids } = await rollouts.list(this.params, this.info.generation);
    if (at < 0 || at >= ids.length || at === this.at) return;
    this.isMoving = true;
    try {
      const row = await rollouts.rowAt(at);
      if (!row) return; // its step was sampled anew
      this.params = { ...this.params, place: nameOf(row) };
      note("rollout", this.params);
      await this.load(this.info);
    } finally {
      this.isMoving = false;
    }
  }

  otherStep(direction) {
    const { step } = this.opened.row;
    const steps = this.info.rollout_steps;
    const next = direction > 0 ? steps.find((each) => each > step) : steps.findLast((each) => each < step);
    if (next !== undefined) go("rollouts", { ...listed(this.params), step: next });
  }

  key(event) {
    const actions = {
      j: () => this.goTo(this.at + 1),
      k: () => this.goTo(this.at - 1),
      n: () => this.goTo(rollouts.otherGroup(this.at, 1)),
      p: () => this.goTo(rollouts.otherGroup(this.at, -1)),
      w: () => this.dispute(),
      m: () => this.showTokens(),
      h: () => this.openHistory(),
      x: () => (rollouts.toggleMark(this.opened.row), this.drawPosition()),
      "[": () => this.otherStep(-1),
      "]": () => this.otherStep(1),
      Escape: () => go("rollouts", this.params),
    };
    return actions[event.key] ? (actions[event.key](), true) : false;
  }

  leave() {}
}

export const outcomeClass = (row) => (row.score === null ? "undecided" : row.score >= 0.5 ? "right" : "wrong");

/** The verdict in words, and whether the update saw the rollout. */
export function outcome(row, fields) {
  const score = row.score === null ? "undecided" : `score ${number(row.score)}`;
  const verdict = [score, row.reason, row.verifier ? `by ${row.verifier}` : null].filter(Boolean).join(", ");
  const kept =
    row.kept === false ? `The update did not see it: ${row.left_out ?? "no reason is given"}.` : row.kept ? "The update saw it." : "";
  const detail = typeof fields.detail === "string" && fields.detail ? longText(fields.detail, { label: "Explanation" }) : null;
  const failure = typeof fields.failure === "string" && fields.failure ? longText(fields.failure, { label: "Failure" }) : null;
  return el(
    "section",
    { class: `outcome ${outcomeClass(row)}`, "aria-label": "Outcome" },
    el("p", {}, el("strong", {}, visible(verdict)), ` ${visible(kept)}`),
    detail,
    failure,
  );
}

function facts(row, fields, links) {
  const shown = [
    ["ended", row.stop_reason],
    ["tokens sampled", number(row.sampled_tokens)],
    ["tokens of the prompt", number(row.prompt_tokens)],
    ["seconds of sampling", number(row.generate_seconds)],
    ["seconds of tools", number(row.tool_seconds)],
    ["source", row.data_source],
    ["trajectory", row.trajectory_id === null ? null : `${row.trajectory_id}, turn ${row.turn_index}`],
  ].filter(([, value]) => value);
  const all = Object.entries(fields).map(([name, value]) => [
    el("dt", {}, visible(name)),
    el("dd", {}, longText(typeof value === "string" ? value : JSON.stringify(value), { label: name })),
  ]);
  return el(
    "section",
    { class: "facts", "aria-label": "Facts" },
    el("dl", { class: "inline" }, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, visible(value))]).flat()),
    links.length ? el("p", { class: "links" }, links.flatMap((link, at) => (at ? [" · ", link] : [link]))) : null,
    el("details", {}, el("summary", {}, `All ${all.length} fields`), el("dl", { class: "fields" }, all.flat())),
  );
}

function promptBox(prompt) {
  const size = prompt.reduce((sum, message) => sum + String(message.content ?? "").length, 0);
  const messages = prompt.map((message) =>
    el(
      "div",
      { class: "message" },
      message.role ? el("h3", {}, visible(message.role)) : null,
      longText(typeof message.content === "string" ? message.content : JSON.stringify(message), { label: message.role ?? "Prompt" }),
    ),
  );
  return el(
    "details",
    { class: "prompt", open: size < 600 },
    el("summary", {}, `Prompt, ${number(size)} characters`),
    messages,
  );
}

/** One turn with its calls and what the policy read after them. */
export function turnBox(turn, index, numTurns, mark = null) {
  const about = [
    turn.num_tokens === null ? null : `${number(turn.num_tokens)} tokens`,
    turn.seconds === null ? null : `${number(turn.seconds)} s`,
    turn.ended === false ? "cut off" : null,
    turn.reward === null ? null : `${turn.step ? "return" : "reward"} ${number(turn.reward)}`,
    ...notes(turn.step),
  ].filter(Boolean);
  return el(
    "article",
    { class: "turn", tabindex: "-1", "aria-label": `Turn ${index + 1} of ${numTurns}` },
    el("h2", {}, `Turn ${index + 1}`, el("small", {}, about.map((each) => ` ${each}`).join(","))),
    longText(turn.text, { label: `Text of turn ${index + 1}`, mark }),
    turn.calls.map(callBox),
    turn.observations.map((text, at) => observationBox(text, at, turn.observations.length)),
  );
}

function notes(step) {
  if (!step) return [];
  return [
    step.has_form === false ? "not in the required form" : null,
    step.ran === false ? "did not run" : null,
    step.is_trimmed ? "after the context was trimmed" : null,
    step.was_restarted ? "interpreter restarted" : null,
  ];
}

function callBox(call) {
  const status = call.status === "ok" ? "" : ` ${call.error_kind ?? call.status}`;
  const took = typeof call.seconds === "number" ? `, ${number(call.seconds)} s` : "";
  const given = call.arguments === null || call.arguments === undefined ? "unreadable" : JSON.stringify(call.arguments, null, 1);
  return el(
    "details",
    { class: call.status === "ok" ? "call" : "call failed" },
    el("summary", {}, `Call of ${visible(call.name || "no tool")}${visible(status)}${took}`),
    longText(given, { label: "Arguments" }),
    call.detail ? longText(String(call.detail), { label: "Failure" }) : null,
  );
}

function observationBox(text, at, numTexts) {
  const title = `Read${numTexts > 1 ? ` (${at + 1} of ${numTexts})` : ""}, ${number(text.length)} characters`;
  return el(
    "details",
    { class: "observation", open: text.length < 1200 },
    el("summary", {}, title),
    longText(text, { label: title }),
  );
}
