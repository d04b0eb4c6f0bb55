"""Types of the audit: attacks, and the outcome of each on a machine."""

from dataclasses import dataclass, field
from enum import StrEnum

from verl_pivot.sandbox.bubblewrap.probe import Tier
from verl_pivot.sandbox.execution import MIB, Limits, Network, Status

SMALL = Limits(wall_seconds=4.0, cpu_seconds=4, memory_bytes=64 * MIB, num_processes=16)
"""Limits of an attack and of the honest programs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A program that attacks, and ends by itself or at its limits. It prints a line for each thing that it achieved.

    Example:
        Attack(name="become root", layer="no capabilities", code="attempt('root', os.setuid, 0)", remedy="...")
    """

    name: str
    """Goal of the attack, as a phrase that follows "a program can"."""
    layer: str
    """Part of the sandbox that stops it."""
    code: str
    """Python program, which runs after PROLOGUE; for an attack on a session a cell, without PROLOGUE."""
    remedy: str
    """Advice for a machine on which the attack succeeds."""
    promised: Tier | None = Tier.T3
    """Weakest tier at which it is stopped; None for what the sandbox does not promise."""
    not_promised_by: tuple[str, ...] = ()
    """Backends that do not promise it at any tier."""
    honest: str = ""
    """Honest program that runs beside the attack, and prints "fine" unless it is disturbed."""
    num_honest: int = 3
    statuses: tuple[Status, ...] = (Status.OK,)
    """Statuses with which the attack may end."""
    limits: Limits = SMALL
    network: Network = Network.NONE
    fetch: tuple[str, ...] = ()
    """Names of files to fetch after the attack."""

    def is_promised(self, tier: str, backend: str) -> bool:
        """Whether the sandbox promises to stop the attack at this tier."""
        return self.promised is not None and tier <= self.promised and backend not in self.not_promised_by


class AttackOutcome(StrEnum):
    """Outcome of an attack."""

    HOLDS = "holds"
    """Nothing was achieved."""
    OPEN = "open"
    """Something was achieved that the sandbox does not promise to stop at this tier."""
    BROKEN = "BROKEN"
    """Something was achieved that the sandbox promises to stop."""
    UNTRIED = "not tried"
    """No result came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Outcome of one attack on one machine."""

    attack: Attack
    outcome: AttackOutcome
    details: tuple[str, ...] = field(default=())
    """Things that the attack achieved, or the reason why it was not tried."""

    @property
    def passed(self) -> bool:
        return self.outcome in (AttackOutcome.HOLDS, AttackOutcome.OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Outcomes of all attacks on one machine."""

    tier: str
    backend: str
    findings: tuple[AuditFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether everything holds that the tier promises."""
        return all(finding.passed for finding in self.findings)

    def as_json(self) -> dict[str, object]:
        return {
            "passed": self.passed,
            "tier": self.tier,
            "backend": self.backend,
            "attacks": [
                {
                    "attack": finding.attack.name,
                    "outcome": finding.outcome.value,
                    "promised": finding.attack.is_promised(self.tier, self.backend),
                    "layer": finding.attack.layer,
                    "details": list(finding.details),
                    "remedy": "" if finding.outcome is AttackOutcome.HOLDS else finding.attack.remedy,
                }
                for finding in self.findings
            ],
        }
