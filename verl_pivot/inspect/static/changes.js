// Several runs: by how much each differs from the first on the prompts that both have, and which prompts changed.

import { get } from "./api.js";
import { el, number, visible } from "./dom.js";
import { address } from "./place.js";

/** A section that tells the changes, once it is refreshed. */
export class Changes {
  constructor(info) {
    this.section = el("section", { class: "changes", "aria-label": "Prompts of both runs" });
    this.known = null;
    this.generation = null;
    this.isShown = info.runs.length > 1;
  }

  async refresh(info) {
    if (!this.isShown || this.generation === info.generation) return;
    this.generation = info.generation;
    try {
      this.draw(await get("changes"), info);
    } catch (error) {
      this.section.replaceChildren(el("p", { class: "problem" }, visible(error.message)));
    }
  }

  draw(found, info) {
    const key = JSON.stringify(found);
    if (key === this.known) return;
    this.known = key;
    this.section.replaceChildren(
      el("h2", {}, "The same prompts"),
      ...(found.length ? found.map((each) => changeOf(each, info)) : [el("p", { class: "empty" }, "No prompt has a score in both runs at the same step.")]),
    );
  }
}

function changeOf({ difference, higher, lower }, info) {
  const [own, first] = [info.runs[difference.run].name, info.runs[0].name].map(visible);
  const interval = difference.low === null ? "" : ` [${signed(difference.low)}, ${signed(difference.high)}]`;
  const steps = difference.steps.length === 1 ? `step ${difference.steps[0]}` : `${difference.steps.length} steps`;
  return el("div", {},
    el("p", {},
      `${difference.part === "validation" ? "Validation" : "Training"}, ${steps}, ${counted(difference.num_paired)}: `,
      el("strong", {}, own), ` has ${number(difference.mean)} where `, el("strong", {}, first), ` has ${number(difference.first_mean)}, `,
      el("strong", {}, `${signed(difference.difference)}${interval}`), "."),
    listOf(titleOf(difference.num_higher, "better", higher), higher, difference),
    listOf(titleOf(difference.num_lower, "worse", lower), lower, difference));
}

/** How many prompts changed, and whether fewer are listed. */
function titleOf(changed, how, listed) {
  const most = listed.length < changed ? `; the ${listed.length} that changed most` : "";
  return `${counted(changed)} became ${how}${most}`;
}

/** Prompts behind a line that opens; each leads to its rollouts in both runs. */
function listOf(title, prompts, { part }) {
  if (!prompts.length) return el("p", {}, `${title}.`);
  return el("details", {},
    el("summary", {}, title),
    el("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": title },
      el("table", {},
        el("thead", {}, el("tr", {}, ["prompt", "before", "after"].map((each) => el("th", { scope: "col" }, each)))),
        el("tbody", {}, prompts.map(({ prompt_id, first, own }) =>
          el("tr", {},
            el("th", { scope: "row" }, el("a", { href: address("history", { prompt_id, part }) }, visible(prompt_id))),
            el("td", {}, number(first)), el("td", {}, number(own))))))));
}

function signed(value) {
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

function counted(prompts) {
  return prompts === 1 ? "1 prompt" : `${number(prompts)} prompts`;
}
