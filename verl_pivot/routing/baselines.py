"""Routing policies of other systems, which `kv_forecast` is compared with: verl, SGLang's gateway, rStar2-Agent."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from verl_pivot.routing.routing_policy import ConversationEnd, Placement, TurnRelease, TurnRequest


class Static:
    """Contiguous blocks of prompts: each server gets an equal share of the step's conversations, in their order."""

    def __init__(self, *, num_conversations: int) -> None:
        """`num_conversations` is the number of conversations of a step."""
        self._num_conversations = num_conversations
        self._servers: list[str] = []
        self._places: dict[str, str] = {}
        self._num_begun = 0

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        name = request.conversation
        if name not in self._places:
            share = -(-self._num_conversations // len(self._servers))
            self._places[name] = self._servers[self._num_begun // share % len(self._servers)]
            self._num_begun += 1
        return (Placement(name, self._places[name]),)

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        return ()

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        self._places.pop(end.conversation, None)
        return ()

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        if name not in self._servers:
            self._servers.append(name)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        self._servers.remove(name)
        self._places = {conversation: server for conversation, server in self._places.items() if server != name}
        return ()

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        pass


class LeastInflight:
    """verl's default: the server with the fewest requests; a conversation stays there while an LRU cache remembers it.

    Source: verl 0.9.1, `workers/rollout/router.py`. Among equal servers verl takes any; here the first is taken.
    """

    def __init__(self, *, max_sessions: int | None = 10_000) -> None:
        """`max_sessions` is the number of conversations whose server is remembered; None remembers all."""
        self._inflight: dict[str, int] = {}
        self._places: OrderedDict[str, str] = OrderedDict()
        self._max_sessions = max_sessions

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        server = self._places.get(request.conversation)
        if server is None or server not in self._inflight or not self._stays(server):
            server = self._choose(request)
            self._places[request.conversation] = server
        self._places.move_to_end(request.conversation)
        if self._max_sessions is not None and len(self._places) > self._max_sessions:
            self._places.popitem(last=False)
        self._inflight[server] += 1
        return (Placement(request.conversation, server),)

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        """Do nothing: verl's router does not learn when a conversation ends."""
        return ()

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        self._inflight.setdefault(name, 0)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._inflight[name]
        return ()

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        for name in conversations:
            self._places.pop(name, None)

    def _choose(self, request: TurnRequest) -> str:
        """The server for a conversation without a remembered one."""
        return min(self._inflight, key=self._inflight.__getitem__)

    def _stays(self, server: str) -> bool:
        """Whether a conversation stays on its remembered server."""
        return True


class KvAdmission:
    """rStar2-Agent's scheduler: a server takes as many conversations as longest rollouts fit its KV cache, others wait.

    Source: rStar2-Agent (arXiv:2508.20722), section 3.2. The paper gives no formula for the number of conversations.
    """

    def __init__(self, *, budget: int) -> None:
        """`budget` is the maximum number of tokens of a response, observations included."""
        self._budget = budget
        self._capacities: dict[str, int] = {}
        self._live: dict[str, set[str]] = {}
        """{server: its conversations that count towards the number that it takes}."""
        self._places: dict[str, str] = {}
        self._waiting: OrderedDict[str, TurnRequest] = OrderedDict()

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        place = self._places.get(request.conversation)
        if place is None and request.context_tokens:
            place = self._emptiest()
        if place is not None:
            return (self._begin(request, place),)
        self._waiting[request.conversation] = request
        return self._admit()

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        if not release.may_be_last:
            return ()
        self._live[release.server].discard(release.conversation)
        return self._admit()

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        self._waiting.pop(end.conversation, None)
        if place := self._places.pop(end.conversation, None):
            self._live[place].discard(end.conversation)
        return self._admit()

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        self._capacities[name] = capacity
        self._live.setdefault(name, set())
        return self._admit()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._capacities[name], self._live[name]
        self._places = {conversation: server for conversation, server in self._places.items() if server != name}
        return self._admit()

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        pass

    def _emptiest(self) -> str:
        return min(self._live, key=lambda name: len(self._live[name]))

    def _begin(self, request: TurnRequest, server: str) -> Placement:
        self._live[server].add(request.conversation)
        self._places[request.conversation] = server
        return Placement(request.conversation, server)

    def _admit(self) -> list[Placement]:
        admitted = []
        while self._waiting and self._live:
            request = next(iter(self._waiting.values()))
            server = self._emptiest()
            if len(self._live[server]) >= max(1, self._capacities[server] // (request.prompt_tokens + self._budget)):
                break
            del self._waiting[request.conversation]
            admitted.append(self._begin(request, server))
        return admitted


class _CachedConversation(NamedTuple):
    """The server that is expected to have a conversation in its prefix cache."""

    server: str
    num_tokens: int
    """Tokens of prompt and conversation there."""
    group: str


class _CachedPrefix(NamedTuple):
    """The longest prefix of a request that a server is expected to have cached."""

    server: str | None
    num_tokens: int


class CacheAware:
    """SGLang's gateway: the server with the longest cached prefix of the request, unless loads are out of balance.

    Source: SGLang's model gateway, policy `cache_aware`, with its thresholds and their names. SGLang approximates each
    server's cache by a radix tree of texts; here the prefix is known: the prompt and the conversation's earlier turns.
    """

    def __init__(
        self,
        *,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        self._inflight: dict[str, int] = {}
        self._seen_tokens: dict[str, int] = {}
        """{server: prompt and conversation tokens that it is expected to have prefilled}."""
        self._cache_threshold = cache_threshold
        self._balance_abs_threshold, self._balance_rel_threshold = balance_abs_threshold, balance_rel_threshold
        self._places: dict[str, _CachedConversation] = {}
        self._prompts: dict[str, str] = {}
        """{group: the server that is expected to have its prompt cached}."""
        self._group_sizes: Counter[str] = Counter()
        """{group: its conversations that have not ended}."""

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        least, most = min(self._inflight.values()), max(self._inflight.values())
        if most - least > self._balance_abs_threshold and most > self._balance_rel_threshold * least:
            server = min(self._inflight, key=self._inflight.__getitem__)
        else:
            server = self._by_prefix(request)
        num_tokens = request.prompt_tokens + request.context_tokens
        cached = self._cached_prefix(request)
        self._inflight[server] += 1
        self._seen_tokens[server] += num_tokens - (cached.num_tokens if server == cached.server else 0)
        if request.conversation not in self._places:
            self._group_sizes[request.group] += 1
        self._places[request.conversation] = _CachedConversation(server, num_tokens, request.group)
        self._prompts.setdefault(request.group, server)
        return (Placement(request.conversation, server),)

    def release(self, release: TurnRelease) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()

    def end(self, end: ConversationEnd) -> Sequence[Placement]:
        self._forget(end.conversation)
        return ()

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        self._inflight.setdefault(name, 0)
        self._seen_tokens.setdefault(name, 0)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._inflight[name], self._seen_tokens[name]
        self._prompts = {group: server for group, server in self._prompts.items() if server != name}
        return ()

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        for name in conversations:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Forget a conversation, and with the last one of a prompt the server that has the prompt."""
        cached = self._places.pop(name, None)
        if cached is None:
            return
        self._group_sizes[cached.group] -= 1
        if not self._group_sizes[cached.group]:
            del self._group_sizes[cached.group]
            self._prompts.pop(cached.group, None)

    def _cached_prefix(self, request: TurnRequest) -> _CachedPrefix:
        place = self._places.get(request.conversation)
        if place is not None and place.server in self._inflight:
            return _CachedPrefix(place.server, place.num_tokens)
        if request.group in self._prompts:
            return _CachedPrefix(self._prompts[request.group], request.prompt_tokens)
        return _CachedPrefix(None, 0)

    def _by_prefix(self, request: TurnRequest) -> str:
        cached = self._cached_prefix(request)
        threshold = self._cache_threshold * (request.prompt_tokens + request.context_tokens)
        if cached.server is not None and cached.num_tokens > threshold:
            return cached.server
        return min(self._seen_tokens, key=self._seen_tokens.__getitem__)
