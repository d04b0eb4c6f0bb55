"""What crosses a stage: Trajectory -> Turn -> TurnProfile, and the Verdict that scores one action."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, with its arguments decoded.

    Example:
        ToolCall(name="refund", arguments={"order_id": 17, "amount": 9.5})
    """

    name: str
    arguments: JsonObject
    id: str | None = None
    """Links the call to the tool message that answers it, where the source had one."""

    def as_dict(self) -> JsonObject:
        """The OpenAI shape that chat templates read: arguments stay an object, as Hugging Face asks."""
        call: JsonObject = {
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return call if self.id is None else {"id": self.id, **call}


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """What a policy wrote that is no action, or no call: its mistake, with the reason."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. An assistant's message is an action.

    Example:
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="list_orders", arguments={"customer_id": 3}),))
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    """Private thinking of the assistant, apart from `content`; never compared by a verifier."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Parallel calls form one action."""
    tool_call_id: str | None = None
    name: str | None = None
    """Of the tool that a tool message answers for."""

    def __post_init__(self) -> None:
        if self.role is not Role.ASSISTANT and (self.tool_calls or self.reasoning is not None):
            raise ValueError(f"only an assistant message has tool calls or reasoning, got role {self.role.value!r}")

    def as_dict(self) -> JsonObject:
        """The OpenAI shape that chat templates and `data.messages.parse_message` read."""
        message: JsonObject = {"role": self.role.value, "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One recorded conversation of an expert with its tools.

    Example:
        Trajectory(id="shop-17", messages=(system, user, call, result, answer), tools=(schema,), passed=True)
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    """OpenAI tool schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""
    passed: bool | None = None
    """Whether the outcome was right; None where the source does not say."""
    verifier: str = "tool_call"
    """Registered name of the verifier that compares actions with the expert's."""
    verifier_options: JsonObject = field(default_factory=dict)
    """What that verifier takes; checked when it is first asked for."""
    metadata: JsonObject = field(default_factory=dict)
    """What the verifier needs beside the messages, such as the seed of the environment."""
    expert_turns: Literal["all", "last"] = "all"
    """Which assistant turns are the expert's; "last" where a source gives one action with the state before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A pivot candidate: the state before one assistant turn and the action that the expert took there.

    PivotRL (arXiv:2603.21383, section 3) treats every assistant turn of an SFT trajectory as a candidate.

    Example:
        Turn(trajectory_id="shop-17", index=1, state=(system, user, call, result), expert=refund)
    """

    trajectory_id: str
    index: int
    """Position among the trajectory's assistant turns, from 0."""
    state: tuple[Message, ...]
    """Every message before the action; the last one is never the assistant's."""
    expert: Message
    """The demonstrated action."""
    tools: tuple[JsonObject, ...] = ()
    verifier: str = "tool_call"
    verifier_options: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.expert.role is not Role.ASSISTANT:
            raise ValueError(f"turn {self.id}: the expert's action must be the assistant's, got {self.expert.role!r}")
        if not self.state or self.state[-1].role is Role.ASSISTANT:
            end = self.state[-1].role.value if self.state else "nothing"
            raise ValueError(f"turn {self.id}: the state must end before an assistant turn, it ends in {end}")

    @property
    def id(self) -> str:
        return f"{self.trajectory_id}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says of one action.

    Example:
        Verdict(score=0.0, reason="wrong_value", detail="refund.amount: 9 is not 9.5")
    """

    score: float | None
    """In [0, 1]; None is undecided (broken expert data, sandbox down): masked and counted, never 0."""
    reason: str
    """Short code in snake_case; becomes a metric."""
    detail: str = ""
    """For people, in the profile and in rollout dumps."""

    def __post_init__(self) -> None:
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"a verdict's score must lie in [0, 1] or be None, got {self.score}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One action that the reference policy sampled at a turn, with its verdict."""

    text: str
    verdict: Verdict
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProfile:
    """How the frozen reference policy does at one turn.

    Statistics are over the decided samples; undecided ones are left out, not counted as 0. With none
    decided they are NaN.
    """

    trajectory_id: str
    index: int
    samples: tuple[Sample, ...]
    """[num_samples]"""
    num_prompt_tokens: int | None
    """None: published by others, who do not say."""

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(sample.verdict.score for sample in self.samples if sample.verdict.score is not None)

    @property
    def pass_rate(self) -> float:
        """Share of decided samples with full score."""
        return _mean([float(score == 1.0) for score in self.scores])

    @property
    def reward_mean(self) -> float:
        return _mean(self.scores)

    @property
    def reward_var(self) -> float:
        """Population variance, 1/K as in PivotRL's estimate (section 3.1); exactly 0 for equal scores."""
        mean = self.reward_mean
        is_mixed = len(set(self.scores)) > 1
        return _mean([(score - mean) ** 2 if is_mixed else 0.0 for score in self.scores])

    @property
    def reward_std(self) -> float:
        return math.sqrt(self.reward_var)


def _mean(values: list[float] | tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else math.nan
