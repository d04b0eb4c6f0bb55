"""What a router keeps account of: tokens that conversations hold on servers, and what happened."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Holding(NamedTuple):
    """What one conversation holds on a server."""

    group: str
    prompt_tokens: int
    """Shared by the conversations of a group."""
    context_tokens: int


@dataclass(slots=True, kw_only=True)
class Journey:
    """What scheduling cost one conversation."""

    wait_seconds: float = 0.0
    """For a server."""
    num_moves: int = 0
    recomputed_tokens: int = 0
    """Of it, on servers that it moved to."""


@dataclass(slots=True)
class Counts:
    """Since the router began."""

    acquired: int = 0
    released: int = 0
    ended: int = 0
    returned: int = 0
    """Turns that came back to where their prefix is."""
    moves: int = 0
    """Turns that went on elsewhere."""
    recomputed_tokens: int = 0
    """Of conversations that moved."""
    forgotten: int = 0
    """Conversations that were not heard of for too long."""
    lost: int = 0
    """Requests that nobody released, though their server had no work."""
    ignored: int = 0
    """Releases and ends of what is not known, or is over."""


class Accounts:
    """Tokens that are committed on each server: running totals, which `check` compares with a recount."""

    def __init__(self) -> None:
        self._holdings: dict[str, dict[str, Holding]] = {}
        self._groups: dict[str, Counter[str]] = {}
        self._committed: dict[str, int] = {}

    def add_server(self, server: str) -> None:
        self._holdings[server], self._groups[server], self._committed[server] = {}, Counter(), 0

    def remove_server(self, server: str) -> None:
        del self._holdings[server], self._groups[server], self._committed[server]

    def committed(self, server: str) -> int:
        """Tokens of all conversations with a place there, each prompt once."""
        return self._committed[server]

    def hold(self, server: str, conversation: str, holding: Holding) -> None:
        """A conversation has so much there now."""
        self.drop(server, conversation)
        self._holdings[server][conversation] = holding
        self._groups[server][holding.group] += 1
        self._committed[server] += holding.context_tokens
        if self._groups[server][holding.group] == 1:
            self._committed[server] += holding.prompt_tokens

    def drop(self, server: str, conversation: str) -> None:
        """A conversation has nothing there any more."""
        holding = self._holdings[server].pop(conversation, None)
        if holding is None:
            return
        self._committed[server] -= holding.context_tokens
        self._groups[server][holding.group] -= 1
        if not self._groups[server][holding.group]:
            del self._groups[server][holding.group]
            self._committed[server] -= holding.prompt_tokens

    def check(self, places: Iterable[tuple[str, str, Holding]]) -> None:
        """Compare with what each conversation is known to hold.

        Args:
            places: (server, conversation, what it holds) of all.

        Raises:
            AssertionError: If anything differs.
        """
        recount: dict[str, dict[str, Holding]] = {server: {} for server in self._holdings}
        for server, conversation, holding in places:
            recount[server][conversation] = holding
        assert recount == self._holdings
        for server, holdings in recount.items():
            prompts = {each.group: each.prompt_tokens for each in holdings.values()}
            total = sum(each.context_tokens for each in holdings.values()) + sum(prompts.values())
            assert total == self._committed[server], (server, total, self._committed[server])
