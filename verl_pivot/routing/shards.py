"""Which shard of the engines each conversation belongs to, and which shards take waiting conversations from others.

A shard is the engines that one actor of the router routes to.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MOST_REMEMBERED = 100_000
"""Maximum number of conversations whose shard a process remembers. A forgotten one goes on as a new conversation."""
_RUN = 8
"""Number of conversations of a prompt that begin on one shard in a row, as many as `kv_forecast` sends to one server.
The next ones may begin on another shard, since conversations of a prompt have similar lengths and would unbalance the
shards."""
_MOST_PASSED_ON = 256
"""Maximum number of conversations that leave a shard in one exchange, so that its actor is not busy for long."""


@dataclass(slots=True)
class _PromptRollouts:
    """Conversations of one prompt, some of which are remembered."""

    shard: int = 0
    num_begun: int = 0
    num_conversations: int = 0
    """Number of its conversations that are remembered."""


class ConversationShards:
    """The shard of each conversation that a process of agent loops runs.

    Eight conversations of a prompt in a row begin on the same shard, the one with the fewest conversations of the
    process. The next eight may begin on another.
    """

    def __init__(self, num_shards: int, first: int) -> None:
        """
        Args:
            num_shards: Number of shards.
            first: Shard that comes first among equally full ones; each process should have its own.
        """
        self._num_shards = num_shards
        self._first = first
        self._found: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """{conversation: (its shard, digest of its prompt)}, in the order of their newest calls."""
        self._prompts: dict[str, _PromptRollouts] = {}
        """{digest of a prompt: prompt}."""
        self._num_conversations = [0] * num_shards
        """[num_shards] conversations in `_found`."""

    def find(self, conversation: str) -> int | None:
        """The shard of a conversation; None if it has not begun here or is forgotten."""
        if self._num_shards == 1:
            return 0
        if conversation not in self._found:
            return None
        self._found.move_to_end(conversation)
        return self._found[conversation][0]

    def begin(self, conversation: str, digest: str, lost: Container[int] = ()) -> int:
        """Choose the shard of a new conversation by the digest of its prompt; lost shards are avoided if possible."""
        prompt = self._prompts.setdefault(digest, _PromptRollouts())
        if prompt.num_begun % _RUN == 0 or prompt.shard in lost:
            prompt.shard = self.emptiest(without=lost)
        prompt.num_begun += 1
        prompt.num_conversations += 1
        self._num_conversations[prompt.shard] += 1
        self._found[conversation] = prompt.shard, digest
        if len(self._found) > _MOST_REMEMBERED:
            self.end(next(iter(self._found)))
        return prompt.shard

    def emptiest(self, without: Container[int]) -> int:
        """The shard with the fewest conversations; one of `without` only if there are no others."""
        return min(range(self._num_shards), key=lambda shard: (shard in without, self._fullness(shard)))

    def move(self, conversation: str, shard: int) -> None:
        """Note that a conversation belongs to another shard now."""
        if conversation not in self._found:
            return
        before, digest = self._found[conversation]
        self._num_conversations[before] -= 1
        self._num_conversations[shard] += 1
        self._found[conversation] = shard, digest

    def end(self, conversation: str) -> int:
        """Forget a conversation; returns its shard, the first one if it is not known."""
        if conversation not in self._found:
            return 0
        shard, digest = self._found.pop(conversation)
        self._num_conversations[shard] -= 1
        self._prompts[digest].num_conversations -= 1
        if not self._prompts[digest].num_conversations:
            del self._prompts[digest]
        return shard

    def __len__(self) -> int:
        return len(self._found)

    def _fullness(self, shard: int) -> tuple[int, int]:
        return self._num_conversations[shard], (shard - self._first) % self._num_shards


class Demand(NamedTuple):
    """Waiting conversations and servers of a shard."""

    num_waiting: int
    """Conversations that wait to begin."""
    num_servers: int
    """Servers that take requests."""


NO_DEMAND = Demand(0, 0)
"""Demand of a shard whose actor has died."""


class Transfer(NamedTuple):
    """Waiting conversations that are to begin on another shard."""

    source: int
    target: int
    num_conversations: int


def plan_exchange(demands: Sequence[Demand]) -> list[Transfer]:
    """Transfers to shards where no conversation waits, from those with the most waiting conversations per server.

    Afterwards such a shard has its equal share of all waiting conversations.

    Args:
        demands: [num_shards] demand of each shard.
    """
    num_servers = sum(each.num_servers for each in demands)
    waiting = [each.num_waiting for each in demands]
    if not num_servers:
        return []
    mean = sum(waiting) / num_servers
    transfers = []
    for target, demand in enumerate(demands):
        if demand.num_waiting or not demand.num_servers:
            continue
        source = max(range(len(demands)), key=lambda shard: waiting[shard] / max(1, demands[shard].num_servers))
        number = min(math.ceil(mean * demand.num_servers), waiting[source], _MOST_PASSED_ON)
        if number:
            waiting[source] -= number
            transfers.append(Transfer(source, target, number))
    return transfers


def split(names: Sequence[str], num_shards: int) -> list[list[str]]:
    """[num_shards] contiguous runs of names, of sizes that differ by one at most."""
    bounds = [len(names) * shard // num_shards for shard in range(num_shards + 1)]
    return [list(names[begin:end]) for begin, end in itertools.pairwise(bounds)]
