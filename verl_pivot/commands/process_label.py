"""`verl-pivot process label`: dumps of rollouts -> turns.parquet, each turn with the score that it should get."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from verl_pivot.commands.asked_judge import EndpointOptions, QuestionOptions, refuse_void_of_form
from verl_pivot.commands.label_continuations import ContinuationOptions
from verl_pivot.commands.label_sources import Labelled, LabelRequest, by_continuations, by_judge, by_outcomes
from verl_pivot.commands.next_steps import next_command
from verl_pivot.commands.options import (
    options_given,
    out_of_parquet,
    refuse_overwriting,
    refuse_repeats,
    with_home,
    with_option_groups,
)
from verl_pivot.errors import ConfigError

_OPTIONS_OF_ANSWERS = ("answer_format", "max_tokens")
_OPTIONS_OF_ASKING = ("samples", "temperature", "seed", "cache", *(each.name for each in fields(EndpointOptions)))
_OPTIONS_OF_POLICY = tuple(each.name for each in fields(ContinuationOptions))
_VOID_OPTIONS = {
    "judge": ("continues no rollouts", _OPTIONS_OF_POLICY),
    "outcomes": ("asks no judge", (*_OPTIONS_OF_ASKING, *_OPTIONS_OF_ANSWERS, *_OPTIONS_OF_POLICY)),
    "continuations": ("asks no judge", _OPTIONS_OF_ANSWERS),
}
"""{value of --by: (why, parameters of the command that do nothing then)}"""


@with_option_groups
def label_command(
    ctx: typer.Context,
    dumps: Annotated[
        list[Path], typer.Argument(help="Dumps of rollouts with tools, <trainer.rollout_data_dir>/pivot/<step>.jsonl.")
    ],
    rows: Annotated[
        list[Path], typer.Option(help="Rows of the run, its data.train_files, which hold the tasks; repeatable.")
    ],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The turns.parquet to write.")],
    endpoint: EndpointOptions,
    question: QuestionOptions,
    continuing: ContinuationOptions,
    by: Annotated[
        Literal["judge", "outcomes", "continuations"],
        typer.Option(
            help="Where labels come from: a stronger judge, the outcomes of rollouts with the same turn, or the "
            "outcomes of rollouts that a policy continues after the turn."
        ),
    ] = "judge",
    samples: Annotated[int, typer.Option(min=1, help="Number of judge answers, or of continuations, per turn.")] = 5,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Temperature of the answers or continuations; by default 0.7 for a judge, 1 for a policy."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the first answer or continuation; the others have the next seeds.")
    ] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Largest difference from the label for which process_score pays.")
    ] = 0.1,
    pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Number of pairs of turns of one task to write as well, in both orders: turns.pairs.parquet."
        ),
    ] = 0,
    cache: Annotated[
        Path | None,
        typer.Option(
            callback=with_home,
            help="Folder that keeps the answers, so that a rerun reuses them; by default <out>.answers.",
        ),
    ] = None,
) -> None:
    """Label every sampled turn but the last of each rollout, for judges of turns.

    The label is the median of a stronger judge's scores. With --by outcomes it is the mean outcome of the rollouts with
    the same turn after the same turns. With --by continuations it is the mean outcome of rollouts that a policy
    continues after the turn, with the tools of the run. A stopped command that is run again reuses all answers.

    \b
    Examples:
      verl-pivot process label rollouts/pivot/*.jsonl --rows qa.parquet \\
        --base-url http://judge:30000/v1 --model strong --out turns.parquet
      verl-pivot process label rollouts/pivot/*.jsonl --rows qa.parquet \\
        --by outcomes --out turns.parquet
      verl-pivot process label rollouts/pivot/*.jsonl --rows qa.parquet \\
        --by continuations --tools search.yaml --tool-format search_r1 \\
        --base-url http://policy:30000/v1 --model my-policy --out turns.parquet
    """
    pairs_out = out.with_suffix(".pairs.parquet")
    read = [*dumps, *rows, question.principles, continuing.tools, continuing.tool_format]
    refuse_overwriting([out, *([pairs_out] if pairs else [])], read)
    refuse_repeats(dumps, "another file, since its rollouts would count twice", "a dump")
    why, void = _VOID_OPTIONS[by]
    if given := options_given(ctx, tuple(each for each in void if not (pairs and each == "seed"))):
        raise ConfigError(f"--by {by} {why}: leave {', '.join(given)} out")
    refuse_void_of_form(ctx, question.form)
    request = LabelRequest(
        dumps=dumps,
        rows=rows,
        endpoint=endpoint,
        question=question,
        continuing=continuing,
        samples=samples,
        temperature=temperature,
        seed=seed,
        cache=cache or out.with_name(f"{out.name}.answers"),
    )
    sources = {"judge": by_judge, "outcomes": by_outcomes, "continuations": by_continuations}
    labelled = sources[by](request)
    _write(out, labelled, tolerance)
    if pairs:
        _write_pairs(pairs_out, labelled, pairs, tolerance, request)
    files = [str(out), *([str(pairs_out)] if pairs else [])]
    typer.echo(
        "Next, to measure another judge, and to import rows that train one:\n"
        f"{next_command(['process', 'bench', str(out)])} --base-url URL --model M\n"
        f"{next_command(['import', *files, '--allow-no-tools', '--out', 'trajectories.jsonl'])}"
    )


def _write(out: Path, labelled: Labelled, tolerance: float) -> None:
    from verl_pivot.commands.process_display import print_counts
    from verl_pivot.errors import VerifierError
    from verl_pivot.rewards.labelled_turns import write_turns

    labels = labelled.labels
    print_counts(labels, labelled.counts)
    if not labels.turns:
        raise VerifierError("nothing is written: no turn has a label, for the reasons above")
    write_turns(out, labels.turns, labels.questions, labelled.principle_set, tolerance)
    typer.echo(f"Wrote {out}: {len(labels.turns)} turns.")


def _write_pairs(out: Path, labelled: Labelled, num_pairs: int, tolerance: float, request: LabelRequest) -> None:
    from verl_pivot.errors import DataError
    from verl_pivot.rewards.turn_pairs import draw_pairs, write_pairs

    principle_set = labelled.principle_set
    found = draw_pairs(
        labelled.labels.turns, num_pairs, least_difference=tolerance, principle_set=principle_set, seed=request.seed
    )
    if not found:
        raise DataError(
            f"--pairs {num_pairs}: no two turns of a task have labels that differ by more than --tolerance {tolerance}"
            "; lower the tolerance, or label more rollouts"
        )
    write_pairs(out, found, principle_set, request.question.fit())
    typer.echo(f"Wrote {out}: {len(found)} pairs, each in both orders.")
