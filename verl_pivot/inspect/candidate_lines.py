"""Turns of the stages before training -> lines of a terminal: one in a list, or one opened with all its samples."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import set_cell_size

from verl_pivot.data.turns import PROVENANCE
from verl_pivot.inspect.candidate_files import CandidateFiles
from verl_pivot.inspect.candidates import CandidateFilter, CandidateTurn, ListedTrajectory, selection_verdict
from verl_pivot.inspect.report_drawing import short_number
from verl_pivot.inspect.rollout_lines import ShownLine, heading, said, score_style, score_text, text_lines
from verl_pivot.inspect.visible_text import on_one_line
from verl_pivot.types import Message, Sample, Turn

_MARKS = {"always right": "●", "mixed": "◐", "always wrong": "○", "undecided": "?", "overlong": "…"}
"""{outcome of a turn: its mark}, the same as in candidates.js."""
_STYLES = {"always right": "green", "mixed": "yellow", "always wrong": "red"}


class ListedTurn(NamedTuple):
    """One turn of a list, and its trajectory."""

    trajectory: ListedTrajectory
    turn: CandidateTurn


def listed_turns(files: CandidateFiles, wanted: CandidateFilter) -> list[ListedTurn]:
    """[num_turns] all turns of the trajectories that the filter takes."""
    return [
        ListedTurn(trajectory, trajectory.turns[index])
        for trajectory in files.trajectories.values()
        if wanted.takes(trajectory)
        for index in sorted(trajectory.turns)
    ]


def turn_parts(listed: ListedTurn, width: int) -> list[tuple[str, str]]:
    """Parts of a turn's line in the list, each with a style of rich.

    Args:
        listed: The turn.
        width: Cells of the line.
    """
    trajectory, turn = listed
    room = max(8, width - 52)
    name = set_cell_size(on_one_line(trajectory.id[: 4 * room]), room)
    mark = f" {_MARKS.get(turn.outcome or '', '·')} "
    return [(mark, _STYLES.get(turn.outcome or "", "")), (f"{name} turn {turn.index:<4} ", ""), (_summary(turn), "")]


def _summary(turn: CandidateTurn) -> str:
    rate = None if turn.pass_rate is None else f"pass rate {short_number(turn.pass_rate)}"
    kept = None if turn.split is None else f"selected, {on_one_line(turn.split)}"
    return ", ".join(each for each in (turn.outcome or "no profile", rate, kept) if each)


def turn_lines(files: CandidateFiles, listed: ListedTurn, width: int, *, is_whole: bool) -> list[ShownLine]:
    """One turn: what was measured and decided, its state, the expert's action and every sample.

    Args:
        files: Files that hold its state and samples.
        listed: The turn.
        width: Cells of a line.
        is_whole: Whether long texts are unfolded.

    Raises:
        DataError: If a file was changed since it was read.
    """
    trajectory, candidate = listed
    lines = [*_facts(files, listed, width)]
    if (turn := files.turn(trajectory.id, candidate.index)) is None:
        lines.append(ShownLine("The given files do not contain the state: give the trajectories too.", "dim"))
    else:
        lines += _state(turn, width, is_whole=is_whole)
    profile = files.profile(trajectory.id, candidate.index)
    samples: Sequence[Sample] = () if profile is None else profile.samples
    if not samples:
        lines.append(ShownLine("No samples", "dim"))
    for number, sample in enumerate(samples, start=1):
        lines += _sample(sample, f"Sample {number} of {len(samples)}", width, is_whole=is_whole)
    return lines


def _facts(files: CandidateFiles, listed: ListedTurn, width: int) -> Iterator[ShownLine]:
    trajectory, turn = listed
    verdict = selection_verdict(turn, files.selection)
    facts = [
        turn.outcome,
        None if turn.pass_rate is None else f"pass rate {short_number(turn.pass_rate)}",
        None if turn.reward_mean is None else f"mean reward {short_number(turn.reward_mean)}",
        None if turn.num_scores is None else f"decided samples {turn.num_scores:,}",
        None if turn.num_prompt_tokens is None else f"tokens of the prompt {turn.num_prompt_tokens:,}",
        None if verdict.decision == "unknown" else f"select {verdict.decision}: {verdict.reason}",
    ]
    yield from said(", ".join(each for each in facts if each), width, "bold")
    if (dropped := trajectory.dropped) is not None:
        yield from said(f"Dropped by {dropped.filter}: {dropped.reason}. {dropped.detail}", width, "red")


def _state(turn: Turn, width: int, *, is_whole: bool) -> Iterator[ShownLine]:
    for message in turn.state:
        yield from _message(message, message.role.value, width, is_whole=is_whole)
    if turn.tools:
        yield heading(f"Tools, {len(turn.tools):,}", width)
        yield from text_lines(json.dumps(turn.tools, ensure_ascii=False), width, is_whole=is_whole)
    yield from _message(turn.expert, "Expert's action", width, is_whole=is_whole)
    yield from said(f"Verifier {turn.verifier} {json.dumps(turn.verifier_options, ensure_ascii=False)}", width, "dim")
    if (provenance := turn.metadata.get(PROVENANCE)) is not None:
        yield from said(f"Provenance {json.dumps(provenance, ensure_ascii=False)}", width, "dim")


def _message(message: Message, title: str, width: int, *, is_whole: bool) -> Iterator[ShownLine]:
    yield heading(on_one_line(" ".join(each for each in (title, message.name) if each)), width)
    if message.reasoning:
        yield ShownLine("Thinking", "dim")
        yield from text_lines(message.reasoning, width, "| ", is_whole=is_whole)
    if message.content:
        yield from text_lines(message.content, width, is_whole=is_whole)
    for call in message.tool_calls:
        yield from said(f"Call of {call.name}", width, "cyan")
        yield from text_lines(json.dumps(call.arguments, ensure_ascii=False), width, "  ", is_whole=is_whole)


def _sample(sample: Sample, title: str, width: int, *, is_whole: bool) -> Iterator[ShownLine]:
    verdict = sample.verdict
    yield heading(f"{title}, {sample.num_tokens:,} tokens", width)
    score = "undecided" if verdict.score is None else f"score {score_text(verdict.score)}"
    yield from said(f"{score}, {verdict.reason}", width, f"bold {score_style(verdict.score)}")
    if verdict.detail:
        yield from text_lines(verdict.detail, width, "  ", is_whole=is_whole)
    yield from text_lines(sample.text, width, is_whole=is_whole)
