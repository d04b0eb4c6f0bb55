// The table of rollouts: only the rows in sight are in the page, drawn by their position.

import { el, number, visible } from "./dom.js";
import { address, go, listed, nameOf, note, parsed } from "./place.js";
import { get } from "./api.js";
import * as rollouts from "./list.js";
import { tell } from "./frame.js";
import { disputed, toggleDispute } from "./verdicts.js";

const ROW = 28;
const TALLEST = 8_000_000; // pixels; browsers draw no element that is much taller
const AROUND = 60;

const COLUMNS = [
  { name: "run", title: "run", of: (row, info) => info.runs[row.run]?.name, isShown: (info) => info.runs.length > 1 },
  { name: "step", title: "step", of: (row) => number(row.step), isNumber: true },
  { name: "part", title: "part", of: (row) => (row.part === "validation" ? "val" : "train") },
  { name: "group", title: "group", of: (row) => (row.group_name ?? "").slice(0, 8), isUnsorted: true },
  { name: "score", title: "score", of: (row) => (row.score === null ? "undecided" : number(row.score)), isNumber: true },
  { name: "reason", title: "reason", of: (row) => (disputed(row) === null ? row.reason : `marked wrong: ${row.reason ?? ""}`), isWide: true },
  { name: "left_out", title: "left out", of: (row) => row.left_out ?? (row.kept === false ? "yes" : "") },
  { name: "stop_reason", title: "ended", of: (row) => row.stop_reason, isWide: true },
  { name: "error_kinds", title: "errors", of: (row) => row.error_kinds, isWide: true },
  { name: "num_turns", title: "turns", of: (row) => number(row.num_turns), isNumber: true },
  { name: "num_calls", title: "calls", of: (row) => number(row.num_calls), isNumber: true },
  { name: "sampled_tokens", title: "tokens", of: (row) => number(row.sampled_tokens), isNumber: true },
  { name: "generate_seconds", title: "seconds", of: (row) => number(row.generate_seconds), isNumber: true },
];

const SELECTS = [
  { name: "part", title: "Part" },
  { name: "reason", title: "Reason" },
  { name: "stop_reason", title: "Ended" },
  { name: "left_out", title: "Left out" },
  { name: "error_kinds", title: "Errors" },
  { name: "data_source", title: "Source" },
];

/** The view; returns what keys do in it. */
export async function showRollouts(main, params, info) {
  const view = new Table(main, params, info);
  await view.load();
  return view;
}

