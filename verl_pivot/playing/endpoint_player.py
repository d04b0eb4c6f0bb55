"""EndpointPlayer: messages -> the next turn, with tool calls, of a model behind an OpenAI-compatible endpoint."""

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from verl_pivot.data.actions import read_turn
from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import parse_call, text_of
from verl_pivot.engines.chat import HARMLESS_QUESTION, ChatAnswer, ChatClient, served_models
from verl_pivot.engines.retries import Retries, UnavailableError, excerpt, may_concern_one_question
from verl_pivot.errors import ConfigError, EngineError, QuestionRefusedError
from verl_pivot.playing.player import PlayerTurn, call_as_text
from verl_pivot.rollout.notebook_turns import CODE, CODE_END, THINK, THINK_END
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall

_MAX_EMPTY_ANSWERS = 3
"""Number of successive answers without a token after which the endpoint counts as failed, as in training."""
_OF_LAST_MESSAGE = {"continue_final_message", "add_generation_prompt"}
"""Keys of a request whose last message is the beginning of the assistant's turn."""
_REMEDY = (
    "if the context is too long, lower --max-response-tokens; if a key of the request is not known, set it to null in "
    "--extra-body"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSampling:
    """Sampling parameters of a turn. The defaults sample from the model's own distribution, as training does."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    """Sample k of a prompt uses seed + k, as far as the endpoint supports seeds."""
    extra_body: JsonObject = field(default_factory=dict)
    """Other keys of the request; null removes a key."""

    def parameters(self, max_tokens: int, sample: int) -> JsonObject:
        """Keys of the request for sample k of a prompt."""
        body: JsonObject = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": (self.seed + sample) % 2**31,
            "max_tokens": max_tokens,
            **self.extra_body,
        }
        return {key: value for key, value in body.items() if value is not None}


class EndpointPlayer:
    """A model behind an endpoint, for any number of conversations at once.

    If the endpoint refuses a request, or fails at each attempt at it, a harmless question follows: if that is answered,
    the conversation is masked, and else the error ends the whole run.
    """

    def __init__(self, client: ChatClient, model: str, sampling: ChatSampling) -> None:
        self.name = model
        self._client = client
        self._sampling = sampling
        self._has_taken_tools = False

    async def take_turn(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], max_tokens: int, *, sample: int
    ) -> PlayerTurn:
        more: JsonObject = {"tools": list(tools)} if tools else {}
        return await self._ask(messages, self._sampling.parameters(max_tokens, sample) | more, read_answer)

    async def take_text(
        self,
        messages: Sequence[Message],
        more: JsonObject,
        max_tokens: int,
        *,
        sample: int,
        read: Callable[[ChatAnswer, int], PlayerTurn],
    ) -> PlayerTurn:
        """The next turn as text, without the tools' schemas.

        Args:
            messages: The conversation so far, which may end with the beginning of the turn's message.
            more: Other keys of the request.
            max_tokens: Maximum number of tokens of the turn.
            sample: Number of the conversation, for its seed.
            read: Function that makes the turn from an answer and the number of empty answers before it.
        """
        return await self._ask(messages, self._sampling.parameters(max_tokens, sample) | more, read)

    async def take_step(self, messages: Sequence[Message], max_tokens: int, *, sample: int) -> PlayerTurn:
        parameters: JsonObject = {"stop": [CODE_END], **self._sampling.parameters(max_tokens, sample)}
        return await self._ask(messages, parameters, read_step)

    async def _ask(
        self, messages: Sequence[Message], parameters: JsonObject, read: Callable[[ChatAnswer, int], PlayerTurn]
    ) -> PlayerTurn:
        """The turn that `read` makes from the endpoint's answer."""
        sent = [sent_message(message) for message in messages]

        async def ask(number: int) -> ChatAnswer:
            try:
                answer = await self._client.ask(sent, parameters)
            except (ConfigError, UnavailableError) as error:
                if not may_concern_one_question(error) or not await self._answers_another(parameters):
                    raise
                raise QuestionRefusedError(f"{error} (other requests are answered)") from error
            self._has_taken_tools = self._has_taken_tools or "tools" in parameters
            return answer

        return await first_turn(ask, read)

    async def _answers_another(self, parameters: JsonObject) -> bool:
        """Whether the model answers a harmless question.

        It has the tools of the request, unless the endpoint is known to take tools: it may refuse those of one row.
        """
        own = {"tools", *_OF_LAST_MESSAGE} if self._has_taken_tools else _OF_LAST_MESSAGE
        try:
            await self._client.ask(HARMLESS_QUESTION, {key: parameters[key] for key in parameters.keys() - own})
        except (ConfigError, EngineError):
            return False
        return True

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEndpoint:
    """An endpoint that the user names, before the first request to it."""

    url: str
    model: str | None
    """Name under which the endpoint serves the model; None takes its only model."""
    sampling: ChatSampling
    retries: Retries

    async def player(self) -> EndpointPlayer:
        """The player, after a check that the endpoint can be reached and has the model.

        Raises:
            EngineError: If the endpoint cannot be reached.
            ConfigError: If the endpoint refuses the API key, or does not have the model.
        """
        api_key = os.environ.get("OPENAI_API_KEY", "none")
        model = await self.served_model(api_key)
        client = ChatClient(self.url, model, api_key, self.retries, remedy=_REMEDY)
        return EndpointPlayer(client, model, self.sampling)

    async def served_model(self, api_key: str) -> str:
        """Name under which the endpoint serves the model; raises the errors of `player`."""
        try:
            names = await served_models(self.url, api_key, self.retries)
        except UnavailableError:
            raise
        except EngineError:  # some gateways list no models
            if self.model is None:
                raise
            return self.model
        if self.model in names:
            return self.model
        if self.model is not None or len(names) != 1:
            chosen = "none of them was named" if self.model is None else f"not the model {self.model}"
            raise ConfigError(f"{self.url} serves {', '.join(names) or 'no model'}, but {chosen}; choose one")
        return names[0]


def sent_message(message: Message) -> JsonObject:
    """A message in the format of endpoints: arguments are JSON text, and thinking is left out.

    The endpoint tokenises the assistant's turns again as text. Marks of the chat template in that text are broken up,
    because they would become special tokens that end the turn or begin a turn of another role.
    """
    own = without_chat_tokens if message.role is Role.ASSISTANT else str
    sent: JsonObject = {"role": message.role.value, "content": own(message.content)}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": own(json.dumps(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    return sent


async def first_turn(
    ask: Callable[[int], Awaitable[ChatAnswer]], read: Callable[[ChatAnswer, int], PlayerTurn]
) -> PlayerTurn:
    """The turn in the first answer with a token; a failed turn after several empty answers or a refused request.

    Args:
        ask: Function that sends the request, given the number of empty answers so far.
        read: Function that makes the turn from an answer and the number of empty answers before it.
    """
    for num_empty_answers in range(_MAX_EMPTY_ANSWERS):
        try:
            answer = await ask(num_empty_answers)
        except QuestionRefusedError as error:
            return PlayerTurn(failure=str(error), num_empty_answers=num_empty_answers)
        if not _is_empty(answer):
            return read(answer, num_empty_answers)
    failure = f"the endpoint returned no token {_MAX_EMPTY_ANSWERS} times in a row"
    return PlayerTurn(failure=failure, num_empty_answers=_MAX_EMPTY_ANSWERS)


def read_answer(answer: ChatAnswer, num_empty_answers: int = 0) -> PlayerTurn:
    """The turn in an endpoint's answer; calls that the endpoint left in the text are read in the Hermes format.

    Raises:
        EngineError: If the answer is no assistant message.
    """
    try:
        text = text_of(answer.message.get("content"), may_be_none=True)
        given = [as_object(call, "a tool call") for call in as_list(answer.message.get("tool_calls"), "tool_calls")]
        functions = [as_object(call.get("function"), "tool_call.function") for call in given]
    except BadRowError as error:
        shown = excerpt(answer.message)
        raise EngineError(f"the endpoint's answer is not a chat message ({error}): {shown}") from error
    turn = read_turn(text, [_read_call(call, function) for call, function in zip(given, functions, strict=True)])
    spoken = text if turn.reasoning is None else text.partition("</think>")[2].strip()
    reasoning = answer.message.get("reasoning_content") or answer.message.get("reasoning") or turn.reasoning
    return PlayerTurn(
        content=turn.content,
        reasoning=reasoning if isinstance(reasoning, str) else None,
        calls=turn.calls,
        raw_text="\n".join([*([spoken] if spoken else []), *map(_as_text, functions)]),
        ended=answer.finish_reason != "length",
        num_prompt_tokens=answer.num_prompt_tokens,
        num_tokens=answer.num_completion_tokens,
        num_empty_answers=num_empty_answers,
    )


def read_step(answer: ChatAnswer, num_empty_answers: int = 0) -> PlayerTurn:
    """The step in an endpoint's answer; adds the stop text that servers remove, and thinking from its own field."""
    thought = answer.message.get("reasoning_content") or answer.message.get("reasoning")
    text = answer.text
    if isinstance(thought, str) and thought and THINK_END not in text:
        text = f"{THINK}{thought}{THINK_END}{text}"
    elif THINK_END in text and THINK not in text:  # the chat template has put the opening tag into the prompt
        text = THINK + text
    ended = answer.finish_reason != "length"
    if ended and CODE in text and CODE_END not in text:
        text += CODE_END
    text = text[: text.index(CODE_END) + len(CODE_END)] if CODE_END in text else text
    return PlayerTurn(
        content=text,
        raw_text=text,
        ended=ended,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_tokens=answer.num_completion_tokens,
        num_empty_answers=num_empty_answers,
    )


def _read_call(call: JsonObject, function: JsonObject) -> ToolCall | Malformed:
    call_id = call.get("id")
    try:
        return parse_call(
            function.get("name"),
            function.get("arguments") or "{}",  # some servers omit the arguments of a tool that takes none
            call_id if isinstance(call_id, str) and call_id else None,
        )
    except BadRowError as error:
        return Malformed(reason="malformed_call", detail=str(error))


def _as_text(function: JsonObject) -> str:
    """A call as Hermes text, as the model may have written it, for a turn that stays text."""
    arguments = function.get("arguments")
    return call_as_text(str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments))


def _is_empty(answer: ChatAnswer) -> bool:
    """Whether the endpoint filtered the answer, or gave no text, thinking or call and counted no tokens."""
    if answer.is_filtered:
        return True
    given = any(answer.message.get(key) for key in ("content", "tool_calls", "reasoning_content", "reasoning"))
    return not given and answer.num_completion_tokens == 0
