"""RouterState: which conversation runs on which server, the KV tokens that it holds there, and counts of events."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypedDict, TypeVar

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.routing.accounts import Accounts, Holding, RouterCounts
from verl_pivot.routing.engine_load import EngineLoad

_Value = TypeVar("_Value")
UNKNOWN_CAPACITY = 2**53
"""KV tokens that are assumed for a server that does not report its capacity, so many that its cache limits nothing."""


class TokenAccount(TypedDict):
    """KV tokens of one server; committed + free == capacity."""

    committed: int
    """Tokens of all conversations that have a place on the server."""
    free: int | None
    """Negative where the engine may evict conversations that wait for tools; None if the capacity is unknown."""
    capacity: int | None


class RouterStatus(TypedDict):
    """Answer of the router actor's `get_status`; the first four keys are those of verl's own router."""

    servers: dict[str, int]
    """{server: requests that run on it}."""
    total_inflight: int
    active_servers: int
    registered_handles: list[str]
    waiting: int
    """Requests that wait for a server."""
    conversations: int
    """Conversations that have begun and not ended."""
    suspended: list[str]
    """Servers that get no requests because they stopped answering."""
    prefill_halves: list[str]
    """Servers that stand for a prefill-decode pair, whose KV cache and requests are not known."""
    tokens: dict[str, TokenAccount]
    max_running: dict[str, int]
    """{server: maximum number of requests that its engine runs at once}, for the servers that report it."""
    counts: dict[str, int]
    """Fields of RouterCounts."""


def merged(statuses: Sequence[RouterStatus]) -> RouterStatus:
    """The status of a router of several shards."""
    counts: Counter[str] = Counter()
    for status in statuses:
        counts.update(status["counts"])
    return RouterStatus(
        servers=_union(status["servers"] for status in statuses),
        total_inflight=sum(status["total_inflight"] for status in statuses),
        active_servers=sum(status["active_servers"] for status in statuses),
        registered_handles=[server for status in statuses for server in status["registered_handles"]],
        waiting=sum(status["waiting"] for status in statuses),
        conversations=sum(status["conversations"] for status in statuses),
        suspended=[server for status in statuses for server in status["suspended"]],
        prefill_halves=[server for status in statuses for server in status["prefill_halves"]],
        tokens=_union(status["tokens"] for status in statuses),
        max_running=_union(status["max_running"] for status in statuses),
        counts=dict(counts),
    )


def _union(by_server: Iterable[dict[str, _Value]]) -> dict[str, _Value]:
    return {server: value for each in by_server for server, value in each.items()}


@dataclass(slots=True, kw_only=True)
class RoutedConversation:
    """A conversation that has asked for a server and not ended."""

    group: str
    prompt_tokens: int
    reports_end: bool
    """Whether its agent loop will report its end."""
    worker: str
    """Name of the process that its agent loop runs in."""
    context_tokens: int = 0
    """Tokens after its prompt at the beginning of its newest turn."""
    server: str | None = None
    """The server of its newest turn; None while it has no place."""
    num_running: int = 0
    """Requests that run; more than one where an agent loop samples several answers under one request id."""
    started_at: float = 0.0
    """Time in seconds at which its newest request got a server."""
    last_call_at: float = 0.0
    """Time in seconds of the newest call about it."""
    cost: RoutingCost = field(default_factory=RoutingCost)

    @property
    def holding(self) -> Holding:
        return Holding(self.group, self.prompt_tokens, self.context_tokens)


@dataclass(slots=True)
class RoutedServer:
    """A server, its last reported load and what runs on it."""

    load: EngineLoad | None
    """None until the server has reported one."""
    num_failed_polls: int = 0
    """Reads of its load that failed in a row."""
    is_suspended: bool = False
    idle_since: float | None = None
    """Time in seconds since which all its reports say that it has no requests; None if the latest says otherwise."""
    running: dict[str, int] = field(default_factory=dict)
    """{conversation: requests that run here}."""

    @property
    def num_running(self) -> int:
        return sum(self.running.values())

    @property
    def known_load(self) -> EngineLoad | None:
        """The newest load; None if it reported none, or only that of one half of a prefill-decode pair."""
        return None if self.load is None or self.load.is_prefill_half else self.load

    @property
    def is_idle(self) -> bool:
        """Whether its newest load says that it has no requests."""
        return self.known_load is not None and not self.known_load.num_requests

    @property
    def capacity(self) -> int:
        """Tokens of its KV cache, `UNKNOWN_CAPACITY` if it has not reported them."""
        return self.known_load.capacity if self.known_load else UNKNOWN_CAPACITY

    def token_account(self, committed: int) -> TokenAccount:
        capacity = self.known_load.capacity if self.known_load else None
        free = None if capacity is None else capacity - committed
        return TokenAccount(committed=committed, free=free, capacity=capacity)


class RouterState:
    """Conversations and servers of a router. It decides nothing; `audit` compares its running totals with a recount."""

    def __init__(self) -> None:
        self.servers: dict[str, RoutedServer] = {}
        self.conversations: OrderedDict[str, RoutedConversation] = OrderedDict()
        """{conversation: its state}, in the order of their newest calls."""
        self.counts = RouterCounts()
        self._accounts = Accounts()

    # ---- servers

    def add_server(self, name: str, load: EngineLoad | None) -> RoutedServer:
        server = self.servers[name] = RoutedServer(load)
        self._accounts.add_server(name)
        return server

    def clear_server(self, name: str) -> None:
        """Take all conversations of a server off it, and stop counting their requests."""
        for each, conversation in self.conversations.items():
            if conversation.server == name:
                self._accounts.drop(name, each)
                conversation.server, conversation.num_running = None, 0
        self.servers[name].running.clear()

    def remove_server(self, name: str) -> None:
        """Remove a server, after `clear_server`."""
        del self.servers[name]
        self._accounts.remove_server(name)

    # ---- conversations

    def begin(self, name: str, num_tokens: int, digest: str, *, reports_end: bool, worker: str) -> RoutedConversation:
        """Add a conversation. The tokens of its first request are its prompt; equal prompts make a group."""
        conversation = RoutedConversation(
            group=digest, prompt_tokens=num_tokens, reports_end=reports_end, worker=worker
        )
        self.conversations[name] = conversation
        return conversation

    def note_call(self, name: str, now: float) -> None:
        """Note the time of a call about a conversation."""
        self.conversations[name].last_call_at = now
        self.conversations.move_to_end(name)

    def place(self, name: str, server: str, context_tokens: int) -> None:
        """Give a conversation its place for a turn that begins with `context_tokens` tokens after the prompt."""
        conversation = self.conversations[name]
        conversation.context_tokens = context_tokens
        self._count_return(conversation, server)
        if conversation.server is not None:
            self._accounts.drop(conversation.server, name)
        conversation.server = server
        self._accounts.hold(server, name, conversation.holding)

    def start_request(self, name: str, server: str, now: float) -> None:
        """Count one more request of a conversation that runs on its server."""
        conversation, running = self.conversations[name], self.servers[server].running
        conversation.started_at = now
        conversation.num_running += 1
        running[name] = running.get(name, 0) + 1
        self.counts.acquired += 1

    def end_request(self, name: str, server: str) -> bool:
        """Count one running request less; returns whether the conversation has no other one there."""
        running = self.servers[server].running
        running[name] -= 1
        self.conversations[name].num_running -= 1
        self.counts.released += 1
        if running[name]:
            return False
        del running[name]
        return True

    def remove(self, name: str) -> None:
        """Remove a conversation without running requests."""
        conversation = self.conversations.pop(name)
        if conversation.server is not None:
            self._accounts.drop(conversation.server, name)

    def _count_return(self, conversation: RoutedConversation, server: str) -> None:
        if not conversation.context_tokens:
            return
        if conversation.server == server:
            self.counts.returned += 1
            return
        self.counts.moves += 1
        self.counts.recomputed_tokens += conversation.context_tokens
        conversation.cost.num_moves += 1
        conversation.cost.recomputed_tokens += conversation.context_tokens

    # ---- status

    @property
    def inflight(self) -> dict[str, int]:
        """{server: requests that run on it}."""
        return {name: server.num_running for name, server in self.servers.items()}

    def status(self, *, num_waiting: int) -> RouterStatus:
        inflight = self.inflight
        return RouterStatus(
            servers=inflight,
            total_inflight=sum(inflight.values()),
            active_servers=len(self.servers),
            registered_handles=list(self.servers),
            waiting=num_waiting,
            conversations=len(self.conversations),
            suspended=[name for name, server in self.servers.items() if server.is_suspended],
            prefill_halves=[name for name, server in self.servers.items() if server.load and not server.known_load],
            tokens=self.tokens(),
            max_running={
                name: load.max_running
                for name, server in self.servers.items()
                if (load := server.known_load) and load.max_running is not None
            },
            counts=asdict(self.counts),
        )

    def tokens(self) -> dict[str, TokenAccount]:
        """{server: its KV tokens}."""
        return {name: server.token_account(self._accounts.committed(name)) for name, server in self.servers.items()}

    def audit(self) -> dict[str, TokenAccount]:
        """{server: its KV tokens}, recounted, which takes some milliseconds for thousands of conversations.

        Raises:
            AssertionError: If the running totals differ from the recount, or a request runs on another server than that
                of its conversation.
        """
        self._accounts.check(
            (conversation.server, name, conversation.holding)
            for name, conversation in self.conversations.items()
            if conversation.server is not None
        )
        for name, server in self.servers.items():
            strays = [each for each in server.running if self.conversations[each].server != name]
            assert not strays, f"requests run on {name}, but their conversations {strays} are on other servers"
        return self.tokens()
