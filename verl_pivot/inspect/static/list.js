// The rollouts that the present filter leaves, in their order; all views step along this list.

import { get, numbers } from "./api.js";
import { listed, nameOf } from "./place.js";

const MOST_ROWS = 4000;
const rows = new Map();
const gone = new Set(); // ids of rows that were replaced; no other row will have them

let known = { key: null, generation: -1, ids: new Uint32Array(), groups: new Uint32Array(), mean_score: null, num_kept: 0 };
let asking = null;

/** The list for some parameters; asked for again when the server has read more. */
export async function list(params, generation) {
  const key = new URLSearchParams(Object.entries(listed(params)).sort()).toString();
  if (known.key === key && known.generation >= generation) return known;
  const isJoined = asking?.key === key;
  if (!isJoined) {
    const answer = get("ordered", listed(params)).then((body) => {
      const found = { ...body, key, ids: numbers(body.ids), groups: numbers(body.groups) };
      if (asking?.answer === answer) known = found; // else another list was asked for meanwhile
      return found;
    });
    asking = { key, answer };
    answer.finally(() => (asking = asking?.answer === answer ? null : asking)).catch(() => {});
  }
  const found = await asking.answer;
  return isJoined && found.generation < generation ? list(params, generation) : found;
}

export const cached = (id) => rows.get(id);

/** Whether a row is not here yet, but may be fetched. */
export const isMissing = (id) => !rows.has(id) && !gone.has(id);

/** Fetch those of the rows that are not here yet. */
export async function fetchRows(ids) {
  const missing = [...ids].filter(isMissing);
  if (missing.length === 0) return;
  const found = await get("rows", { ids: missing.join(",") });
  if (rows.size > MOST_ROWS) rows.clear();
  for (const row of found) rows.set(row.id, row);
  for (const id of missing) if (!rows.has(id)) gone.add(id);
}

/** The row at a position of the list. */
export async function rowAt(index) {
  const id = known.ids[index];
  await fetchRows([id]);
  return rows.get(id);
}

/** Position of a rollout in the list, -1 if the filter leaves it out. */
export const positionOf = (row) => (row ? known.ids.indexOf(row.id) : -1);

/** Position of the first rollout of the next group (direction 1) or of the previous one (-1). */
export function otherGroup(index, direction) {
  const { groups } = known;
  let at = index;
  while (at >= 0 && at < groups.length && groups[at] === groups[index]) at += direction;
  if (at < 0 || at >= groups.length) return index;
  if (direction < 0) while (at > 0 && groups[at - 1] === groups[at]) at -= 1;
  return at;
}

/** What is followed through training from a rollout: its pivot, or else its prompt; null if it names neither. */
export function followedBy(row) {
  if (row.trajectory_id !== null && row.turn_index !== null) return { trajectory_id: row.trajectory_id, turn_index: row.turn_index };
  return row.prompt_id ? { prompt_id: row.prompt_id } : null;
}

// ---- marks

let marks = [];

export const marked = () => marks;
export const isMarked = (row) => marks.includes(nameOf(row));

/** Mark a rollout, or take its mark away; of three marked ones the first loses it. */
export function toggleMark(row) {
  const name = nameOf(row);
  marks = marks.includes(name) ? marks.filter((each) => each !== name) : [...marks, name].slice(-2);
}
