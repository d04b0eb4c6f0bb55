"""Spare processes, which a lane makes ahead of programs, on a real service with one lane."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Service, parts, start_service, until
from verl_pivot.sandbox.execution import MIB, Limits, Result, Status

pytestmark = needs_sandbox

USUAL = Limits()

LEAVE_FILES = """
import os
print(os.listdir("/tmp"), os.listdir("/dev/shm"))
open("/tmp/left", "w").close()
open("/dev/shm/left", "w").close()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    service = start_service(lanes=1)
    yield service
    service.stop()


async def run_in_turn(running: Service, *codes: str, limits: Limits = USUAL) -> list[Result]:
    async with running.client() as sandbox:
        return [await sandbox.run(code, limits=limits) for code in codes]


def spares(running: Service) -> tuple[int, ...]:
    """Ids of the spare processes: while no program runs, every process in a pod is a spare one."""
    assert until(lambda: len(parts(running).programs) == len(parts(running).shims))
    return parts(running).programs


async def test_a_spare_process_waits_after_two_programs_of_one_kind(running: Service) -> None:
    await run_in_turn(running, "print(1)", "print(1)")

    assert len(spares(running)) == 1


async def test_no_pod_is_used_twice(running: Service) -> None:
    results = await run_in_turn(running, *[LEAVE_FILES] * 4)

    assert [result.stdout for result in results] == ["['main.py'] []\n"] * 4


async def test_random_numbers_of_two_programs_differ(running: Service) -> None:
    code = "import numpy, random\nprint(random.random(), numpy.random.rand())"

    numbers = {result.stdout for result in await run_in_turn(running, *[code] * 4)}

    assert len(numbers) == 4


async def test_a_spare_that_is_killed_is_replaced(running: Service) -> None:
    await run_in_turn(running, "print(1)", "print(1)")
    for pid in spares(running):
        os.kill(pid, signal.SIGKILL)

    (result,) = await run_in_turn(running, "print(2)")

    assert result.stdout == "2\n"


async def test_limits_are_those_of_the_program_and_not_of_the_one_before(running: Service) -> None:
    code = "print(len(bytearray(200 << 20)))"

    results = await run_in_turn(running, "print(1)", "print(1)", code, limits=Limits(memory_bytes=400 * MIB))
    refused = await run_in_turn(running, code, limits=Limits(memory_bytes=100 * MIB))

    assert [result.stdout for result in results] == ["1\n", "1\n", f"{200 << 20}\n"]
    assert refused[0].status is Status.ERROR
    assert "MemoryError" in refused[0].stderr


async def test_a_program_with_a_smaller_tmp_does_not_get_a_pod_made_for_a_larger_one(running: Service) -> None:
    fill = "with open('/tmp/large', 'wb') as file:\n    file.write(bytes(3 << 20))\nprint('written')"

    usual = await run_in_turn(running, "print(1)", "print(1)", fill)
    smaller = await run_in_turn(running, fill, limits=Limits(tmp_bytes=2 * MIB))

    assert usual[-1].stdout == "written\n"
    assert smaller[0].stdout == ""


async def test_sessions_start_from_spares_too(running: Service) -> None:
    async with running.client() as sandbox:
        for number in range(3):
            async with await sandbox.open() as session:
                await session.run(f"x = {number}")
                assert (await session.run("x")).value == str(number)
    assert spares(running)


async def test_a_lane_that_stops_leaves_no_spare() -> None:
    service = start_service(lanes=1)
    await run_in_turn(service, "print(1)", "print(1)")
    waiting = spares(service)

    service.stop()

    assert waiting
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in waiting))
