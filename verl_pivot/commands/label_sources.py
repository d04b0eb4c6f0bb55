"""Sources of the labels of `verl-pivot process label`: a judge, outcomes, or continuations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from verl_pivot.commands.asked_judge import EndpointOptions, QuestionOptions, judge_of, judge_settings
from verl_pivot.commands.label_continuations import ContinuationOptions, continuation_job, policy_player
from verl_pivot.commands.progress import progress_bar
from verl_pivot.errors import DataError, EngineError, VerifierError

if TYPE_CHECKING:
    from verl_pivot.rewards.dumped_turns import DumpCounts, DumpedJudgedTurn
    from verl_pivot.rewards.principles import PrincipleSet
    from verl_pivot.rewards.turn_labelling import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest:
    """Arguments of the command."""

    dumps: list[Path]
    rows: list[Path]
    endpoint: EndpointOptions
    question: QuestionOptions
    continuing: ContinuationOptions
    samples: int
    temperature: float | None
    seed: int
    cache: Path
    """Folder of answers or outcomes."""


class Labelled(NamedTuple):
    """Labels, and what was left out."""

    labels: "Labels"
    counts: "DumpCounts"
    principle_set: "PrincipleSet"
    """Principles in the questions, and the form of the answers."""


def by_outcomes(request: LabelRequest) -> Labelled:
    """Labels by the outcomes of rollouts with the same turn."""
    from verl_pivot.rewards.turn_labelling import labels_by_outcomes

    principle_set = request.question.principle_set()
    turns, counts = _read(request, needs_outcome=True)
    labels = labels_by_outcomes([turn.judged for turn in turns], principle_set, request.question.fit())
    return Labelled(labels, counts, principle_set)


def by_judge(request: LabelRequest) -> Labelled:
    """Labels by a stronger judge.

    Raises:
        VerifierError: If the judge cannot be reached or keeps failing.
        ConfigError: If the judge refuses every question, or an option is missing.
    """
    import asyncio

    from verl_pivot.rewards.turn_labelling import labels_by_judge

    settings = judge_settings(request.endpoint, request.question, request.cache)
    turns, counts = _read(request, needs_outcome=False)

    async def ask() -> "Labels":
        judge = judge_of(settings, request.question)
        try:
            with progress_bar("answers", len(turns) * request.samples) as on_answers:
                return await labels_by_judge(
                    [turn.judged for turn in turns],
                    judge,
                    num_samples=request.samples,
                    temperature=0.7 if request.temperature is None else request.temperature,
                    seed=request.seed,
                    on_answers=on_answers,
                )
        finally:
            await judge.close()

    with _told_how_to_go_on(f"the answers in {request.cache}"):
        return Labelled(asyncio.run(ask()), counts, settings.principle_set())


def by_continuations(request: LabelRequest) -> Labelled:
    """Labels by the outcomes of rollouts that a policy continues.

    Raises:
        EngineError: If the endpoint cannot be reached or keeps failing.
        ConfigError: If the endpoint refuses every request, an option is missing, or nothing decides an outcome.
        DataError: If a file cannot be read.
        UserCodeError: If tools fail in the user's own code before any continuation has worked.
    """
    import asyncio

    from verl_pivot.engines.answer_cache import AnswerCache
    from verl_pivot.playing.continuations import labels_by_continuations, problems_by_prompt
    from verl_pivot.playing.endpoint_player import ChatSampling
    from verl_pivot.playing.problems import read_problems

    temperature = 1.0 if request.temperature is None else request.temperature
    sampling = ChatSampling(temperature=temperature, top_p=request.continuing.top_p, seed=request.seed)
    job = continuation_job(request.continuing, request.endpoint, sampling, request.samples)
    principle_set, fit = request.question.principle_set(), request.question.fit()
    rows = (problem for path in request.rows for problem in read_problems(path, None))
    problems = problems_by_prompt(rows, job.toolset)
    turns, counts = _read(request, needs_outcome=False)
    cache = AnswerCache(request.cache)
    with (
        _told_how_to_go_on(f"the outcomes in {request.cache}"),
        progress_bar("continuations", len(turns) * request.samples) as on_continuations,
    ):
        labels = asyncio.run(
            labels_by_continuations(
                turns,
                problems,
                job,
                policy_player(request.continuing, request.endpoint, sampling),
                cache,
                principle_set=principle_set,
                fit=fit,
                on_continuations=on_continuations,
            )
        )
    return Labelled(labels, counts, principle_set)


@contextmanager
def _told_how_to_go_on(kept: str) -> Iterator[None]:
    """Add to the error of a failing endpoint that the same command can be run again, and what it then reuses."""
    try:
        yield
    except (VerifierError, EngineError) as error:
        raise type(error)(f"{error}; run the same command again to continue with {kept}") from error


def _read(request: LabelRequest, *, needs_outcome: bool) -> "tuple[list[DumpedJudgedTurn], DumpCounts]":
    from verl_pivot.data.files import num_rows
    from verl_pivot.rewards.dumped_turns import DumpCounts, dumped_turns, tasks_by_prompt

    tasks, counts = tasks_by_prompt(request.rows), DumpCounts()
    with progress_bar("rollouts", sum(num_rows(path) or 0 for path in request.dumps) or None) as on_rollouts:
        found = dumped_turns(request.dumps, tasks, counts, needs_outcome=needs_outcome, on_rollouts=on_rollouts)
        turns = list(found)
    if not turns:
        why = "; ".join(f"{reason}: {number}" for reason, number in counts.left_out.most_common())
        raise DataError(f"none of {counts.num_rollouts} rollouts has a turn that can be labelled ({why})")
    return turns, counts