class Table {
  constructor(main, params, info) {
    this.params = params;
    this.info = info;
    this.at = 0;
    this.columns = COLUMNS.filter((column) => column.isShown?.(info) ?? true);
    this.count = el("p", { class: "count", role: "status" });
    this.canvas = el("div", { class: "canvas", role: "rowgroup" });
    this.spacer = el("div", { class: "spacer" }, this.canvas);
    this.head = el("div", { class: "row head", role: "row" });
    this.scroller = el("div", { class: "scroller", on: { scroll: () => this.draw() } }, this.head, this.spacer);
    this.grid = el(
      "div",
      { class: "grid", role: "grid", tabindex: "0", "aria-label": "Rollouts", "aria-colcount": this.columns.length },
      this.scroller,
    );
    this.filters = filterForm(params, info);
    this.offered = offered(info);
    main.replaceChildren(el("h1", {}, "Rollouts"), this.filters, this.count, this.grid);
    this.drawHead();
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this.scroller);
  }

  async load() {
    await this.refresh(this.info);
    if (this.params.place) {
      const { run, line, file } = parsed(this.params.place);
      const opened = await get("find", { run, line, file }).catch(() => null);
      const at = rollouts.positionOf(opened);
      if (at >= 0) this.at = at;
    }
    this.show();
    if (!this.filters.contains(document.activeElement)) this.grid.focus({ preventScroll: true });
  }

  /** Take over what the server has read since. */
  async refresh(info) {
    this.info = info;
    this.offerNewValues();
    const before = this.list?.ids[this.at];
    this.list = await rollouts.list(this.params, info.generation);
    const after = before === undefined ? -1 : this.list.ids.indexOf(before);
    if (after >= 0) this.at = after;
    const { length } = this.list.ids;
    const mean = this.list.mean_score === null ? "" : `, mean score ${number(this.list.mean_score)}`;
    const of = length === info.num_rollouts ? "" : ` of ${number(info.num_rollouts)}`;
    this.count.textContent = `${number(length)}${of} rollouts${mean}`;
    this.grid.setAttribute("aria-rowcount", String(length + 1));
    this.height = Math.min(length * ROW, TALLEST);
    this.spacer.style.height = `${Math.max(this.height, ROW)}px`;
    this.draw();
  }

  /** Let filters offer values that are new, unless somebody is at them. */
  offerNewValues() {
    if (this.offered === offered(this.info) || this.filters.contains(document.activeElement)) return;
    this.offered = offered(this.info);
    const form = filterForm(this.params, this.info);
    this.filters.replaceWith(form);
    this.filters = form;
  }

  drawHead() {
    const { sort = "id", is_descending: isDescending = "" } = this.params;
    this.head.replaceChildren(
      ...this.columns.map((column) => {
        const isSorted = sort === column.name;
        const direction = isSorted ? (isDescending ? "descending" : "ascending") : "none";
        const toggle = () => {
          const next = isSorted && isDescending ? {} : { sort: column.name, is_descending: isSorted ? "true" : "" };
          const { sort: _, is_descending: __, place: ___, ...rest } = this.params;
          go("rollouts", { ...rest, ...next });
        };
        const mark = isSorted ? (isDescending ? " ↓" : " ↑") : "";
        const label = column.isUnsorted
          ? column.title
          : el("button", { type: "button", on: { click: toggle } }, column.title + mark);
        return el("div", { class: cellClass(column), role: "columnheader", "aria-sort": direction }, label);
      }),
    );
  }

  /** Pixels for rows, below the head that stays in sight. */
  get room() {
    return Math.max(ROW, this.scroller.clientHeight - ROW);
  }

  get numVisible() {
    return Math.floor(this.room / ROW);
  }

  /** Position of the first row in sight. */
  get first() {
    const most = Math.max(0, this.list.ids.length - this.numVisible);
    const way = Math.max(1, this.height - this.room);
    if (this.height < TALLEST) return Math.min(most, Math.floor(this.scroller.scrollTop / ROW));
    return Math.round((this.scroller.scrollTop / way) * most);
  }

  scrollTo(first) {
    const most = Math.max(1, this.list.ids.length - this.numVisible);
    const way = Math.max(0, this.height - this.room);
    this.scroller.scrollTop = this.height < TALLEST ? first * ROW : (first / most) * way;
  }

  draw() {
    if (!this.list) return;
    const first = this.first;
    const end = Math.min(this.list.ids.length, first + this.numVisible + 1);
    const missing = [];
    const drawn = [];
    for (let at = first; at < end; at += 1) {
      const row = rollouts.cached(this.list.ids[at]);
      if (rollouts.isMissing(this.list.ids[at])) missing.push(this.list.ids[at]);
      drawn.push(this.drawRow(at, row));
    }
    this.canvas.style.transform = `translateY(${this.height < TALLEST ? first * ROW : this.scroller.scrollTop}px)`;
    if (drawn.length === 0) drawn.push(el("p", { class: "empty" }, this.emptySentence()));
    this.canvas.replaceChildren(...drawn);
    const selected = drawn[this.at - first];
    if (selected?.id) this.grid.setAttribute("aria-activedescendant", selected.id);
    else this.grid.removeAttribute("aria-activedescendant");
    if (missing.length) this.fetchAround(first, end);
  }

  emptySentence() {
    if (this.info.num_unread) return "Nothing yet: dumps are being read.";
    if (this.info.num_rollouts) return "No rollout passes these filters.";
    return "There are no dumps of rollouts: set trainer.rollout_data_dir in the launch.";
  }

  fetchAround(first, end) {
    if (this.isFetching) return;
    this.isFetching = true;
    const ids = this.list.ids.slice(Math.max(0, first - AROUND), end + AROUND);
    rollouts
      .fetchRows(ids)
      .then(() => {
        this.isFetching = false;
        this.draw();
      })
      .catch(() => (this.isFetching = false));
  }

  drawRow(at, row) {
    const classes = ["row"];
    if (at === this.at) classes.push("selected");
    if (this.list.groups[at] % 2) classes.push("odd");
    if (row && rollouts.isMarked(row)) classes.push("marked");
    if (row?.kept === false) classes.push("left-out");
    return el(
      "div",
      {
        class: classes.join(" "),
        role: "row",
        id: `row-${at}`,
        "aria-rowindex": at + 2,
        "aria-selected": at === this.at ? "true" : "false",
        on: {
          click: () => this.select(at),
          dblclick: () => this.open(at),
        },
      },
      this.columns.map((column, number) => {
        const text = row ? visible(column.of(row, this.info) ?? "") : number === 0 ? "..." : "";
        return el("div", { class: cellClass(column, row), role: "gridcell", title: text.length > 12 ? text : null }, text);
      }),
    );
  }

  select(at) {
    this.at = Math.max(0, Math.min(this.list.ids.length - 1, at));
    this.show();
    const row = rollouts.cached(this.list.ids[this.at]);
    if (row) note("rollouts", { ...this.params, place: nameOf(row) });
  }

  show() {
    const first = this.first;
    if (this.at < first) this.scrollTo(this.at);
    else if (this.at >= first + this.numVisible) this.scrollTo(this.at - this.numVisible + 1);
    this.draw();
  }

  async open(at = this.at) {
    if (!this.list.ids.length) return;
    const row = await rollouts.rowAt(at);
    if (row) go("rollout", { ...this.params, place: nameOf(row) });
  }

  async mark() {
    const row = this.list.ids.length ? await rollouts.rowAt(this.at) : null;
    if (row) rollouts.toggleMark(row);
    this.draw();
  }

  async dispute() {
    const row = this.list.ids.length ? await rollouts.rowAt(this.at) : null;
    if (row) await toggleDispute(row).catch(tell);
    this.draw();
  }

  async openHistory() {
    const row = this.list.ids.length ? await rollouts.rowAt(this.at) : null;
    const followed = row && rollouts.followedBy(row);
    if (followed) go("history", followed);
  }

  changeStep(direction) {
    const steps = this.info.rollout_steps;
    const now = this.params.step === undefined ? undefined : Number(this.params.step);
    const next =
      now === undefined
        ? steps.at(direction > 0 ? 0 : -1)
        : direction > 0
          ? steps.find((step) => step > now)
          : steps.findLast((step) => step < now);
    const { place: _, ...rest } = this.params;
    if (next !== undefined) go("rollouts", { ...rest, step: next });
  }

  /** Whether a key did something. */
  key(event) {
    const page = this.numVisible - 1;
    const steps = {
      j: () => this.select(this.at + 1),
      ArrowDown: () => this.select(this.at + 1),
      k: () => this.select(this.at - 1),
      ArrowUp: () => this.select(this.at - 1),
      PageDown: () => this.select(this.at + page),
      PageUp: () => this.select(this.at - page),
      Home: () => this.select(0),
      End: () => this.select(this.list.ids.length - 1),
      n: () => this.select(rollouts.otherGroup(this.at, 1)),
      p: () => this.select(rollouts.otherGroup(this.at, -1)),
      Enter: () => this.open(),
      x: () => this.mark(),
      w: () => this.dispute(),
      h: () => this.openHistory(),
      "[": () => this.changeStep(-1),
      "]": () => this.changeStep(1),
    };
    if (event.key === "Enter" && event.target.closest("button, a, summary")) return false;
    return steps[event.key] ? (steps[event.key](), true) : false;
  }

  leave() {
    this.resizing.disconnect();
  }
}

