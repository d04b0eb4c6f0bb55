"""Messages between a process of agent loops and the router's actor: TurnAsked, TurnOver, ... as msgpack bytes."""

from collections.abc import Sequence

import msgspec

from verl_pivot.data.rollout_records import RoutingCost


class TurnAsked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A turn needs a server."""

    number: int
    """Number of the question, which its answer repeats; a process numbers its own questions."""
    request_id: str
    """Id of the conversation, see `routing.client`."""
    num_tokens: int
    """Tokens of the prompt and the response so far."""
    digest: str
    """Digest of these tokens; equal first requests make a group."""
    waited_ms: int = 0
    """Milliseconds that the turn has waited on other shards."""


class TurnOver(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A turn has ended on its server."""

    server: str
    request_id: str | None


class ConversationOver(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A conversation has ended."""

    request_id: str
    response_tokens: int | None
    """Length of the response, observations of tools included; None if the rollout failed."""
    global_step: int | None
    """Training step of the newest weights that sampled any of the response; None if unknown."""


class TurnPassed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first turn of a conversation is to be asked of another shard's router, which has room."""

    number: int
    shard: int
    """Number of that shard, see `routing.shards`."""
    waited_ms: int
    """Milliseconds that the turn has waited so far."""


class ServerGiven(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The server of a turn."""

    number: int
    server: str


class TurnRefused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A turn gets no server."""

    number: int
    reason: str
    is_engine_error: bool
    """Whether the reason is an EngineError, and not the RuntimeError on which verl's asynchronous client asks again."""


Answer = ServerGiven | TurnPassed | TurnRefused
"""What the router answers to TurnAsked."""


class RouterNews(msgspec.Struct, frozen=True, array_like=True):
    """Answers to a process's questions."""

    actor_start: int
    """Time at which the actor started, in nanoseconds. An actor that Ray has restarted knows nothing of earlier
    calls."""
    servers_version: int
    """Number of changes of the servers; handles fetched under another number are out of date."""
    period_ms: int
    """Minimum time in milliseconds between two calls of the process, see `routing.call_pace`."""
    answers: list[Answer]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """Answer of the router to a call that brought messages."""

    costs: list[RoutingCost | None]
    """Routing cost of each conversation that these messages have ended; None for an unknown conversation."""
    news: RouterNews
    """Answers that are known at once, such as the servers of turns that come back from their tools."""


Message = TurnAsked | TurnOver | ConversationOver
"""Message that a process of agent loops sends."""
_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(list[Message])
_news_decoder = msgspec.msgpack.Decoder(RouterNews | None)
_taken_decoder = msgspec.msgpack.Decoder(Taken)


def encode(content: Sequence[Message] | Taken | RouterNews | None) -> bytes:
    """Encode content that one of the functions below decodes."""
    return _encoder.encode(content)


def decode_messages(data: bytes) -> list[Message]:
    """Decode the messages of a process of agent loops."""
    return _message_decoder.decode(data)


def decode_news(data: bytes) -> RouterNews | None:
    """Decode the news for a process of agent loops; None if the router took the process for dead."""
    news: RouterNews | None = _news_decoder.decode(data)
    return news


def decode_taken(data: bytes) -> Taken:
    """Decode the router's answer to a call that brought messages."""
    return _taken_decoder.decode(data)
