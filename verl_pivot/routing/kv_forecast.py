"""Routing policy `kv_forecast`: a new conversation waits until the KV cache it is forecast to need fits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from pydantic import Field

from verl_pivot.routing.kv_forecast_state import (
    LiveConversation,
    ReturnShare,
    ServerState,
    TimeShares,
    WaitingRequests,
)
from verl_pivot.routing.length_model import LengthModel
from verl_pivot.routing.routing_policy import ConversationEnd, Placement, TurnRelease, TurnRequest
from verl_pivot.validation import Options

_ROOM_WITHOUT_RETURNS = 2.0
"""Extra room of a server where no turn comes back, as a multiple of its KV cache."""
_PLACED_PER_UPDATE = 128
"""Number of rollouts under way for each ended conversation that an update of the length forecast waits for."""
_load = attrgetter("load")


class ForecastOptions(Options):
    """Options of `kv_forecast`; the defaults were found in simulation (docs/routing.md)."""

    fill: float = Field(default=0.85, gt=0.0, le=1.0)
    """Share of a server's KV cache that the forecast may reach."""
    deviations: float = Field(default=0.75, ge=0.0)
    """Number of standard deviations that are added to the mean of the forecast."""
    running_share: float = Field(default=0.6, ge=0.0, le=1.0)
    """Share of the live conversations that should run on engines while the others wait for tools. If the measured
    share is lower, more conversations are admitted than fit the KV cache; 0 turns this off."""
    block_size: int = Field(default=8, ge=1)
    """Number of rollouts of a prompt that go to one server in a row, where they share the prompt's KV. The next block
    of that prompt may go to another server."""
    light_block_size: int = Field(default=1, ge=1)
    """`block_size` while the KV caches are not expected to fill; a small one gives every server a mix of prompts."""
    move_ratio: float = Field(default=1.25, ge=1.0)
    """Ratio of a server's load to the emptiest server's from which a returning turn moves to the emptiest server."""
    max_moves: float = Field(default=0.5, ge=0.0)
    """Maximum average number of moves per rollout."""
    learn_every: int = Field(default=64, ge=1)
    """Number of ended conversations between two updates of the length forecast."""
    max_remembered: int = Field(default=50_000, ge=1)
    """Number of ended conversations after which a new step is assumed, even if some rollout is always under way."""


class _PromptBlock(NamedTuple):
    """Rollouts of one prompt that were sent to one server in a row."""

    server: str
    num_rollouts: int


