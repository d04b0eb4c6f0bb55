"""PPR with several kinds of judges, compared with the outcome alone, in a generated world: see `--help`."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.dumps import step_dumps  # noqa: E402
from examples.evaluated_training import train_and_evaluate  # noqa: E402
from examples.evaluation_results import undecided, undecided_in_training  # noqa: E402
from examples.options import FirstSeed, Out, Seeds, Steps, all_of, chosen_names, names_option  # noqa: E402
from examples.ppr import report  # noqa: E402
from examples.ppr.corpus import MOST_HELD_OUT, Corpus, make_corpus  # noqa: E402
from examples.ppr.measures import Played, read_dump, read_training  # noqa: E402
from examples.ppr.policy import make_policy, sft_config  # noqa: E402
from examples.ppr.serving import JudgeModels, judge_digest, served_judge  # noqa: E402
from examples.ppr.training import ARMS, Arm  # noqa: E402
from examples.quickstart.run import phase  # noqa: E402
from examples.results_file import RESULTS, Kept, KeptUnit, policy_digest, unplayed, without_seeds  # noqa: E402
from examples.units import Unit, finish, gaps  # noqa: E402
from verl_pivot.types import JsonObject  # noqa: E402

console = table_console()
_MODEL_OPTIONS = {"pprm": "--pprm", "pprm_one_question": "--one-question-judge"}
_DEFAULT_ARMS = [name for name, kind in ARMS.items() if kind.judge not in _MODEL_OPTIONS]


def main(
    out: Out = Path("outputs/ppr"),
    arms: Annotated[str, names_option("Arms to run", ARMS)] = all_of(_DEFAULT_ARMS),
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    steps: Steps = 40,
    questions: Annotated[
        int, typer.Option(min=8, max=MOST_HELD_OUT, help="Held-out questions that each policy answers.")
    ] = MOST_HELD_OUT,
    batch: Annotated[int, typer.Option(min=4, help="Questions of one step.")] = 64,
    pprm: Annotated[
        Path | None, typer.Option(help="Folder of the trained judge of the arms with pprm in their names.")
    ] = None,
    one_question_judge: Annotated[
        Path | None, typer.Option(help="Folder of the trained judge of the arm renorm_one_question.")
    ] = None,
) -> None:
    """Train a small search policy by PPO, with turns rewarded by several kinds of judges, and compare the results.

    Run the command again to continue: a finished unit (one arm with one seed) is not repeated, and an interrupted one
    resumes from its last checkpoint.

    Example: python -m examples.ppr --arms base,outcome,renorm_oracle --seeds 1 --out outputs/ppr-1
    """
    chosen = chosen_names(arms, ARMS)
    models = JudgeModels(pprm, one_question_judge)
    check_judges(chosen, models)
    seconds: dict[str, float] = {}
    with phase("corpus", "The world: an index, and questions of two and three hops", seconds):
        corpus = make_corpus(out / "world", questions)
    units: list[Unit] = []
    kept: list[KeptUnit[Played]] = []
    missing: list[str] = []
    for seed in range(first_seed, first_seed + seeds):
        with phase(f"policy {seed}", f"Seed {seed}: a tiny Qwen2 that learns a careless agent's ways", seconds):
            policy = make_policy(out / f"seed-{seed}" / "policy", sft_config(seed))
        for name in chosen:
            arm = make_arm(name, policy, corpus, out / f"seed-{seed}" / name, seed, steps, batch)
            own = _settings(arm, questions)
            varying: JsonObject = {"judge_model": _judge_model(arm, models)}
            unit: KeptUnit[Played] = KeptUnit(
                result=unplayed(name, seed),
                policy=policy_digest(policy),
                design=without_seeds(own, out),
                varying=varying,
            )
            report.STUDY.check(unit, out)
            units.append(Unit(arm=name, seed=seed, folder=arm.folder, settings={**own, **varying}))
            with phase(f"{name} {seed}", f"Seed {seed}: {name}, in the stock trainer", seconds):
                finish(units[-1], partial(_train_with_judge, arm, corpus, models))
            kept.append(replace(unit, result=_result(arm, corpus)))
            missing += undecided(name, seed, arm.evaluations)
            missing += undecided_in_training(name, seed, step_dumps(arm.rollouts).values())
            now = Kept(units=kept, gaps=[*gaps(units), *missing])
            found = report.STUDY.add(now, out)  # after each unit, since all units together take hours
    report.show(found.results, found.gaps, console)
    console.print(f"\nWrote {out / RESULTS} and {out / 'summary.json'}.")


def check_judges(chosen: list[str], models: JudgeModels) -> None:
    """Refuse arms whose judge is a model that was not given.

    Raises:
        typer.BadParameter: If a judge is missing; names the option to give.
    """
    for name in chosen:
        judge = ARMS[name].judge
        if judge not in _MODEL_OPTIONS:
            continue
        folder, option = models.folder(judge), _MODEL_OPTIONS[judge]
        if folder is None:
            raise typer.BadParameter(
                f"the arm {name} needs {option} FOLDER with a trained judge; docs/ppr.md shows how to train one"
            )
        if not (folder / "config.json").is_file():
            raise typer.BadParameter(f"{option} {folder} holds no model: there is no config.json")


def make_arm(name: str, policy: Path, corpus: Corpus, folder: Path, seed: int, num_steps: int, batch_size: int) -> Arm:
    """One arm of a seed; all arms of a seed start from one policy and see the same questions."""
    return Arm(
        name=name,
        model=policy,
        rows=corpus.training,
        held_out=corpus.held_out,
        tools=corpus.tools,
        folder=folder,
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=batch_size,
        group_size=1,
    )


def _settings(arm: Arm, num_held_out: int) -> JsonObject:
    sft = asdict(sft_config(arm.seed))
    return {**arm.settings, "sft": sft, "num_held_out": num_held_out, "judge": arm.kind.judge}


def _judge_model(arm: Arm, models: JudgeModels) -> str | None:
    """Digest of the trained judge, which may differ between seeds; None if the judge is scripted, or there is none."""
    folder = models.folder(arm.kind.judge) if arm.kind.judge in _MODEL_OPTIONS else None
    return None if folder is None else judge_digest(folder)


def _train_with_judge(arm: Arm, corpus: Corpus, models: JudgeModels) -> None:
    """Run the training command while the arm's judge is served."""
    judge = arm.kind.judge
    if judge is None or arm.evaluated.is_file():
        train_and_evaluate(arm, console)
        return
    with served_judge(judge, models, corpus.question_files, arm.folder / "judge.log", console) as url:
        train_and_evaluate(replace(arm, judge_url=url), console)


def _result(arm: Arm, corpus: Corpus) -> report.Result:
    return report.Result(
        arm=arm.name,
        seed=arm.seed,
        evaluations={step: read_dump(path, corpus.questions) for step, path in arm.evaluations.items()},
        training=read_training(arm.rollouts, corpus.questions),
    )


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
