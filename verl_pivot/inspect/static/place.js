// The address's part behind #: which view, and what of it.

/** {view, params} of the present address. */
export function place() {
  const [view, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: view || "run", params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export function address(view, params) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Go to a view, so that Back leads here again. */
export function go(view, params = {}) {
  const target = address(view, params);
  if (target !== location.hash) location.hash = target;
}

/** Note where the view is now, without a step for Back. */
export function note(view, params) {
  history.replaceState(null, "", address(view, params));
}

const OTHERS = new Set(["place", "a", "b", "metrics", "left", "right"]);

/** The parameters that filter and order the list. */
export function listed(params) {
  return Object.fromEntries(Object.entries(params).filter(([name]) => !OTHERS.has(name)));
}

/** Name of a rollout in addresses: run, line and dump. */
export const nameOf = (row) => `${row.run}:${row.line}:${row.file_name}`;

export function parsed(name) {
  const [, run, line, file] = /^(\d+):(\d+):(.*)$/s.exec(name ?? "") ?? [null, "", "", ""];
  return { run, line, file };
}
