"""PlayedNotebook: a finished rollout in a notebook -> its record, and the rows that verl stores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_pivot.data.rollout_dumps import DumpedStep, DumpedTurn
from verl_pivot.data.rollout_records import RolloutRecord, RoutingCost, StopReason
from verl_pivot.rewards.steps import StepFacts
from verl_pivot.rollout.context_rows import Stretch
from verl_pivot.rollout.notebook import RanCell
from verl_pivot.rollout.notebook_turns import NotebookTurn
from verl_pivot.rollout.turn_sampler import NO_TOKENS, EngineReport
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """One step of the policy: its turn, and the outcome of its code."""

    index: int
    """Index of the step within the trajectory, from 0."""
    turn: NotebookTurn
    message: JsonObject
    """The turn as a chat message."""
    num_tokens: int
    """Number of sampled tokens."""
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    ran: RanCell
    sampling_seconds: float = 0.0
    """Seconds of waiting for the engine."""
    seconds: float = 0.0
    """Seconds that the cell took, with the calls that it made."""
    routed_experts: Any = None
    """Experts that a mixture-of-experts model routed the tokens so far to; None if the engine returns none."""

    @property
    def facts(self) -> StepFacts:
        """Facts for which the step is rewarded."""
        output = self.ran.output
        return StepFacts(
            has_form=self.turn.has_form,
            ran=output is not None and output.ran,
            num_errors=0 if output is None else output.num_errors,
            num_outputs=0 if output is None else output.num_outputs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedNotebook:
    """One rollout in a notebook, from its prompt to its end."""

    prompt_id: str
    stop_reason: StopReason
    stretches: tuple[Stretch, ...]
    """Stretches of context in which the policy sampled steps."""
    steps: tuple[PlayedStep, ...]
    read: tuple[str, ...]
    """[num_steps or num_steps - 1] what the policy read after each step; after the last it may have read nothing."""
    messages: list[JsonObject]
    """Messages of the last stretch."""
    engine: EngineReport
    journey: RoutingCost | None
    """Waiting and moves between engines that the router counted; None if it counts nothing."""

    @property
    def answer(self) -> str | None:
        """The answer that was submitted; None if there is none."""
        return self.steps[-1].ran.answer if self.steps else None

    @property
    def failure(self) -> str:
        """Description of the failure that masks the rollout; "" if it is not masked."""
        if self.stop_reason is StopReason.ENGINE_FAILURE:
            return NO_TOKENS
        return self.steps[-1].ran.failure if self.steps else ""

    @property
    def is_bug(self) -> bool:
        """Whether the failure is one of a tool's own code."""
        return bool(self.steps) and self.steps[-1].ran.is_bug

    def record(self, *, text_differs: bool = False) -> RolloutRecord:
        """The record of the rollout.

        Args:
            text_differs: Whether the chat template renders the last stretch differently from its tokens.
        """
        return RolloutRecord(
            prompt_id=self.prompt_id,
            stop_reason=self.stop_reason,
            calls=tuple(call for step in self.steps for call in step.ran.calls),
            turn_tokens=tuple(step.num_tokens for step in self.steps),
            prompt_tokens=len(self.stretches[0].tokens.prompt_ids) if self.stretches else 0,
            response_tokens=sum(len(stretch.tokens.mask) for stretch in self.stretches),
            generate_seconds=self.engine.seconds,
            tool_seconds=sum(step.seconds for step in self.steps),
            num_empty_answers=self.engine.num_empty_answers,
            is_cut_off=bool(self.steps) and not self.steps[-1].ended,
            text_differs=text_differs,
            journey=self.journey,
            oldest_weights=self.engine.oldest_step,
            newest_weights=self.engine.newest_step,
            failure=self.failure,
            answer=self.answer,
            num_trims=len(self.stretches) - 1 if self.stretches else 0,
        )

    def dumped_turns(self, steps: range, returns: Sequence[float]) -> list[DumpedTurn]:
        """Turns of some steps for a dump, each with what the policy read after it, or else with what its cell showed.

        Args:
            steps: Indices of the steps.
            returns: [num_steps] returns of all steps; NaN if the rollout is undecided or masked.
        """
        first_steps = {stretch.first_step for stretch in self.stretches[1:]}
        return [
            DumpedTurn(
                text=step.turn.text,
                num_tokens=step.num_tokens,
                ended=step.ended,
                observations=self._read_after(step),
                seconds=round(step.sampling_seconds, 6),
                tool_seconds=round(step.seconds, 6) if step.turn.code is not None else None,
                step=DumpedStep(
                    has_form=step.facts.has_form,
                    ran=step.facts.ran,
                    num_outputs=step.facts.num_outputs,
                    num_errors=step.facts.num_errors,
                    step_return=None if math.isnan(returns[step.index]) else returns[step.index],
                    is_trimmed=step.index in first_steps,
                    was_restarted=step.ran.was_restarted,
                ),
            )
            for step in self.steps[steps.start : steps.stop]
        ]

    def _read_after(self, step: PlayedStep) -> tuple[str, ...]:
        if step.index < len(self.read):
            return (self.read[step.index],)
        return () if step.ran.output is None else (step.ran.output.text,)
