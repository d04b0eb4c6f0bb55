"""`verl-pivot synthesize`: tasks or trajectories and a method -> trajectories, tasks and pairs, made and checked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import next_command
from verl_pivot.commands.options import Address, out_of_any_kind, refuse_overwriting, refuse_without_ray
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.synthesis.job import SpreadOptions, SynthesisJob
    from verl_pivot.synthesis.outputs import SynthesisReport
    from verl_pivot.synthesis.rounds import TrainingBetween
    from verl_pivot.synthesis.workshop import Inputs
    from verl_pivot.synthesis.writer_settings import WriterSettings

_NUM_PLANNED = 20


def synthesize_command(
    method: Annotated[str, typer.Argument(help="Name of a method, such as rejection, or a recipe.yaml of your own.")],
    out: Annotated[
        Path, typer.Option(callback=out_of_any_kind, help="Folder for the output, or of a stopped run to continue.")
    ],
    tasks: Annotated[Path | None, typer.Option(help="Rows as for training, parquet or JSON lines.")] = None,
    trajectories: Annotated[Path | None, typer.Option(help="trajectories.jsonl from `verl-pivot import`.")] = None,
    tools: Annotated[
        str | None, typer.Option(help="Tools file (YAML), or an environment as path/to/file.py:Class.")
    ] = None,
    openai: Annotated[
        str | None,
        typer.Option(help="URL of an OpenAI-compatible server. Its API key is the variable OPENAI_API_KEY."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name of the model on that server; without --openai a checkpoint, which SGLang serves here."),
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="Function that answers instead of a model, as path/to/file.py:name.")
    ] = None,
    writers: Annotated[
        Path | None, typer.Option(help="YAML with a model or function for each role (writer, policy, judge, ...).")
    ] = None,
    answer_format: Annotated[
        Literal["json_schema", "json_object", "text"],
        typer.Option(help="How the server is asked for structured answers; text: only in the prompt."),
    ] = "text",
    set_option: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the recipe, such as rollouts.num=16; repeatable.")
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help=f"Make only {_NUM_PLANNED} items, and estimate the cost of all items."),
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of rounds, each in a folder of --out, with a training between two rounds."),
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of tokens of all questions and answers.")
    ] = None,
    budget_calls: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of questions to models and programs.")
    ] = None,
    budget_seconds: Annotated[float | None, typer.Option(min=0.0, help="Time limit of the run in seconds.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum number of questions, and of items, at the same time.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the run, from which every other seed comes.")] = 0,
    attempts: Annotated[
        int, typer.Option(min=1, help="Attempts at a question before its server counts as failed.")
    ] = 6,
    step_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers steps or filters; repeatable.")
    ] = None,
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Make the items on every node of a Ray cluster; this machine asks the models.")
    ] = False,
    address: Address = "auto",
    workers_per_node: Annotated[
        int, typer.Option(min=1, help="With --ray: processes per node that play, check and run tools.")
    ] = 1,
) -> None:
    """Make trajectories, tasks or pairs by a published method, each checked before it is kept.

    An interrupted run continues when it is run again. The answers of models stay in the folder `answers` of the
    output, so that a run with another recipe or a larger budget asks only what is new.

    \b
    Examples:
      verl-pivot synthesize rejection --tasks tasks.parquet --tools tools.yaml \\
          --openai http://gpu1:8000 --out synthetic/
      verl-pivot synthesize closed_loop --trajectories labelled.jsonl \\
          --tools shop.py:Shop --writers writers.yaml --rounds 3 --out loop/
      verl-pivot synthesize my-recipe.yaml --tasks tasks.parquet --plan \\
          --program clerk.py:answer --tools shop.py:Shop --out synthetic/
    """
    from verl_pivot.data.files import make_folder
    from verl_pivot.engines.retries import Retries
    from verl_pivot.synthesis.budget import BudgetLimits
    from verl_pivot.synthesis.job import SynthesisJob
    from verl_pivot.synthesis.outputs import OUTPUTS
    from verl_pivot.synthesis.recipes import num_items, read_recipe
    from verl_pivot.synthesis.rollouts import POLICY
    from verl_pivot.synthesis.rounds import LoopRound, check_loop, next_of_loop
    from verl_pivot.synthesis.writer_settings import open_writers
    from verl_pivot.verifiers.registry import load_verifier_modules

    load_verifier_modules(verifier_module or [])
    modules = (*(step_module or []), *(verifier_module or []))
    folders = [out] if rounds is None else [out / f"round-{number}" for number in range(1, rounds + 1)]
    refuse_overwriting(
        [out, *(folder / name for folder in folders for name in OUTPUTS)],
        [tasks, trajectories, tools, writers, method, *modules],
    )
    on_ray = _on_ray(address, workers_per_node, tools, modules, ray=ray)
    recipe = read_recipe(method, _changes(set_option or []), step_module or [])
    chosen = _writers(writers, openai, model, program, answer_format)
    retries = Retries(num_attempts=attempts)

    def run(out: Path, trajectories: Path | None, chosen: "dict[str, WriterSettings]") -> None:
        inputs = _inputs(tasks, trajectories, tools)
        total = num_items(recipe, inputs)  # before servers start, which takes minutes
        with open_writers(chosen, retries, logs=out, seed=seed) as opened:
            job = SynthesisJob(
                recipe=recipe,
                inputs=inputs,
                writers=opened,
                out=out,
                identity={"tools": _tools_text(tools)},
                seed=seed,
                limits=BudgetLimits(tokens=budget_tokens, calls=budget_calls, seconds=budget_seconds),
                retries=retries,
                concurrency=concurrency,
                on_ray=on_ray,
            )
            _run(job, total, is_plan=plan)

    if rounds is None:
        run(out, trajectories, chosen)
        return
    policy = check_loop(recipe, chosen)
    while isinstance(next_one := next_of_loop(out, rounds, policy), LoopRound):
        make_folder(out)
        served = {**chosen, POLICY: policy if next_one.model is None else policy.serving(next_one.model)}
        run(next_one.out, next_one.trajectories or trajectories, served)
        if plan:
            return
    if next_one is None:
        typer.echo(f"All {rounds} rounds are done; the last one is in {out / f'round-{rounds}'}.")
    else:
        _print_training(next_one)


def _on_ray(
    address: str, workers_per_node: int, tools: str | None, modules: tuple[str, ...], *, ray: bool
) -> "SpreadOptions | None":
    """How a Ray cluster is used; None without --ray."""
    from verl_pivot.synthesis.job import SpreadOptions

    if not ray:
        refuse_without_ray(address, workers_per_node)
        return None

    def say(message: str) -> None:
        typer.echo(message, err=True)

    return SpreadOptions(address=address, workers_per_node=workers_per_node, tools=tools, modules=modules, say=say)


def _changes(options: list[str]) -> dict[str, object]:
    """{"step.option": value} of --set, whose values are YAML."""
    import yaml

    changes: dict[str, object] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise ConfigError(f"--set {option}: give step.option=value, such as rollouts.num=16")
        try:
            changes[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {option}: the value is not valid YAML: {' '.join(str(error).split())}") from error
    return changes


def _inputs(tasks: Path | None, trajectories: Path | None, tools: str | None) -> "Inputs":
    from verl_pivot.launch_checks.sandbox_pool import check_pool
    from verl_pivot.playing.running import open_toolset
    from verl_pivot.synthesis.workshop import Inputs

    toolset = None if tools is None else open_toolset(tools)
    if toolset is not None:
        check_pool(tools=toolset.built_in, needs_sessions=False)
    return Inputs(tasks=tasks, trajectories=trajectories, toolset=toolset)


def _tools_text(tools: str | None) -> str | None:
    """Text of the tools file, or the name of the environment; the code of the tools is not included."""
    is_file = tools is not None and Path(tools).suffix in (".yaml", ".yml")
    return Path(str(tools)).read_text(encoding="utf-8") if is_file else tools


def _writers(
    writers: Path | None,
    openai: str | None,
    model: str | None,
    program: str | None,
    answer_format: Literal["json_schema", "json_object", "text"],
) -> "dict[str, WriterSettings]":
    from verl_pivot.synthesis.writer import WRITER
    from verl_pivot.synthesis.writer_settings import WriterSettings, read_writers
    from verl_pivot.validation import validated

    named = read_writers(writers) if writers is not None else {}
    given = {"openai": openai, "model": model, "program": program}
    if all(value is None for value in given.values()):
        if answer_format != "text":
            raise ConfigError(
                "--answer-format needs a model of --openai or --model: give one, or write answer_format into the file "
                "of --writers"
            )
        return named
    if WRITER in named:
        raise ConfigError(f"--writers {writers} names the {WRITER} already: leave out --openai, --model and --program")
    own = validated(WriterSettings, {**given, "answer_format": answer_format}, "the writer")
    return {**named, WRITER: own}


def _run(job: "SynthesisJob", total: int | None, *, is_plan: bool) -> None:
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.synthesis.planning import plan_synthesis
    from verl_pivot.synthesis.running import run_synthesis

    if is_plan:
        with progress_bar("items", _NUM_PLANNED) as on_items:
            planned = plan_synthesis(job, _NUM_PLANNED, on_items)
        for line in planned.lines():
            typer.echo(line)
        return
    try:
        with progress_bar("items", total) as on_items:
            report = run_synthesis(job, on_items)
    except KeyboardInterrupt:
        typer.echo(f"Stopped; run the same command again to go on with {job.out}.", err=True)
        raise typer.Exit(130) from None
    _print_report(job, report)


def _print_training(training: "TrainingBetween") -> None:
    from verl_pivot.planning.overrides import model_for_verl, override_value

    settings = {
        "data.train_files": str(training.pivots),
        "actor_rollout_ref.model.path": model_for_verl(training.model),
        "trainer.default_local_dir": str(training.checkpoints),
    }
    words = ["+method=pivotrl", *(f"{key}={override_value(value)}" for key, value in settings.items())]
    select = ["select", str(training.trajectories), "--keep", "all", "--max-prompt-tokens", "0"]
    typer.echo(
        f"Train before the next round, with your lengths and batch size, and save (trainer.save_freq):\n"
        f"  {next_command([*select, '--out', str(training.pivots)])}\n"
        f"  {next_command(words, ('python', '-m', 'verl.trainer.main_ppo'))}\n"
        f"Then run the same command again: round {training.number + 1} goes on with the policy in "
        f"{training.checkpoints}."
    )


def _print_report(job: "SynthesisJob", report: "SynthesisReport") -> None:
    from verl_pivot.commands.tables import counts_table, printable, table_console

    table = counts_table(f"{report.num_items} items, {report.num_drafts} drafts")
    for step, reasons in report.rejected.items():
        table.add_row(step, str(sum(reasons.values())), "")
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            table.add_row(f"  {reason.replace('_', ' ')}", str(count), printable(report.examples[reason]))
    table.add_section()
    table.add_row("kept", str(report.num_kept), _asked(report))
    table_console().print(table)
    typer.echo(
        f"Wrote {job.out}: {report.num_trajectories} trajectories, {report.num_tasks} tasks, {report.num_pairs} pairs; "
        f"{report.num_rejected} drafts in rejected.jsonl."
    )
    if not report.num_kept:
        raise ConfigError(
            f"nothing was kept of {report.num_drafts} drafts; rejected.jsonl in {job.out} has each reason"
        )
    if report.num_trajectories:
        trajectories = str(job.out / "trajectories.jsonl")
        typer.echo(f"Next: {next_command(['filter', trajectories, '--out', 'filtered.jsonl'])}")


def _asked(report: "SynthesisReport") -> str:
    calls = sum(counts["num_calls"] for counts in report.asked.values())
    tokens = sum(counts["num_prompt_tokens"] + counts["num_completion_tokens"] for counts in report.asked.values())
    return f"{calls} answers of {', '.join(report.models)}, {tokens} tokens" if calls else ""
