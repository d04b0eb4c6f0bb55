"""BestOfTurns: several draws of a turn -> the draw for which a judge sees the most progress on the checklist.

Web-Shepherd (arXiv:2505.15277, section 5) lets its judge choose among sampled actions at evaluation. As there, turns
are judged before their calls are run, and only the calls of the chosen turn are run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Self

from omegaconf import DictConfig

from verl_pivot.data.rollout_records import SearchRecord, StopReason
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.errors import VerifierError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.rewards.checklist_judge import ChecklistJudge, ChecklistTask
from verl_pivot.rewards.principles import ShownTurn, task_text
from verl_pivot.rewards.process_rewards import row_checklist
from verl_pivot.rewards.process_settings import ProcessSettings, parse_process
from verl_pivot.rewards.turn_judge import all_or_none
from verl_pivot.rollout.observed_turn import ObservedTurn
from verl_pivot.rollout.rollout_so_far import RolloutSoFar


class TurnChoice:
    """Chooses the turns of one rollout."""

    def __init__(self, judge: ChecklistJudge, num_candidates: int, about: ChecklistTask) -> None:
        """Keep what is needed; the judge is not asked yet.

        Args:
            judge: The judge.
            num_candidates: Number of draws of each turn.
            about: The rollout's task.
        """
        self._judge, self._about = judge, about
        self.num_candidates = num_candidates
        self._gains: list[float] = []
        self._extra_tokens = 0

    async def chosen(self, drawn: Sequence[RolloutSoFar]) -> RolloutSoFar:
        """The draw with the most progress, the first of equal ones; a draw without a valid judgement comes last.

        A draw on which the engine failed is taken only if it failed on all. If the judge cannot be reached, the rollout
        is masked.

        Args:
            drawn: [num_candidates] the rollout with each draw of its next turn.
        """
        usable = [each for each in drawn if each.stop is not StopReason.ENGINE_FAILURE]
        if not usable:
            return drawn[0]
        try:
            scores = await self._scores(usable)
        except VerifierError as error:
            failed = ObservedTurn(texts=[], calls=[], failure=f"the judge could not choose a turn: {error}")
            return replace(usable[0], observed=(*usable[0].observed, failed), stop=StopReason.TOOL_FAILURE)
        best = max(range(len(usable)), key=lambda number: (-1.0 if scores[number] is None else scores[number], -number))
        known = [score for score in scores if score is not None]
        if known:
            self._gains.append(max(known) - fmean(known))
        self._extra_tokens += sum(each.turns[-1].num_tokens for each in usable) - usable[best].turns[-1].num_tokens
        return usable[best]

    @property
    def record(self) -> SearchRecord:
        """Mean gain of the chosen turns over the mean of their draws, and the number of tokens of the other draws."""
        return SearchRecord(gain=fmean(self._gains) if self._gains else None, extra_tokens=self._extra_tokens)

    async def _scores(self, drawn: Sequence[RolloutSoFar]) -> list[float | None]:
        """[num_draws] progress after each draw; None where the judge gives no valid answer.

        Raises:
            VerifierError: If the judge cannot be reached.
        """
        shown = [_shown_turns(each) for each in drawn]
        found = await self._judge.checklist(self._about, shown[0][:-1])
        if found.value is None:
            return [None] * len(drawn)
        judged = await all_or_none([self._judge.judge_turn(self._about, found.value, turns) for turns in shown])
        return [each.score for each in judged]


def _shown_turns(rollout: RolloutSoFar) -> list[ShownTurn]:
    """Turns as the judge sees them; the last one has no observation yet."""
    texts = ["\n".join(each.texts) for each in rollout.observed]
    return [ShownTurn(text=turn.text, observation=text) for turn, text in zip(rollout.turns, [*texts, ""], strict=True)]


class BestOfTurns:
    """The judge that chooses turns in validation; made once for an event loop."""

    def __init__(self, settings: ProcessSettings, tokenizer: Tokenizer, num_workers: int) -> None:
        """Make the judge; nothing is asked yet.

        Raises:
            ConfigError: If the judge cannot be made of these settings.
        """
        self._settings = settings
        self._judge = ChecklistJudge(settings, tokenizer, num_workers=num_workers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._judge.close()

    def choice(self, row: Mapping[str, Any], opening: str) -> TurnChoice:
        """The chooser of the turns of a row's rollout.

        Args:
            row: Columns of the dataset's row.
            opening: First observations of the environments; "" if they show nothing.

        Raises:
            DataError: If the row's checklist is not valid.
        """
        about = ChecklistTask(task=task_text(row["raw_prompt"]), first_page=opening, items=row_checklist(row))
        return TurnChoice(self._judge, self._settings.best_of, about)


def best_of_turns(config: DictConfig, tokenizer: Tokenizer) -> LoopLocal[BestOfTurns] | None:
    """The chooser of turns in this process, shared by all its agent loops; None if each turn is drawn once.

    Args:
        config: verl's whole config.
        tokenizer: Tokenizer of the policy, which is the same in the whole process.

    Raises:
        ConfigError: If a key of the section is wrong.
    """
    if "process" not in config.pivot:
        return None
    settings = parse_process(config)
    if settings.best_of == 1 or settings.mode == "outcome":  # the launch refuses best_of in this mode
        return None
    num_workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
    made = LoopLocal(partial(BestOfTurns, settings, tokenizer, num_workers))
    return _made.setdefault((settings, num_workers), made)


_made: dict[tuple[ProcessSettings, int], LoopLocal[BestOfTurns]] = {}
"""{settings: chooser} of this process, kept here since verl makes an agent loop for each rollout."""
