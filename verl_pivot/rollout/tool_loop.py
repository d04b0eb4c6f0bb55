"""Agent loop `pivot_tools` of verl: a row of the dataset -> one rollout in which the policy calls tools."""

from typing import Any, TypeAlias

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.tokenizer.chat_template import apply_chat_template

from verl_pivot.browser.settings import use_browser_of
from verl_pivot.data.rollout_records import WORKFLOWS_COLUMN
from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.best_of import TurnChoice, best_of_turns
from verl_pivot.rollout.driven_rows import driven_rows
from verl_pivot.rollout.group_rewards import FinishedRollout, group_rewards_of
from verl_pivot.rollout.played_rollout import PlayedRollout, ToolLoopParts
from verl_pivot.rollout.rubric_rewards import rubric_rewards_of
from verl_pivot.rollout.settings import RolloutSettings, parse_settings
from verl_pivot.rollout.tool_rollout import ToolRollout
from verl_pivot.rollout.tracing import TracedToolbox, is_traced, traced_rollout
from verl_pivot.rollout.turn_parsers import HermesParser, TagParser, TurnParser, VerlParser
from verl_pivot.rollout.workflow_prompt import ranked_of
from verl_pivot.rollout.workflow_settings import SECTION
from verl_pivot.rollout.workflows import RankedWorkflows
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import load_toolset

_Played: TypeAlias = TurnRewardOutput | list[TurnRewardOutput]
"""Row of a rollout, or rows of one that an environment drives; an empty list if no token was sampled."""


class ToolLoop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Lets the policy call tools until it answers or a limit ends the rollout.

    After a mistake the policy reads an error and goes on. A failure of the system masks the rollout: its reward is
    undecided, and the replay buffer leaves it out. A rollout without any sampled token gives no row, which verl allows.
    With `pivot.ruler` or `pivot.rubrics`, the row also has the judge's verdict, which may have to wait for the other
    rollouts of the prompt.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if the tools file is wrong, or `pivot.rollout`, `.ruler`, `.rubrics` or `.process`."""
        super().__init__(*args, **kwargs)
        settings = parse_settings(self.config)
        use_browser_of(self.config.pivot)
        parser = make_parser(settings, self.tokenizer)
        self._parts = ToolLoopParts.of(
            self,
            parser.stop,
            parser.stop_token_ids,
            settings=settings,
            parser=parser,
            added_prefix=self._added_prefix(settings.assistant_prefix),
        )
        self._group_rewards = group_rewards_of(self.config, self.tokenizer)
        self._rubric_rewards = rubric_rewards_of(self.config, self.tokenizer)
        self._best_of = best_of_turns(self.config, self.tokenizer)

    def _added_prefix(self, prefix: str) -> str:
        """The prefix of turns; empty if the chat template ends its generation prompt with it."""
        prompt: Any = apply_chat_template(
            self.tokenizer, [{"role": "user", "content": ""}], tokenize=False, **self.apply_chat_template_kwargs
        )
        return "" if str(prompt).endswith(prefix) else prefix

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> _Played:
        """Play one rollout of a row.

        Raises:
            DataError: If the row's columns cannot be read, or its prompt is too long.
        """
        return await traced_rollout(row, self._play(sampling_params, row), self._shown)

    async def _play(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> _Played:
        environment = self._parts.settings.environment
        if environment is not None:
            return await driven_rows(self._parts, environment, sampling_params, row)
        made = self._group_rewards or self._rubric_rewards
        if made is None:
            return (await self._finish(sampling_params, row)).output
        rewards = await made.get()
        return await rewards.rewarded(row, lambda: self._finish(sampling_params, row))

    async def _finish(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> FinishedRollout:
        """Play a rollout to its end, and close its tools."""
        async with self._opened_tools(row) as tools:
            rollout = ToolRollout(self._parts, tools, sampling_params, self._workflows_for(row))
            played = await rollout.play(row["raw_prompt"], await self._choice(row, tools))
            return await self._finished(played, tools, row)

    async def _choice(self, row: dict[str, Any], tools: RolloutTools) -> TurnChoice | None:
        """The chooser of the turns of a validation row; None if each turn is the policy's first draw."""
        if self._best_of is None or not is_for_validation(row, "pivot.process.best_of", "ppr"):
            return None
        return (await self._best_of.get()).choice(row, tools.opening)

    def _opened_tools(self, row: dict[str, Any]) -> RolloutTools:
        """New tools of a row, to be entered."""
        settings = self._parts.settings
        tools = load_toolset(settings.tools).open(
            row, max_calls_per_turn=settings.max_calls_per_turn, parallel_calls=settings.parallel_calls
        )
        if is_traced():
            tools.toolbox = TracedToolbox.of(tools.toolbox)
        return tools

    async def _finished(self, played: PlayedRollout, tools: RolloutTools, row: dict[str, Any]) -> FinishedRollout:
        output = await played.row(self._parts, tools, row)
        return FinishedRollout(output, played.shown_turns, tools.toolbox.schemas)

    def _workflows_for(self, row: dict[str, Any]) -> RankedWorkflows | None:
        """Workflows for a row; None where `pivot.rollout.workflows` is off.

        Raises:
            ConfigError: If the row does not say whether it is for validation, as the manager of agent loops writes it.
        """
        settings = self._parts.settings.workflows
        if not settings.is_on:
            return None
        is_validation = is_for_validation(row, SECTION, "tool_rollout")
        shows = settings.shows(is_validation=is_validation, session=int(row["session_id"]))
        return ranked_of(row[WORKFLOWS_COLUMN], shows=shows)

    def _shown(self, played: _Played) -> str | None:
        """Text of the rollout's last row after its prompt; None if no token was sampled."""
        last = played if isinstance(played, TurnRewardOutput) else next(reversed(played), None)
        return None if last is None else str(self.tokenizer.decode(last.response_ids))


def make_parser(settings: RolloutSettings, tokenizer: Any) -> TurnParser:
    """The parser that `pivot.rollout.parser` names.

    Raises:
        ConfigError: If verl has no parser of that name.
    """
    name = settings.verl_parser
    if name is None:
        if settings.parser == "hermes":
            return HermesParser()
        return TagParser(settings.tags, answer_tag=settings.answer_tag)
    try:
        parser = ToolParser.get_tool_parser(name, tokenizer)
    except ValueError as error:
        known = ", ".join(f"verl/{each}" for each in sorted(ToolParser._registry))
        raise ConfigError(f"pivot.rollout.parser: verl has no parser {name!r}; known: {known}") from error
    return VerlParser(name, parser, OpenAIFunctionToolSchema)
