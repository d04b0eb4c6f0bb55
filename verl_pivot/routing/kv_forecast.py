"""Policy `kv_forecast`: fresh conversations wait until their forecast KV fits; what has begun goes on at once."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_pivot.routing.lengths import LengthModel
from verl_pivot.routing.policy import Placement, Release, Request

_FIRST_RATE = 25.0
"""Tokens per second of a running turn, until a server has shown its own."""
_RATE_MEMORY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """What may be tuned; the defaults were found in simulation (docs/routing.md)."""

    fill: float = 0.85
    """Share of a server's KV cache that the forecast may reach."""
    deviations: float = 1.25
    """Of the forecast's standard deviation, added to its mean."""
    unit: int = 8
    """Rollouts of a prompt that share a server, and so the prompt's KV, before its next one goes elsewhere."""
    move_ratio: float = 1.25
    """A turn that returns moves if its server has so many times the conversations of the emptiest one."""
    max_moves: float = 0.5
    """Per rollout."""
    learn_every: int = 64
    """Conversations that end between two looks at the lengths."""


@dataclass(slots=True, kw_only=True)
class _Live:
    """A conversation that has begun and not ended."""

    group: str
    prompt_tokens: int
    tokens: int
    """Of its response, at `since`."""
    since: float | None
    """When its turn began; None while its tools work."""


@dataclass(slots=True)
class _Server:
    """What has begun on one server and not ended."""

    capacity: int
    live: dict[str, _Live] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    """Of distinct prompts."""
    rate: float = _FIRST_RATE
    """Tokens per second of one running turn, learnt."""

    def add(self, name: str, live: _Live) -> None:
        self.live[name] = live
        self.groups[live.group] += 1
        if self.groups[live.group] == 1:
            self.prompt_tokens += live.prompt_tokens

    def remove(self, name: str) -> _Live:
        live = self.live.pop(name)
        self.groups[live.group] -= 1
        if not self.groups[live.group]:
            del self.groups[live.group]
            self.prompt_tokens -= live.prompt_tokens
        return live

    def end_turn(self, release: Release) -> None:
        """Take in how far a conversation is, and how fast that went."""
        live = self.live[release.conversation]
        if live.since is not None and release.now > live.since:
            rate = (release.context_tokens - live.tokens) / (release.now - live.since)
            self.rate = _RATE_MEMORY * self.rate + (1 - _RATE_MEMORY) * rate
        live.tokens, live.since = release.context_tokens, None

    def tokens(self, now: float) -> list[float]:
        """[num_live] of each response, estimated where a turn is under way."""
        return [
            live.tokens if live.since is None else live.tokens + self.rate * (now - live.since)
            for live in self.live.values()
        ]


