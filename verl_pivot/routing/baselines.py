"""Policies that others use: what `kv_forecast` is compared with, on simulated engines and on real ones."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from verl_pivot.routing.policy import End, Placement, Release, Request


class Static:
    """The n-th prompt's rollouts go to the server whose turn it is, for good: contiguous blocks of prompts."""

    def __init__(self, *, num_conversations: int) -> None:
        """`num_conversations` is how many a step has."""
        self._num_conversations = num_conversations
        self._servers: list[str] = []
        self._places: dict[str, str] = {}
        self._num_begun = 0

    def acquire(self, request: Request) -> Sequence[Placement]:
        name = request.conversation
        if name not in self._places:
            share = -(-self._num_conversations // len(self._servers))
            self._places[name] = self._servers[self._num_begun // share % len(self._servers)]
            self._num_begun += 1
        return (Placement(name, self._places[name]),)

    def release(self, release: Release) -> Sequence[Placement]:
        return ()

    def end(self, end: End) -> Sequence[Placement]:
        self._places.pop(end.conversation, None)
        return ()

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        if name not in self._servers:
            self._servers.append(name)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        self._servers.remove(name)
        self._places = {conversation: server for conversation, server in self._places.items() if server != name}
        return ()

    def forget_prefixes(self) -> None:
        pass


class LeastInflight:
    """verl's own: a conversation stays where it is while an LRU of sessions remembers it, else fewest in flight.

    Source: verl 0.9.1, `workers/rollout/router.py`. Of equal servers verl takes any; here the first.
    """

    def __init__(self, *, max_sessions: int | None = 10_000) -> None:
        self._inflight: dict[str, int] = {}
        self._places: OrderedDict[str, str] = OrderedDict()
        self._max_sessions = max_sessions

    def acquire(self, request: Request) -> Sequence[Placement]:
        server = self._places.get(request.conversation)
        if server is None or server not in self._inflight:
            server = min(self._inflight, key=self._inflight.__getitem__)
            self._places[request.conversation] = server
        self._places.move_to_end(request.conversation)
        if self._max_sessions is not None and len(self._places) > self._max_sessions:
            self._places.popitem(last=False)
        self._inflight[server] += 1
        return (Placement(request.conversation, server),)

    def release(self, release: Release) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()

    def end(self, end: End) -> Sequence[Placement]:
        """verl's router is told of no end."""
        return ()

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        self._inflight.setdefault(name, 0)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._inflight[name]
        return ()

    def forget_prefixes(self) -> None:
        self._places.clear()


class KvAdmission:
    """rStar2-Agent's scheduler, literally: K = capacity / longest rollout per server, the others wait.

    Source: rStar2-Agent (arXiv:2508.20722), section 3.2; its closed formula for K is not published.
    """

    def __init__(self, *, budget: int) -> None:
        """`budget` is how many tokens a response may have."""
        self._budget = budget
        self._capacities: dict[str, int] = {}
        self._live: dict[str, set[str]] = {}
        self._places: dict[str, str] = {}
        self._waiting: OrderedDict[str, Request] = OrderedDict()

    def acquire(self, request: Request) -> Sequence[Placement]:
        place = self._places.get(request.conversation)
        if place is None and request.context_tokens:
            place = self._emptiest()
        if place is not None:
            return (self._begin(request, place),)
        self._waiting[request.conversation] = request
        return self._admit()

    def release(self, release: Release) -> Sequence[Placement]:
        if not release.may_be_last:
            return ()
        self._live[release.server].discard(release.conversation)
        return self._admit()

    def end(self, end: End) -> Sequence[Placement]:
        self._waiting.pop(end.conversation, None)
        if place := self._places.pop(end.conversation, None):
            self._live[place].discard(end.conversation)
        return self._admit()

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        self._capacities[name] = capacity
        self._live.setdefault(name, set())
        return self._admit()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._capacities[name], self._live[name]
        self._places = {conversation: server for conversation, server in self._places.items() if server != name}
        return self._admit()

    def forget_prefixes(self) -> None:
        pass

    def _emptiest(self) -> str:
        return min(self._live, key=lambda name: len(self._live[name]))

    def _begin(self, request: Request, server: str) -> Placement:
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


class CacheAware:
    """The server whose requests so far share the longest prefix, unless load is out of balance.

    Source: SGLang's model gateway, policy `cache_aware`, with its thresholds and their names. There a radix tree of
    texts approximates each server's cache; here a prefix is known to be the prompt and what came before.
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
        self._cache_threshold = cache_threshold
        self._abs, self._rel = balance_abs_threshold, balance_rel_threshold
        self._places: dict[str, tuple[str, int, str]] = {}
        """{conversation: its server, its tokens there, its group}."""
        self._prompts: dict[str, str] = {}
        self._sizes: Counter[str] = Counter()
        """{group: its conversations that have not ended}."""

    def acquire(self, request: Request) -> Sequence[Placement]:
        least, most = min(self._inflight.values()), max(self._inflight.values())
        if most - least > self._abs and most > self._rel * least:
            server = min(self._inflight, key=self._inflight.__getitem__)
        else:
            server = self._by_prefix(request)
        tokens = request.prompt_tokens + request.context_tokens
        where, matched = self._match(request)
        self._inflight[server] += 1
        self._seen_tokens[server] += tokens - (matched if server == where else 0)
        if request.conversation not in self._places:
            self._sizes[request.group] += 1
        self._places[request.conversation] = (server, tokens, request.group)
        self._prompts.setdefault(request.group, server)
        return (Placement(request.conversation, server),)

    def release(self, release: Release) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()

    def end(self, end: End) -> Sequence[Placement]:
        if end.conversation in self._places:
            _, _, group = self._places.pop(end.conversation)
            self._sizes[group] -= 1
            if not self._sizes[group]:
                del self._sizes[group]
                self._prompts.pop(group, None)
        return ()

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        self._inflight.setdefault(name, 0)
        self._seen_tokens.setdefault(name, 0)
        return ()

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        del self._inflight[name], self._seen_tokens[name]
        self._prompts = {group: server for group, server in self._prompts.items() if server != name}
        return ()

    def forget_prefixes(self) -> None:
        self._places.clear()
        self._prompts.clear()
        self._sizes.clear()

    def _match(self, request: Request) -> tuple[str | None, int]:
        server, tokens, _ = self._places.get(request.conversation, (None, 0, ""))
        if server in self._inflight:
            return server, tokens
        return self._prompts.get(request.group), request.prompt_tokens if request.group in self._prompts else 0

    def _by_prefix(self, request: Request) -> str:
        server, matched = self._match(request)
        if server is not None and matched > self._cache_threshold * (request.prompt_tokens + request.context_tokens):
            return server
        return min(self._seen_tokens, key=self._seen_tokens.__getitem__)
