"""StoredTurns and a verifier -> RescoringReport: which verdicts change, and how that changes the selection."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from verl_pivot.all_at_once import all_at_once
from verl_pivot.profiling.stored_samples import StoredTurn
from verl_pivot.profiling.summary import TurnOutcome, outcome
from verl_pivot.types import JsonObject, Sample, Turn, TurnProfile, Verdict
from verl_pivot.verifiers.scoring import score_completion, score_message


class VerifierChoice(NamedTuple):
    """Verifier that is used instead of the one that each trajectory names."""

    name: str
    options: JsonObject

    def at(self, turn: Turn) -> Turn:
        """A copy of the turn with this verifier."""
        return replace(turn, verifier=self.name, verifier_options=self.options)


class ChangedVerdict(NamedTuple):
    """A sample whose new score differs from its stored one."""

    turn_id: str
    sample: int
    """Number of the sample within its turn, counted from 0."""
    text: str
    before: Verdict
    after: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredTurn:
    """The samples of one turn, with their stored verdicts and with their new verdicts."""

    turn: Turn
    before: tuple[Sample, ...]
    after: tuple[Sample, ...]
    """[num_samples] in the order of `before`."""
    expert: Verdict
    """Verdict on the expert's own action; a verifier that fits the turn gives it full score."""


@dataclass(slots=True, kw_only=True)
class RescoringReport:
    """Counts over all turns that were scored again."""

    num_turns: int = 0
    num_samples: int = 0
    most_listed: int | None = None
    """Maximum number of changed verdicts in `changed`; None lists all. `num_changed` counts all of them."""
    num_changed: int = 0
    changed: list[ChangedVerdict] = field(default_factory=list)
    reasons_before: Counter[str] = field(default_factory=Counter)
    """{reason: number of samples} by the stored verdicts."""
    reasons_after: Counter[str] = field(default_factory=Counter)
    outcomes_before: Counter[TurnOutcome] = field(default_factory=Counter)
    """{outcome: number of turns with samples} by the stored verdicts."""
    outcomes_after: Counter[TurnOutcome] = field(default_factory=Counter)
    now_mixed: list[str] = field(default_factory=list)
    """Ids of turns whose new scores differ although their stored scores do not; these turns can become pivots."""
    no_longer_mixed: list[str] = field(default_factory=list)
    refused_experts: Counter[str] = field(default_factory=Counter)
    """{reason: number of turns} at which the verifier does not give the expert's own action full score."""
    refused_expert_examples: dict[str, str] = field(default_factory=dict)
    """{reason: the first such turn, with the verifier's detail}"""

    def add(self, rescored: RescoredTurn) -> None:
        """Count one turn."""
        self.num_turns += 1
        self._add_expert(rescored.turn, rescored.expert)
        if not rescored.before:
            return
        self.num_samples += len(rescored.before)
        self.reasons_before.update(sample.verdict.reason for sample in rescored.before)
        self.reasons_after.update(sample.verdict.reason for sample in rescored.after)
        before, after = _outcome(rescored.turn, rescored.before), _outcome(rescored.turn, rescored.after)
        self.outcomes_before[before] += 1
        self.outcomes_after[after] += 1
        if (before is TurnOutcome.MIXED) != (after is TurnOutcome.MIXED):
            (self.now_mixed if after is TurnOutcome.MIXED else self.no_longer_mixed).append(rescored.turn.id)
        changed = [
            ChangedVerdict(rescored.turn.id, number, old.text, old.verdict, new.verdict)
            for number, (old, new) in enumerate(zip(rescored.before, rescored.after, strict=True))
            if old.verdict.score != new.verdict.score
        ]
        self.num_changed += len(changed)
        self.changed += changed[: None if self.most_listed is None else self.most_listed - len(self.changed)]

    def _add_expert(self, turn: Turn, verdict: Verdict) -> None:
        if verdict.score != 1.0:
            self.refused_experts[verdict.reason] += 1
            example = f"turn {turn.id}: {verdict.detail or verdict.reason}"
            self.refused_expert_examples.setdefault(verdict.reason, example)


async def rescore(
    stored: Iterable[StoredTurn],
    choice: VerifierChoice | None,
    *,
    concurrency: int,
    most_listed: int | None,
    on_turn: Callable[[], None],
) -> RescoringReport:
    """Score the stored samples and the expert's own action of every turn; results are added in the order of the turns.

    Args:
        stored: Turns with their samples.
        choice: Verifier for all turns; None takes the verifier that each turn names.
        concurrency: Number of turns that are scored at the same time.
        most_listed: Maximum number of changed verdicts to list; None lists all.
        on_turn: Called after each finished turn.

    Raises:
        VerifierError: If a verifier raises or returns no Verdict; the message names the turn and the place in its code.
        PivotError: If a turn's verifier does not exist or takes other options.
    """
    report = RescoringReport(most_listed=most_listed)
    waiting: deque[asyncio.Task[RescoredTurn]] = deque()
    try:
        for each in stored:
            waiting.append(asyncio.create_task(rescore_turn(each, choice)))
            if len(waiting) >= concurrency:
                report.add(await waiting.popleft())
                on_turn()
        while waiting:
            report.add(await waiting.popleft())
            on_turn()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return report


async def rescore_turn(stored: StoredTurn, choice: VerifierChoice | None) -> RescoredTurn:
    """Score all samples of one turn concurrently, and the expert's own action."""
    turn = stored.turn if choice is None else choice.at(stored.turn)
    asked = (score_completion(sample.text, ended, turn) for sample, ended in stored.samples)
    expert, *verdicts = await all_at_once([score_message(turn.expert, turn), *asked])
    after = (
        Sample(text=sample.text, verdict=verdict, num_tokens=sample.num_tokens)
        for (sample, _), verdict in zip(stored.samples, verdicts, strict=True)
    )
    before = tuple(sample for sample, _ in stored.samples)
    return RescoredTurn(turn=turn, before=before, after=tuple(after), expert=expert)


def _outcome(turn: Turn, samples: tuple[Sample, ...]) -> TurnOutcome:
    profile = TurnProfile(trajectory_id=turn.trajectory_id, index=turn.index, samples=samples, num_prompt_tokens=None)
    return outcome(profile)
