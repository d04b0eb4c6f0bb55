"""An environment that is stepped -> OpenedEnvironment: the tool that steps it, rewards, its end, and its outcome."""

import asyncio
import logging
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field

from verl_pivot.data.json_values import BadRowError, as_list, decode_json
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.errors import ConfigError, DataError, ToolBugError, ToolFailureError
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.tool_response import shortened
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import EnvironmentReturn, JsonObject, Message, Verdict
from verl_pivot.validation import Options

logger = logging.getLogger(__name__)

_MAX_CLOSE_SECONDS = 10.0
_MAX_SEED = 2**31
_ENDINGS = {
    StopReason.ENVIRONMENT_TERMINATED: "terminated",
    StopReason.ENVIRONMENT_TRUNCATED: "truncated by a limit from outside of the task",
}


class RewardRule(StrEnum):
    """Rule by which the rewards of steps become the reward of the rollout."""

    SUM = "sum"
    """The sum of the rewards, on the last token of the rollout."""
    LAST = "last"
    """The last reward, on the last token of the rollout."""
    TURNS = "turns"
    """The sum of the rewards, each on the last token of the turn that made the step."""


class SteppedOptions(Options):
    """Options of every environment that is stepped."""

    tool_name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "step"
    """Name of the tool that steps the environment."""
    description: str | None = None
    """Description of the tool for the policy, such as what each action means; None: one sentence that names the
    environment."""
    reward: RewardRule = RewardRule.SUM
    unfinished_reward: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Added to the reward of a rollout that ends before its environment does; below 0 discourages ending early."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Time limit in seconds of one step, of the beginning, and of closing, which has 10 s at most."""
    max_characters: Annotated[int, Field(ge=16)] = 16384
    """Maximum length of an observation in characters; `pivot.rollout.max_observation_tokens` limits it further."""

    @property
    def seconds_to_begin(self) -> float:
        """Seconds in which an environment must have begun."""
        return self.timeout_seconds

    def schema_of_step(self, label: str, parameters: JsonObject) -> JsonObject:
        """Schema of the tool in OpenAI's form.

        Args:
            label: Name of the environment.
            parameters: JSON schema of the arguments.

        Raises:
            ConfigError: If the parameters are no JSON schema of an object.
        """
        description = self.description or f"Take one step in the environment {label}."
        function: JsonObject = {"name": self.tool_name, "description": description, "parameters": parameters}
        try:
            (schema,) = parse_tools([{"type": "function", "function": function}])
        except BadRowError as error:
            raise ConfigError(f"environment {label} has actions that no tool schema can describe: {error}") from error
        return schema


class Step(NamedTuple):
    """Result of a step, or of the beginning, which has no reward."""

    text: str
    """Observation as the policy reads it."""
    reward: float = 0.0
    end: StopReason | None = None
    """How the environment ended, terminated or truncated; None if it goes on."""


class Stepper(Protocol):
    """The environment of one rollout. Its methods run one at a time; after one has failed, only `close` is called."""

    async def begin(self) -> Step:
        """Make the environment and bring it to its first state.

        Raises:
            ToolFailureError: If that fails; ToolBugError if the environment's own code fails.
        """
        ...

    async def step(self, arguments: JsonObject) -> Step:
        """Take a step.

        Args:
            arguments: Arguments that the schema of the tool accepts.

        Raises:
            ToolError: If the action is a mistake of the policy; the environment's state is unchanged.
            ToolFailureError: As for `begin`.
        """
        ...

    async def close(self) -> None:
        """Release the environment; called once, also if it never began.

        Raises:
            ToolFailureError: As for `begin`.
        """
        ...


