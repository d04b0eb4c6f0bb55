"""Meeting: who waits, who is left out, and what happens to the others when a member fails, hangs or is cancelled."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.errors import VerifierError
from verl_pivot.rollout.meeting import Meeting, MeetingError, MeetingFailure


class Decider:
    """Function that gives each item with its group's size, and keeps the items of each call."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.asked: list[list[int]] = []
        self.seconds, self.error = seconds, error
        self.num_cancelled = 0

    async def __call__(self, items: Sequence[int]) -> list[str]:
        self.asked.append(list(items))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [f"{item} of {len(items)}" for item in items]


def meeting_of(decider: Decider, wait_seconds: float = 5.0) -> Meeting[int, str]:
    return Meeting(decider, wait_seconds=wait_seconds)


async def take_part(
    meeting: Meeting[int, str], item: int, size: int, *, key: str = "a", seconds: float = 0.0, fails: bool = False
) -> str:
    async with meeting.joined(key, size, min_items=min(2, size)) as member:
        await asyncio.sleep(seconds)
        if fails:
            raise OSError("the engine is down")
        return await member.result(item)


async def outcomes(*members: "asyncio.Future[str]") -> list[str | BaseException]:
    return await asyncio.gather(*members, return_exceptions=True)


async def test_members_get_their_own_results_of_one_decision_made_when_the_last_has_come() -> None:
    decider = Decider()
    meeting = meeting_of(decider)

    got = await asyncio.gather(*(take_part(meeting, item, 3, seconds=item / 100) for item in (3, 1, 2)))

    assert got == ["3 of 3", "1 of 3", "2 of 3"]
    assert decider.asked == [[1, 2, 3]]
    assert meeting.num_groups == 0


async def test_groups_do_not_mix() -> None:
    decider = Decider()
    meeting = meeting_of(decider)

    await asyncio.gather(*(take_part(meeting, item, 2, key=str(item % 5)) for item in range(10)))

    assert sorted(map(sorted, decider.asked)) == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]


async def test_a_member_that_fails_is_left_out_and_keeps_nobody_waiting() -> None:
    decider = Decider()
    meeting = meeting_of(decider)

    got = await asyncio.gather(
        take_part(meeting, 1, 3), take_part(meeting, 2, 3), take_part(meeting, 3, 3, seconds=0.02, fails=True),
        return_exceptions=True,
    )  # fmt: skip

    assert list(got[:2]) == ["1 of 2", "2 of 2"]
    assert isinstance(got[2], OSError)
    assert meeting.num_groups == 0


async def test_one_that_is_left_alone_is_not_decided() -> None:
    decider = Decider()
    meeting = meeting_of(decider)

    alone, _ = await asyncio.gather(
        take_part(meeting, 1, 2), take_part(meeting, 2, 2, fails=True), return_exceptions=True
    )

    assert isinstance(alone, MeetingError)
    assert alone.failure is MeetingFailure.SIBLINGS_FAILED
    assert str(alone) == "1 of 2 rollouts of the prompt can be compared, fewer than 2"
    assert decider.asked == []


async def test_a_group_of_one_is_decided_where_one_item_is_enough() -> None:
    assert await take_part(meeting_of(Decider()), 1, 1) == "1 of 1"


async def test_members_whose_siblings_never_come_wait_no_longer_than_they_should() -> None:
    meeting = meeting_of(Decider(), wait_seconds=0.05)

    got = await asyncio.gather(take_part(meeting, 1, 4), take_part(meeting, 2, 4), return_exceptions=True)

    assert [each.failure for each in got if isinstance(each, MeetingError)] == [MeetingFailure.SIBLINGS_MISSING] * 2
    assert str(got[0]) == "only 2 of 4 rollouts of the prompt ended within 0.05 seconds of the first"
    assert meeting.num_groups == 0


async def test_a_member_that_ends_too_late_is_not_decided_either_and_does_not_wait_again() -> None:
    meeting = meeting_of(Decider(), wait_seconds=0.05)

    got = await asyncio.gather(
        take_part(meeting, 1, 3), take_part(meeting, 2, 3), take_part(meeting, 3, 3, seconds=0.1),
        return_exceptions=True,
    )  # fmt: skip

    assert [each.failure for each in got if isinstance(each, MeetingError)] == [MeetingFailure.SIBLINGS_MISSING] * 3
    assert str(got[2]) == "the rollout ended after the others of its prompt were decided"
    assert meeting.num_groups == 0


