// Elements from values. Text is always a text node: nothing here, or anywhere on this page, parses text as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; `on` holds listeners by event, children that are no nodes become text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Characters that show nothing, act on a terminal or turn the direction of what follows; lone surrogates too.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e0fff}]/gu;

/** The text with a sign such as ⟨U+001B⟩ for each character that would not be seen. */
export function visible(text) {
  return String(text).replace(HIDDEN, (each) => `⟨U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const FOLDED = 4000;
const HEAD = 2500;
const TAIL = 1000;
const MORE = 100_000;

/** A text as the model wrote it; the middle of a long one is shown on demand, a part at a time. */
export function longText(text, { label, mark = null } = {}) {
  const box = el("div", { class: "text", dir: "ltr", "aria-label": label, role: "group" });
  if (text.length <= FOLDED) {
    box.append(mark ? mark(text) : visible(text));
    return box;
  }
  let shown = HEAD;
  const draw = () => {
    const hidden = Math.max(0, text.length - TAIL - shown);
    if (hidden === 0) return box.replaceChildren(visible(text));
    const button = el("button", { type: "button", class: "fold", on: { click: () => more(button) } });
    button.textContent = `${hidden.toLocaleString("en")} more characters`;
    box.replaceChildren(visible(text.slice(0, shown)), button, visible(text.slice(text.length - TAIL)));
    return button;
  };
  const more = () => {
    shown += MORE;
    draw()?.focus?.();
  };
  draw();
  return box;
}

/** A number for people: at most four digits that count. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}