class SteppedEnvironment:
    """An environment during one rollout, whose rewards are its outcome."""

    def __init__(self, stepper: Stepper, options: SteppedOptions, schema: JsonObject, label: str) -> None:
        """Hold an environment that has not begun.

        Args:
            stepper: The environment.
            options: The entry of the tools file.
            schema: Schema of the tool that steps it.
            label: Name of the environment in messages.
        """
        self._stepper, self._options, self._place = stepper, options, f"environment {label}"
        policy = CallPolicy(timeout_seconds=options.timeout_seconds, in_order=True)
        self.tools = (_StepTool(self, schema, policy),)
        self._rewards: list[float] = []
        self._end: StopReason | None = None
        self._is_lost = False
        """Whether a step failed or has not returned, so that the state is unknown."""

    async def begin(self) -> str:
        """Begin; returns the first observation.

        Raises:
            ToolFailureError: If the environment fails, or does not begin in time.
        """
        seconds = self._options.timeout_seconds
        self._is_lost = True
        try:
            async with asyncio.timeout(self._options.seconds_to_begin):
                first = await self._stepper.begin()
        except TimeoutError as error:
            raise ToolFailureError(f"{self._place} did not begin within {seconds:g} s") from error
        self._is_lost, self._end = False, first.end
        return self._text(first)

    async def step(self, arguments: JsonObject) -> Observation:
        """Take a step.

        Raises:
            ToolError: If the action is the policy's mistake, or the environment has ended.
            ToolFailureError: If the environment fails, or gives a reward that is no finite number.
        """
        if self._is_lost:
            raise ToolFailureError(f"{self._place} failed in an earlier call")
        if self._end is not None:
            raise ToolError(f"the environment has ended ({_ENDINGS[self._end]}); it takes no further step")
        self._is_lost = True  # until the step has returned, since a cancelled one leaves an unknown state
        try:
            taken = await self._stepper.step(arguments)
        except ToolError:
            self._is_lost = False
            raise
        if not math.isfinite(taken.reward):
            raise ToolBugError(f"{self._place} gave the reward {taken.reward}; a reward is a finite number")
        self._is_lost, self._end = False, taken.end
        self._rewards.append(taken.reward)
        return Observation(self._text(taken), reward=taken.reward, end=taken.end)

    def _text(self, step: Step) -> str:
        text = shortened(step.text, self._options.max_characters)
        text = text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair, which no tokenizer takes
        return text if step.end is None else f"{text}\nThe environment has ended: {_ENDINGS[step.end]}."

    async def score(self, answer: Message | None) -> Verdict:
        """Sum of the rewards, or the last one, plus `unfinished_reward` if it applies; undecided after a failure."""
        if self._is_lost:
            return Verdict.undecided("environment_failed", f"{self._place} failed")
        rule, rewards = self._options.reward, self._rewards
        added = self._options.unfinished_reward if self._end is None else 0.0
        outcome = (sum(rewards[-1:]) if rule is RewardRule.LAST else math.fsum(rewards)) + added
        if not math.isfinite(outcome):
            return Verdict.undecided("environment_failed", f"{self._place} gave rewards whose sum is no finite number")
        reason = "environment_unfinished" if self._end is None else self._end.value
        paid_tool = self._options.tool_name if rule is RewardRule.TURNS else ""
        return EnvironmentReturn(score=outcome, reason=reason, paid_tool=paid_tool, beyond_calls=added)

    def progress(self) -> float | None:
        """The sum of the rewards so far; None if the state is unknown."""
        return None if self._is_lost else math.fsum(self._rewards)

    async def close(self) -> None:
        """Close the environment.

        Raises:
            ToolFailureError: If that fails or hangs, unless the rollout is masked already.
        """
        seconds = min(self._options.timeout_seconds, _MAX_CLOSE_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self._stepper.close()
        except TimeoutError:
            failure = ToolFailureError(f"{self._place} did not close within {seconds:g} s")
        except ToolFailureError as error:
            failure = error
        else:
            return
        if not self._is_lost:
            raise failure
        logger.warning("%s", failure)


class _StepTool:
    """The tool that steps the environment of one rollout."""

    def __init__(self, environment: SteppedEnvironment, schema: JsonObject, policy: CallPolicy) -> None:
        self.schema, self.policy, self._environment = schema, policy, environment

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._environment.step(arguments)


def seed_of(metadata: JsonObject, row: Mapping[str, Any]) -> int:
    """Seed of a row's environment: `metadata.seed`, else a number drawn from the prompt and `extra_info.index`.

    All rollouts of a row have the same seed, so that a group begins in one state, and a rerun begins in it, too.

    Raises:
        DataError: If `metadata.seed` is no integer from 0 to 2^31 - 1.
    """
    seed = metadata.get("seed")
    if seed is None:
        messages = row.get("raw_prompt", row.get("prompt"))
        listed: Any = as_list(decode_json(messages), "prompt") if isinstance(messages, str) else messages
        extra_info = row.get("extra_info")
        index = extra_info.get("index") if isinstance(extra_info, Mapping) else None
        of_prompt = 0 if listed is None else int(prompt_id(listed), 16)
        return int(prompt_id([{"prompt": of_prompt, "index": str(index)}]), 16) % _MAX_SEED
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _MAX_SEED:
        raise DataError(f"metadata.seed of a row must be an integer from 0 to {_MAX_SEED - 1}, got {seed!r:.80}")
    return seed


def drawn_seed_of(metadata: JsonObject, row: Mapping[str, Any]) -> int | None:
    """Seed that is drawn for a row's environment; None if its `metadata.seed` gives one."""
    return seed_of(metadata, row) if metadata.get("seed") is None else None


def reset_options(metadata: JsonObject) -> JsonObject | None:
    """The row's `metadata.options`, with which its environment begins; None if it has none.

    Raises:
        DataError: If they are no object.
    """
    options = metadata.get("options")
    if options is not None and not isinstance(options, dict):
        raise DataError(f"metadata.options of a row, for `reset`, must be an object, got {options!r:.80}")
    return options