class KvForecast:
    """Keeps every server as full as its KV cache allows, by a forecast of the lengths of its rollouts.

    A new conversation is admitted to a server if the forecast of the most KV tokens that the server will hold at once
    fits its cache. A turn that comes back from its tools then finds its prefix there. Where few turns come back,
    servers take more conversations, and rollouts are spread one by one. Once no request waits, returning turns move to
    clearly emptier servers, so that the last rollouts run in small batches on all servers.

    Differs from rStar2-Agent (arXiv:2508.20722, section 3.2), which reserves the longest possible rollout for each
    conversation and so leaves most of the cache empty.
    """

    def __init__(
        self,
        *,
        budget: int,
        prior: Sequence[int] = (),
        prior_returning: float | None = None,
        options: ForecastOptions | None = None,
    ) -> None:
        """
        Args:
            budget: Maximum number of tokens of a response, observations included.
            prior: [num_rollouts] response lengths of the step before the first one; later steps use their own.
            prior_returning: Share of that step's turns that another turn of their conversation followed.
            options: None for the defaults.
        """
        self._options = options or ForecastOptions()
        self._servers: dict[str, ServerState] = {}
        self._lengths = LengthModel(budget, prior=prior)
        self._places: dict[str, str] = {}
        self._parked: dict[str, LiveConversation] = {}
        """Conversations whose newest turn may be the last: they keep their server, but their KV is not counted."""
        self._blocks: dict[str, _PromptBlock] = {}
        """{group: its newest block}."""
        self._waiting = WaitingRequests()
        self._learn_at = self._options.learn_every
        """Ended conversations of this step at which the length forecast is updated next."""
        self._has_pressure = False
        """Whether the KV caches are expected to fill in this step, or have filled."""
        self._num_moves = 0
        self._num_begun = 0
        self._time_shares = TimeShares()
        self._returns = ReturnShare(prior_returning)

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        if request.conversation in self._places:
            return (self._go_on(request),)
        if request.context_tokens:  # it began on a server that is gone
            return (self._begin(request, self._emptiest()),)
        if not self._places and not self._waiting:
            self._begin_step()
        if request.is_only_turn:
            self._returns.expect_none()
        others_wait = bool(self._waiting)
        self._waiting.add(request)
        return () if others_wait else self._admit_anywhere(request.now)  # the others go first, and did not fit

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        server = self._servers[release.server]
        live = server.live[release.conversation]
        live.turn_seconds = release.now - live.turn_began_at
        self._returns.num_released += 1
        if not release.may_be_last:
            return ()
        self._parked[release.conversation] = server.remove(release.conversation)
        if self._is_time_to_learn():
            self._learn(release.now)
        return self._admit_to(release.server, release.now)

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        if request := self._waiting.get(end.conversation):
            self._waiting.remove(request)
        name = self._places.pop(end.conversation, None)
        if name is None:
            return ()
        server = self._servers[name]
        live = self._parked.pop(end.conversation, None) or server.remove(end.conversation)
        if end.response_tokens is not None:
            server.learn_rate(live, end.response_tokens)
        estimate = int(live.tokens(server.rate, end.now))
        self._lengths.add_ended(estimate if end.response_tokens is None else end.response_tokens)
        if self._is_time_to_learn():
            self._learn(end.now)
        return self._admit_to(name, end.now)

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        server = self._servers.setdefault(name, ServerState(name, capacity))
        server.capacity, server.max_running = capacity, max_running
        return self._admit_anywhere(now)

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._servers[name]
        self._parked = {each: live for each, live in self._parked.items() if self._places[each] != name}
        self._places = {each: server for each, server in self._places.items() if server != name}
        self._blocks = {group: block for group, block in self._blocks.items() if block.server != name}
        return self._admit_anywhere(now)

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        for name in conversations:
            if (place := self._places.get(name)) is not None:
                live = self._parked.get(name) or self._servers[place].live[name]
                live.has_prefix = False

    def _begin_step(self) -> None:
        """Forecast from the lengths of the step that has just ended."""
        self._blocks.clear()
        self._learn_at = self._options.learn_every
        if self._lengths.num_ended:
            self._lengths = self._lengths.next_step()
        self._returns = self._returns.next_step()
        capacity = sum(server.capacity for server in self._servers.values())
        self._has_pressure = self._lengths.prior_tokens > self._options.fill * capacity

    def _is_time_to_learn(self) -> bool:
        """Whether to update the length forecast: after a few ended conversations at first, then every `learn_every`.

        An update looks at all rollouts under way, so it is made less often if there are very many.
        """
        if self._lengths.num_ended >= self._options.max_remembered:
            self._begin_step()
            return True
        num_ended = self._lengths.num_ended + len(self._parked)
        if num_ended < self._learn_at:
            return num_ended in (4, 8, 16, 32)
        self._learn_at = num_ended + max(self._options.learn_every, len(self._places) // _PLACED_PER_UPDATE)
        return True

    def _learn(self, now: float) -> None:
        """Update the length forecast. Conversations whose newest turn may be the last count as ended with it."""
        running = [tokens for each in self._servers.values() for tokens in each.tokens(now)]
        ended = [live.tokens(self._servers[self._places[name]].rate, now) for name, live in self._parked.items()]
        self._lengths.update(running, ended)

    def _emptiest(self) -> str:
        return min(self._servers.values(), key=_load).name

    def _go_on(self, request: TurnRequest) -> Placement:
        """Place the next turn of a conversation: on the server that has its prefix, or on an emptier one."""
        name = request.conversation
        self._returns.num_returned += 1
        place = self._places[name]
        if parked := self._parked.pop(name, None):
            self._servers[place].learn_rate(parked, request.context_tokens)
            self._servers[place].add(name, parked)
        else:
            self._time_shares.learn(self._servers[place].live[name], request.now)
        live = self._servers[place].live[name]
        if (destination := self._server_to_move_to(place, live)) is not None:
            self._servers[destination].add(name, self._servers[place].remove(name))
            self._places[name] = place = destination
            self._num_moves += 1
        live.context_tokens, live.turn_began_at, live.turn_seconds = request.context_tokens, request.now, None
        live.has_prefix = True
        return Placement(name, place)

    def _server_to_move_to(self, place: str, live: LiveConversation) -> str | None:
        """The server that a returning turn moves to, or None if it stays where it is.

        A conversation without a cached prefix moves to any emptier server, others only to a far emptier one.
        """
        emptiest = self._emptiest()
        here, there = self._servers[place].load, self._servers[emptiest].load
        if here <= self._servers[emptiest].load_with(1):
            return None
        if not live.has_prefix:
            return emptiest
        if self._waiting or self._num_moves >= self._options.max_moves * self._num_begun:
            return None
        return emptiest if here >= self._options.move_ratio * there else None

    def _admit_anywhere(self, now: float) -> list[Placement]:
        """Admit waiting conversations in order, each to its block's server or the emptiest, until one does not fit."""
        placed = []
        while self._waiting and self._servers:
            request = self._first()
            name = self._server_of_block(request.group, self._emptiest())
            if not self._fits(name, request, now):
                self._has_pressure = True
                break
            placed.append(self._admit(request, name, now))
        return placed

    @property
    def _block_size(self) -> int:
        """Number of rollouts of a prompt that go to one server in a row; 1 if turns rarely come back.

        Rollouts of a prompt have similar lengths, which unbalances the servers unless later turns can move.
        """
        largest = self._options.block_size if self._has_pressure else self._options.light_block_size
        return max(1, round(largest * self._returns.worth_of_prefixes))

    def _server_of_block(self, group: str, emptiest: str) -> str:
        """The server for the next rollout of a prompt: that of its newest block while the block is open."""
        block = self._blocks.get(group, _PromptBlock(emptiest, 0))
        most = self._servers[emptiest].load_with(self._block_size)
        is_open = block.num_rollouts < self._block_size and self._servers[block.server].load <= most
        return block.server if is_open else emptiest

    def _admit_to(self, name: str, now: float) -> list[Placement]:
        """Admit waiting conversations to a server that has room again, until the next one does not fit.

        While the emptiest server is emptier by at least the largest block, they go there instead.
        """
        placed = []
        while self._waiting:
            emptiest = self._emptiest()
            most = self._servers[emptiest].load_with(self._options.block_size)
            server = name if self._servers[name].load < most else emptiest
            request = self._next_for(server)
            if not self._fits(server, request, now):
                break
            placed.append(self._admit(request, server, now))
        return placed

    def _next_for(self, name: str) -> TurnRequest:
        """The next request for a server: preferably one of a prompt that has some rollouts there."""
        block_size = self._block_size
        for group, count in self._servers[name].groups.items():
            if count < block_size and (request := self._waiting.first_in_group(group)):
                return request
        return self._first()

    def _first(self) -> TurnRequest:
        return self._waiting.first()

    def _fits(self, name: str, request: TurnRequest, now: float) -> bool:
        """Whether a server's forecast peak with one more conversation fits; an empty server takes any conversation."""
        server = self._servers[name]
        if not server.live:
            return True
        if server.max_running is not None and len(server.live) * self._time_shares.running >= server.max_running:
            return False
        prompts = server.prompt_tokens + (0 if request.group in server.groups else request.prompt_tokens)
        return prompts + self._peak(server, request, now) <= self._room(server)

    def _room(self, server: ServerState) -> float:
        """Tokens that the forecast of a server may reach.

        Where conversations wait for tools most of the time, this is more than the server's KV cache. Engines stay busy,
        and compute the evicted prefixes of waiting conversations again. Where few turns come back, it is more as well:
        there are no prefixes to keep, and a full queue keeps the engine busy.
        """
        beyond = 1.0 + _ROOM_WITHOUT_RETURNS * (1.0 - self._returns.worth_of_prefixes)
        beyond *= max(1.0, self._options.running_share / self._time_shares.running)
        return self._options.fill * server.capacity * beyond

    def _peak(self, server: ServerState, request: TurnRequest, now: float) -> float:
        """Forecast of the most tokens that the responses on a server hold at once, the requested one included."""
        return self._lengths.peak([*server.tokens(now), 0.0], self._options.deviations)

    def _admit(self, request: TurnRequest, name: str, now: float) -> Placement:
        self._waiting.remove(request)
        block = self._blocks.get(request.group, _PromptBlock(name, 0))
        is_same = block.server == name and block.num_rollouts < self._block_size
        self._blocks[request.group] = _PromptBlock(name, block.num_rollouts + 1 if is_same else 1)
        return self._begin(replace(request, now=now), name)

    def _begin(self, request: TurnRequest, name: str) -> Placement:
        live = LiveConversation(
            group=request.group,
            prompt_tokens=request.prompt_tokens,
            context_tokens=request.context_tokens,
            turn_began_at=request.now,
        )
        self._servers[name].add(request.conversation, live)
        self._places[request.conversation] = name
        self._num_begun += 1
        return Placement(request.conversation, name)
