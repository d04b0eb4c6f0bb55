"""Attacks -> AuditReport: starts a service on this machine, runs each attack against it, and judges the outcome."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.audit.attack import SMALL, Attack, AttackOutcome, AuditFinding, AuditReport
from verl_pivot.sandbox.audit.attack_programs import PROLOGUE
from verl_pivot.sandbox.audit.attacks import ATTACKS
from verl_pivot.sandbox.audit.session_attacks import SESSION_ATTACKS
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.lane.seccomp import MACHINES
from verl_pivot.sandbox.lane.system_calls import NUMBERS
from verl_pivot.sandbox.local_service import LocalService, acquire, release

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_SECONDS = 60.0
CANARY_VARIABLE = "VERL_PIVOT_AUDIT_SECRET"
"""Environment variable of the service that no program may ever see."""
_NUM_AT_ONCE = 4
_OUT_OF_TIME = (Status.TIMEOUT, Status.CPU_LIMIT)
_ANSWER = "42"


def num_attacks(backend: str) -> int:
    """Number of attacks on this backend."""
    return len(ATTACKS) + len(_session_attacks(backend))


async def audit(backend: str, on_done: Callable[[int], None]) -> AuditReport:
    """Try every attack.

    Args:
        backend: Name of a backend of `verl-pivot sandbox serve`.
        on_done: Called with 1 after each attack.

    Raises:
        SandboxError: If the service does not start.
    """
    async with _service(backend) as service, Sandbox(urls=[service.url], token=service.token) as sandbox:
        tier = (await sandbox.run("pass", deadline_seconds=DEADLINE_SECONDS)).tier
        beginning = prologue(int(service.url.rpartition(":")[2]))
        gate = asyncio.Semaphore(_NUM_AT_ONCE)

        async def attempt(attack: Attack) -> AuditFinding:
            async with gate:
                finding = await _try(sandbox, attack, beginning, is_promised=attack.is_promised(tier, backend))
            on_done(1)
            return finding

        alone = [attack for attack in ATTACKS if not attack.honest]
        found = dict(zip(alone, await asyncio.gather(*map(attempt, alone)), strict=True))
        for attack in (*(attack for attack in ATTACKS if attack.honest), *_session_attacks(backend)):
            found[attack] = await attempt(attack)
    ordered = (*ATTACKS, *_session_attacks(backend))
    return AuditReport(tier=tier, backend=backend, findings=tuple(found[attack] for attack in ordered))


def prologue(port: int) -> str:
    """Beginning of every attack on this machine, with a service on this port."""
    place = MACHINES.index(os.uname().machine)
    numbers = {name: pair[place] for name, pair in NUMBERS.items() if pair[place] is not None}
    return PROLOGUE.format(numbers=numbers, port=port)


def _session_attacks(backend: str) -> tuple[Attack, ...]:
    return tuple(attack for attack in SESSION_ATTACKS if backend not in attack.not_promised_by)


@asynccontextmanager
async def _service(backend: str) -> "AsyncIterator[LocalService]":
    """A service with a secret in its environment."""
    os.environ[CANARY_VARIABLE] = f"canary-{secrets.token_hex(16)}"
    service = await asyncio.to_thread(acquire, ("--backend", backend, "--lanes", "2", "--slots", "16"))
    try:
        yield service
    finally:
        await asyncio.to_thread(release, service)
        del os.environ[CANARY_VARIABLE]


async def _try(sandbox: Sandbox, attack: Attack, beginning: str, *, is_promised: bool) -> AuditFinding:
    try:
        if attack in SESSION_ATTACKS:
            achieved = await _in_session(sandbox, attack)
        else:
            results = await sandbox.run_many(_programs(attack, beginning), deadline_seconds=DEADLINE_SECONDS)
            if results[0].status in _OUT_OF_TIME and results[0].status not in attack.statuses:
                late = ("the attack ran out of time: run the audit again on an idle machine",)
                return AuditFinding(attack=attack, outcome=AttackOutcome.UNTRIED, details=late)
            achieved = judge(attack, results[0], results[1:])
    except SandboxError as error:
        return AuditFinding(attack=attack, outcome=AttackOutcome.UNTRIED, details=(f"no result: {error}",))
    if not achieved:
        return AuditFinding(attack=attack, outcome=AttackOutcome.HOLDS)
    return AuditFinding(
        attack=attack, outcome=AttackOutcome.BROKEN if is_promised else AttackOutcome.OPEN, details=tuple(achieved)
    )


def _programs(attack: Attack, beginning: str) -> list[Program]:
    own = Program(code=beginning + attack.code, limits=attack.limits, network=attack.network, fetch=attack.fetch)
    honest = Program(code=beginning + attack.honest, limits=SMALL)
    return [own, *([honest] * attack.num_honest if attack.honest else [])]


def judge(attack: Attack, result: Result, honest: Iterable[Result]) -> list[str]:
    """Achievements of an attack: lines that it printed, a status that it may not have, disturbed honest programs."""
    achieved = [] if Status.OUTPUT_LIMIT in attack.statuses else result.stdout.splitlines()
    if result.status not in attack.statuses:
        achieved.append(f"it ended with the status {result.status}: {result.stderr[-200:].strip()}")
    for each in honest:
        if (each.status, each.stdout) != (Status.OK, "fine\n"):
            said = (each.stdout + each.stderr[-200:]).strip()
            achieved.append(f"an honest program beside it ended with the status {each.status}: {said}")
    return achieved


async def _in_session(sandbox: Sandbox, attack: Attack) -> list[str]:
    """Wrong answers of the cells after an attack: not the true value, and no error that reports a loss."""
    async with await sandbox.open(limits=attack.limits) as session:
        await session.run(attack.code)
        answers = [await session.run(code) for code in ("audited = 21", "audited * 2", "audited * 2")]
    wrong = [answer for answer in answers[1:] if answer.value != _ANSWER and answer.error is None]
    return [f"a later cell is answered with {answer.value!r} and no error" for answer in wrong]
