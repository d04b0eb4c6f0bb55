"""Meeting: members of a group that end one after the other -> one decision about all, made when all have ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Generic, TypeVar

from verl_pivot.errors import VerifierError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class MeetingFailure(StrEnum):
    """Why there is no decision about a group."""

    SIBLINGS_FAILED = "siblings_failed"
    """Too few members have handed in an item; the others have left without one."""
    SIBLINGS_MISSING = "siblings_missing"
    """Not all members have ended in time, or this one came after the group was decided."""


class MeetingError(VerifierError):
    """There is no decision about a group, which says nothing about any of its members."""

    def __init__(self, failure: MeetingFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Meeting(Generic[ItemT, ResultT]):
    """Place within one event loop where the members of groups wait for each other, and one decision is made for all.

    A member joins when it begins, so that a member that fails or is cancelled does not keep the others waiting. The
    decision is a separate task: a cancelled member leaves it to the others, and the last member to leave cancels it.

    Example:
        meeting = Meeting(judge.scores, wait_seconds=3600)
        async with meeting.joined(uid, 8) as member:
            trajectory = await play()
            score = await member.result(trajectory)
    """

    def __init__(
        self, decide: Callable[[Sequence[ItemT]], Coroutine[Any, Any, Sequence[ResultT]]], *, wait_seconds: float
    ) -> None:
        """Start without groups.

        Args:
            decide: [num_items] items of a group -> [num_items] their results; called once for a group.
            wait_seconds: Seconds after the end of a group's first member within which all others must end.
        """
        self._decide = decide
        self._wait_seconds = wait_seconds
        self._groups: dict[str, _Group[ItemT, ResultT]] = {}

    @property
    def num_groups(self) -> int:
        """Number of groups that are not over."""
        return len(self._groups)

    @asynccontextmanager
    async def joined(
        self, key: str, num_members: int, *, min_items: int = 2
    ) -> AsyncIterator["Membership[ItemT, ResultT]"]:
        """Take part in a group; a member that leaves without asking for a result is left out.

        Args:
            key: Name of the group.
            num_members: Total number of members of the group.
            min_items: Fewest items for a decision.
        """
        group = self._groups.setdefault(key, _Group(num_members, min_items))
        member = Membership(group, self._end)
        group.num_inside += 1
        try:
            yield member
        finally:
            if not member.has_ended:
                self._end(group)
            group.num_inside -= 1
            self._forget(key, group)

    def _end(self, group: "_Group[ItemT, ResultT]") -> None:
        """Count a member that has ended."""
        group.num_ended += 1
        if group.num_ended >= group.num_members:
            group.all_ended.set()
        if group.task is None:
            group.task = asyncio.create_task(self._decided(group))
            group.task.add_done_callback(_retrieve)

    def _forget(self, key: str, group: "_Group[ItemT, ResultT]") -> None:
        """Drop a group without members inside, at once or when no more members can come."""
        if group.num_inside > 0 or self._groups.get(key) is not group:
            return
        assert group.task is not None, key
        if group.all_ended.is_set() or group.task.done():
            group.task.cancel()
            del self._groups[key]
        else:
            group.task.add_done_callback(lambda _: self._forget(key, group))

    async def _decided(self, group: "_Group[ItemT, ResultT]") -> Sequence[ResultT]:
        """Results of a group's items, once all members have ended."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await group.all_ended.wait()
        except TimeoutError as error:
            group.all_ended.set()
            raise MeetingError(
                MeetingFailure.SIBLINGS_MISSING,
                f"only {group.num_ended} of {group.num_members} rollouts of the prompt ended within "
                f"{self._wait_seconds:g} seconds of the first",
            ) from error
        if len(group.items) < group.min_items:
            raise MeetingError(
                MeetingFailure.SIBLINGS_FAILED,
                f"{len(group.items)} of {group.num_members} rollouts of the prompt can be compared, fewer than "
                f"{group.min_items}",
            )
        return await self._decide(group.items)


class Membership(Generic[ItemT, ResultT]):
    """One member of a group."""

    def __init__(self, group: "_Group[ItemT, ResultT]", end: Callable[["_Group[ItemT, ResultT]"], None]) -> None:
        self._group, self._end = group, end
        self.has_ended = False
        """Whether the member has handed in its item."""

    async def result(self, item: ItemT) -> ResultT:
        """Hand in the member's item, and wait for its result.

        Raises:
            MeetingError: If too few items are left, or members are missing for too long.
            Exception: What the decision raises, in every member.
        """
        group = self._group
        if group.all_ended.is_set():
            raise MeetingError(
                MeetingFailure.SIBLINGS_MISSING, "the rollout ended after the others of its prompt were decided"
            )
        position = len(group.items)
        group.items.append(item)
        self.has_ended = True
        self._end(group)
        assert group.task is not None, group
        return (await asyncio.shield(group.task))[position]


class _Group(Generic[ItemT, ResultT]):
    """State of one group."""

    def __init__(self, num_members: int, min_items: int) -> None:
        self.num_members, self.min_items = num_members, min_items
        self.num_inside = 0
        """Number of members that take part now."""
        self.num_ended = 0
        """Number of members that have handed in an item, or have left without one."""
        self.items: list[ItemT] = []
        self.all_ended = asyncio.Event()
        """Set when no further item counts."""
        self.task: asyncio.Task[Sequence[ResultT]] | None = None
        """Waits for the members and decides; begins when the first of them ends."""


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Retrieve a task's error, which asyncio would log if every member had left before."""
    if not task.cancelled():
        task.exception()
