"""What the commands share: a table of counts, and a refusal to write over an input."""

from pathlib import Path

from rich.table import Table

from verl_pivot.errors import ConfigError


def counts_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("what became of them", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("where, or why", overflow="fold")
    return table


def refuse_overwriting(out: Path, inputs: list[Path]) -> None:
    if out.resolve() in [path.resolve() for path in inputs]:
        raise ConfigError(f"--out {out} is one of the inputs; choose another name, so that they are kept")
