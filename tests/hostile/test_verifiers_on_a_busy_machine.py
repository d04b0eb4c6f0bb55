"""Right actions on a machine that others keep busy: an action that fails only for the load is never refused."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile.test_sandbox_starvation import rivals
from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.lane.procfs import MemoryKills, has_ended
from verl_pivot.types import JsonObject, Message, Role
from verl_pivot.verifiers import sandboxed
from verl_pivot.verifiers.registry import get_verifier

SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 5), (2, 2), (3, 9);"
SPIN = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
RIGHT: dict[str, tuple[str, JsonObject, str, str]] = {
    "asserts": ("code", {"asserts": ["assert f(2) == 4"]}, f"{SPIN}def f(n): return 2 * n", "pass"),
    "tests": ("code", {"tests": [{"stdin": "2", "stdout": "4"}]}, f"{SPIN}print(2 * int(input()))", "pass"),
    "sqlite": ("sql", {"scripts": [SCRIPT]}, "SELECT n FROM t WHERE NOT n <= 3", "SELECT n FROM t WHERE n > 3"),
    "duckdb": (
        "sql",
        {"scripts": [SCRIPT], "dialect": "duckdb"},
        "SELECT n FROM t WHERE NOT n <= 3",
        "SELECT n FROM t WHERE n > 3",
    ),
    "shell by execution": ("shell", {"mode": "execution", "setup": "seq 9 > n"}, "cat n | tail -n 2", "tail -n 2 n"),
    "shell by form": ("shell", {}, "ls  -a -l", "ls -l -a"),
    "math": ("math", {}, rf"\boxed{{{' + '.join(map(str, range(41)))}}}", r"\boxed{820}"),
}


def action(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text if "\\boxed" in text else f"```\n{text}\n```")


@needs_sandbox
@pytest.mark.heavy
@pytest.mark.parametrize("name", RIGHT)
async def test_no_right_action_is_refused_on_a_busy_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)
    verifier, options, text, expert = RIGHT[name]
    options = {"wall_seconds": 1.0, **options} if name != "shell by form" else options

    with rivals():
        verdict = await get_verifier(verifier, options)(action(text), make_turn(expert=action(expert)))

    assert verdict.score in (1.0, None), verdict


class BusySandbox:
    """Sandbox on which the first `num_busy` runs get no core."""

    def __init__(self, num_busy: int) -> None:
        self.num_busy = num_busy
        self.num_runs = 0

    async def run_many(self, programs: list[Program], *, deadline_seconds: float) -> list[Result]:
        self.num_runs += len(programs)
        is_busy = self.num_runs <= self.num_busy
        return [Result(status=Status.TIMEOUT if is_busy else Status.OK, had_no_core=is_busy) for _ in programs]


def use(monkeypatch: pytest.MonkeyPatch, sandbox: BusySandbox) -> None:
    async def shared() -> BusySandbox:
        return sandbox

    monkeypatch.setattr(sandboxed, "shared_sandbox", shared)


async def test_programs_that_had_no_core_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = BusySandbox(num_busy=7)
    use(monkeypatch, sandbox)

    results = await sandboxed.execute([Program(code="pass")] * 5)

    assert [result.status for result in results] == [Status.OK] * 5
    assert sandbox.num_runs == 5 + 5 + 2


async def test_a_program_that_never_has_a_core_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, BusySandbox(num_busy=10**6))
    monkeypatch.setattr(sandboxed, "DEADLINE_SECONDS", 0.05)

    with pytest.raises(SandboxError, match="the machine had no core"):
        await sandboxed.execute([Program(code="pass")])


async def test_a_program_that_used_up_its_time_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = BusySandbox(num_busy=1)
    use(monkeypatch, sandbox)
    original = sandbox.run_many

    async def out_of_time(programs: list[Program], *, deadline_seconds: float) -> list[Result]:
        return [replace(each, had_no_core=False) for each in await original(programs, deadline_seconds=1.0)]

    monkeypatch.setattr(sandbox, "run_many", out_of_time)

    (result,) = await sandboxed.execute([Program(code="while True: pass")])

    assert (result.status, sandbox.num_runs) == (Status.TIMEOUT, 1)


def test_kills_for_want_of_memory_are_noticed_by_those_that_ran_at_the_time(tmp_path: Path) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("pgfault 17\noom_kill 3\n")
    kills = MemoryKills(str(counts))
    before = time.monotonic()

    assert not kills.noticed_since(before)
    counts.write_text("pgfault 17\noom_kill 4\n")
    assert kills.noticed_since(before)
    assert kills.noticed_since(before)
    assert not kills.noticed_since(time.monotonic())
    assert not MemoryKills(str(tmp_path / "none")).noticed_since(0.0)


def test_a_process_has_ended_before_anybody_has_waited_for_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert not has_ended(sleeper.pid)
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(sleeper.pid)
    assert has_ended(sleeper.pid)
