"""Router: turns of conversations -> servers, as a routing policy decides; handles failed servers and lost clients."""

import asyncio
import itertools
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.accounts import RouterCounts
from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.router_state import RoutedConversation, RoutedServer, RouterState, RouterStatus, TokenAccount
from verl_pivot.routing.routing_policy import ConversationEnd, Placement, RoutingPolicy, TurnRelease, TurnRequest

NO_SERVERS = "No available servers in load balancer"
"""Text of the error on which verl's asynchronous client waits and asks again."""
_MAX_FAILED_POLLS = 3
"""Failed reads of a server's load in a row after which the server is suspended."""


@dataclass(slots=True)
class _Waiter:
    """A conversation whose turn waits for a server."""

    context_tokens: int
    began_at: float
    """Time in seconds at which it began to wait."""
    servers: "list[asyncio.Future[str]]"
    """The server, once for each request; several where an agent loop samples several answers under one request id."""


class PassedOn(RuntimeError):
    """Error that ends the wait of a conversation that is to begin on another shard."""

    def __init__(self, shard: int, wait_seconds: float) -> None:
        super().__init__(f"the conversation must begin on shard {shard}")
        self.shard = shard
        self.wait_seconds = wait_seconds


class Router:
    """Assigns servers to turns, lets turns wait, and handles servers and clients that fail; uses neither Ray nor HTTP.

    All calls come from one event loop. A request that waits is a future, so it blocks no other call.
    """

    def __init__(
        self, routing_policy: RoutingPolicy, clock: Callable[[], float], *, forget_after_seconds: float
    ) -> None:
        """
        Args:
            routing_policy: A new routing policy, without servers.
            clock: Returns the time in seconds.
            forget_after_seconds: Seconds without a call after which a conversation counts as over.
        """
        self._routing_policy = routing_policy
        self._clock = clock
        self._forget_after_seconds = forget_after_seconds
        self._state = RouterState()
        self._waiters: dict[str, _Waiter] = {}
        self._num_waiting_to_begin = 0
        self._global_step: int | None = None
        """Newest training step that an end of a conversation has named."""
        self._step_named_at = 0.0
        """Time in seconds of the newest end that has named this step."""
        self._largest_capacity = 0
        """KV tokens of the largest server."""

    # ---- requests

    def ask(
        self,
        name: str,
        num_tokens: int,
        digest: str,
        *,
        reports_end: bool,
        worker: str = "",
        is_only_turn: bool = False,
        waited_seconds: float = 0.0,
    ) -> "asyncio.Future[str]":
        """The server for one turn of a conversation, as soon as there is room.

        Args:
            name: Id of the conversation.
            num_tokens: Tokens of the prompt and the response so far.
            digest: Digest of these tokens; conversations whose first requests have equal ones make a group.
            reports_end: Whether the conversation's agent loop will call `end`.
            worker: Name of the process that the agent loop runs in, see `end_lost`.
            is_only_turn: Whether the conversation's agent loop has said that it has one turn.
            waited_seconds: Time that the turn has waited on another shard.

        Raises:
            RuntimeError: If there is no server, with verl's text. The future raises it too.
            EngineError: If the request is larger than every server's KV cache.
        """
        self._check_size(num_tokens)
        server: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if waiter := self._waiters.get(name):
            waiter.servers.append(server)
            return server
        known = self._state.conversations.get(name)
        if known is not None and known.num_running and known.server is not None:
            self._state.start_request(name, known.server, self._clock())
            server.set_result(known.server)
            return server
        conversation = known or self._state.begin(name, num_tokens, digest, reports_end=reports_end, worker=worker)
        conversation.cost.wait_seconds += waited_seconds
        began = self._note_call(name)
        # A request shorter than the prompt belongs to a conversation that began anew under the same id.
        context_tokens = max(0, num_tokens - conversation.prompt_tokens)
        self._waiters[name] = _Waiter(context_tokens, began, [server])
        self._num_waiting_to_begin += not context_tokens
        request = TurnRequest(
            conversation=name,
            group=conversation.group,
            prompt_tokens=conversation.prompt_tokens,
            context_tokens=context_tokens,
            is_only_turn=is_only_turn,
            now=began,
        )
        self._place(self._routing_policy.acquire(request))
        return server

    async def acquire(self, name: str, num_tokens: int, digest: str, *, reports_end: bool, worker: str = "") -> str:
        """The server for one turn, see `ask`; cancelling the wait withdraws the request."""
        server = self.ask(name, num_tokens, digest, reports_end=reports_end, worker=worker)
        conversation = self._state.conversations[name]
        try:
            return await server
        except asyncio.CancelledError:
            self._withdraw(name, conversation, server)
            raise

    def is_running(self, name: str, server: str) -> bool:
        """Whether a request of a conversation runs on a server."""
        return server in self._state.servers and name in self._state.servers[server].running

    def release(self, server: str, name: str | None) -> None:
        """End a turn. A turn that is unknown or already over is counted as ignored."""
        if name is None or not self.is_running(name, server):
            self._state.counts.ignored += 1
            return
        conversation = self._state.conversations[name]
        self._note_call(name)
        self._end_request(name, conversation, server)

    def end(self, name: str, response_tokens: int | None, global_step: int | None = None) -> RoutingCost | None:
        """End a conversation; returns its routing cost, or None if the conversation is unknown.

        Args:
            name: Id of the conversation.
            response_tokens: Length of the response, observations included.
            global_step: Training step of the newest weights that the conversation has seen. The first conversation with
                newer weights invalidates the prefixes of turns that began while ends still named the step before.
        """
        self._observe_step(global_step)
        conversation = self._state.conversations.get(name)
        if conversation is None:
            self._state.counts.ignored += 1
            return None
        if name in self._waiters:
            self._drop(name, RuntimeError(f"conversation {name} was ended while it waited for a server"))
        else:
            self._finish(name, conversation, response_tokens)
        self._state.counts.ended += 1
        return conversation.cost

    def pass_on(self, most: int, shard: int) -> int:
        """End the wait of up to `most` conversations that have not begun, with PassedOn; returns their number.

        The newest ones go first, so that rollouts of one prompt go together.
        """
        chosen = list(itertools.islice(filter(self._waits_to_begin, reversed(self._waiters)), most))
        now = self._clock()
        for name in chosen:
            waited = self._state.conversations[name].cost.wait_seconds + now - self._waiters[name].began_at
            self._drop(name, PassedOn(shard, waited))
        return len(chosen)

    @property
    def num_waiting_to_begin(self) -> int:
        """Conversations that wait for their first server."""
        return self._num_waiting_to_begin

    def forget_prefixes(self) -> int:
        """Note that the engines' caches are empty; returns the number of conversations that had a place."""
        self._routing_policy.forget_prefixes(self._state.conversations)
        return sum(conversation.server is not None for conversation in self._state.conversations.values())

    # ---- servers

    def add_server(self, name: str, load: EngineLoad | None) -> None:
        """Add a server. A server with a known name has restarted: the requests that ran on it are gone."""
        if name in self._state.servers:
            self.remove_server(name)
        self._tell_limits(name, self._state.add_server(name, load))

    def remove_server(self, name: str) -> None:
        """Remove a server. Clients repeat the requests that ran there. If no server is left, waiting requests fail."""
        if name not in self._state.servers:
            self._state.counts.ignored += 1
            return
        self._suspend(name)
        self._state.remove_server(name)
        self._measure_servers()
        if not self.num_active_servers:
            self._resume_all()
        if not self._state.servers:
            for waiting in list(self._waiters):
                self._drop(waiting, RuntimeError(NO_SERVERS))

    def observe(self, name: str, load: EngineLoad | None) -> None:
        """Take in the load that a server reported; None if reading the load failed."""
        server = self._state.servers.get(name)
        if server is None:
            return
        if load is None:
            server.num_failed_polls += 1
            self._suspend_silent()
            return
        is_new = server.is_suspended or server.load is None or server.load.limits != load.limits
        server.load, server.num_failed_polls, server.is_suspended = load, 0, False
        if is_new:
            self._tell_limits(name, server)
        if not server.is_idle:
            server.idle_since = None
        elif server.idle_since is None:
            server.idle_since = self._clock()

    def end_lost(self, living: Container[str]) -> None:
        """End conversations that run on servers without work, and whose process of agent loops has died.

        A server without work says nothing alone: while an engine is paused for new weights, requests wait before it.

        Args:
            living: Names of the processes that are not taken for dead.
        """
        for server in self._state.servers.values():
            if server.idle_since is None:
                continue
            for name in list(server.running):
                conversation = self._state.conversations[name]
                if conversation.worker not in living and conversation.started_at < server.idle_since:
                    self._state.counts.lost += conversation.num_running
                    self._finish(name, conversation, conversation.context_tokens)

    def tick(self) -> None:
        """End conversations without a call for `forget_after_seconds`, unless a request waits or is known to run."""
        now = self._clock()
        while self._state.conversations:
            name, conversation = next(iter(self._state.conversations.items()))
            if now - conversation.last_call_at < self._forget_after_seconds:
                break
            if self._is_known_to_run(conversation) or name in self._waiters:
                self._note_call(name)
            else:
                self._state.counts.forgotten += 1
                self._finish(name, conversation, None)

    # ---- status

    @property
    def counts(self) -> RouterCounts:
        return self._state.counts

    @property
    def conversations(self) -> Collection[str]:
        """Ids of the conversations that have begun to wait or to run, and not ended."""
        return self._state.conversations

    @property
    def servers(self) -> list[str]:
        return list(self._state.servers)

    @property
    def num_active_servers(self) -> int:
        """Servers that are not suspended."""
        return sum(not server.is_suspended for server in self._state.servers.values())

    @property
    def inflight(self) -> dict[str, int]:
        """{server: requests that run on it}."""
        return self._state.inflight

    def status(self) -> RouterStatus:
        """Servers, loads of their engines and counts of events, for people and metrics."""
        return self._state.status(num_waiting=len(self._waiters))

    def audit(self) -> dict[str, TokenAccount]:
        """{server: its KV tokens}, recounted, which takes some milliseconds for thousands of conversations.

        Raises:
            AssertionError: If the running totals differ from the recount, or a request runs on another server than that
                of its conversation.
        """
        return self._state.audit()

    # ---- conversations

    def _check_size(self, num_tokens: int) -> None:
        if not self._state.servers:
            raise RuntimeError(NO_SERVERS)
        if num_tokens > self._largest_capacity:
            raise EngineError(
                f"a request of {num_tokens} tokens does not fit the KV cache of any engine, the largest of which holds "
                f"{self._largest_capacity} tokens: give engines more memory (rollout.gpu_memory_utilization), or allow "
                "rollouts fewer tokens (data.max_prompt_length, data.max_response_length)"
            )

    def _pop_waiter(self, name: str) -> _Waiter:
        waiter = self._waiters.pop(name)
        self._num_waiting_to_begin -= not waiter.context_tokens
        return waiter

    def _waits_to_begin(self, name: str) -> bool:
        return not self._waiters[name].context_tokens

    def _is_known_to_run(self, conversation: RoutedConversation) -> bool:
        """Whether a request of the conversation runs on a server whose reports would show that the request is lost."""
        server = None if conversation.server is None else self._state.servers[conversation.server]
        return bool(conversation.num_running) and not (server and server.load and server.load.is_prefill_half)

    def _note_call(self, name: str) -> float:
        """Note the time of a call about a conversation, and return it."""
        now = self._clock()
        self._state.note_call(name, now)
        return now

    def _place(self, placements: Sequence[Placement]) -> None:
        """Give waiting requests the servers that the routing policy chose."""
        for name, server in placements:
            waiter, now = self._pop_waiter(name), self._clock()
            self._state.place(name, server, waiter.context_tokens)
            self._state.conversations[name].cost.wait_seconds += now - waiter.began_at
            for each in waiter.servers:
                self._state.start_request(name, server, now)
                if not each.cancelled():  # else `_withdraw` ends the request, in the next turn of the event loop
                    each.set_result(server)

    def _end_request(self, name: str, conversation: RoutedConversation, server: str) -> None:
        if self._state.end_request(name, server):
            release = TurnRelease(
                conversation=name, server=server, now=self._clock(), may_be_last=not conversation.reports_end
            )
            self._place(self._routing_policy.release(release))

    def _finish(self, name: str, conversation: RoutedConversation, response_tokens: int | None) -> None:
        """End the requests of a conversation that still run, and then the conversation."""
        while conversation.num_running and conversation.server is not None:
            self._end_request(name, conversation, conversation.server)
        self._state.remove(name)
        end = ConversationEnd(conversation=name, response_tokens=response_tokens, now=self._clock())
        self._place(self._routing_policy.end(end))

    def _withdraw(self, name: str, conversation: RoutedConversation, server: "asyncio.Future[str]") -> None:
        """Undo a request whose client was cancelled while it waited, or just when it got its server."""
        waiter = self._waiters.get(name)
        if waiter is not None and server in waiter.servers:
            waiter.servers.remove(server)
            if not waiter.servers:
                self._drop(name, RuntimeError("cancelled"))
        elif conversation.num_running and conversation.server is not None:
            self._end_request(name, conversation, conversation.server)

    def _drop(self, name: str, error: RuntimeError) -> None:
        """End a conversation that waits; its requests fail with the error."""
        for server in self._pop_waiter(name).servers:
            if not server.done():
                server.set_exception(error)
        self._finish(name, self._state.conversations[name], None)

    def _observe_step(self, global_step: int | None) -> None:
        if global_step is None or (self._global_step is not None and global_step < self._global_step):
            return
        if self._global_step is not None and global_step > self._global_step:
            began_before = [
                name for name, each in self._state.conversations.items() if each.started_at <= self._step_named_at
            ]
            self._routing_policy.forget_prefixes(began_before)
        self._global_step, self._step_named_at = global_step, self._clock()

    def _tell_limits(self, name: str, server: RoutedServer) -> None:
        """Add a server to the routing policy, or change its limits there."""
        self._measure_servers()
        max_running = server.known_load.max_running if server.known_load else None
        self._place(self._routing_policy.add_server(name, server.capacity, self._clock(), max_running=max_running))

    def _measure_servers(self) -> None:
        self._largest_capacity = max((server.capacity for server in self._state.servers.values()), default=0)

    # ---- servers that fail

    def _suspend(self, name: str) -> None:
        """Send a server no more requests. Requests that run there lose their place; their clients will repeat them."""
        server = self._state.servers[name]
        self._state.clear_server(name)
        if not server.is_suspended:
            server.is_suspended = True
            self._place(self._routing_policy.remove_server(name, self._clock()))

    def _resume_all(self) -> None:
        """Send requests to all servers again, since none of those that are left answers."""
        for name, server in self._state.servers.items():
            server.is_suspended = False
            self._tell_limits(name, server)

    def _suspend_silent(self) -> None:
        """Suspend servers that do not answer, unless no server answers: then the fault may be the router's."""
        if all(server.num_failed_polls for server in self._state.servers.values()):
            return
        for name, server in self._state.servers.items():
            if server.num_failed_polls >= _MAX_FAILED_POLLS and not server.is_suspended:
                self._suspend(name)
