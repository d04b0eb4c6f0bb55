"""Requests of many clients -> servers, by a policy: who waits, who has which server, and what that cost."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b

from verl_pivot.errors import EngineError
from verl_pivot.routing.accounts import Accounts, Counts, Holding, Journey
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.policy import End, Placement, Policy, Release, Request

NO_SERVERS = "No available servers in load balancer"
"""What verl's asynchronous client waits on."""
UNKNOWN_CAPACITY = 2**53
"""Tokens; of a server that does not tell, so that it is scheduled by the number of its conversations alone."""
_SILENT_POLLS = 3
"""In a row, after which a server gets nothing until it answers again."""


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """One that has asked and not ended."""

    group: str
    prompt_tokens: int
    tells_end: bool
    context_tokens: int = 0
    """After its prompt, when its newest turn began."""
    server: str | None = None
    """Where it runs, or ran last."""
    num_leases: int = 0
    """Requests that run; more than one where a loop samples several answers under one id."""
    leased_at: float = 0.0
    heard_at: float = 0.0
    journey: Journey = field(default_factory=Journey)

    @property
    def holding(self) -> Holding:
        return Holding(self.group, self.prompt_tokens, self.context_tokens)


@dataclass(slots=True)
class _Waiter:
    context_tokens: int
    server: "asyncio.Future[str]"


@dataclass(slots=True)
class _Server:
    load: EngineLoad | None
    silent_polls: int = 0
    is_suspended: bool = False
    idle_since: float | None = None
    """When it first said that it has no requests."""
    leases: dict[str, int] = field(default_factory=dict)
    """{conversation: requests that run here}."""


