"""Prompt -> PlayedNotebook: the loop in which the policy writes a step, and a notebook runs it."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.engines.rendering import action_text
from verl_pivot.rollout.cell_calls import CellCalls
from verl_pivot.rollout.context_rows import Stretch
from verl_pivot.rollout.conversation_tokens import with_sampled_turn
from verl_pivot.rollout.notebook import Notebook, RanCell
from verl_pivot.rollout.notebook_context import ContextBuilder, EndedStep, NotebookParts
from verl_pivot.rollout.notebook_prompt import restarted
from verl_pivot.rollout.notebook_turns import CODE_END, read_notebook_turn
from verl_pivot.rollout.played_notebook import PlayedNotebook, PlayedStep
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.tracing import in_span
from verl_pivot.rollout.turn_sampler import EngineReport, SampledTurn, TurnSampler
from verl_pivot.tools.calls import Toolbox
from verl_pivot.types import JsonObject


class NotebookRollout:
    """One rollout in a notebook. Its attributes never change; its state is in the local variables of `play`.

    Source: L0 (arXiv:2506.23667), whose agent was never published. Differs from its released code, which renders and
    tokenises every step anew, in that tokens stay as they were sampled.
    """

    def __init__(
        self, parts: NotebookParts, toolbox: Toolbox, notebook: Notebook, sampling_params: Mapping[str, Any]
    ) -> None:
        self._parts = parts
        self._toolbox = toolbox
        self._notebook = notebook
        self._sampler = TurnSampler(parts, sampling_params)

    async def play(self, prompt: Sequence[JsonObject], contexts: ContextBuilder) -> PlayedNotebook:
        """Let the policy take steps until it has answered, or until there is another reason to stop.

        Args:
            prompt: Messages of the row.
            contexts: Builder of what the policy reads before each step.

        Raises:
            DataError: If the prompt, with the notice that a trim adds, is too long, or holds anything but text.
        """
        parts = self._parts
        context = await contexts.begin()
        messages = context.messages
        stretches: dict[int, Stretch] = {}
        steps: list[PlayedStep] = []
        read: list[str] = []
        engine = EngineReport()
        deadline = math.inf
        try:
            while True:
                token_ids = context.tokens.token_ids
                sampled = await self._sampler.sample(token_ids, parts.window.max_step_tokens, len(steps))
                deadline = engine.deadline(deadline, sampled.report, parts.max_wall_seconds)
                engine = engine.plus(sampled.report)
                if not sampled.token_ids:
                    stop = StopReason.ENGINE_FAILURE
                    break
                tokens = await with_sampled_turn(parts, context.tokens, sampled)
                stretches[context.first_step] = Stretch(tokens=tokens, first_step=context.first_step)
                steps.append(await self._take_step(sampled, steps))
                messages = [*context.messages, steps[-1].message]
                if (reason := steps[-1].ran.stop_after(len(steps), parts.max_steps, deadline)) is not None:
                    stop = reason
                    break
                context = await contexts.after(context, self._end(steps, tokens))
                read.append(str(context.messages[-1]["content"]))
        finally:
            num_tokens = sum(len(stretch.tokens.mask) for stretch in stretches.values())
            journey = await self._sampler.end(num_tokens, engine.newest_step)
        return PlayedNotebook(
            prompt_id=prompt_id(prompt), stop_reason=stop, stretches=tuple(stretches.values()), steps=tuple(steps),
            read=tuple(read), messages=messages, engine=engine, journey=journey,
        )  # fmt: skip

    async def _take_step(self, sampled: SampledTurn, before: Sequence[PlayedStep]) -> PlayedStep:
        """Read a turn, and run its code.

        Args:
            sampled: The turn's tokens from the engine.
            before: Steps before this one.
        """
        text, ended = action_text(sampled.token_ids, self._parts.loop.tokenizer, self._parts.end_token_ids)
        full_text = self._parts.turn_prefix + text
        is_closed = CODE_END in text
        text = full_text[: full_text.index(CODE_END) + len(CODE_END)] if is_closed else full_text
        turn = read_notebook_turn(text, ended=ended or is_closed, num_tokens=len(sampled.token_ids))
        last = before[-1].ran if before else RanCell()
        ran, began = last.without_cell(), time.monotonic()
        if turn.code is not None:
            calls = CellCalls(self._toolbox, len(before), last.answer)
            running = self._notebook.run(turn.code, calls)
            ran = await in_span("cell", {"code": turn.code}, running, lambda ran: ran.output and ran.output.text)
        return PlayedStep(
            index=len(before), turn=turn, message={"role": "assistant", "content": full_text},
            num_tokens=len(sampled.token_ids), ended=ended or is_closed, ran=ran,
            sampling_seconds=sampled.report.seconds, seconds=time.monotonic() - began,
            routed_experts=sampled.report.routed_experts,
        )  # fmt: skip

    def _end(self, steps: Sequence[PlayedStep], tokens: TokenRecord) -> EndedStep:
        """End of the last step.

        Args:
            steps: Steps so far.
            tokens: Tokens of the context and of the last step.
        """
        step, has_notepad = steps[-1], self._parts.has_notepad
        is_open = tokens.token_ids[-1] not in self._parts.end_token_ids
        return EndedStep(
            index=step.index,
            message=step.message,
            tokens=tokens.with_text(list(self._parts.turn_suffix)) if is_open else tokens,
            output=None if step.ran.output is None else step.ran.output.text,
            mistake=step.turn.mistake,
            restart=restarted(has_notepad=has_notepad) if step.ran.was_restarted else "",
            notepad=step.ran.notepad.shown() if has_notepad else "",
        )
