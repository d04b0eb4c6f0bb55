"""Types that several stages share: Trajectory, Turn, TurnProfile, Message, ToolCall and Verdict."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, pvariance
from typing import Literal, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]

ExpertTurns: TypeAlias = Literal["all", "last"] | tuple[int, ...]
"""Which assistant turns are the expert's: all, the last, or those at positions among the assistant turns, from 0."""


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
    """Id that the tool message with the result repeats; None if the source has no ids."""

    def as_dict(self) -> JsonObject:
        """The call in OpenAI's form, but with arguments as an object, as Hugging Face's chat templates need them."""
        call: JsonObject = {
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return call if self.id is None else {"id": self.id, **call}


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Text of a policy that is not a valid action or call, which is the policy's mistake."""

    reason: str
    """Short code in snake_case."""
    detail: str
    """Explanation for people."""


class ErrorKind(StrEnum):
    """Kind of mistake that the policy makes in a tool call: it reads an error message, and the rollout goes on."""

    MALFORMED_CALL = "malformed_call"
    """The call could not be read."""
    UNKNOWN_TOOL = "unknown_tool"
    MISSING_ARGUMENT = "missing_argument"
    INVALID_ARGUMENT = "invalid_argument"
    TOO_MANY_CALLS = "too_many_calls"
    """The turn made more calls than it may."""
    NO_ACTION = "no_action"
    """The turn holds neither a call nor an answer, where the format asks for one of them."""
    REFUSED = "refused"
    """The tool says that the call cannot be done."""
    EXECUTION_ERROR = "execution_error"
    """The policy's program failed."""
    TIME_LIMIT = "time_limit"
    """The policy's program did not end in time."""
    NOT_RECORDED = "not_recorded"
    """The replay of recorded results has none for the call."""


class MessageError(ValueError):
    """A message holds what a message of its role cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. An assistant's message is an action.

    Example:
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="list_orders", arguments={"customer_id": 3}),))
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    """Thinking of the assistant, kept apart from `content`; verifiers never compare it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Parallel calls form one action."""
    tool_call_id: str | None = None
    """Id of the call whose result a tool message holds."""
    name: str | None = None
    """Name of the tool whose result a tool message holds."""

    def __post_init__(self) -> None:
        if self.role is not Role.ASSISTANT and (self.tool_calls or self.reasoning is not None):
            raise MessageError(f"only an assistant message has tool calls or reasoning, got role {self.role.value!r}")

    def as_dict(self) -> JsonObject:
        """The message in OpenAI's form, which chat templates and `data.messages.parse_message` read."""
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
    """Whether the outcome was right; None if the source does not say."""
    verifier: str = "tool_call"
    """Registered name of the verifier that compares actions with the expert's."""
    verifier_options: JsonObject = field(default_factory=dict)
    """Options of the verifier; checked when the verifier is made."""
    metadata: JsonObject = field(default_factory=dict)
    """Data that the verifier needs beside the messages, such as the seed of the environment."""
    expert_turns: ExpertTurns = "all"
    """Assistant turns that are the expert's. "last": the source gives only one action with its state. Positions: other
    assistant turns are mixed in, which must not be learned. Positions count from 0, as `Turn.index` does."""

    def __post_init__(self) -> None:
        if isinstance(self.expert_turns, str):
            return
        chosen, num_turns = self.expert_turns, self._num_turns
        if not chosen or list(chosen) != sorted({*chosen}) or chosen[0] < 0 or chosen[-1] >= num_turns:
            raise ValueError(
                "expert_turns must be 'all', 'last', or ascending positions among the assistant turns, from 0 to "
                f"{num_turns - 1}, got {list(chosen)}"
            )

    @property
    def expert_indices(self) -> tuple[int, ...]:
        """Positions of the expert's turns among the assistant turns, from 0."""
        if isinstance(self.expert_turns, tuple):
            return self.expert_turns
        indices = range(self._num_turns)
        return tuple(indices if self.expert_turns == "all" else indices[-1:])

    @property
    def _num_turns(self) -> int:
        return sum(message.role is Role.ASSISTANT for message in self.messages)


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
    """Action that the expert took."""
    tools: tuple[JsonObject, ...] = ()
    """Schemas of the tools that could be called, in OpenAI's form."""
    verifier: str = "tool_call"
    """Registered name of the verifier that compares actions with the expert's."""
    verifier_options: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    """The trajectory's metadata: data that the verifier needs beside the messages."""

    def __post_init__(self) -> None:
        if self.expert.role is not Role.ASSISTANT:
            raise ValueError(f"turn {self.id}: the expert's action must be the assistant's, got {self.expert.role!r}")
        if not self.state or self.state[-1].role is Role.ASSISTANT:
            end = self.state[-1].role.value if self.state else "nothing"
            raise ValueError(f"turn {self.id}: the state must end before an assistant turn, got one that ends in {end}")

    @property
    def id(self) -> str:
        return f"{self.trajectory_id}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decision of a verifier about one action.

    Example:
        Verdict.refuse("wrong_value", "refund.amount: 9 is not 9.5")
    """

    score: float | None
    """Score in [0, 1]; None is undecided (broken expert data, sandbox down): masked and counted, never 0."""
    reason: str
    """Short code in snake_case; becomes a metric."""
    detail: str = ""
    """Explanation for people, in the profile and in dumps of rollouts."""

    @classmethod
    def accept(cls, score: float = 1.0, *, reason: str = "accepted", detail: str = "") -> "Verdict":
        """Verdict that the action is right, or with a score below 1 partly right."""
        return cls(score=score, reason=reason, detail=detail)

    @classmethod
    def refuse(cls, reason: str, detail: str = "") -> "Verdict":
        """Verdict that the action is wrong: score 0."""
        return cls(score=0.0, reason=reason, detail=detail)

    @classmethod
    def undecided(cls, reason: str, detail: str = "") -> "Verdict":
        """Verdict that the verifier cannot tell: the row is broken or the system failed; never the policy's fault."""
        return cls(score=None, reason=reason, detail=detail)

    def __post_init__(self) -> None:
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"a verdict's score must lie in [0, 1] or be None, got {self.score}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReturn(Verdict):
    """Outcome of an environment that gives rewards on a scale of its own: a verdict whose score is any finite number.

    Example:
        EnvironmentReturn(score=-87.0, reason="terminated")
    """

    paid_tool: str = ""
    """Tool whose calls have their rewards paid on their turns, the score being their sum plus `beyond_calls`; "" if the
    score is paid as a whole."""
    beyond_calls: float = 0.0
    """Part of the score that is not a reward of a call; it is paid on the last turn."""

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"the return of an environment must be a finite number or None, got {self.score}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One action that the reference policy sampled at a turn, with its verdict."""

    text: str
    verdict: Verdict
    num_tokens: int
    """Tokens of the sampled action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProfile:
    """Samples of the frozen reference policy at one turn.

    Statistics are over the decided samples, and NaN if there are none; undecided samples never count as 0.
    """

    trajectory_id: str
    index: int
    samples: tuple[Sample, ...]
    """[num_samples]"""
    num_prompt_tokens: int | None
    """Tokens of the rendered state; 0 if the model's chat template or each server refuses it, None for profiles that
    others published without this number."""

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(sample.verdict.score for sample in self.samples if sample.verdict.score is not None)

    @property
    def pass_rate(self) -> float:
        """Share of decided samples with full score."""
        return fmean(score == 1.0 for score in self.scores) if self.scores else math.nan

    @property
    def reward_mean(self) -> float:
        return fmean(self.scores) if self.scores else math.nan

    @property
    def reward_var(self) -> float:
        """Population variance, 1/K as in PivotRL's estimate (section 3.1); the order of the samples does not change it.

        It is computed in fractions, so that it is 0 for equal scores, and equal for 3 and for 7 right samples of 10.
        """
        return pvariance(self.scores) if self.scores else math.nan

    @property
    def reward_std(self) -> float:
        return math.sqrt(self.reward_var)
