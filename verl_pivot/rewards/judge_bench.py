"""Labelled turns and a judge -> JudgeReport: how good the judge is, and what it costs."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from verl_pivot.rewards.judge_quality import (
    CalibrationBin,
    PairAgreement,
    calibration,
    calibration_error,
    pair_agreement,
    rank_correlation,
)
from verl_pivot.rewards.labelled_turns import TurnRow
from verl_pivot.rewards.principle_answers import reason_to_count
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.turn_judge import TurnJudge, TurnJudgement, all_or_none
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """Agreement of a judge with labels, over the turns for which its one answer was valid, and the judge's cost."""

    num_turns: int
    num_valid: int
    invalid: dict[str, int]
    """{reason why an answer was invalid: number of such answers}"""
    pairs: PairAgreement
    """Agreement over all pairs of turns."""
    pairs_of_task: PairAgreement
    """Agreement over pairs of turns of the same task."""
    rank_correlation: float | None
    """Spearman's; None where scores or labels are all the same."""
    mean_absolute_error: float | None
    calibration_error: float | None
    """Expected calibration error over ten bins; None without a valid answer."""
    calibration: tuple[CalibrationBin, ...]
    num_cached: int
    """Number of answers from the cache, for which no time is known."""
    seconds_per_turn: float | None
    """Mean time from a question to its answer, at the concurrency of the run; None if all were cached."""
    prompt_tokens_per_turn: float
    completion_tokens_per_turn: float
    """Both token counts are those of the server; 0 where it reports none."""

    def as_dict(self) -> JsonObject:
        fields: JsonObject = asdict(self)
        for name, pairs in (("pairs", self.pairs), ("pairs_of_task", self.pairs_of_task)):
            fields[name] = {**asdict(pairs), "accuracy": pairs.accuracy}
        return {**fields, "valid_rate": self.num_valid / self.num_turns, "calibration": list(fields["calibration"])}  # type: ignore[arg-type]  # a tuple


class _TimedJudgement(NamedTuple):
    judged: TurnJudgement
    seconds: float


async def bench_judge(
    rows: Sequence[TurnRow],
    judge: TurnJudge,
    *,
    concurrency: int,
    temperature: float,
    seed: int,
    on_turns: Callable[[int], object],
) -> JudgeReport:
    """Ask a judge once about each turn, and compare its scores with the labels.

    Raises:
        VerifierError: If the judge cannot be reached or keeps failing.
        ConfigError: If it refuses every question.
    """
    slots = asyncio.Semaphore(concurrency)

    async def ask(row: TurnRow) -> _TimedJudgement:
        question = judge.question(row.task, row.earlier, ShownTurn(text=row.text, observation=row.observation))
        async with slots:
            began = time.monotonic()
            judged = await judge.ask_once(question, seed, temperature)
            seconds = time.monotonic() - began
        on_turns(1)
        return _TimedJudgement(judged, seconds)

    return judge_report(rows, await all_or_none([ask(row) for row in rows]))


def judge_report(rows: Sequence[TurnRow], answered: Sequence[_TimedJudgement]) -> JudgeReport:
    """Report on the judge's answers.

    Args:
        rows: [num_turns] one or more turns with their labels.
        answered: [num_turns]
    """
    valid = [
        (row, each.judged.score) for row, each in zip(rows, answered, strict=True) if each.judged.score is not None
    ]
    scores, labels = [score for _, score in valid], [row.label for row, _ in valid]
    answers = [answer for each in answered for answer in each.judged.answers]
    timed = [each.seconds for each in answered if not any(answer.is_cached for answer in each.judged.answers)]
    bins = tuple(calibration(scores, labels))
    return JudgeReport(
        num_turns=len(rows),
        num_valid=len(valid),
        invalid=dict(
            Counter(reason_to_count(each.judged.reason) for each in answered if each.judged.score is None).most_common()
        ),
        pairs=pair_agreement(scores, labels, [""] * len(valid)),
        pairs_of_task=pair_agreement(scores, labels, [row.task for row, _ in valid]),
        rank_correlation=rank_correlation(scores, labels),
        mean_absolute_error=_mean([abs(score - label) for score, label in zip(scores, labels, strict=True)]),
        calibration_error=calibration_error(bins) if bins else None,
        calibration=bins,
        num_cached=sum(answer.is_cached for answer in answers),
        seconds_per_turn=_mean(timed),
        prompt_tokens_per_turn=sum(answer.num_prompt_tokens for answer in answers) / len(rows),
        completion_tokens_per_turn=sum(answer.num_completion_tokens for answer in answers) / len(rows),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
