"""What `kv_forecast` keeps in mind: conversations that run on each server, and those that wait."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from verl_pivot.routing.policy import Request

_FIRST_RATE = 25.0
"""Tokens per second of a running turn, until a server has shown its own."""
_RATE_MEMORY = 0.9
_SHARE_MEMORY = 0.99
"""Of all turns together, about the last hundred count."""


@dataclass(slots=True, kw_only=True)
class Live:
    """A conversation that has begun and not ended."""

    group: str
    prompt_tokens: int
    context: int
    """Tokens of its response when its newest turn began."""
    began: float
    """When that was."""
    seconds: float | None = None
    """How long the turn took; None while it is under way."""
    epoch: int
    """Of the engines' caches, in which its prefix was computed."""

    def tokens(self, rate: float, now: float) -> float:
        """Of its response, estimated from when its turn began."""
        return self.context + rate * (now - self.began if self.seconds is None else self.seconds)


@dataclass(slots=True)
class ServerState:
    """What has begun on one server and not ended."""

    capacity: int
    live: dict[str, Live] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    """Of distinct prompts."""
    rate: float = _FIRST_RATE
    """Tokens per second of one running turn, learnt."""
    _tokens: float = _FIRST_RATE
    _seconds: float = 1.0

    def add(self, name: str, live: Live) -> None:
        self.live[name] = live
        self.groups[live.group] += 1
        if self.groups[live.group] == 1:
            self.prompt_tokens += live.prompt_tokens

    def remove(self, name: str) -> Live:
        live = self.live.pop(name)
        self.groups[live.group] -= 1
        if not self.groups[live.group]:
            del self.groups[live.group]
            self.prompt_tokens -= live.prompt_tokens
        return live

    def learn_rate(self, live: Live, context_tokens: int) -> None:
        """Take in how many tokens a turn that is over has added."""
        if live.seconds:
            self._tokens = _RATE_MEMORY * self._tokens + context_tokens - live.context
            self._seconds = _RATE_MEMORY * self._seconds + live.seconds
            self.rate = self._tokens / self._seconds

    def tokens(self, now: float) -> list[float]:
        """[num_live] of each response."""
        return [live.tokens(self.rate, now) for live in self.live.values()]


@dataclass(slots=True)
class TimeShares:
    """How conversations spend their time: with turns on engines, and with tools."""

    _turns: float = 0.0
    _all: float = 0.0

    @property
    def running(self) -> float:
        """Share of turns; 1 until a conversation has returned."""
        return self._turns / self._all if self._turns else 1.0

    def learn(self, live: Live, now: float) -> None:
        """Take in a turn, and what its tools have taken until now."""
        if live.seconds:
            self._turns = _SHARE_MEMORY * self._turns + live.seconds
            self._all = _SHARE_MEMORY * self._all + now - live.began


class WaitingRoom:
    """Conversations that have not begun, in their order."""

    def __init__(self) -> None:
        self._by_group: OrderedDict[str, OrderedDict[str, Request]] = OrderedDict()
        self._groups: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def add(self, request: Request) -> None:
        self._by_group.setdefault(request.group, OrderedDict())[request.conversation] = request
        self._groups[request.conversation] = request.group

    def remove(self, request: Request) -> None:
        of_group = self._by_group[request.group]
        del of_group[request.conversation]
        del self._groups[request.conversation]
        if not of_group:
            del self._by_group[request.group]

    def get(self, conversation: str) -> Request | None:
        group = self._groups.get(conversation)
        return None if group is None else self._by_group[group][conversation]

    def first(self) -> Request:
        """Of the group that waits longest."""
        return next(iter(next(iter(self._by_group.values())).values()))

    def first_of(self, group: str) -> Request | None:
        of_group = self._by_group.get(group)
        return next(iter(of_group.values())) if of_group else None
