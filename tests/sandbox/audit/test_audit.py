"""`verl-pivot sandbox audit`: its attacks succeed in a weak sandbox, fail where promised, and stand in the docs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.sandbox.audit import attack_programs
from verl_pivot.sandbox.audit.attack import Attack, AttackOutcome, AuditFinding, AuditReport
from verl_pivot.sandbox.audit.attacks import ATTACKS
from verl_pivot.sandbox.audit.audit import judge, prologue
from verl_pivot.sandbox.audit.session_attacks import SESSION_ATTACKS
from verl_pivot.sandbox.bubblewrap.privileges import DEFAULT_USER, command_as
from verl_pivot.sandbox.bubblewrap.probe import Tier
from verl_pivot.sandbox.execution import Result, Status

WEAK_SANDBOX = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev"]
WEAK_SANDBOX += ["--proc", "/proc", "--tmpfs", "/tmp", "--ro-bind", str(ROOT), str(ROOT), "--chdir", "/tmp"]
WEAK_SANDBOX += ["--die-with-parent", "--new-session", "--"]
"""Command of a sandbox that has no filter of system calls, no limits and no environment of its own."""
SUCCEED_IN_A_WEAK_SANDBOX = {
    "SECRETS": "finds a secret of the service in environment",
    "RIGHTS": "system call memfd_create",
    "SOCKETS": "socket of protocol 262",
    "WATCHES": "watches by inotify_init1",
    "COUNTERS": "inotify",
    "MOUNTS": "of the machine",
    "PRIORITY": "chooses its cores",
    "SPARED": "asks to be spared",
    "FORKS": "starts",
    "TREE": "holds 40 MiB",
    "PAGE_TABLES": "holds 200 MiB of page tables",
    "SHARED_MAPS": "holds 640 MiB",
    "BUFFERS": "MiB of socket buffers",
    "FILES": "makes 20000 files",
}


def result(status: Status, stdout: str = "") -> Result:
    return Result(status=status, stdout=stdout, stderr="")


@needs_sandbox
@pytest.mark.heavy
@pytest.mark.parametrize("name", SUCCEED_IN_A_WEAK_SANDBOX)
def test_an_attack_succeeds_where_nothing_stops_it(name: str) -> None:
    code = prologue(1) + getattr(attack_programs, name)
    secret = "canary-" + "0" * 32

    done = subprocess.run(
        command_as(DEFAULT_USER, [*WEAK_SANDBOX, sys.executable, "-c", code], show=[ROOT]),
        env={"SECRET": secret, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip

    assert SUCCEED_IN_A_WEAK_SANDBOX[name] in done.stdout, done.stderr


ANY = Attack(name="any", layer="any", code="", remedy="any", honest="print('fine')")


@pytest.mark.parametrize(
    ("own", "honest", "achieved"),
    [
        (result(Status.OK), [result(Status.OK, "fine\n")], []),
        (result(Status.OK, "becomes root\n"), [], ["becomes root"]),
        (result(Status.SIGNALED), [], ["it ended with the status signaled: "]),
        (
            result(Status.OK), [result(Status.OK, "disturbed by b'x'\n")],
            ["an honest program beside it ended with the status ok: disturbed by b'x'"],
        ),
        (result(Status.OK), [result(Status.TIMEOUT)], ["an honest program beside it ended with the status timeout: "]),
    ],
)  # fmt: skip
def test_an_attack_achieves_what_it_prints_a_wrong_end_and_a_disturbed_neighbour(
    own: Result, honest: list[Result], achieved: list[str]
) -> None:
    assert judge(ANY, own, honest) == achieved


@pytest.mark.parametrize(
    ("outcome", "passed"),
    [
        (AttackOutcome.HOLDS, True),
        (AttackOutcome.OPEN, True),
        (AttackOutcome.BROKEN, False),
        (AttackOutcome.UNTRIED, False),
    ],
)
def test_a_report_passes_unless_a_promise_is_broken_or_was_not_tried(outcome: AttackOutcome, passed: bool) -> None:
    holds = AuditFinding(attack=ANY, outcome=AttackOutcome.HOLDS)

    report = AuditReport(tier="T2", backend="zygote", findings=(holds, AuditFinding(attack=ANY, outcome=outcome)))

    assert (report.passed, report.as_json()["passed"]) == (passed, passed)


def test_a_promise_is_of_a_tier_and_of_a_backend() -> None:
    attack = Attack(name="a", layer="a", code="", remedy="a", promised=Tier.T2, not_promised_by=("bwrap_exec",))

    assert [attack.is_promised(tier, "zygote") for tier in ("T1", "T2", "T3")] == [True, True, False]
    assert not attack.is_promised("T1", "bwrap_exec")


def test_the_page_says_of_each_attack_which_layer_stops_it_at_which_tier() -> None:
    """If this fails, the message shows the rows that docs/sandbox.md lacks."""
    page = (ROOT / "docs/sandbox.md").read_text()
    rows = []
    for attack in (*ATTACKS, *SESSION_ATTACKS):
        has_sessions_alone = attack in SESSION_ATTACKS
        stopped = (
            f"{attack.promised} and better" if attack.promised not in (None, Tier.T1) else attack.promised or "no tier"
        )
        except_for = "; not with `bwrap_exec`" if attack.not_promised_by and not has_sessions_alone else ""
        rows.append(f"| {attack.name} | {attack.layer} | {stopped}{except_for} |")

    assert [row for row in rows if row not in page] == []
    assert len({attack.name for attack in (*ATTACKS, *SESSION_ATTACKS)}) == len(rows)


@needs_sandbox
@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["zygote", "bwrap_exec"])
def test_everything_holds_here_that_the_tier_promises(backend: str, tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "verl-pivot", "sandbox", "audit", "--json", "--backend", backend]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    report = json.loads(done.stdout)
    wrong = [found for found in report["attacks"] if found["outcome"] not in ("holds", "open")]
    assert (done.returncode, report["passed"], wrong) == (0, True, [])
    assert len(report["attacks"]) == len(ATTACKS) + (len(SESSION_ATTACKS) if backend == "zygote" else 0)
    assert all(found["remedy"] for found in report["attacks"] if found["outcome"] == "open")


@needs_sandbox
def test_doctor_names_the_command_that_attacks() -> None:
    code = "from verl_pivot.diagnosis.machine import check_sandbox; print(check_sandbox().detail)"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "`verl-pivot sandbox audit`" in done.stdout


def test_an_unknown_backend_is_refused_in_one_sentence() -> None:
    command = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "audit", "--backend", "docker"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0
    assert "--backend must be one of zygote, bwrap_exec, got 'docker'" in done.stderr
