// What both pages have around their views: links, a sentence at the bottom, keys and their help.

import { el } from "./dom.js";
import { address } from "./place.js";

export const main = document.getElementById("main");
const message = document.getElementById("message");
const help = document.getElementById("help");

/** Draw {view: title of its link} and [key, what it does] of the help; `onKey` tells whether it used a key. */
export function drawFrame(views, keys, onKey) {
  const links = Object.entries(views).map(([view, title]) => el("a", { id: `to-${view}`, href: address(view, {}) }, title));
  document.querySelector("header nav").append(...links);
  document.getElementById("help-keys").append(...keys.flatMap(([names, what]) => [el("dt", {}, el("kbd", {}, names)), el("dd", {}, what)]));
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  window.addEventListener("unhandledrejection", (event) => tell(event.reason)); // what a key or a click asked for in vain
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches?.("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "?") help.showModal();
    else if (!onKey(event)) return;
    event.preventDefault();
  });
}

/** Name the tab after the view's heading. */
export function nameTab() {
  document.title = `${main.querySelector("h1")?.textContent ?? ""} - verl-pivot inspect`;
}

/** Show the sentence of an error. */
export function tell(error) {
  message.textContent = error.message;
  message.hidden = false;
  if (!main.querySelector("h1")) main.replaceChildren(el("h1", {}, "verl-pivot inspect"));
}

export function hideMessage() {
  message.hidden = true;
}
