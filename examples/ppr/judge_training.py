"""Trained judges of the study: `python -m examples.ppr.judge_training --help`."""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.machine import machine_overrides  # noqa: E402
from examples.options import all_of, chosen_names, names_option  # noqa: E402
from examples.ppr.corpus import MOST_HELD_OUT, Corpus, make_corpus  # noqa: E402
from examples.ppr.judge_policy import (  # noqa: E402
    MAX_ANSWER_TOKENS,
    MAX_QUESTION_TOKENS,
    judge_sft_config,
    teach_judge,
)
from examples.ppr.serving import MODEL_NAME, JudgeModels, served_judge  # noqa: E402
from examples.ppr.training import ONE_QUESTION, PRINCIPLES  # noqa: E402
from examples.quickstart.run import phase, run  # noqa: E402
from examples.quickstart.training import Training, shell, train  # noqa: E402
from verl_pivot.data.rollout_dumps import FOLDER  # noqa: E402
from verl_pivot.local.supervision import run_supervised  # noqa: E402

console = Console()
_KINDS = {"pprm": PRINCIPLES, "pprm_one_question": ONE_QUESTION}
"""{name of the judge: what it goes by}"""
_ANSWERS = ("--max-added-principles", "0", "--answer-format", "text", "--max-tokens", str(MAX_ANSWER_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTraining(Training):
    """PivotRL on the labelled turns: a judge is a policy with one turn, which `process_score` pays."""

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=pivotrl"),
            *machine_overrides(),
            *self.sizes,
            f"data.max_prompt_length={MAX_QUESTION_TOKENS}",
            f"data.max_response_length={MAX_ANSWER_TOKENS}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={self.micro_batch_size}",
            f"trainer.rollout_data_dir={self.folder / 'rollouts'}",
            "trainer.project_name=ppr",
            "trainer.experiment_name=judge",
        ]


def main(
    out: Annotated[Path, typer.Option(help="Folder of the study, where it has trained the arm outcome.")] = Path(
        "outputs/ppr"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of that arm, and of the trainings.")] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Steps of RL behind SFT.")] = 10,
    judges: Annotated[str, names_option("Judges to train", _KINDS)] = all_of(_KINDS),
) -> None:
    """Train the judges of the arms with pprm in their names and of renorm_one_question, and say how good they are.

    The oracle labels the turns of the arm outcome; the base policy learns by SFT to answer as it does, and then by
    PivotRL. Turns on the held-out questions, which the base policy took, tell how good a judge is.

    Run the command again to continue.

    Example: python -m examples.ppr.judge_training --out outputs/ppr-1 --steps 10
    """
    chosen = chosen_names(judges, _KINDS, kind="judge")
    corpus = make_corpus(out / "world", MOST_HELD_OUT)
    unit = out / f"seed-{seed}"
    dumps = sorted((unit / "outcome" / "rollouts" / FOLDER).glob("*.jsonl"), key=lambda path: int(path.stem))
    if not dumps:
        raise typer.BadParameter(f"{unit / 'outcome'} has no rollouts; run examples.ppr with --arms outcome first")
    held_out = [unit / "base" / "validation" / FOLDER / "0.jsonl"]
    if not held_out[0].is_file():
        raise typer.BadParameter(f"{held_out[0]} is not there; run examples.ppr with --arms base first")
    seconds: dict[str, float] = {}
    for name in chosen:
        folder = out / "judges" / name
        folder.mkdir(parents=True, exist_ok=True)
        principles = _KINDS[name]
        turns, tested = folder / "turns.parquet", folder / "held_out.parquet"
        with phase(f"labels {name}", f"{name}: the oracle labels turns", seconds):
            _label(dumps, corpus.training, turns, principles, corpus)
            _label(held_out, corpus.held_out, tested, principles, corpus)
        with phase(f"SFT {name}", f"{name}: SFT of the base policy on the labels", seconds):
            judge = teach_judge(folder / "sft", unit / "policy", turns, judge_sft_config(seed))
        with phase(f"bench {name}", f"{name}: how good is it after SFT?", seconds):
            _bench(name, judge, tested, principles, corpus)
        if steps == 0:
            continue
        with phase(f"RL {name}", f"{name}: RL by the labels", seconds):
            judge = _reinforce(folder, judge, turns, seed, steps)
        with phase(f"bench RL {name}", f"{name}: how good is it after RL?", seconds):
            _bench(name, judge, tested, principles, corpus)
    (out / "judges" / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n")


def _label(dumps: Sequence[Path], rows: Path, turns: Path, principles: Path, corpus: Corpus) -> None:
    if turns.is_file():
        return
    log = turns.with_suffix(".judge.log")
    with served_judge("oracle", JudgeModels(), corpus.question_files, log, console) as url:
        endpoint = ("--base-url", url, "--model", MODEL_NAME, "--samples", "1")
        files: tuple[Path | str, ...] = ("--rows", rows, "--principles", principles, "--out", turns)
        run("process", "label", *dumps, *files, *endpoint, *_ANSWERS)


def _reinforce(folder: Path, judge: Path, turns: Path, seed: int, num_steps: int) -> Path:
    """Import, profile, select, train; returns the checkpoint."""
    trajectories, profile, pivots = (folder / each for each in ("turns.jsonl", "profile.jsonl", "pivots.parquet"))
    if not pivots.is_file():
        lengths = ("--max-prompt-tokens", str(MAX_QUESTION_TOKENS))
        sampling = (*lengths, "--max-new-tokens", str(MAX_ANSWER_TOKENS), "--seed", str(seed))
        run("import", turns, "--allow-no-tools", "--out", trajectories)
        run("profile", trajectories, "--model", judge, "--out", profile, *sampling)
        run("select", trajectories, "--profile", profile, "--out", pivots, *lengths, "--seed", str(seed))
    training = JudgeTraining(
        model=judge,
        rows=pivots,
        folder=folder / "rl",
        seed=seed,
        num_steps=num_steps,
        learning_rate=1e-4,
        batch_size=16,
        group_size=8,
    )
    console.print(shell(training.command), highlight=False, markup=False, soft_wrap=True, style="dim")
    if not training.trained.is_dir():
        train(training)
    return training.trained


def _bench(name: str, judge: Path, tested: Path, principles: Path, corpus: Corpus) -> None:
    """Print what `verl-pivot process bench` says of a judge, and write it beside the judge."""
    found = judge / "bench.json"
    if not found.is_file():
        models = JudgeModels(pprm=judge, one_question=judge)
        with served_judge(name, models, corpus.question_files, judge / "bench.log", console) as url:
            program = Path(sys.executable).parent / "verl-pivot"
            arguments = ("process", "bench", tested, "--base-url", url, "--model", MODEL_NAME, *_ANSWERS)
            command = [str(each) for each in (program, *arguments, "--principles", principles, "--json")]
            console.print(f"$ {shlex.join(['verl-pivot', *command[1:]])}", highlight=False, markup=False, style="dim")
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        found.write_text(done.stdout)
    console.print_json(found.read_text())


if __name__ == "__main__":
    run_supervised(lambda: typer.run(main))
