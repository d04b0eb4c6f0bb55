// A run, or several over each other: metrics as curves, and how their settings differ.

import { get } from "./api.js";
import { Changes } from "./changes.js";
import { el, number, svg, visible } from "./dom.js";
import { go, note } from "./place.js";
import { disputeFiles } from "./verdicts.js";

const WIDTH = 340;
const HEIGHT = 150;
const EDGE = { left: 46, right: 8, top: 8, bottom: 20 };
const MOST_CURVES = 48;

// What is asked of most trainings first, in this order; a name may end in a star.
const FIRST = [
  "critic/score/mean", "critic/rewards/mean", "val-core/*", "pivot/mixed_groups", "pivot/reward_variance",
  "response_length/mean", "rollout/calls_per_trajectory", "rollout/masked_rate", "actor/entropy", "actor/grad_norm",
  "actor/kl_loss", "actor/pg_loss", "actor/lr", "timing_s/step", "timing_s/gen", "perf/throughput",
];

export async function showRun(main, params, info) {
  const view = new RunView(main, params, info);
  await view.refresh(info);
  return view;
}

class RunView {
  constructor(main, params, info) {
    this.params = params;
    this.curves = el("div", { class: "curves" });
    this.wanted = el("input", {
      type: "search", id: "words", value: params.metrics ?? "", "aria-keyshortcuts": "/", size: 28,
      placeholder: "such as reward, timing_s",
      on: {
        input: () => {
          this.params = { ...this.params, metrics: this.wanted.value };
          note("run", this.params);
          this.refresh(this.info);
        },
      },
    });
    this.shown = el("p", { class: "count", role: "status" });
    this.facts = el("section", { "aria-label": "Run" });
    this.problems = el("section", { "aria-label": "Problems" });
    this.changes = new Changes(info);
    main.replaceChildren(
      el("h1", {}, info.runs.map((run) => visible(run.name)).join(" and ")),
      this.facts,
      this.problems,
      ...(this.changes.isShown ? [this.changes.section] : []),
      el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
        el("label", {}, "Metrics whose name contains", this.wanted)),
      this.shown,
      this.curves,
      settings(info) ?? "",
    );
    main.focus({ preventScroll: true });
  }

  async refresh(info) {
    this.info = info;
    this.drawFacts();
    this.changes.refresh(info);
    const all = [...new Set(info.runs.flatMap((run) => run.metrics))];
    const wanted = (this.params.metrics ?? "").trim().toLowerCase();
    const names = wanted ? all.filter((name) => name.toLowerCase().includes(wanted)) : first(all);
    const shown = names.slice(0, MOST_CURVES);
    this.shown.textContent = all.length
      ? `${shown.length} of ${all.length} metrics${names.length > shown.length ? `; ${names.length} names match` : ""}`
      : "There are no metrics yet: they are read from metrics.jsonl, the file of verl's file logger, or a console log.";
    const key = (this.asked = shown.join("\n"));
    const points = shown.length ? await get("metrics", { names: key }) : [];
    if (key !== this.asked || points.length !== (shown.length ? info.runs.length : 0)) return;
    const focused = document.activeElement?.dataset?.metric;
    this.curves.replaceChildren(...shown.map((name) => curve(name, points.map((of) => of[name]), info)));
    if (focused) this.curves.querySelector(`[data-metric="${CSS.escape(focused)}"]`)?.focus();
  }

  drawFacts() {
    const { info } = this;
    this.facts.replaceChildren(
      ...info.runs.map((run, at) =>
        el("p", { class: "run-fact" },
          el("span", { class: `key run-${at % 6}`, "aria-hidden": "true" }), " ",
          el("strong", {}, visible(run.name)),
          `: ${run.method ? `method ${visible(run.method)}, ` : ""}${run.steps.length ? `steps ${run.steps[0]} to ${run.steps.at(-1)}` : "no metrics"}`,
          run.checkpoints.length ? `, checkpoints of ${run.checkpoints.join(", ")}` : "",
          `. ${visible(run.path)}`)),
      el("p", {}, el("a", { href: "#/rollouts" }, `${number(info.num_rollouts)} rollouts`), ` in ${info.num_files === 1 ? "one dump" : `${number(info.num_files)} dumps`}`),
      ...disputeFiles().map(({ path, number: marks }) =>
        el("p", { class: "disputes" }, `${marks === 1 ? "One verdict is" : `${number(marks)} verdicts are`} marked as wrong, in `, el("code", {}, visible(path)), `. Score the marked rollouts with another verifier or other options: `,
          el("code", {}, visible(`verl-pivot score ${path} --trajectories pivots.parquet`)))),
    );
    this.problems.replaceChildren(...info.problems.map((each) => el("p", { class: "problem" }, visible(each))));
  }

  key() {
    return false;
  }

  leave() {}
}