class Router:
    """Knows neither Ray nor how to ask servers: it is told their loads. All calls belong to one event loop.

    Waiting acquires are futures: nothing that waits holds up what releases.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float], *, forget_after_seconds: float) -> None:
        """
        Args:
            policy: A new one, without servers.
            clock: Seconds.
            forget_after_seconds: Without a word from a conversation, after which it is over.
        """
        self._policy = policy
        self._clock = clock
        self._forget_after = forget_after_seconds
        self._servers: dict[str, _Server] = {}
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        """Those that were not heard of for longest come first."""
        self._waiters: dict[str, _Waiter] = {}
        self._accounts = Accounts()
        self._global_step: int | None = None
        self.counts = Counts()

    # ---- requests

    async def acquire(self, name: str, token_ids: Sequence[int], *, tells_end: bool) -> str:
        """A server for one turn of a conversation; waits until there is room.

        Args:
            name: Of the conversation.
            token_ids: Prompt and response so far.
            tells_end: Whether somebody will call `end`.

        Raises:
            RuntimeError: If there is no server, with verl's text.
            EngineError: If no server could ever hold it.
        """
        while name in self._waiters:  # another request of the same conversation
            await asyncio.wait([self._waiters[name].server])
        self._check(len(token_ids))
        known = self._conversations.get(name)
        if known is not None and known.num_leases and known.server is not None:
            return self._lease(name, known, known.server)
        conversation = known or self._meet(name, token_ids, tells_end)
        began = self._hear(name, conversation)
        # One that is shorter than its prompt was begun anew under the same id.
        context_tokens = max(0, len(token_ids) - conversation.prompt_tokens)
        waiter = self._waiters[name] = _Waiter(context_tokens, asyncio.get_running_loop().create_future())
        request = Request(
            conversation=name,
            group=conversation.group,
            prompt_tokens=conversation.prompt_tokens,
            context_tokens=waiter.context_tokens,
            now=began,
        )
        self._place(self._policy.acquire(request))
        try:
            server = await waiter.server
        except asyncio.CancelledError:
            self._withdraw(name, conversation, waiter)
            raise
        conversation.journey.wait_seconds += self._clock() - began
        return server

    def release(self, server: str, name: str | None) -> None:
        """A turn is over. What is not known, or is over already, is counted and left alone."""
        if name is None or server not in self._servers or name not in self._servers[server].leases:
            self.counts.ignored += 1
            return
        conversation = self._conversations[name]
        self._hear(name, conversation)
        self._end_lease(name, conversation, server)

    def end(self, name: str, response_tokens: int | None, global_step: int | None = None) -> Journey:
        """A conversation is over; what scheduling cost it.

        Args:
            name: Of the conversation.
            response_tokens: Its length, observations included.
            global_step: Of the newest weights that it has seen; newer ones than ever void all prefixes.
        """
        self._see_step(global_step)
        conversation = self._conversations.get(name)
        if conversation is None:
            self.counts.ignored += 1
            return Journey()
        if name in self._waiters:
            self._drop(name, f"conversation {name} was ended while it waited for a server")
        else:
            self._finish(name, conversation, response_tokens)
        self.counts.ended += 1
        return conversation.journey

    def forget_prefixes(self) -> int:
        """The engines' caches are empty; the number of conversations that had a place."""
        self._policy.forget_prefixes()
        return sum(conversation.server is not None for conversation in self._conversations.values())

    # ---- servers

    def add_server(self, name: str, load: EngineLoad | None) -> None:
        """One more, or one that has begun anew: what ran on it before is gone."""
        if name in self._servers:
            self.remove_server(name)
        self._servers[name] = _Server(load)
        self._accounts.add_server(name)
        self._place(self._policy.add_server(name, load.capacity if load else UNKNOWN_CAPACITY, self._clock()))

    def remove_server(self, name: str) -> None:
        """What runs there its clients will ask for again; what waits goes elsewhere, or fails if this was the last."""
        if name not in self._servers:
            self.counts.ignored += 1
            return
        self._suspend(name)
        del self._servers[name]
        self._accounts.remove_server(name)
        if not self._servers:
            for waiting in list(self._waiters):
                self._drop(waiting, NO_SERVERS)

    def observe(self, name: str, load: EngineLoad | None) -> None:
        """What a server said of itself; None if it said nothing, or what cannot be."""
        server = self._servers.get(name)
        if server is None:
            return
        if load is None:
            server.silent_polls += 1
            self._suspend_silent()
            return
        is_new = server.is_suspended or server.load is None or server.load.capacity != load.capacity
        server.load, server.silent_polls, server.is_suspended = load, 0, False
        if is_new:
            self._place(self._policy.add_server(name, load.capacity, self._clock()))
        self._find_lost(name, server)

    def tick(self) -> None:
        """End conversations that were not heard of for too long; those that run or wait are not meant."""
        now = self._clock()
        while self._conversations:
            name, conversation = next(iter(self._conversations.items()))
            if now - conversation.heard_at < self._forget_after:
                break
            if conversation.num_leases or name in self._waiters:
                self._hear(name, conversation)
            else:
                self.counts.forgotten += 1
                self._finish(name, conversation, None)

    # ---- what is seen from outside

    @property
    def servers(self) -> list[str]:
        return list(self._servers)

    @property
    def inflight(self) -> dict[str, int]:
        """{server: requests that run there}."""
        return {name: sum(server.leases.values()) for name, server in self._servers.items()}

    def status(self) -> dict[str, object]:
        """Everything about servers and counts, for people and metrics; keys of verl's own router first."""
        inflight = self.inflight
        return {
            "servers": inflight,
            "total_inflight": sum(inflight.values()),
            "active_servers": len(self._servers),
            "registered_handles": self.servers,
            "waiting": len(self._waiters),
            "conversations": len(self._conversations),
            "suspended": [name for name, server in self._servers.items() if server.is_suspended],
            "tokens": self.tokens(),
            "engines": {name: server.load.model_dump() for name, server in self._servers.items() if server.load},
            "counts": asdict(self.counts),
        }

    def tokens(self) -> dict[str, dict[str, int | None]]:
        """{server: committed, free and capacity}, of which the third is the sum of the others.

        Committed are all conversations that have a place there; free is below zero where the cache of some, whose
        tools work, may be evicted. Both others are None where the capacity is unknown.
        """
        return {name: self._tokens(name) for name in self._servers}

    def audit(self) -> dict[str, dict[str, int | None]]:
        """The same, recounted: some milliseconds for thousands of conversations.

        Raises:
            AssertionError: If running totals differ from the recount, or a lease belongs to nobody.
        """
        self._accounts.check(
            (conversation.server, name, conversation.holding)
            for name, conversation in self._conversations.items()
            if conversation.server is not None
        )
        for name, server in self._servers.items():
            assert all(self._conversations[each].server == name for each in server.leases), name
        return self.tokens()

    def _tokens(self, name: str) -> dict[str, int | None]:
        committed, load = self._accounts.committed(name), self._servers[name].load
        capacity = None if load is None else load.capacity
        return {
            "committed": committed,
            "free": None if capacity is None else capacity - committed,
            "capacity": capacity,
        }

    # ---- conversations

    def _check(self, num_tokens: int) -> None:
        if not self._servers:
            raise RuntimeError(NO_SERVERS)
        capacities = [server.load.capacity if server.load else UNKNOWN_CAPACITY for server in self._servers.values()]
        if num_tokens > max(capacities):
            raise EngineError(
                f"a request of {num_tokens} tokens fits the KV cache of no engine, the largest of which holds "
                f"{max(capacities)}: give engines more memory (rollout.gpu_memory_utilization), or rollouts fewer "
                "tokens (data.max_prompt_length, data.max_response_length)"
            )

    def _meet(self, name: str, token_ids: Sequence[int], tells_end: bool) -> _Conversation:
        group = blake2b(array("q", token_ids), digest_size=16).hexdigest()
        conversation = _Conversation(group=group, prompt_tokens=len(token_ids), tells_end=tells_end)
        self._conversations[name] = conversation
        return conversation

    def _hear(self, name: str, conversation: _Conversation) -> float:
        conversation.heard_at = self._clock()
        self._conversations.move_to_end(name)
        return conversation.heard_at

    def _place(self, placements: Sequence[Placement]) -> None:
        for name, server in placements:
            waiter, conversation = self._waiters.pop(name), self._conversations[name]
            conversation.context_tokens = waiter.context_tokens
            self._count_return(conversation, server)
            if conversation.server is not None:
                self._accounts.drop(conversation.server, name)
            self._accounts.hold(server, name, conversation.holding)
            waiter.server.set_result(self._lease(name, conversation, server))

    def _count_return(self, conversation: _Conversation, server: str) -> None:
        if not conversation.context_tokens:
            return
        if conversation.server == server:
            self.counts.returned += 1
            return
        self.counts.moves += 1
        self.counts.recomputed_tokens += conversation.context_tokens
        conversation.journey.num_moves += 1
        conversation.journey.recomputed_tokens += conversation.context_tokens

    def _lease(self, name: str, conversation: _Conversation, server: str) -> str:
        conversation.server, conversation.leased_at = server, self._clock()
        conversation.num_leases += 1
        leases = self._servers[server].leases
        leases[name] = leases.get(name, 0) + 1
        self.counts.acquired += 1
        return server

    def _end_lease(self, name: str, conversation: _Conversation, server: str) -> None:
        leases = self._servers[server].leases
        leases[name] -= 1
        conversation.num_leases -= 1
        self.counts.released += 1
        if not leases[name]:
            del leases[name]
            release = Release(
                conversation=name, server=server, now=self._clock(), may_be_last=not conversation.tells_end
            )
            self._place(self._policy.release(release))

    def _finish(self, name: str, conversation: _Conversation, response_tokens: int | None) -> None:
        while conversation.num_leases and conversation.server is not None:
            self._end_lease(name, conversation, conversation.server)
        if conversation.server is not None:
            self._accounts.drop(conversation.server, name)
        del self._conversations[name]
        self._place(self._policy.end(End(conversation=name, response_tokens=response_tokens, now=self._clock())))

    def _withdraw(self, name: str, conversation: _Conversation, waiter: _Waiter) -> None:
        """Whoever asked does not wait any more."""
        if self._waiters.get(name) is waiter:
            self._drop(name, "cancelled")
        elif not waiter.server.cancelled() and conversation.num_leases and conversation.server is not None:
            self._end_lease(name, conversation, conversation.server)

    def _drop(self, name: str, reason: str) -> None:
        """A conversation that waits is over."""
        waiter = self._waiters.pop(name)
        if not waiter.server.done():
            waiter.server.set_exception(RuntimeError(reason))
        self._finish(name, self._conversations[name], None)

    def _see_step(self, global_step: int | None) -> None:
        if global_step is None or (self._global_step is not None and global_step <= self._global_step):
            return
        if self._global_step is not None:
            self.forget_prefixes()
        self._global_step = global_step

    # ---- servers that fail

    def _suspend(self, name: str) -> None:
        """Take a server out of the schedule, with what runs there: whoever asked for it will ask again."""
        server = self._servers[name]
        for each, conversation in self._conversations.items():
            if conversation.server == name:
                self._accounts.drop(name, each)
                conversation.server, conversation.num_leases = None, 0
        server.leases.clear()
        if not server.is_suspended:
            server.is_suspended = True
            self._place(self._policy.remove_server(name, self._clock()))

    def _suspend_silent(self) -> None:
        """If none answers, the fault may be on this side: then all stay."""
        if all(server.silent_polls for server in self._servers.values()):
            return
        for name, server in self._servers.items():
            if server.silent_polls >= _SILENT_POLLS and not server.is_suspended:
                self._suspend(name)

    def _find_lost(self, name: str, server: _Server) -> None:
        """Requests on a server that had none since before it was asked the last time: their clients died."""
        if server.load is None or server.load.num_requests:
            server.idle_since = None
            return
        if server.idle_since is None:
            server.idle_since = self._clock()
            return
        for each in list(server.leases):
            conversation = self._conversations[each]
            while conversation.num_leases and conversation.leased_at < server.idle_since:
                self.counts.lost += 1
                self._end_lease(each, conversation, name)