class _Waiting:
    """Conversations that have not begun, in their order."""

    def __init__(self) -> None:
        self._by_group: OrderedDict[str, OrderedDict[str, Request]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def add(self, request: Request) -> None:
        self._by_group.setdefault(request.group, OrderedDict())[request.conversation] = request

    def remove(self, request: Request) -> None:
        of_group = self._by_group[request.group]
        del of_group[request.conversation]
        if not of_group:
            del self._by_group[request.group]

    def first(self) -> Request:
        """Of the group that waits longest."""
        return next(iter(next(iter(self._by_group.values())).values()))

    def first_of(self, group: str) -> Request | None:
        of_group = self._by_group.get(group)
        return next(iter(of_group.values())) if of_group else None


class KvForecast:
    """Keeps every server as full as its KV cache allows, with a look ahead.

    A fresh conversation is admitted while the forecast of the server's fullest moment fits, so that turns which return
    find their prefix. When nothing waits any more, turns that return move to clearly emptier servers, and the last
    rollouts run in small batches everywhere instead of in large ones somewhere.

    Differs from rStar2-Agent (arXiv:2508.20722, section 3.2), which reserves the longest rollout for each and leaves
    most of the cache empty.
    """

    def __init__(
        self,
        capacities: dict[str, int],
        *,
        budget: int,
        prior: Sequence[int] = (),
        options: ForecastOptions | None = None,
    ) -> None:
        """
        Args:
            capacities: {server: KV tokens}.
            budget: Tokens that a response may have.
            prior: Lengths of the step before.
            options: The defaults unless given.
        """
        self._options = options or ForecastOptions()
        self._servers = {name: _Server(capacity) for name, capacity in capacities.items()}
        self._lengths = LengthModel(budget, prior=prior)
        self._places: dict[str, str] = {}
        self._units: dict[str, tuple[str, int]] = {}
        """{group: the server of its open unit, and how many it has}."""
        self._waiting = _Waiting()
        self._num_moves = 0
        self._num_begun = 0

    def acquire(self, request: Request) -> Sequence[Placement]:
        if request.conversation not in self._places:
            self._waiting.add(request)
            return self._admit_anywhere(request.now)
        place = self._move(request.conversation)
        live = self._servers[place].live[request.conversation]
        live.tokens, live.since = request.context_tokens, request.now
        return (Placement(request.conversation, place),)

    def release(self, release: Release) -> Sequence[Placement]:
        server = self._servers[release.server]
        server.end_turn(release)
        if release.is_last:
            server.remove(release.conversation)
            del self._places[release.conversation]
            self._lengths.end(release.context_tokens)
            if self._is_time_to_learn():
                self._lengths.learn(tokens for each in self._servers.values() for tokens in each.tokens(release.now))
        return self._admit_to(release.server, release.now)

    def _is_time_to_learn(self) -> bool:
        """Often at first, when little is known."""
        num_ended = self._lengths.num_ended
        return num_ended % self._options.learn_every == 0 or num_ended in (4, 8, 16, 32)

    def _emptiest(self) -> str:
        return min(self._servers, key=lambda name: len(self._servers[name].live))

    def _move(self, conversation: str) -> str:
        """Where a conversation goes on: where its prefix is, or on a far emptier server once nothing waits."""
        place = self._places[conversation]
        if self._waiting or self._num_moves >= self._options.max_moves * self._num_begun:
            return place
        emptiest = self._emptiest()
        here, there = len(self._servers[place].live), len(self._servers[emptiest].live)
        if here < self._options.move_ratio * there or here <= there + 1:
            return place
        self._servers[emptiest].add(conversation, self._servers[place].remove(conversation))
        self._places[conversation] = emptiest
        self._num_moves += 1
        return emptiest

    def _admit_anywhere(self, now: float) -> list[Placement]:
        """Fresh conversations in their order, each to its unit's server or the emptiest, until one does not fit."""
        placed = []
        while self._waiting:
            request = self._waiting.first()
            name = self._server_of_unit(request.group, self._emptiest())
            if not self._fits(name, request, now):
                break
            placed.append(self._begin(request, name, now))
        return placed

    def _server_of_unit(self, group: str, emptiest: str) -> str:
        name, size = self._units.get(group, (emptiest, 0))
        unit = self._options.unit
        is_open = size < unit and len(self._servers[name].live) <= len(self._servers[emptiest].live) + unit
        return name if is_open else emptiest

    def _admit_to(self, name: str, now: float) -> list[Placement]:
        """Fresh conversations to a server that has room again, first of prompts whose unit there is not full."""
        placed = []
        while self._waiting:
            request = self._next_for(name)
            if not self._fits(name, request, now):
                break
            placed.append(self._begin(request, name, now))
        return placed

    def _next_for(self, name: str) -> Request:
        for group, count in self._servers[name].groups.items():
            if count < self._options.unit and (request := self._waiting.first_of(group)):
                return request
        return self._waiting.first()

    def _fits(self, name: str, request: Request, now: float) -> bool:
        """Whether the forecast of a server's fullest moment leaves room for one more; an empty one takes anything."""
        server = self._servers[name]
        if not server.live:
            return True
        prompts = server.prompt_tokens + (0 if request.group in server.groups else request.prompt_tokens)
        peak = self._lengths.peak([*server.tokens(now), 0.0], self._options.deviations)
        return prompts + peak <= self._options.fill * server.capacity

    def _begin(self, request: Request, name: str, now: float) -> Placement:
        self._waiting.remove(request)
        live = _Live(group=request.group, prompt_tokens=request.prompt_tokens, tokens=request.context_tokens, since=now)
        self._servers[name].add(request.conversation, live)
        self._places[request.conversation] = name
        unit_server, size = self._units.get(request.group, (name, 0))
        is_same = unit_server == name and size < self._options.unit
        self._units[request.group] = (name, size + 1 if is_same else 1)
        self._num_begun += 1
        return Placement(request.conversation, name)
