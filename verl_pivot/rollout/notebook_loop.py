"""Agent loop `pivot_notebook` of verl: a row of the dataset -> one rollout in a notebook, as one row or several."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer.chat_template import apply_chat_template

from verl_pivot.advantages.steps import STEP_ESTIMATOR
from verl_pivot.data.rollout_records import RECORD_FIELD, SCORES_FIELD, TURN_ENDS_FIELD, VERDICT_FIELD
from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.step_returns import StepReturnOutput
from verl_pivot.rewards.steps import StepRule, step_returns, trajectory_scores
from verl_pivot.rollout.cell_calls import functions_of
from verl_pivot.rollout.context import ContextWindow, Trim
from verl_pivot.rollout.context_rows import ContextRow, RowLayout, rows_of
from verl_pivot.rollout.dumped_output import add_transcript
from verl_pivot.rollout.notebook import notebook_of
from verl_pivot.rollout.notebook_context import ContextBuilder, NotebookParts
from verl_pivot.rollout.notebook_outcome import AnswerOutcome, judged_answer
from verl_pivot.rollout.notebook_prompt import system_prompt
from verl_pivot.rollout.notebook_rollout import NotebookRollout
from verl_pivot.rollout.notebook_settings import parse_notebook_settings
from verl_pivot.rollout.notebook_turns import CODE_END, THINK
from verl_pivot.rollout.observations import with_opening
from verl_pivot.rollout.played_notebook import PlayedNotebook
from verl_pivot.rollout.settings import is_dumped, parse_settings
from verl_pivot.rollout.text_difference import text_differs
from verl_pivot.rollout.tracing import TracedToolbox, is_traced, traced_rollout
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import JsonObject

logger = logging.getLogger(__name__)
_PLACEHOLDER = "PLACE OF THE TURN"


class NotebookLoop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Lets the policy work in a notebook until it submits an answer or a limit ends the rollout.

    Each stretch of context, or each step, becomes a row. A failure of the system masks the rollout: it gives one row,
    whose reward is undecided, so that it is counted and the replay buffer leaves it out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if `pivot.notebook`, `pivot.rollout` or its tools file is wrong."""
        super().__init__(*args, **kwargs)
        rollout, notebook = parse_settings(self.config), parse_notebook_settings(self.config)
        self._settings = notebook
        self._tools_file = rollout.tools
        self._max_calls = rollout.max_calls_per_turn
        window = ContextWindow(
            max_tokens=notebook.max_context_tokens,
            max_step_tokens=notebook.max_step_tokens,
            trim=Trim(notebook.trim),
            trim_keep=notebook.trim_keep,
        )
        prefix, suffix = self._turn_ends()
        self._parts = NotebookParts.of(
            self,
            (CODE_END,),
            window=window,
            max_steps=notebook.max_steps,
            max_observation_tokens=rollout.max_observation_tokens,
            max_wall_seconds=rollout.max_wall_seconds,
            has_notepad=notebook.notepad,
            turn_prefix=prefix,
            turn_suffix=tuple(self.tokenizer.encode(suffix, add_special_tokens=False)),
        )
        if notebook.max_context_tokens > self._parts.max_model_len:
            raise ConfigError(
                f"pivot.notebook.max_context_tokens={notebook.max_context_tokens} is more than the engine's context of "
                f"{self._parts.max_model_len} tokens (actor_rollout_ref.rollout.max_model_len, or else the "
                "model's limit): lower the first, or raise the second"
            )

    def _turn_ends(self) -> tuple[str, str]:
        """Texts with which the chat template begins a turn of the policy ("" if it is no think tag) and ends it."""
        task = {"role": "user", "content": ""}
        turn = {"role": "assistant", "content": _PLACEHOLDER}
        begun, ended = (
            str(
                apply_chat_template(
                    self.tokenizer, messages, tokenize=False, add_generation_prompt=is_begun,
                    **self.apply_chat_template_kwargs,
                )
            )
            for messages, is_begun in (([task], True), ([task, turn], False))
        )  # fmt: skip
        prefix = begun[begun.rindex(THINK) :] if begun.rstrip().endswith(THINK) else ""
        return prefix, ended.rpartition(_PLACEHOLDER)[2]

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[StepReturnOutput]:
        """Play one rollout of a row; an empty list if the system failed before the policy sampled a token.

        Raises:
            DataError: If the row's columns cannot be read, or its prompt is too long.
        """
        return await traced_rollout(row, self._play(sampling_params, row), self._shown)

    async def _play(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> list[StepReturnOutput]:
        async with load_toolset(self._tools_file).open(row) as tools:
            if is_traced():
                tools.toolbox = TracedToolbox.of(tools.toolbox)
            played = await self._rollout(tools, sampling_params, row["raw_prompt"])
            if not played.steps:
                logger.error("a rollout is masked (%s): %s", played.stop_reason.value, played.failure)
                return []
            outcome = await judged_answer(played, row, tools)
        return self._outputs(played, outcome, row)

    async def _rollout(
        self, tools: RolloutTools, sampling_params: Mapping[str, Any], prompt: Sequence[JsonObject]
    ) -> PlayedNotebook:
        settings, toolbox = self._settings, tools.toolbox
        system = system_prompt(
            functions_of(toolbox.schemas),
            max_steps=settings.max_steps,
            trim=self._parts.window.trim,
            has_notepad=settings.notepad,
        )
        opening = self._parts.cut(tools.opening, self._parts.max_observation_tokens)
        contexts = ContextBuilder(self._parts, system, with_opening(prompt, opening))
        async with notebook_of(toolbox, has_notepad=settings.notepad, max_calls=self._max_calls) as notebook:
            return await NotebookRollout(self._parts, toolbox, notebook, sampling_params).play(prompt, contexts)

    def _outputs(
        self, played: PlayedNotebook, outcome: AnswerOutcome, row: Mapping[str, Any]
    ) -> list[StepReturnOutput]:
        """Rows of a rollout, of which the last has the record and the outcome; the last alone if masked."""
        is_masked = played.stop_reason.is_masked
        if is_masked:
            logger.error("a rollout is masked (%s): %s", played.stop_reason.value, played.failure)
        returns = _returns(played, outcome, self._settings)
        rows = rows_of(played.stretches, RowLayout(self._settings.rows))[-1 if is_masked else 0 :]
        tokens = played.stretches[-1].tokens
        record = played.record(text_differs=text_differs(self, played.messages, tokens.token_ids))
        last = {RECORD_FIELD: record.as_dict(), VERDICT_FIELD: asdict(outcome.verdict)}
        if outcome.verdict.score is not None:
            facts = [step.facts for step in played.steps]
            last[SCORES_FIELD] = trajectory_scores(facts, outcome.scores, self._settings, record.num_trims)
        rewarded = returns if self._has_step_returns(row) else []
        outputs = [self._output(each, played, rewarded, last if each is rows[-1] else {}) for each in rows]
        if is_dumped(self.config):
            for each, output in zip(rows, outputs, strict=True):
                dumped = played.dumped_turns(each.steps, returns)
                of_row = record if each is rows[-1] else None
                add_transcript(output, self.config, row, of_row, dumped, row["raw_prompt"])
        return outputs

    def _has_step_returns(self, row: Mapping[str, Any]) -> bool:
        """Whether steps have returns; in validation, and for estimators without steps, the answer alone counts."""
        if self.config.algorithm.adv_estimator != STEP_ESTIMATOR:
            return False
        return not is_for_validation(row, "pivot.notebook", "l0")

    def _output(
        self, row: ContextRow, played: PlayedNotebook, returns: Sequence[float], fields: Mapping[str, Any]
    ) -> StepReturnOutput:
        return StepReturnOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs,
            turn_ends=row.step_ends,
            step_returns=list(returns[row.steps.start : row.steps.stop]),
            num_turns=2 * len(played.steps),
            routed_experts=played.steps[row.steps[-1]].routed_experts,
            metrics={"tool_calls": sum(step.seconds for step in played.steps), **played.engine.metrics},
            extra_fields={**played.engine.extra_fields, TURN_ENDS_FIELD: row.step_ends, **fields},
        )

    def _shown(self, outputs: Sequence[StepReturnOutput]) -> str | None:
        """Text of the last row after its prompt; None if no token was sampled."""
        return str(self.tokenizer.decode(outputs[-1].response_ids)) if outputs else None


def _returns(played: PlayedNotebook, outcome: AnswerOutcome, rule: StepRule) -> list[float]:
    """[num_steps] returns of all steps; NaN if the rollout is undecided or masked."""
    facts = [step.facts for step in played.steps]
    return [math.nan] * len(facts) if outcome.verdict.score is None else step_returns(facts, outcome.scores, rule)
