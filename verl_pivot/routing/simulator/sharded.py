"""ShardedForecast, a routing policy for simulations only: routers of several shards that exchange conversations."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from verl_pivot.routing.kv_forecast import KvForecast
from verl_pivot.routing.routing_policy import ConversationEnd, Placement, TurnRelease, TurnRequest
from verl_pivot.routing.shards import ConversationShards, Demand, plan_exchange

_EXCHANGE_SECONDS = 2.0
"""Seconds between two exchanges, `poll_seconds` of the router."""


class ShardedForecast:
    """`kv_forecast` on several shards of the servers, as the actors of a router run it."""

    def __init__(self, num_servers: int, num_shards: int, make_policy: Callable[[], KvForecast]) -> None:
        """
        Args:
            num_servers: Number of servers at the beginning of the step.
            num_shards: Number of shards.
            make_policy: Makes the routing policy of one shard.
        """
        self._policies = [make_policy() for _ in range(num_shards)]
        self._servers_per_shard = math.ceil(num_servers / num_shards)
        self._servers: dict[str, int] = {}
        """{server: its shard}."""
        self._shards = ConversationShards(num_shards, first=0)
        self._waiting: list[dict[str, TurnRequest]] = [{} for _ in range(num_shards)]
        """[num_shards] {conversation: its request} of those that wait to begin."""
        self._next_exchange = _EXCHANGE_SECONDS

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        shard = self._shards.find(request.conversation)
        if shard is None:
            shard = self._shards.begin(request.conversation, request.group)
        self._waiting[shard][request.conversation] = request
        return [*self._placed(self._policies[shard].acquire(request)), *self._exchange(request.now)]

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        shard = self._servers[release.server]
        return [*self._placed(self._policies[shard].release(release)), *self._exchange(release.now)]

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        shard = self._shards.end(end.conversation)
        return [*self._placed(self._policies[shard].end(end)), *self._exchange(end.now)]

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        shard = self._servers.setdefault(name, len(self._servers) // self._servers_per_shard)
        return self._placed(self._policies[shard].add_server(name, capacity, now, max_running=max_running))

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        return self._placed(self._policies[self._servers.pop(name)].remove_server(name, now))

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        names = list(conversations)
        for policy in self._policies:
            policy.forget_prefixes(names)

    def _placed(self, placements: Sequence[Placement]) -> Sequence[Placement]:
        for conversation, server in placements:
            self._waiting[self._servers[server]].pop(conversation, None)
        return placements

    def _exchange(self, now: float) -> list[Placement]:
        """Let waiting conversations begin on shards where none waits, from time to time."""
        if now < self._next_exchange:
            return []
        self._next_exchange = now + _EXCHANGE_SECONDS
        num_servers = [list(self._servers.values()).count(shard) for shard in range(len(self._policies))]
        demands = [Demand(len(waiting), servers) for waiting, servers in zip(self._waiting, num_servers, strict=True)]
        placed: list[Placement] = []
        for source, target, number in plan_exchange(demands):
            for conversation in list(reversed(self._waiting[source]))[:number]:
                placed += self._pass_on(conversation, source, target, now)
        return placed

    def _pass_on(self, conversation: str, source: int, target: int, now: float) -> list[Placement]:
        request = replace(self._waiting[source].pop(conversation), now=now)
        self._shards.move(conversation, target)
        self._waiting[target][conversation] = request
        over = ConversationEnd(conversation=conversation, response_tokens=None, now=now)
        return [
            *self._placed(self._policies[source].end(over)),
            *self._placed(self._policies[target].acquire(request)),
        ]
