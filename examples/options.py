"""Options that the examples share, and the reading of options that list names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for all output.")]
Seed = Annotated[int, typer.Option(help="Seed of the policy, the tasks and all sampling.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; each trains its own base policy.")]
FirstSeed = Annotated[
    int,
    typer.Option(min=0, help="First seed; several machines can train some each, see examples.merge."),
]
Steps = Annotated[int, typer.Option(min=1, help="Steps of each training.")]
HeldOutTasks = Annotated[int, typer.Option(min=1, help="Held-out tasks to evaluate on.")]


def names_option(what: str, known: Iterable[str]) -> Any:
    """An option whose value is some of the known names, with commas between them.

    Args:
        what: What the names are for, such as "Arms to run".
        known: All names.
    """
    return typer.Option(help=f"{what}, with commas: {', '.join(known)}.")


def all_of(names: Iterable[str]) -> str:
    """The names as one value of an option that `names_option` makes."""
    return ",".join(names)


def chosen_names(text: str, known: Iterable[str], *, kind: str = "arm", least: int = 1) -> list[str]:
    """Names in a text with commas, each once, in the order of the known ones.

    Args:
        text: Value of the option.
        known: All names.
        kind: Word for such a name in messages.
        least: Fewest names that the example can work with.

    Raises:
        typer.BadParameter: If a name is not known, or there are too few.
    """
    known = list(known)
    names = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := [each for each in names if each not in known]:
        raise typer.BadParameter(f"there is no {kind} {', '.join(unknown)}; known: {', '.join(known)}")
    found = [each for each in known if each in names]
    if len(found) < least:
        number = {0: f"no {kind} is", 1: f"1 {kind} is"}.get(len(found), f"{len(found)} {kind}s are")
        need = f", and at least {least} are needed" if least > 1 else ""
        raise typer.BadParameter(f"{number} named{need}; known: {', '.join(known)}")
    return found
