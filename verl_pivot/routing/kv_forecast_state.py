"""State of routing policy `kv_forecast`: conversations on each server, generation speeds, and waiting requests."""

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from verl_pivot.routing.routing_policy import TurnRequest

_FIRST_RATE = 25.0
"""Tokens per second of one running turn, assumed until turns on the server have ended."""
_RATE_MEMORY = 0.9
"""Weight of the earlier turns in a server's speed, applied each time a turn ends."""
_MANY_RETURNS = 0.5
"""Share of turns that must be followed by another one for cached prefixes to have their full worth."""
_UNKNOWN_SHARE = 0.25
"""Share of followed turns that is assumed while nothing is known. Where no turn comes back, verl's own router is
faster."""
_PRIOR_TURNS = 64.0
"""Weight of the previous step's share of followed turns, as a number of turns of this step."""
_SHARE_MEMORY = 0.99
"""Weight of the earlier turns in the share of time on engines: about the last hundred turns count."""


@dataclass(slots=True, kw_only=True)
class LiveConversation:
    """A conversation that has begun and not ended."""

    group: str
    prompt_tokens: int
    context_tokens: int
    """Tokens of its response at the beginning of its newest turn."""
    turn_began_at: float
    """Time in seconds at which its newest turn began."""
    turn_seconds: float | None = None
    """Duration of its newest turn; None while that turn runs."""
    has_prefix: bool = True
    """Whether its server has its prefix, which new weights invalidate."""

    def tokens(self, rate: float, now: float) -> float:
        """Tokens of its response, estimated from the time that its newest turn has run.

        Args:
            rate: Tokens per second of a running turn.
            now: Time in seconds.
        """
        return self.context_tokens + rate * (
            now - self.turn_began_at if self.turn_seconds is None else self.turn_seconds
        )


@dataclass(slots=True)
class ServerState:
    """Conversations of one server that have begun and not ended."""

    name: str
    capacity: int
    """Tokens of its KV cache."""
    max_running: int | None = None
    """Maximum number of requests that it runs at once; None if it is not known."""
    live: dict[str, LiveConversation] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    """{group: its live conversations}."""
    prompt_tokens: int = 0
    """Tokens of the live conversations' prompts, each distinct prompt counted once."""
    rate: float = _FIRST_RATE
    """Tokens per second of one running turn, learnt from the turns that have ended."""
    load: float = 0.0
    """How full the server is, to compare it with others.

    A slow server counts as fuller. Only the square root of its speed counts, because the speed also falls with every
    conversation.
    """
    _recent_tokens: float = _FIRST_RATE
    _recent_seconds: float = 1.0
    _weight: float = 1.0 / math.sqrt(_FIRST_RATE)
    """Load of one conversation."""

    def load_with(self, more: int) -> float:
        """Load of the server if it had `more` additional conversations."""
        return (len(self.live) + more) * self._weight

    def add(self, name: str, live: LiveConversation) -> None:
        self.live[name] = live
        self.load = self.load_with(0)
        self.groups[live.group] += 1
        if self.groups[live.group] == 1:
            self.prompt_tokens += live.prompt_tokens

    def remove(self, name: str) -> LiveConversation:
        live = self.live.pop(name)
        self.load = self.load_with(0)
        self.groups[live.group] -= 1
        if not self.groups[live.group]:
            del self.groups[live.group]
            self.prompt_tokens -= live.prompt_tokens
        return live

    def learn_rate(self, live: LiveConversation, context_tokens: int) -> None:
        """Learn the speed from a turn that has ended, unless its conversation became shorter.

        Args:
            live: The conversation of the turn.
            context_tokens: Tokens of its response after the turn.
        """
        num_tokens = context_tokens - live.context_tokens
        if live.turn_seconds and num_tokens > 0:
            self._recent_tokens = _RATE_MEMORY * self._recent_tokens + num_tokens
            self._recent_seconds = _RATE_MEMORY * self._recent_seconds + live.turn_seconds
            self.rate = self._recent_tokens / self._recent_seconds
            self._weight = 1.0 / math.sqrt(self.rate)
            self.load = self.load_with(0)

    def tokens(self, now: float) -> list[float]:
        """[num_live] estimated tokens of each response."""
        return [live.tokens(self.rate, now) for live in self.live.values()]


@dataclass(slots=True)
class TimeShares:
    """Shares of the conversations' time that they spend on engines and with tools, over the recent turns."""

    _turn_seconds: float = 0.0
    _total_seconds: float = 0.0

    @property
    def running(self) -> float:
        """Share of time on engines; 1 until a conversation has come back from its tools."""
        return self._turn_seconds / self._total_seconds if self._turn_seconds else 1.0

    def learn(self, live: LiveConversation, now: float) -> None:
        """Learn from a conversation that comes back from its tools now."""
        if live.turn_seconds:
            self._turn_seconds = _SHARE_MEMORY * self._turn_seconds + live.turn_seconds
            self._total_seconds = _SHARE_MEMORY * self._total_seconds + now - live.turn_began_at


class ReturnShare:
    """Share of turns that are followed by another turn of their conversation, in this step and the one before."""

    def __init__(self, before: float | None = None) -> None:
        """`before` is the share in the previous step; None if it is not known."""
        self._before = _UNKNOWN_SHARE if before is None else before
        self.num_released = 0
        """Turns of this step that have ended."""
        self.num_returned = 0
        """Turns of this step whose conversation asked for another one."""

    @property
    def worth_of_prefixes(self) -> float:
        """Worth of cached prefixes, from 0, where no turn comes back, to 1."""
        return min(1.0, self._share() / _MANY_RETURNS)

    def next_step(self) -> "ReturnShare":
        """The share at the beginning of the next step."""
        return ReturnShare(self._share())

    def expect_none(self) -> None:
        """Note that conversations with a single turn begin, so that no turn is expected to come back."""
        if not self.num_returned:
            self._before = 0.0

    def _share(self) -> float:
        return (self.num_returned + _PRIOR_TURNS * self._before) / (self.num_released + _PRIOR_TURNS)


class WaitingRequests:
    """Requests of conversations that have not begun, by group; groups and their requests are in order of arrival."""

    def __init__(self) -> None:
        self._by_group: OrderedDict[str, OrderedDict[str, TurnRequest]] = OrderedDict()
        self._groups: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def add(self, request: TurnRequest) -> None:
        self._by_group.setdefault(request.group, OrderedDict())[request.conversation] = request
        self._groups[request.conversation] = request.group

    def remove(self, request: TurnRequest) -> None:
        requests = self._by_group[request.group]
        del requests[request.conversation]
        del self._groups[request.conversation]
        if not requests:
            del self._by_group[request.group]

    def get(self, conversation: str) -> TurnRequest | None:
        group = self._groups.get(conversation)
        return None if group is None else self._by_group[group][conversation]

    def first(self) -> TurnRequest:
        """The first request of the group that has waited longest."""
        return next(iter(next(iter(self._by_group.values())).values()))

    def first_in_group(self, group: str) -> TurnRequest | None:
        requests = self._by_group.get(group)
        return next(iter(requests.values())) if requests else None
