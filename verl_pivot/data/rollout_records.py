"""RolloutRecord: calls, tokens, times and end of one rollout with tools, for metrics, samplers and dumps."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from verl_pivot.errors import DataError
from verl_pivot.types import ErrorKind, JsonObject

RECORD_FIELD = "rollout"
"""Key of a row's `extra_fields` that holds the record (`RolloutRecord.as_dict`)."""
TURN_ENDS_FIELD = "turn_ends"
"""Key of `extra_fields` that holds the boundaries of turns: [num_turns] positions behind each turn's last token."""
TRANSCRIPT_FIELD = "transcript"
"""Key of `extra_fields` that holds the rollout's part of its line in a dump (`rollout_dumps.encode_transcript`)."""
PROMPT_FIELD = "prompt_messages"
"""Key of `extra_fields` that holds the messages of the rollout's prompt for a dump (`rollout_dumps.encode_prompt`)."""
IS_VALIDATION = "is_validation"
"""Column of a prompt that tells the agent loop whether the rollout is for validation (`WorkflowManager`)."""
SCORES_FIELD = "scores"
"""Key of `extra_fields` that holds the scores of a trajectory in a notebook (`rewards.steps.trajectory_scores`)."""
VERDICT_FIELD = "verdict"
"""Key of `extra_fields` that holds a Verdict, where an environment or a failure of the system decided the outcome."""

WORKFLOWS_COLUMN = "ranked_workflows"
"""Column of a prompt with the workflows that its rollouts may show (`resampling.step_workflows`)."""
WORKFLOW_TASK_FIELD = "workflow_task"
"""Key of `extra_fields` with goal and site of a rollout whose success may become a workflow; else it is absent."""
OPENING_FIELD = "opening"
"""Key of `extra_fields` that holds what the environments show in the prompt, where turns are judged; else it is absent.
"""
GROUP_VERDICT_FIELD = "group_verdict"
"""Key of `extra_fields` that holds the Verdict of a rollout that was compared with others of its prompt."""
RUBRIC_FIELD = "rubric_verdict"
"""Key of `extra_fields` that holds the Verdict of a rollout by its criteria, on a scale of its own."""
CRITERIA_FIELD = "criteria"
"""Key of `extra_fields`, and of `reward_extra_info`, that holds the criteria with their scores as JSON."""


class StopReason(StrEnum):
    """Why a rollout ended; each rollout has exactly one reason."""

    ANSWERED = "answered"
    """The policy ended a turn without a call."""
    MAX_TURNS = "max_turns"
    """The policy made calls in the last turn that the limit allows."""
    MAX_TURN_TOKENS = "max_turn_tokens"
    """A turn reached its token limit and was cut off."""
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    """A turn was cut off at the end of the response, or the answers of tools did not fit behind it."""
    MAX_WALL_SECONDS = "max_wall_seconds"
    ENVIRONMENT_TERMINATED = "environment_terminated"
    """An environment reached an end that belongs to its task."""
    ENVIRONMENT_TRUNCATED = "environment_truncated"
    """A limit from outside of its task ended an environment, such as a number of steps."""
    ENDED_BY_TOOL = "ended_by_tool"
    """A tool said that the trajectory is over, such as a tool server of verl-tool."""
    TOOL_FAILURE = "tool_failure"
    """A tool or the sandbox failed: the rollout is masked."""
    ENGINE_FAILURE = "engine_failure"
    """The inference engine returned nothing several times in a row: the rollout is masked."""
    SINGLE_TURN = "single_turn"
    """The policy ended its turn, and the agent loop samples only one: calls in it are scored, but not run."""

    @property
    def is_masked(self) -> bool:
        """Whether the system failed, so that the rollout says nothing about the policy and no update may see it."""
        return self in (StopReason.TOOL_FAILURE, StopReason.ENGINE_FAILURE)


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The policy made a mistake and read an error."""
    SYSTEM_FAILURE = "system_failure"
    """The tool or the sandbox failed, which ends the rollout and masks it."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a rollout.

    Example:
        CallRecord(turn=0, name="add", arguments={"a": 2, "b": 3}, status=CallStatus.OK, seconds=0.01, num_tokens=1)
    """

    turn: int
    """Index of the policy's turn, from 0."""
    name: str
    """Name of the tool; empty if the call could not be read."""
    arguments: dict[str, Any] | None
    """JSON values by parameter name; None if the call could not be read, or was refused for their length."""
    status: CallStatus
    error_kind: ErrorKind | None = None
    """Kind of the policy's mistake, with status tool_error."""
    seconds: float = 0.0
    """Seconds that the call took, retries included."""
    num_tokens: int = 0
    """Tokens of the text that the policy read, without the chat template around it."""
    truncated: bool = False
    """Whether the middle of that text was left out."""
    reward: float | None = None
    """Reward that an environment gave for the call; None if it gave none."""
    detail: str = ""
    """What failed, with status system_failure."""


class RoutingCost(msgspec.Struct, kw_only=True):
    """Cost of the engines that served a rollout, as the router counted it."""

    wait_seconds: float = 0.0
    """Seconds that the rollout waited for an engine."""
    num_moves: int = 0
    """Number of turns that were served by another engine than the turn before."""
    recomputed_tokens: int = 0
    """Tokens of the conversation that an engine recomputed after such a move."""


class SearchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the search that chose a rollout."""

    gain: float | None
    """Mean score of the kept candidates minus that of all candidates, averaged over the turns; None without scores."""
    extra_tokens: int
    """Tokens that the policy sampled for candidates that are not part of the rollout."""


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one rollout with tools: its calls, tokens and times, and why it ended.

    Example:
        RolloutRecord(
            prompt_id="eb140b54fbfdc2a0", stop_reason=StopReason.ANSWERED, calls=(call,), turn_tokens=(31, 9),
            prompt_tokens=120, response_tokens=58, generate_seconds=0.8, tool_seconds=0.1,
        )
    """

    prompt_id: str
    """Digest of the prompt (`data.prompts.prompt_id`), which links dumps to rows of data files."""
    stop_reason: StopReason
    calls: tuple[CallRecord, ...]
    turn_tokens: tuple[int, ...]
    """[num_turns] tokens sampled in each turn of the policy."""
    prompt_tokens: int
    response_tokens: int
    """Tokens after the prompt: sampled by the policy or given back by tools."""
    generate_seconds: float
    """Seconds of waiting for the engine."""
    tool_seconds: float
    """Seconds of waiting for tools; of parallel calls the longest counts."""
    num_empty_answers: int = 0
    """Number of empty completions of the engine; the request was repeated after each."""
    is_cut_off: bool = False
    """Whether the last turn was cut off at a limit; False if the policy ended it by itself."""
    unread: ErrorKind | None = None
    """Mistake of a last turn after which nothing was run: a call that could not be read, or neither a call nor an
    answer. None if there is none; the mistakes of earlier turns are in `calls`."""
    num_answers: int | None = None
    """Answers between format tags, 0 if tags are unmatched; None if no format tag is configured."""
    num_citations: int = 0
    """Number of different ids that the last turn cites, as in `<cite id="a,b">`."""
    num_shown_citations: int = 0
    """Number of those that a tool showed before the policy named them to a tool."""
    text_differs: bool = False
    """Whether the chat template renders the conversation differently from the sampled tokens, for example because it
    drops the thinking of earlier turns."""
    journey: RoutingCost | None = None
    """Cost of routing; None if the router does not count it, or its actor died meanwhile."""
    oldest_weights: int | None = None
    """Version of the weights that sampled the first token, as a number of updates; None if the engine reports none."""
    newest_weights: int | None = None
    """Version of the weights that sampled the last token. It is greater than `oldest_weights` if the rollout went on in
    a later step."""
    failure: str = ""
    """What failed, if the rollout is masked."""
    answer: str | None = None
    """Answer that was submitted in a notebook; None if there is none, and for rollouts without a notebook."""
    num_trims: int = 0
    """Number of times that the context of a notebook was trimmed."""
    search: SearchRecord | None = None
    """Figures of the search that chose the rollout; None if the policy sampled it without a search."""
    workflow_version: int | None = None
    """Version of the workflow memory that the prompt was written from; None if the rollout sees no workflows."""
    num_workflows: int = 0
    """Number of workflows that the prompt shows."""
    retry_message: str = ""
    """Message that the policy read after a turn with neither a call nor an answer; "" if it read none."""

    @property
    def is_masked(self) -> bool:
        return self.stop_reason.is_masked

    @property
    def made_calls(self) -> tuple[CallRecord, ...]:
        """Calls, failed ones included; the entry for a turn with neither a call nor an answer is left out."""
        return tuple(call for call in self.calls if call.error_kind is not ErrorKind.NO_ACTION)

    @property
    def num_calls(self) -> int:
        return len(self.made_calls)

    @property
    def num_tool_errors(self) -> int:
        """Number of calls that the policy got wrong."""
        return sum(call.status is CallStatus.TOOL_ERROR for call in self.made_calls)

    def without_retry_message(self, text: str) -> str:
        """A rollout's text without the retry message, which may name the tags that an answer stands in."""
        return text.replace(self.retry_message, "") if self.retry_message else text

    def as_dict(self) -> JsonObject:
        """The record as JSON, with the counts that readers of dumps look for."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **fields,
            "calls": list(fields["calls"]),  # msgspec leaves tuples as they are
            "turn_tokens": list(fields["turn_tokens"]),
            "is_masked": self.is_masked,
            "num_calls": self.num_calls,
            "num_tool_errors": self.num_tool_errors,
        }


def is_undecided(verdict: Mapping[str, Any] | None) -> bool:
    """Whether the verdict under VERDICT_FIELD has no score, which means that the system failed."""
    return verdict is not None and verdict["score"] is None


def parse_record(fields: Mapping[str, Any]) -> RolloutRecord:
    """Read what `RolloutRecord.as_dict` wrote; unknown keys are ignored.

    Raises:
        DataError: If a key is missing or has a value of another type.
    """
    try:
        return msgspec.convert(fields, RolloutRecord)
    except msgspec.ValidationError as error:
        raise DataError(
            f"a row's extra_fields[{RECORD_FIELD!r}] is not a record of a rollout: {error}; run the agent loop and "
            "the trainer with the same version of verl-pivot"
        ) from error
