"""Accounts of a router: the KV tokens that conversations hold on each server, and counts of events."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Holding(NamedTuple):
    """KV tokens that one conversation holds on a server."""

    group: str
    prompt_tokens: int
    """Tokens of the prompt, held once for all conversations of the group."""
    context_tokens: int


@dataclass(slots=True)
class RouterCounts:
    """Counts of events since the router started."""

    acquired: int = 0
    """Turns that got a server."""
    released: int = 0
    """Turns that ended on their server."""
    ended: int = 0
    """Conversations whose end was reported."""
    returned: int = 0
    """Turns that got the server of the turn before, which has their prefix."""
    moves: int = 0
    """Turns that got another server than the turn before."""
    recomputed_tokens: int = 0
    """Tokens of conversations that were computed again because of a move."""
    forgotten: int = 0
    """Conversations that counted as ended after `forget_after_seconds` without a call."""
    lost: int = 0
    """Requests of dead processes that were never released and whose server had no work."""
    ignored: int = 0
    """Releases and ends of unknown or ended conversations."""


class Accounts:
    """Running totals of the KV tokens that conversations hold on each server; `check` compares them with a recount."""

    def __init__(self) -> None:
        self._holdings: dict[str, dict[str, Holding]] = {}
        self._groups: dict[str, Counter[str]] = {}
        self._committed: dict[str, int] = {}

    def add_server(self, server: str) -> None:
        self._holdings[server], self._groups[server], self._committed[server] = {}, Counter(), 0

    def remove_server(self, server: str) -> None:
        del self._holdings[server], self._groups[server], self._committed[server]

    def committed(self, server: str) -> int:
        """Tokens of all conversations on a server, each prompt counted once."""
        return self._committed[server]

    def hold(self, server: str, conversation: str, holding: Holding) -> None:
        """Set what a conversation holds on a server."""
        self.drop(server, conversation)
        self._holdings[server][conversation] = holding
        self._groups[server][holding.group] += 1
        self._committed[server] += holding.context_tokens
        if self._groups[server][holding.group] == 1:
            self._committed[server] += holding.prompt_tokens

    def drop(self, server: str, conversation: str) -> None:
        """Remove what a conversation holds on a server, if anything."""
        holding = self._holdings[server].pop(conversation, None)
        if holding is None:
            return
        self._committed[server] -= holding.context_tokens
        self._groups[server][holding.group] -= 1
        if not self._groups[server][holding.group]:
            del self._groups[server][holding.group]
            self._committed[server] -= holding.prompt_tokens

    def check(self, placed: Iterable[tuple[str, str, Holding]]) -> None:
        """Compare the running totals with a recount.

        Args:
            placed: (server, conversation, what it holds there) of every conversation that has a server.

        Raises:
            AssertionError: If anything differs.
        """
        recount: dict[str, dict[str, Holding]] = {server: {} for server in self._holdings}
        for server, conversation, holding in placed:
            recount[server][conversation] = holding
        assert recount == self._holdings, f"recounted {recount}, kept {self._holdings}"
        for server, holdings in recount.items():
            prompts = {holding.group: holding.prompt_tokens for holding in holdings.values()}
            total = sum(holding.context_tokens for holding in holdings.values()) + sum(prompts.values())
            assert total == self._committed[server], (
                f"{server}: recounted {total}, kept {self._committed[server]} tokens"
            )
