// Verdicts that somebody marked as wrong; the server keeps them in a file beside the run.

import { get, post } from "./api.js";
import { nameOf, parsed } from "./place.js";

let runs = [];

/** Ask for the marks of all runs. */
export async function loadDisputes() {
  runs = await get("marks");
}

/** Score that the rollout should have got; null if its verdict is not marked. */
export const disputed = (row) =>
  runs[row.run]?.marks.find((mark) => mark.uid === row.uid && mark.file === row.file_name)?.score ?? null;

/** Mark the verdict of a rollout as wrong, or take its mark away. */
export async function toggleDispute(row) {
  const { run, line, file } = parsed(nameOf(row));
  runs = await post("mark", { run: Number(run), line: Number(line), file });
}

/** [num_runs] {path, number} of the runs with marks. */
export const disputeFiles = () => runs.filter(({ marks }) => marks.length).map(({ path, marks }) => ({ path, number: marks.length }));