function cellClass(column, row) {
  const classes = ["cell"];
  if (column.isNumber) classes.push("number");
  if (column.isWide) classes.push("wide");
  if (column.name === "score" && row) {
    classes.push(row.score === null ? "undecided" : row.score >= 0.5 ? "right" : "wrong");
  }
  return classes.join(" ");
}

/** What filters offer, as one text. */
const offered = (info) => JSON.stringify(info.facets);

function filterForm(params, info) {
  const form = el("form", { class: "filters", role: "search", "aria-label": "Filters" });
  const changed = () => {
    const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
    const kept = Object.fromEntries(
      Object.entries(listed(params)).filter(([name]) => !form.elements.namedItem(name)),
    );
    go("rollouts", { ...kept, ...given });
  };
  form.addEventListener("submit", (event) => (event.preventDefault(), changed()));
  form.addEventListener("change", changed);
  const option = (value, title, chosen) => el("option", { value, selected: String(chosen ?? "") === String(value) }, title);
  const select = (name, title, choices) =>
    el("label", {}, title, el("select", { name }, option("", "all", params[name]), choices));
  const selects = SELECTS.map(({ name, title }) => {
    const values = info.facets[name] ?? [];
    const isThere = values.some(({ value }) => value === params[name]) || params[name] === undefined;
    const offered = isThere ? values : [{ value: params[name], count: 0 }, ...values];
    if (offered.length === 0 || (offered.length === 1 && params[name] === undefined)) return null;
    const choices = offered.map(({ value, count }) =>
      option(value, `${visible(value).slice(0, 40)} (${number(count)})`, params[name]),
    );
    return select(name, title, choices);
  });
  const field = (name, title, attributes = {}) =>
    el("label", {}, title, el("input", { name, value: params[name] ?? "", ...attributes }));
  const decimal = { inputmode: "decimal", size: 4, pattern: "-?[0-9]*[.]?[0-9]*" };
  form.append(
    ...[
      info.runs.length > 1
        ? select("run", "Run", info.runs.map((run, at) => option(at, visible(run.name), params.run)))
        : null,
      field("step", "Step", { inputmode: "numeric", size: 4, pattern: "[0-9]*" }),
      ...selects,
      select("is_kept", "Update", [option("true", "saw it", params.is_kept), option("false", "did not", params.is_kept)]),
      field("score_from", "Score from", decimal),
      field("score_to", "to", decimal),
      field("words", "Words", { type: "search", id: "words", size: 16, "aria-keyshortcuts": "/" }),
      field("condition", "SQL", { size: 26, placeholder: "num_calls > 2 AND score < 1", spellcheck: "false", title: info.columns.join(", ") }),
      ...Object.keys(listed(params))
        .filter((name) => HIDDEN_FILTERS[name])
        .map((name) => {
          const { [name]: _, ...rest } = params;
          return el("a", { class: "chip", href: address("rollouts", rest) }, `${HIDDEN_FILTERS[name]} ${visible(params[name]).slice(0, 12)} ×`);
        }),
      el("a", { class: "clear", href: "#/rollouts" }, "clear"),
      el("button", { class: "submit" }, "Apply"),
    ].filter(Boolean),
  );
  return form;
}

const HIDDEN_FILTERS = { prompt_id: "prompt", group_name: "group", trajectory_id: "trajectory", turn_index: "turn" };