function first(names) {
  const found = FIRST.flatMap((pattern) =>
    pattern.endsWith("*") ? names.filter((name) => name.startsWith(pattern.slice(0, -1))).slice(0, 4) : names.includes(pattern) ? [pattern] : [],
  );
  return found.length ? found : names.slice(0, 12);
}

/** A drawing of one metric, which arrow keys and the pointer read, and Enter opens at a step. */
export function curve(name, series, info, openStep = (step) => go("rollouts", { step })) {
  const all = series.flat();
  const readout = el("figcaption", {}, el("b", {}, visible(name)), " ", el("span", {}));
  if (all.length === 0) return el("figure", { class: "curve" }, readout, el("p", { class: "empty" }, "no finite value"));
  const steps = [...new Set(all.map(([step]) => step))].sort((a, b) => a - b);
  const values = all.map(([, value]) => value);
  let [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const [begin, end] = [steps[0], steps.at(-1)];
  const x = (step) => EDGE.left + ((step - begin) / (end - begin || 1)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const at = (step, value) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`;
  const line = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, x1: -9, x2: -9 });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    [low, high].map((value) => [
      svg("line", { class: "axis", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { x: EDGE.left - 4, y: y(value) + 4, "text-anchor": "end" }, number(value)),
    ]).flat(),
    svg("text", { x: EDGE.left, y: HEIGHT - 5 }, String(begin)),
    svg("text", { x: WIDTH - EDGE.right, y: HEIGHT - 5, "text-anchor": "end" }, `step ${end}`),
    series.map((points, run) =>
      points.length === 1
        ? svg("circle", { class: `run-${run % 6}`, cx: x(points[0][0]), cy: y(points[0][1]), r: 2.5 })
        : svg("polyline", { class: `run-${run % 6}`, points: points.map((point) => at(...point)).join(" ") })),
    line,
  );
  let shown = steps.length - 1;
  const read = (index) => {
    shown = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[shown];
    const told = series.map((points, run) => {
      const found = points.find(([each]) => each === step);
      return found ? `${info.runs.length > 1 ? `${visible(info.runs[run].name)} ` : ""}${number(found[1])}` : null;
    });
    readout.lastChild.textContent = `${told.filter(Boolean).join(", ")} at step ${step}`;
    line.setAttribute("x1", x(step));
    line.setAttribute("x2", x(step));
  };
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const step = begin + (((event.clientX - box.left) * (WIDTH / box.width) - EDGE.left) / (WIDTH - EDGE.left - EDGE.right)) * (end - begin);
    return steps.reduce((best, each, index) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? index : best), 0);
  };
  const open = () => openStep(steps[shown]);
  read(shown);
  line.setAttribute("x1", -9);
  line.setAttribute("x2", -9);
  return el(
    "figure",
    {
      class: "curve",
      tabindex: "0",
      "data-metric": name,
      "aria-label": `${name}, steps ${begin} to ${end}, least ${number(low)}, greatest ${number(high)}. Arrow keys read steps, Enter opens rollouts.`,
      on: {
        pointermove: (event) => read(nearest(event)),
        click: open,
        keydown: (event) => {
          const actions = { ArrowLeft: () => read(shown - 1), ArrowRight: () => read(shown + 1), Home: () => read(0), End: () => read(steps.length - 1), Enter: open };
          if (!actions[event.key]) return;
          actions[event.key]();
          event.preventDefault();
        },
      },
    },
    readout,
    drawing,
  );
}

function settings(info) {
  const differing = Object.entries(info.differences);
  const table = (head, rows) =>
    el("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Settings" },
      el("table", {},
        el("thead", {}, el("tr", {}, head.map((each) => el("th", { scope: "col" }, visible(each))))),
        el("tbody", {}, rows.map(([name, values]) =>
          el("tr", {}, el("th", { scope: "row" }, visible(name)), values.map((value) => el("td", {}, visible(value ?? "not set"))))))));
  const names = info.runs.map((run) => run.name);
  if (info.runs.length > 1) {
    return el("details", { open: differing.length > 0 && differing.length <= 20 },
      el("summary", {}, differing.length === 1 ? "1 setting differs" : `${differing.length} settings differ`), table(["setting", ...names], differing));
  }
  const all = Object.entries(info.runs[0].settings).map(([name, value]) => [name, [value]]);
  return all.length ? el("details", {}, el("summary", {}, `${all.length} settings`), table(["setting", "value"], all)) : null;
}
