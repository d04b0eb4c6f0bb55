"""`verl-pivot rewards explain`: the dump of a step -> each trajectory, each term of its reward, and why it was paid."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_pivot.errors import DataError

if TYPE_CHECKING:
    from verl_pivot.data.rollout_dumps import DumpedRollout

rewards_app = typer.Typer(help="Look at what the rewards of a training were paid for.", no_args_is_help=True)


@rewards_app.callback()
def rewards() -> None:
    """Look at what the rewards of a training were paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRollout:
    """One trajectory of a dump, and the terms of its reward."""

    id: str
    reward: float | None
    """None if it is undecided."""
    why: str
    terms: tuple[dict[str, Any], ...]
    criteria: tuple[dict[str, Any], ...]


@rewards_app.command("explain")
def explain_command(
    dump: Annotated[
        Path, typer.Argument(metavar="FILE", help="Dump of a step, <trainer.rollout_data_dir>/pivot/<step>.jsonl.")
    ],
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of trajectories to show; 0 shows all. --json always has all.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
) -> None:
    """Show each trajectory of a step, and for each term of its reward what the term was paid and why.

    The terms are those of pivot.rewards, which docs/rewards.md describes.

    \b
    Examples:
    verl-pivot rewards explain runs/tools/pivot/100.jsonl
    verl-pivot rewards explain runs/tools/pivot/100.jsonl --limit 0
    verl-pivot rewards explain runs/tools/pivot/100.jsonl --json
    """
    from dataclasses import asdict

    from verl_pivot.data.rollout_dumps import read_rollouts

    explained = [_explained(rollout, dump) for rollout in read_rollouts(dump)]
    if as_json:
        typer.echo(json.dumps({"rollouts": [asdict(each) for each in explained]}, indent=1))
        return
    shown = explained if limit == 0 else explained[:limit]
    _print(shown)
    if len(shown) < len(explained):
        typer.echo(f"{len(explained) - len(shown)} more trajectories: show them with --limit 0, or with --json")


def _explained(rollout: "DumpedRollout", path: Path) -> ExplainedRollout:
    import msgspec

    from verl_pivot.data.rollout_records import CRITERIA_FIELD
    from verl_pivot.rewards.reward_terms import TERMS_FIELD, dumped_terms

    info = rollout.reward_info
    if TERMS_FIELD not in info:
        raise DataError(
            f"{path}: the rewards of this training are not composed of terms: launch it with pivot.rewards=NAME, "
            "such as pivot.rewards=course"
        )
    try:
        terms = dumped_terms(info)
        criteria = json.loads(info[CRITERIA_FIELD])["criteria"] if info.get(CRITERIA_FIELD) else ()
    except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: rollout {rollout.id} has terms that cannot be read: {error}") from error
    paid = () if terms is None else tuple(msgspec.to_builtins(each) for each in terms.terms)
    why = f"{rollout.reason}: {rollout.detail}" if rollout.detail else rollout.reason
    return ExplainedRollout(id=rollout.id, reward=rollout.score, why=why, terms=paid, criteria=tuple(criteria))


def _print(rollouts: list[ExplainedRollout]) -> None:
    from rich.table import Table

    from verl_pivot.commands.tables import printable, table_console

    table = Table(title=f"{len(rollouts)} trajectories", title_justify="left")
    for name in ("trajectory", "term"):
        table.add_column(name, overflow="fold")
    for name in ("value", "paid"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for rollout in rollouts:
        total = "undecided" if rollout.reward is None else f"{rollout.reward:.3f}"
        cells = (rollout.id, "reward", "", total, "" if rollout.why == "composed" else rollout.why)
        table.add_row(*(printable(cell) for cell in cells))
        for term in rollout.terms:
            value = "" if term["value"] is None else f"{term['value']:.3f}"
            name = "  " * (term["depth"] - 1) + term["name"]
            table.add_row("", *(printable(cell) for cell in (name, value, f"{term['paid']:+.3f}", term["why"])))
        for each in rollout.criteria:
            points = "" if each.get("points") is None else str(each["points"])
            age = "" if each.get("born") is None else f" (written in step {each['born']})"
            criterion = f"{each['text'][:200]}{age}, weight {each['weight']:g}"
            table.add_row("", printable(f"  criterion {each['id']}"), points, "", printable(criterion))
        table.add_section()
    table_console().print(table)