async def test_a_sibling_that_failed_before_the_others_began_counts() -> None:
    decider = Decider()
    meeting = meeting_of(decider)
    await outcomes(asyncio.ensure_future(take_part(meeting, 0, 3, fails=True)))
    assert meeting.num_groups == 1

    got = await asyncio.gather(take_part(meeting, 1, 3), take_part(meeting, 2, 3))

    assert list(got) == ["1 of 2", "2 of 2"]
    assert meeting.num_groups == 0


async def test_a_group_whose_other_members_never_come_is_forgotten() -> None:
    meeting = meeting_of(Decider(), wait_seconds=0.05)
    await outcomes(asyncio.ensure_future(take_part(meeting, 0, 3, fails=True)))

    await asyncio.sleep(0.1)

    assert meeting.num_groups == 0


async def test_an_error_of_the_decision_is_raised_in_every_member() -> None:
    meeting = meeting_of(Decider(error=VerifierError("the judge is down")))

    got = await asyncio.gather(take_part(meeting, 1, 2), take_part(meeting, 2, 2), return_exceptions=True)

    assert [str(each) for each in got] == ["the judge is down"] * 2
    assert meeting.num_groups == 0


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_member_that_is_cancelled_while_it_waits_leaves_the_decision_to_the_others(cancelled: int) -> None:
    decider = Decider(seconds=0.05)
    meeting = meeting_of(decider)
    members = [asyncio.create_task(take_part(meeting, item, 2)) for item in range(2)]
    await asyncio.sleep(0.01)

    members[cancelled].cancel()
    got = await asyncio.gather(*members, return_exceptions=True)

    assert isinstance(got[cancelled], asyncio.CancelledError)
    assert got[1 - cancelled] == f"{1 - cancelled} of 2"
    assert decider.num_cancelled == 0


async def test_a_decision_that_nobody_waits_for_is_cancelled() -> None:
    decider = Decider(seconds=60.0)
    meeting = meeting_of(decider)
    members = [asyncio.create_task(take_part(meeting, item, 2)) for item in range(2)]
    await asyncio.sleep(0.01)

    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    await asyncio.sleep(0)

    assert decider.num_cancelled == 1
    assert meeting.num_groups == 0


@given(st.data())
def test_however_members_end_nobody_hangs_and_the_results_are_those_of_whoever_came(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    ends = data.draw(st.lists(st.sampled_from(["comes", "fails", "cancelled", "absent"]), min_size=size, max_size=size))
    rng = random.Random(data.draw(st.integers(0, 1000)))
    wait_seconds = 0.02 if "absent" in ends else 60.0  # if all come, no wait may time out

    async def play() -> list[str | BaseException]:
        meeting = meeting_of(Decider(), wait_seconds=wait_seconds)
        tasks = []
        for item, end in enumerate(ends):
            if end != "absent":
                wait = 1.0 if end == "cancelled" else rng.choice([0.0, 0.001])
                played = take_part(meeting, item, size, seconds=wait, fails=end == "fails")
                tasks.append(asyncio.create_task(played))
        await asyncio.sleep(0.003)
        for task, end in zip(tasks, [each for each in ends if each != "absent"], strict=True):
            if end == "cancelled":
                task.cancel()
        async with asyncio.timeout(5.0):
            got = await asyncio.gather(*tasks, return_exceptions=True)
            while meeting.num_groups:  # noqa: ASYNC110  a meeting has no event for its end
                await asyncio.sleep(0.001)
        return list(got)

    got = asyncio.run(play())

    came = [item for item, end in enumerate(ends) if end == "comes"]
    is_decided = "absent" not in ends and len(came) >= min(2, size)
    assert [each for each in got if isinstance(each, str)] == (
        [f"{item} of {len(came)}" for item in came] if is_decided else []
    )
    assert sum(isinstance(each, MeetingError) for each in got) == (0 if is_decided else len(came))
