"""TaggedPlayer: a model behind an endpoint that writes calls between tags and continues in the same message."""

from collections.abc import Sequence

from verl_pivot.data.actions import read_turn
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.playing.endpoint_player import EndpointPlayer
from verl_pivot.playing.player import PlayerTurn
from verl_pivot.rollout.turn_parsers import TagParser
from verl_pivot.types import JsonObject, Message, Role

_GO_ON: JsonObject = {"continue_final_message": True, "add_generation_prompt": False}
"""Keys of SGLang and vLLM for a request whose last message is the beginning of the answer."""


class TaggedPlayer:
    """A player whose turns end at the closing tags of calls and answers, as in the agent loop with parser=tags."""

    def __init__(self, endpoint: EndpointPlayer, parser: TagParser) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._parser = parser

    async def take_turn(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], max_tokens: int, *, sample: int
    ) -> PlayerTurn:
        more: JsonObject = {"stop": list(self._parser.stop)}
        if messages[-1].role is Role.ASSISTANT:
            more |= _GO_ON
        return await self._endpoint.take_text(messages, more, max_tokens, sample=sample, read=self._read)

    async def take_step(self, messages: Sequence[Message], max_tokens: int, *, sample: int) -> PlayerTurn:
        return await self._endpoint.take_step(messages, max_tokens, sample=sample)

    async def close(self) -> None:
        await self._endpoint.close()

    def _read(self, answer: ChatAnswer, num_empty_answers: int) -> PlayerTurn:
        text, ended = self._up_to_stop(answer), answer.finish_reason != "length"
        return PlayerTurn(
            content=read_turn(text).content,
            calls=self._parser.read(text) if ended else (),
            raw_text=text,
            ended=ended,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_tokens=answer.num_completion_tokens,
            num_empty_answers=num_empty_answers,
        )

    def _up_to_stop(self, answer: ChatAnswer) -> str:
        """The turn up to and including its first stop text, which is added if the server removed it."""
        text = answer.text
        if answer.stop_text in self._parser.stop and answer.stop_text not in text:
            text += answer.stop_text
        ends = [text.index(stop) + len(stop) for stop in self._parser.stop if stop in text]
        return text[: min(ends)] if ends else text
