"""Programs that compute, sleep, or want more memory than there is, on a real lane."""

import asyncio

import pytest

from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.sandbox.execution import MIB, Limits, Network, Program, Result, Status
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend

pytestmark = [needs_sandbox, pytest.mark.heavy]

FILL = "data = bytearray({mib} << 20)\nimport time\ntime.sleep({seconds})\nprint(len(data) >> 20)"


async def run_all(programs: list[Program], **settings: int) -> list[Result]:
    backend = ZygoteBackend(BackendSettings(num_lanes=1, **settings))
    await backend.start()
    try:
        return await asyncio.gather(*map(backend.run, programs))
    finally:
        await backend.stop()


async def test_programs_that_together_want_too_much_memory_all_end_with_status_ok() -> None:
    limits = Limits(memory_bytes=200 * MIB, wall_seconds=20.0)
    # The programs want 900 MiB together, and the lane has 400 MiB.
    programs = [Program(code=FILL.format(mib=150, seconds=0.5), limits=limits)] * 6

    results = await run_all(programs, memory_bytes=400 * MIB)

    assert [(result.status, result.stdout) for result in results] == [(Status.OK, "150\n")] * 6


async def test_a_limit_larger_than_the_lane_gets_all_that_the_lane_has() -> None:
    programs = [Program(code=FILL.format(mib=150, seconds=0.3), limits=Limits(memory_bytes=1024 * MIB))] * 4

    results = await run_all(programs, memory_bytes=400 * MIB)

    assert [result.stdout for result in results] == ["150\n"] * 4


async def test_a_program_above_its_own_limit_is_told_so_and_its_neighbours_are_not_touched() -> None:
    limits = Limits(memory_bytes=64 * MIB, wall_seconds=20.0)
    children = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        break\n" + FILL.format(
        mib=40, seconds=5
    )
    greedy = Program(code=children, limits=limits)
    modest = Program(code=FILL.format(mib=40, seconds=1), limits=limits)

    results = await run_all([greedy, modest, modest])

    assert [result.status for result in results] == [Status.MEMORY_LIMIT, Status.OK, Status.OK]


async def test_more_programs_sleep_at_once_than_a_lane_lets_compute() -> None:
    programs = [Program(code="import time\ntime.sleep(1)\nprint(1)")] * 60

    results = await run_all(programs)

    assert {result.stdout for result in results} == {"1\n"}
    assert max(result.timing.wall_seconds for result in results) < 10  # one after the other would take 60 s


async def test_a_long_computation_does_not_keep_others_waiting() -> None:
    spin = Program(code="while True: pass", limits=Limits(wall_seconds=3.0))
    quick = Program(code="print(2)")

    results = await run_all([*[spin] * 8, quick])

    assert [result.status for result in results] == [*[Status.TIMEOUT] * 8, Status.OK]


async def test_a_cancelled_run_ends_its_processes_and_frees_its_place() -> None:
    backend = ZygoteBackend(BackendSettings(num_lanes=1))
    await backend.start()
    try:
        running = [asyncio.create_task(backend.run(Program(code="import time\ntime.sleep(60)"))) for _ in range(20)]
        await asyncio.sleep(0.5)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

        after = await backend.run(Program(code="print(3)"))

        assert after.stdout == "3\n"
        assert all(task.cancelled() for task in running)
    finally:
        await backend.stop()


@pytest.mark.parametrize("network", [each for each in Network if each is not Network.PROXY])
async def test_programs_run_with_every_network(network: Network) -> None:
    (result,) = await run_all([Program(code="print(4)", network=network)])

    assert result.stdout == "4\n"
