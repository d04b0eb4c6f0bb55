"""A budget is never overrun: the most that a call may cost is set aside before it, and stays so if its process dies."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.errors import ConfigError, OutOfBudgetError
from verl_pivot.synthesis.budget import Budget, BudgetLimits


def budget(ledger: Path, tokens: int | None = None, calls: int | None = None, seconds: float | None = None) -> Budget:
    return Budget(BudgetLimits(tokens=tokens, calls=calls, seconds=seconds), ledger)


def test_a_call_waits_for_what_others_leave(tmp_path: Path) -> None:
    async def run() -> list[str]:
        own, events = budget(tmp_path / "ledger", tokens=100), []
        first = await own.reserve(80)
        waiting = asyncio.create_task(own.reserve(60))
        await asyncio.sleep(0)
        events.append(f"waits: {not waiting.done()}")
        own.settle(first, 30)
        await waiting
        events.append(f"set aside and paid: {own.num_tokens}")
        return events

    assert asyncio.run(run()) == ["waits: True", "set aside and paid: 90"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tokens": 50}, "50 of 50 tokens are left, but a call may take 60"),
        ({"calls": 0}, "the budget of 0 calls is used up"),
        ({"seconds": 0.0}, "the budget of 0 seconds is used up"),
    ],
)
def test_a_call_that_never_fits_is_refused(tmp_path: Path, limits: dict[str, int], message: str) -> None:
    with pytest.raises(OutOfBudgetError, match=f"^{message}$"):
        asyncio.run(budget(tmp_path / "ledger", **limits).reserve(60))


def test_a_call_under_way_when_the_process_died_is_paid_in_full(tmp_path: Path) -> None:
    async def die(ledger: Path) -> None:
        own = budget(ledger)
        own.settle(await own.reserve(80), 30)
        await own.reserve(50)

    asyncio.run(die(tmp_path / "ledger"))
    with (tmp_path / "ledger").open("a") as file:
        file.write("call 2 7")  # a torn line of a call that was never sent

    found = budget(tmp_path / "ledger")
    assert (found.num_calls, found.num_tokens) == (2, 80)


CALLS = st.lists(st.tuples(st.integers(0, 40), st.floats(0.0, 1.0), st.booleans()), max_size=40)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS, limit=st.integers(0, 120))
def test_tokens_never_exceed_the_limit(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, float, bool]], limit: int
) -> None:
    """Calls at once: each takes a part of the tokens set aside for it, or its process dies before the call is paid."""
    ledger = tmp_path_factory.mktemp("budget") / "ledger"

    async def spend(own: Budget, most: int, share: float, *, dies: bool) -> None:
        try:
            reservation = await asyncio.wait_for(own.reserve(most), 0.01)
        except (OutOfBudgetError, TimeoutError):
            return
        assert own.num_tokens <= limit
        if not dies:
            own.settle(reservation, int(most * share))

    async def run(part: list[tuple[int, float, bool]]) -> None:
        own = budget(ledger, tokens=limit)
        await asyncio.gather(*(spend(own, most, share, dies=dies) for most, share, dies in part))
        assert own.num_tokens <= limit

    for at in range(0, len(calls), 8):
        asyncio.run(run(calls[at : at + 8]))


def test_a_ledger_with_lines_that_a_full_disk_cut_off_and_joined_is_read(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("call 0 100\npaid 0 60\ncall 5 1call 6 2000\npaid 6 30\ncall 7 9")

    own = budget(tmp_path / "ledger")

    assert (own.num_calls, own.num_tokens) == (1, 90)


async def test_a_full_disk_is_an_error_of_the_user_and_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, write = budget(tmp_path / "ledger"), os.write
    first = await own.reserve(80)
    left = [3]

    def write_some(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = write(file, data[: left[0]])
        left[0] -= num_written
        return num_written

    with monkeypatch.context() as full:
        full.setattr("verl_pivot.synthesis.budget.os.write", write_some)
        with pytest.raises(ConfigError, match=r"ledger cannot be written: No space left on device; free some space"):
            await own.reserve(70)
        left[0] = 5
        with pytest.raises(ConfigError, match="No space left on device"):
            own.settle(first, 33)
        with pytest.raises(ConfigError, match="No space left on device"):
            own.close()

    assert (tmp_path / "ledger").read_text() == "\ncall 0 80\n"
    assert budget(tmp_path / "ledger").num_tokens == 80
