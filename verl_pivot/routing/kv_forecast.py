"""Policy `kv_forecast`: fresh conversations wait until their forecast KV fits; what has begun goes on at once."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from verl_pivot.routing.forecast_state import Live, ServerState, TimeShares, WaitingRoom
from verl_pivot.routing.lengths import LengthModel
from verl_pivot.routing.policy import End, Placement, Release, Request


class ForecastOptions(BaseModel):
    """What may be tuned; the defaults were found in simulation (docs/routing.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fill: float = Field(default=0.85, gt=0.0, le=1.0)
    """Share of a server's KV cache that the forecast may reach."""
    deviations: float = Field(default=0.75, ge=0.0)
    """Of the forecast's standard deviation, added to its mean."""
    running_share: float = Field(default=0.6, ge=0.0, le=1.0)
    """Of conversations that have begun, so many are to run while tools of others work: where tools take longer, more
    are admitted than fit. 0: never more."""
    unit: int = Field(default=8, ge=1)
    """Rollouts of a prompt that share a server, and so the prompt's KV, before its next one goes elsewhere."""
    light_unit: int = Field(default=4, ge=1)
    """The same where the caches are not expected to fill: there it matters more that each server gets all kinds."""
    move_ratio: float = Field(default=1.25, ge=1.0)
    """A turn that returns moves if its server has so many times the conversations of the emptiest one."""
    max_moves: float = Field(default=0.5, ge=0.0)
    """Per rollout."""
    learn_every: int = Field(default=64, ge=1)
    """Conversations that end between two looks at the lengths."""
    max_remembered: int = Field(default=50_000, ge=1)
    """Conversations after whose end lengths are learnt afresh, if the rollouts of a step never come to an end."""


class KvForecast:
    """Keeps every server as full as its KV cache allows, with a look ahead.

    A fresh conversation is admitted while the forecast of the server's fullest moment fits, so that turns which return
    find their prefix. When nothing waits any more, turns that return move to clearly emptier servers, and the last
    rollouts run in small batches everywhere instead of in large ones somewhere.

    Differs from rStar2-Agent (arXiv:2508.20722, section 3.2), which reserves the longest rollout for each and leaves
    most of the cache empty.
    """

    def __init__(self, *, budget: int, prior: Sequence[int] = (), options: ForecastOptions | None = None) -> None:
        """
        Args:
            budget: Tokens that a response may have.
            prior: Lengths of the step before; of later ones it knows them itself.
            options: The defaults unless given.
        """
        self._options = options or ForecastOptions()
        self._servers: dict[str, ServerState] = {}
        self._lengths = LengthModel(budget, prior=prior)
        self._places: dict[str, str] = {}
        self._parked: dict[str, Live] = {}
        """Conversations that may have ended: they take no room, and keep their place."""
        self._units: dict[str, tuple[str, int]] = {}
        """{group: the server of its open unit, and how many it has}."""
        self._waiting = WaitingRoom()
        self._is_pressed = False
        self._epoch = 0
        self._num_moves = 0
        self._num_begun = 0
        self._time_shares = TimeShares()

    def acquire(self, request: Request) -> Sequence[Placement]:
        if request.conversation in self._places:
            return (self._go_on(request),)
        if request.context_tokens:  # its server is gone
            return (self._begin(request, self._emptiest()),)
        if not self._places and not self._waiting:
            self._begin_step()
        self._waiting.add(request)
        return self._admit_anywhere(request.now)

    def release(self, release: Release) -> Sequence[Placement]:
        server = self._servers[release.server]
        live = server.live[release.conversation]
        live.seconds = release.now - live.began
        if not release.may_be_last:
            return ()
        self._parked[release.conversation] = server.remove(release.conversation)
        return self._admit_to(release.server, release.now)

    def end(self, end: End) -> Sequence[Placement]:
        if request := self._waiting.get(end.conversation):
            self._waiting.remove(request)
        name = self._places.pop(end.conversation, None)
        if name is None:
            return ()
        server = self._servers[name]
        live = self._parked.pop(end.conversation, None) or server.remove(end.conversation)
        if end.response_tokens is not None:
            server.learn_rate(live, end.response_tokens)
        known = end.response_tokens
        self._lengths.end(int(live.tokens(server.rate, end.now)) if known is None else known)
        if self._is_time_to_learn():
            self._lengths.learn(tokens for each in self._servers.values() for tokens in each.tokens(end.now))
        return self._admit_to(name, end.now)

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        self._servers.setdefault(name, ServerState(capacity)).capacity = capacity
        return self._admit_anywhere(now)

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._servers[name]
        self._parked = {each: live for each, live in self._parked.items() if self._places[each] != name}
        self._places = {each: server for each, server in self._places.items() if server != name}
        self._units = {group: unit for group, unit in self._units.items() if unit[0] != name}
        return self._admit_anywhere(now)

    def forget_prefixes(self) -> None:
        self._epoch += 1

    def _begin_step(self) -> None:
        """What the last rollouts were like is what is known of the next."""
        self._units.clear()
        if self._lengths.num_ended:
            self._lengths = self._lengths.next_step()
        capacity = sum(server.capacity for server in self._servers.values())
        self._is_pressed = self._lengths.prior_tokens > self._options.fill * capacity

    def _is_time_to_learn(self) -> bool:
        """Often at first, when little is known."""
        num_ended = self._lengths.num_ended
        if num_ended >= self._options.max_remembered:
            self._begin_step()
        return num_ended % self._options.learn_every == 0 or num_ended in (4, 8, 16, 32)

    def _emptiest(self) -> str:
        return min(self._servers, key=lambda name: len(self._servers[name].live))

    def _go_on(self, request: Request) -> Placement:
        """The next turn of a conversation: where its prefix is, or elsewhere."""
        name = request.conversation
        place = self._places[name]
        if parked := self._parked.pop(name, None):
            self._servers[place].learn_rate(parked, request.context_tokens)
            self._servers[place].add(name, parked)
        else:
            self._time_shares.learn(self._servers[place].live[name], request.now)
        live = self._servers[place].live[name]
        if (emptier := self._emptier(place, live)) is not None:
            self._servers[emptier].add(name, self._servers[place].remove(name))
            self._places[name] = place = emptier
            self._num_moves += 1
        live.context, live.began, live.seconds, live.epoch = request.context_tokens, request.now, None, self._epoch
        return Placement(name, place)

    def _emptier(self, place: str, live: Live) -> str | None:
        """A server to move to: far emptier once nothing waits, or emptier at all if the prefix is lost anyway."""
        emptiest = self._emptiest()
        here, there = len(self._servers[place].live), len(self._servers[emptiest].live)
        if here <= there + 1:
            return None
        if live.epoch < self._epoch:
            return emptiest
        if self._waiting or self._num_moves >= self._options.max_moves * self._num_begun:
            return None
        return emptiest if here >= self._options.move_ratio * there else None

    def _admit_anywhere(self, now: float) -> list[Placement]:
        """Fresh conversations in their order, each to its unit's server or the emptiest, until one does not fit."""
        placed = []
        while self._waiting and self._servers:
            request = self._first()
            name = self._server_of_unit(request.group, self._emptiest())
            if not self._fits(name, request, now):
                self._is_pressed = True
                break
            placed.append(self._admit(request, name, now))
        return placed

    @property
    def _unit(self) -> int:
        return self._options.unit if self._is_pressed else self._options.light_unit

    def _server_of_unit(self, group: str, emptiest: str) -> str:
        name, size = self._units.get(group, (emptiest, 0))
        is_open = size < self._unit and len(self._servers[name].live) <= len(self._servers[emptiest].live) + self._unit
        return name if is_open else emptiest

    def _admit_to(self, name: str, now: float) -> list[Placement]:
        """Fresh conversations to a server that has room again, first of prompts whose unit there is not full."""
        placed = []
        while self._waiting:
            request = self._next_for(name)
            if not self._fits(name, request, now):
                break
            placed.append(self._admit(request, name, now))
        return placed

    def _next_for(self, name: str) -> Request:
        for group, count in self._servers[name].groups.items():
            if count < self._options.unit and (request := self._waiting.first_of(group)):
                return request
        return self._first()

    def _first(self) -> Request:
        return self._waiting.first()

    def _fits(self, name: str, request: Request, now: float) -> bool:
        """Whether the forecast of a server's fullest moment leaves room for one more; an empty one takes anything."""
        server = self._servers[name]
        if not server.live:
            return True
        prompts = server.prompt_tokens + (0 if request.group in server.groups else request.prompt_tokens)
        return prompts + self._peak(server, request, now) <= self._room(server)

    def _room(self, server: ServerState) -> float:
        """Tokens of conversations that may be there: more than fit if engines have little to do while tools work.

        Some of those that wait for tools lose their KV then, and the engine computes it again.
        """
        return self._options.fill * server.capacity * max(1.0, self._options.running_share / self._time_shares.running)

    def _peak(self, server: ServerState, request: Request, now: float) -> float:
        """Tokens of responses at that moment, with the request's."""
        return self._lengths.peak([*server.tokens(now), 0.0], self._options.deviations)

    def _admit(self, request: Request, name: str, now: float) -> Placement:
        self._waiting.remove(request)
        unit_server, size = self._units.get(request.group, (name, 0))
        is_same = unit_server == name and size < self._unit
        self._units[request.group] = (name, size + 1 if is_same else 1)
        return self._begin(replace(request, now=now), name)

    def _begin(self, request: Request, name: str) -> Placement:
        live = Live(
            group=request.group,
            prompt_tokens=request.prompt_tokens,
            context=request.context_tokens,
            began=request.now,
            epoch=self._epoch,
        )
        self._servers[name].add(request.conversation, live)
        self._places[request.conversation] = name
        self._num_begun += 1
        return Placement(request.conversation, name)
