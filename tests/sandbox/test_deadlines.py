"""Deadlines of calls by default: no program or cell that is ended at its limit outlasts them."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_backend import TOKEN, FakeBackend, serving
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox import client
from verl_pivot.sandbox import session as sessions
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.deadlines import deadline_for
from verl_pivot.sandbox.execution import LIMIT_RANGES, Limits, Program, Result, Status
from verl_pivot.sandbox.lane.core_time import granted_seconds
from verl_pivot.verifiers import sandboxed


@given(st.floats(*LIMIT_RANGES["wall_seconds"]))
def test_a_deadline_is_a_minute_or_more_after_all_that_a_limit_grants(wall_seconds: float) -> None:
    longest = wall_seconds + granted_seconds(math.inf, wall_seconds)

    assert deadline_for(wall_seconds) >= longest + 60.0 - 1e-9


def test_a_limit_of_10_seconds_or_less_leaves_the_deadline_as_it_is() -> None:
    assert [deadline_for(wall) for wall in (0.01, 10.0, 20.0, 600.0)] == [120.0, 120.0, 180.0, 3660.0]
    assert [deadline_for(wall, 300.0) for wall in (10.0, 600.0)] == [300.0, 3840.0]


def soon(wall_seconds: float) -> float:
    return 0.1 + wall_seconds


async def test_cells_and_programs_have_the_deadline_of_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, sessions):
        monkeypatch.setattr(module, "deadline_for", soon)
    quick, slow = Limits(wall_seconds=0.05), Limits(wall_seconds=0.2)
    async with serving(FakeBackend()) as service, Sandbox([service.url], TOKEN) as sandbox:
        one, other = await sandbox.open(limits=slow), await sandbox.open(limits=slow)
        with pytest.raises(SandboxError, match=r"no answer within 0.15 s"):
            await one.run("hang", wall_seconds=0.05)
        with pytest.raises(SandboxError, match=r"no answer within 0.3 s"):
            await other.run("hang")
        with pytest.raises(SandboxError, match=r"no result within 0.3 s"):
            await sandbox.run_many([Program(code="hang", limits=limits) for limits in (quick, slow)])
        with pytest.raises(SandboxError, match=r"no result within 0.1 s"):
            await sandbox.run("hang", limits=slow, deadline_seconds=0.1)


async def test_a_verifier_waits_for_the_longest_limit_of_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class Waiting:
        async def run_many(self, programs: Sequence[Program], *, deadline_seconds: float) -> list[Result]:
            asked.append(deadline_seconds)
            return [Result(status=Status.TIMEOUT) for _ in programs]

    async def shared() -> Waiting:
        return Waiting()

    monkeypatch.setattr(sandboxed, "shared_sandbox", shared)
    for walls in ((10.0,), (10.0, 600.0), ()):
        await sandboxed.execute([Program(code="", limits=Limits(wall_seconds=wall)) for wall in walls])

    assert asked == [300.0, 3840.0, 300.0]
