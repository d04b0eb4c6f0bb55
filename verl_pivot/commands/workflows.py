"""`verl-pivot workflows induce`: dumps of rollouts -> workflows of the rollouts that succeeded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.asked_judge import EndpointOptions
from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import (
    options_given,
    out_of_json_lines,
    refuse_overwriting,
    refuse_repeats,
    with_option_groups,
)
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from verl_pivot.rollout.workflows import Workflow, WorkflowTask

workflows_app = typer.Typer(help="Write down how rollouts succeeded.", no_args_is_help=True)
_OF_MODEL = ("base_url", "model", "api_key_variable", "concurrency", "timeout_seconds", "max_retries", "max_tokens")


@workflows_app.callback()
def workflows() -> None:
    """Write down how rollouts succeeded."""


@workflows_app.command("induce")
@with_option_groups
def induce_command(
    ctx: typer.Context,
    dumps: Annotated[
        list[Path], typer.Argument(help="Dumps of rollouts with tools, <trainer.rollout_data_dir>/pivot/<step>.jsonl.")
    ],
    out: Annotated[Path, typer.Option(callback=out_of_json_lines, help="The workflows.jsonl to write.")],
    endpoint: EndpointOptions,
    by: Annotated[
        Literal["rule", "model"],
        typer.Option(help="rule: the calls of each success, unchanged; model: sequences of calls with variables."),
    ] = "rule",
    rows: Annotated[
        list[Path] | None,
        typer.Option(help="Rows of the run with the tasks and a column site; by default the tasks are dumped prompts."),
    ] = None,
    min_score: Annotated[float, typer.Option(help="Minimum score of a success.")] = 1.0,
    per_template: Annotated[
        int, typer.Option(min=1, help="Maximum number of workflows with the same tools and arguments in one order.")
    ] = 2,
    max_workflows: Annotated[int, typer.Option(min=1, help="Maximum number of workflows in all.")] = 500,
    max_tokens: Annotated[int, typer.Option(min=16, help="Maximum number of tokens of the model's answer.")] = 4096,
) -> None:
    """Write workflows of the rollouts that succeeded, for pivot.rollout.workflows.file.

    Of two workflows for the same goal the shorter one is kept. A model's workflow has at least two steps, each of which
    occurs in the trajectory that it comes from.

    \b
    Examples:
      verl-pivot workflows induce rollouts/pivot/*.jsonl --out workflows.jsonl
      verl-pivot workflows induce rollouts/pivot/*.jsonl --by model \\
        --base-url http://judge:30000/v1 --model strong --out workflows.jsonl
    """
    from verl_pivot.rollout.dumped_successes import read_successes
    from verl_pivot.rollout.workflow_files import write_workflows
    from verl_pivot.rollout.workflow_memory import (
        MemoryRule,
        WorkflowMemory,
        latest_workflows,
        workflows_by_rule,
    )

    given = options_given(ctx, _OF_MODEL)
    if by == "rule" and given:
        raise ConfigError(
            f"{given[0]} does nothing with --by rule, which asks no model: leave it out, or set --by model"
        )
    refuse_overwriting([out], [*dumps, *(rows or [])])
    refuse_repeats(dumps, "another file, since its rollouts would count twice", "a dump")
    successes = read_successes(dumps, _tasks(rows), min_score)
    found = workflows_by_rule(successes.rollouts)
    if by == "model":
        endpoint.check("the model")
        found = _by_model(found, endpoint, max_tokens, successes.left_out)
    rule = MemoryRule(per_template=per_template, max_workflows=len(found))
    kept = latest_workflows(WorkflowMemory().with_found(found, rule).workflows, successes.steps, max_workflows)
    _print_counts(successes.num_rollouts, successes.left_out, len(found), len(kept))
    if not kept:
        raise ConfigError(f"no workflow was found, and {out} is not written: give dumps of successes with calls")
    write_workflows(out, kept)
    typer.echo(
        f"Wrote {out}: {len(kept)} workflows.\n"
        f"Next: ... +method=tool_rollout {next_override('pivot.rollout.workflows.file', out)}"
    )


def _tasks(rows: list[Path] | None) -> "dict[str, WorkflowTask] | None":
    from verl_pivot.rollout.dumped_successes import tasks_of_rows

    return None if rows is None else tasks_of_rows(rows)


def _by_model(
    sources: "Sequence[Workflow]", endpoint: EndpointOptions, max_tokens: int, left_out: "Counter[str]"
) -> "list[Workflow]":
    """Workflows that a model finds in each source; refused ones are counted in `left_out`."""
    import asyncio

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.engines.chat import ChatClient
    from verl_pivot.engines.retries import Retries
    from verl_pivot.rollout.dumped_successes import asked_workflows

    async def ask() -> "list[Workflow]":
        retries = Retries(num_attempts=endpoint.max_retries + 1, timeout_seconds=endpoint.timeout_seconds)
        client = ChatClient(
            list(endpoint.base_url or ()), str(endpoint.model), endpoint.api_key(), retries,
            remedy="check --model", max_concurrency=endpoint.concurrency,
        )  # fmt: skip
        try:
            with progress_bar("trajectories", len(sources)) as on_source:
                return await asked_workflows(client, sources, max_tokens, left_out, on_source)
        finally:
            await client.close()

    return asyncio.run(ask())


def _print_counts(num_rollouts: int, left_out: "Counter[str]", num_found: int, num_kept: int) -> None:

    from verl_pivot.commands.tables import counts_table, printable, table_console

    table = counts_table(f"{num_rollouts} rollouts")
    for reason, count in left_out.most_common():
        table.add_row("left out", str(count), printable(reason))
    table.add_row("found", str(num_found), "workflows")
    table.add_row("kept", str(num_kept), "after dropping repeated goals and templates")
    table_console().print(table)
