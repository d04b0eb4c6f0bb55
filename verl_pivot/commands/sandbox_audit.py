"""`verl-pivot sandbox audit`: attacks on a sandbox of this machine -> a table of what is stopped, and what is not."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.sandbox.audit.attack import AuditReport

_COLORS = {"holds": "green", "open": "yellow", "BROKEN": "bold red", "not tried": "red"}


def audit_command(
    backend: Annotated[str, typer.Option(help="Backend to attack: zygote or bwrap_exec.")] = "zygote",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Attack a sandbox on this machine, and show which attacks it stops. Takes about half a minute on an idle machine.

    Each attack is a program in the sandbox that ends by itself; nothing outside of it is changed. The exit code is 1 if
    an attack achieves what this machine's tier promises to stop, or could not be tried. An attack that is "open" is one
    that the tier does not promise to stop.

    Examples:

      verl-pivot sandbox audit

      verl-pivot sandbox audit --backend bwrap_exec --json > audit.json
    """
    import asyncio

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.sandbox.audit.audit import audit, num_attacks
    from verl_pivot.sandbox.service.backend import BACKENDS

    if backend not in BACKENDS:
        raise ConfigError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    with progress_bar("attacks", num_attacks(backend)) as on_done:
        report = asyncio.run(audit(backend, on_done))
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _print(report: "AuditReport") -> None:
    from rich.table import Table
    from rich.text import Text

    from verl_pivot.commands.tables import printable, table_console

    title = f"Attacks on the backend {report.backend} at tier {report.tier}"
    table = Table(title=title, title_justify="left")
    for name in ("a program tries to", "outcome", "stopped by", "what it achieved, and the remedy"):
        table.add_column(name, overflow="fold")
    for finding in report.findings:
        color = _COLORS[finding.outcome]
        told = [*finding.details[:3], *([f"and {len(finding.details) - 3} more"] if len(finding.details) > 3 else [])]
        if finding.outcome != "holds":
            told.append(f"remedy: {finding.attack.remedy}")
        table.add_row(
            finding.attack.name,
            Text(finding.outcome, color),
            finding.attack.layer,
            printable("\n".join(told)),
        )
    table_console().print(table, highlight=False)
