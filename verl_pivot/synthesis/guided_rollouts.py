"""Given turns and a policy -> a rollout that begins with the given turns and is continued by the policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_pivot.data.json_values import encode_json
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.rollouts import POLICY, RolloutOptions, play_task
from verl_pivot.synthesis.workshop import Spending, Workshop
from verl_pivot.synthesis.writer import Writer, WriterQuestion
from verl_pivot.types import JsonObject, Malformed, Message, Role, Trajectory


def prompt_of(trajectory: Trajectory) -> tuple[Message, ...] | Malformed:
    """The messages up to the last user message; Malformed if calls precede it, as there is no user simulator."""
    messages = trajectory.messages
    begin = max((number for number, each in enumerate(messages, start=1) if each.role is Role.USER), default=0)
    prompt = messages[:begin]
    if not prompt or any(message.tool_calls for message in prompt):
        return Malformed(reason="several_requests", detail="every call must come after the last user message")
    return prompt


def guided_row(draft: Draft, trajectory: Trajectory, prompt: Sequence[Message]) -> JsonObject:
    """Columns of a trajectory's task: the columns of the draft's task, if it has one, with the given prompt."""
    return {
        "metadata": encode_json(trajectory.metadata),
        **(draft.task or {}),
        "prompt": [message.as_dict() for message in prompt],
    }


@dataclass(slots=True, kw_only=True)
class _GuidedGate:
    """Gate of one rollout that answers the first questions with given turns, without cost and without the cache."""

    turns: Sequence[Message]
    num_before: int
    """Number of assistant messages in the prompt."""
    policy: Workshop | None
    """Workshop of the policy that continues; None if only the given turns are played."""
    num_prompt_tokens: int | None = None
    """Tokens before the policy's first turn, which do not count as response; None before that turn."""

    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        number = sum(each["role"] == Role.ASSISTANT for each in question.messages) - self.num_before
        if number < len(self.turns):
            message = self.turns[number].as_dict()
            return ChatAnswer(message=message, finish_reason="stop", num_prompt_tokens=0, num_completion_tokens=0)
        if self.policy is None:
            raise QuestionRefusedError("the conversation does not end after the last given turn")
        answer = await self.policy.answer(question, POLICY)
        if self.num_prompt_tokens is None:
            self.num_prompt_tokens = answer.num_prompt_tokens
        return replace(answer, num_prompt_tokens=max(0, answer.num_prompt_tokens - self.num_prompt_tokens))


async def play_guided(
    task: JsonObject,
    turns: Sequence[Message],
    workshop: Workshop,
    options: RolloutOptions,
    *,
    name: str,
    number: int = 0,
    policy_goes_on: bool = True,
) -> PlayedProblem:
    """Play one conversation whose first turns are given; the calls in these turns are run again.

    `max_response_tokens` counts only tokens after the given turns; `max_turns` counts all turns.

    Args:
        task: Columns of a row as training reads them.
        turns: Actions of the first turns. The ids of their calls are replaced, so that no two calls share an id.
        workshop: Workshop with the tools and the policy.
        options: Options of the rollout.
        name: Id of the task.
        number: Number of the rollout, for the seeds of the policy's turns.
        policy_goes_on: Whether the policy takes the turns after the given ones. If not, the last given turn must end
            the conversation; otherwise the conversation is masked.

    Returns:
        The conversation. If the user's own code failed in it, it is masked, and the caller decides with `check_code`.

    Raises:
        ConfigError: If there are no tools, or nothing decides the outcome.
        DataError: If the row has no prompt, or no tool supports its content.
        UserCodeError: If an environment cannot be created.
        EngineError: If the endpoint cannot be reached or keeps failing.
    """
    prompt = task["prompt"]
    assert isinstance(prompt, list), name
    gate = _GuidedGate(
        turns=[replace(turn, tool_calls=tuple(replace(call, id=None) for call in turn.tool_calls)) for turn in turns],
        num_before=sum(isinstance(each, dict) and each["role"] == Role.ASSISTANT for each in prompt),
        policy=workshop if policy_goes_on else None,
    )
    guided = replace(workshop, gate=gate, spending=Spending())
    return await play_task(task, guided, options, name=name, number=number)
