"""Stages of `verl-pivot plan`, which runs the commands that it prints and does not repeat finished work."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.data.files import RawRow
    from verl_pivot.planning.plan import Plan
    from verl_pivot.planning.plan_commands import PlanRequest
    from verl_pivot.planning.plan_file import PlanState
    from verl_pivot.planning.survey import Survey
    from verl_pivot.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRunner:
    """Runs commands of `verl-pivot` in this process."""

    program: Any
    """Command line of `verl-pivot`."""
    is_quiet: bool
    """Whether stdout is left to one JSON object, so that commands print to stderr."""

    def run(self, words: Sequence[str]) -> object:
        """Print a command and run it; returns the command's return value.

        Raises:
            typer.Exit: If the command fails, which has then printed why.
        """
        from verl_pivot.planning.plan_commands import typed

        with redirect_stdout(sys.stderr if self.is_quiet else sys.stdout):
            typer.echo(f"$ {typed(words)}")
            return self._result(words)

    def run_as_part(self, words: Sequence[str]) -> object:
        """Run a command as a part of the plan: its report goes to stderr, without its hint at the next command.

        Raises:
            typer.Exit: If the command fails, which has then printed why.
        """
        captured = StringIO()
        try:
            with redirect_stdout(captured):
                return self._result(words)
        finally:
            lines = [line for line in captured.getvalue().splitlines() if not line.startswith("Next:")]
            typer.echo("\n".join(lines), err=True)

    def _result(self, words: Sequence[str]) -> object:
        result = self.program.main(list(words[1:]), prog_name=words[0], standalone_mode=False)
        if isinstance(result, int) and result != 0:
            raise typer.Exit(result)
        return result


def is_imported(files: Sequence[Path]) -> bool:
    """Whether the files are one file that `verl-pivot import` wrote.

    Raises:
        ConfigError: If one of several files is imported already.
        DataError: If a file cannot be read.
    """
    from verl_pivot.data.files import read_rows
    from verl_pivot.data.json_values import BadRowError
    from verl_pivot.data.trajectories import parse_trajectory

    def is_trajectory(row: "RawRow") -> bool:
        try:
            parse_trajectory(row.decoded())
        except BadRowError:
            return False
        return True

    imported = [file for file in files if is_trajectory(next(read_rows(file)))]
    if imported and len(files) > 1:
        raise ConfigError(f"{imported[0]} is imported already; give that file alone, or the rows that it was made from")
    return bool(imported)


def import_files_once(request: "PlanRequest", runner: StageRunner, state: "PlanState") -> "Json":
    """Import the files, unless the same command has done so; returns the import's identity, None if there was none."""
    from verl_pivot.data.journal import input_identity
    from verl_pivot.planning.plan_commands import import_words
    from verl_pivot.user_modules import module_path

    if request.is_imported:
        return None
    words = import_words(request)
    # Unlike Path.is_file, isfile takes any text, such as long options of a verifier, which are no name of a file.
    named = (*request.import_words, *(str(module_path(word)) for word in request.module_words))
    others = [Path(word) for word in named if isfile(word)]
    identity: Json = {"words": [*words], "inputs": [input_identity(path) for path in (*request.files, *others)]}
    if state.imported != identity or not request.trajectories.is_file():
        runner.run_as_part(words)
    return identity


def rejected_rows(request: "PlanRequest") -> Counter[str]:
    """{reason: number of rows that the import rejected}; empty for a file that was imported before."""
    from verl_pivot.data.files import read_rows
    from verl_pivot.formats.importing import rejected_path

    path = rejected_path(request.trajectories)
    if request.is_imported or not path.is_file():
        return Counter()
    return Counter(str(row.decoded().get("reason")) for row in read_rows(path))


def run_stages(plan: "Plan", runner: StageRunner) -> "Plan":
    """Run the plan's profile and selection, and plan the launch for the pivots that were selected.

    Raises:
        typer.Exit: If a command fails.
    """
    from dataclasses import replace

    from verl_pivot.data.files import num_rows
    from verl_pivot.planning.plan import make_plan

    commands, request = plan.commands, plan.findings.request
    runner.run(commands["profile"])
    runner.run(commands["select"])
    num_done = (num_rows(request.profile) or 1) - 1
    found = replace(plan.findings, num_profiled=num_done, num_train=num_rows(request.pivots))
    return make_plan(found, plan.problems)


def survey_file(trajectories: Path) -> "Survey":
    """Survey of a file of trajectories, with a progress bar."""
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.files import num_rows
    from verl_pivot.data.trajectories import read_trajectories
    from verl_pivot.planning.survey import survey

    with progress_bar("trajectories", num_rows(trajectories)) as on_row:
        return survey(read_trajectories(trajectories), on_row)


def drawn_rows(trajectories: Path, ids: frozenset[str]) -> "list[RawRow]":
    """Rows of the drawn trajectories, in the order of the file."""
    from verl_pivot.data.files import read_rows

    return [row for row in read_rows(trajectories) if row.decoded().get("id") in ids]
