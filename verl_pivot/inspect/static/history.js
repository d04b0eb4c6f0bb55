// One prompt, or one pivot, through training: its score in each step, and its rollouts of two steps side by side.

import { get, numbers } from "./api.js";
import { el, longText, number, visible } from "./dom.js";
import { address, go, nameOf, note, parsed } from "./place.js";
import { curve } from "./run.js";
import { outcomeClass, turnBox } from "./trajectory.js";

const MOST_ROLLOUTS = 64;
const PARTS = { training: "training", validation: "validation" };

export async function showHistory(main, params, info) {
  const view = new History(main, params);
  await view.refresh(info);
  main.focus({ preventScroll: true });
  return view;
}

/** The parameters that name the prompt or the pivot. */
const followed = ({ prompt_id, trajectory_id, turn_index }) => (trajectory_id === undefined ? { prompt_id } : { trajectory_id, turn_index });

class History {
  constructor(main, params) {
    this.main = main;
    this.params = params;
    this.known = null;
  }

  async refresh(info) {
    this.info = info;
    const found = await get("history", followed(this.params));
    const key = JSON.stringify(found);
    if (key === this.known) return;
    this.known = key;
    this.part = this.params.part ?? found[0]?.part ?? "training";
    this.outcomes = found.filter(({ part }) => part === this.part);
    this.parts = Object.keys(PARTS).filter((part) => found.some((each) => each.part === part));
    this.steps = [...new Set(this.outcomes.map(({ step }) => step))].sort((a, b) => a - b);
    await this.draw();
  }

  /** Steps on the left and on the right: those of the address, or the first and the last. */
  chosen() {
    const { steps, params } = this;
    const given = (name, otherwise) => (steps.includes(Number(params[name])) ? Number(params[name]) : otherwise);
    return [given("left", steps[0]), given("right", steps.at(-1))];
  }

  async draw() {
    const title = this.params.trajectory_id === undefined ? `Prompt ${this.params.prompt_id}` : `Pivot ${this.params.trajectory_id}, turn ${this.params.turn_index}`;
    if (!this.steps.length) {
      return this.main.replaceChildren(el("h1", {}, visible(title)), el("p", { class: "empty" }, "None of its rollouts has been read."));
    }
    const series = this.info.runs.map((_, run) =>
      this.outcomes.filter((each) => each.run === run && each.mean_score !== null).map((each) => [each.step, each.mean_score]),
    );
    this.sides = [el("div", { class: "side" }), el("div", { class: "side" })];
    const total = this.outcomes.reduce((sum, each) => sum + each.num_rollouts, 0);
    this.main.replaceChildren(
      el("h1", {}, visible(title)),
      el("p", {}, `${number(total)} rollouts in ${number(this.steps.length)} steps of ${this.part}. `,
        this.parts.filter((part) => part !== this.part).map((part) => el("a", { href: address("history", { ...followed(this.params), part }) }, `In ${part} `)),
        el("a", { href: address("rollouts", { ...followed(this.params), sort: "step" }) }, "All rollouts in a list")),
      el("div", { class: "curves" }, curve("mean score", series, this.info, (step) => this.choose("right", step))),
      el("p", { class: "count" }, "The keys [ and ] change the step on the right, { and } that on the left."),
      el("div", { class: "pair" }, this.sides),
    );
    await this.drawSides();
  }

  async drawSides() {
    const [left, right] = this.chosen();
    await Promise.all([this.drawSide(0, "left", left), this.drawSide(1, "right", right)]);
  }

  async drawSide(at, name, step) {
    const side = this.sides[at];
    const body = await get("ordered", { ...followed(this.params), part: this.part, step });
    const ids = [...numbers(body.ids)];
    const rows = ids.length ? await get("rows", { ids: ids.slice(0, MOST_ROLLOUTS).join(",") }) : [];
    if (this.sides[at] !== side || this.chosen()[at] !== step) return; // another step was chosen meanwhile
    const select = el("select", { "aria-label": `Step on the ${name}`, on: { change: () => this.choose(name, Number(select.value)) } },
      this.steps.map((each) => el("option", { value: each, selected: each === step }, String(each))));
    const decided = body.mean_score === null ? "none decided" : `mean score ${number(body.mean_score)}`;
    side.replaceChildren(
      el("h2", {}, "Step ", select, el("small", {}, ` ${number(ids.length)} rollouts, ${decided}`)),
      ...rows.map((row) => this.rollout(row)),
      ids.length > rows.length ? el("p", { class: "count" }, `The first ${rows.length} of ${number(ids.length)} rollouts.`) : "",
    );
  }

  /** A rollout in one line, whose turns are read when it is opened. */
  rollout(row) {
    const score = row.score === null ? "undecided" : number(row.score);
    const run = this.info.runs.length > 1 ? `${this.info.runs[row.run].name}: ` : "";
    const box = el("details", { class: `rollout ${outcomeClass(row)}`, on: { toggle: () => box.open && this.open(box, row) } },
      el("summary", {}, el("b", { class: outcomeClass(row) }, score), ` ${visible(`${run}${row.reason ?? ""}`)}, ${number(row.sampled_tokens)} tokens${row.kept === false ? ", left out" : ""}`));
    return box;
  }

  async open(box, row) {
    if (box.children.length > 1) return;
    const { turns } = await get("rollout", parsed(nameOf(row)));
    const href = address("rollout", { ...followed(this.params), place: nameOf(row) });
    box.append(
      el("p", {}, el("a", { href }, "Open this rollout")),
      ...turns.slice(0, 10).map((turn, at) => turnBox(turn, at, turns.length)),
      turns.length > 10 ? longText(`${turns.length - 10} more turns`, { label: "More" }) : "",
    );
  }

  choose(name, step) {
    this.params = { ...this.params, [name]: step };
    note("history", this.params);
    return this.drawSides();
  }

  move(name, at, direction) {
    const index = this.steps.indexOf(this.chosen()[at]) + direction;
    if (index >= 0 && index < this.steps.length) this.choose(name, this.steps[index]);
  }

  key(event) {
    if (!this.steps.length) return false;
    const actions = {
      "[": () => this.move("right", 1, -1),
      "]": () => this.move("right", 1, 1),
      "{": () => this.move("left", 0, -1),
      "}": () => this.move("left", 0, 1),
      Escape: () => go("rollouts", { ...followed(this.params), sort: "step" }),
    };
    return actions[event.key] ? (actions[event.key](), true) : false;
  }

  leave() {}
}
