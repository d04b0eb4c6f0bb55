"""What schedules rollouts over engines: requests in, placements out. Pure and deterministic, without a clock."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn that wants an engine, as a scheduler sees it: nothing of what it will generate.

    Example:
        Request(conversation="c7", group="p2", prompt_tokens=1024, context_tokens=0, budget=12288, now=0.0)
    """

    conversation: str
    group: str
    prompt_tokens: int
    context_tokens: int
    """Of the conversation after its prompt."""
    budget: int
    """Tokens that its response may have in all."""
    now: float
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A turn that ended."""

    conversation: str
    server: str
    context_tokens: int
    """Of the conversation after its prompt, with what this turn generated."""
    is_last: bool
    """Whether the conversation is over."""
    now: float


class Placement(NamedTuple):
    """A waiting request may go to a server."""

    conversation: str
    server: str


class Policy(Protocol):
    """Every call answers with the requests that may go now: the one asked for, others that waited, or none."""

    def acquire(self, request: Request) -> Sequence[Placement]: ...

    def release(self, release: Release) -> Sequence[Placement]: ...


class Static:
    """The n-th prompt's rollouts go to the server whose turn it is, for good: contiguous blocks of prompts."""

    def __init__(self, servers: Sequence[str], num_conversations: int) -> None:
        self._servers = list(servers)
        self._share = -(-num_conversations // len(self._servers))
        self._places: dict[str, str] = {}

    def acquire(self, request: Request) -> Sequence[Placement]:
        if request.conversation not in self._places:
            self._places[request.conversation] = self._servers[len(self._places) // self._share]
        return (Placement(request.conversation, self._places[request.conversation]),)

    def release(self, release: Release) -> Sequence[Placement]:
        return ()


class LeastInflight:
    """verl's own: a conversation stays where it is while an LRU of sessions remembers it, else fewest in flight.

    Source: verl 0.9.1, `workers/rollout/router.py`. Of equal servers verl takes any; here the first.
    """

    def __init__(self, servers: Sequence[str], *, max_sessions: int | None = 10_000) -> None:
        self._inflight = dict.fromkeys(servers, 0)
        self._places: OrderedDict[str, str] = OrderedDict()
        self._max_sessions = max_sessions

    def acquire(self, request: Request) -> Sequence[Placement]:
        server = self._places.get(request.conversation)
        if server is None:
            server = min(self._inflight, key=self._inflight.__getitem__)
            self._places[request.conversation] = server
            if self._max_sessions is not None and len(self._places) > self._max_sessions:
                self._places.popitem(last=False)
        else:
            self._places.move_to_end(request.conversation)
        self._inflight[server] += 1
        return (Placement(request.conversation, server),)

    def release(self, release: Release) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()


class KvAdmission:
    """rStar2-Agent's scheduler, literally: K = capacity / longest rollout per server, the others wait.

    Source: rStar2-Agent (arXiv:2508.20722), section 3.2; its closed formula for K is not published.
    """

    def __init__(self, servers: Sequence[str], *, capacity: int) -> None:
        self._capacity = capacity
        self._live = dict.fromkeys(servers, 0)
        self._places: dict[str, str] = {}
        self._waiting: deque[Request] = deque()

    def acquire(self, request: Request) -> Sequence[Placement]:
        if place := self._places.get(request.conversation):
            return (Placement(request.conversation, place),)
        self._waiting.append(request)
        return self._admit()

    def release(self, release: Release) -> Sequence[Placement]:
        if not release.is_last:
            return ()
        del self._places[release.conversation]
        self._live[release.server] -= 1
        return self._admit()

    def _admit(self) -> list[Placement]:
        admitted = []
        while self._waiting:
            request = self._waiting[0]
            server = min(self._live, key=self._live.__getitem__)
            if self._live[server] >= max(1, self._capacity // (request.prompt_tokens + request.budget)):
                break
            self._waiting.popleft()
            self._live[server] += 1
            self._places[request.conversation] = server
            admitted.append(Placement(request.conversation, server))
        return admitted


class CacheAware:
    """The server whose requests so far share the longest prefix, unless load is out of balance.

    Source: SGLang's model gateway, policy `cache_aware`, with its thresholds and their names. There a radix tree of
    texts approximates each server's cache; here a prefix is known to be the prompt and what came before.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        self._inflight = dict.fromkeys(servers, 0)
        self._seen_tokens = dict.fromkeys(servers, 0)
        self._cache_threshold = cache_threshold
        self._abs, self._rel = balance_abs_threshold, balance_rel_threshold
        self._places: dict[str, tuple[str, int]] = {}
        self._prompts: dict[str, str] = {}

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
        self._places[request.conversation] = (server, tokens)
        self._prompts.setdefault(request.group, server)
        return (Placement(request.conversation, server),)

    def release(self, release: Release) -> Sequence[Placement]:
        self._inflight[release.server] -= 1
        return ()

    def _match(self, request: Request) -> tuple[str | None, int]:
        if request.conversation in self._places:
            return self._places[request.conversation]
        return self._prompts.get(request.group), request.prompt_tokens if request.group in self._prompts else 0

    def _by_prefix(self, request: Request) -> str:
        server, matched = self._match(request)
        if server is not None and matched > self._cache_threshold * (request.prompt_tokens + request.context_tokens):
            return server
        return min(self._seen_tokens, key=self._seen_tokens.__getitem__)
