"""Trained judges of the study, for `python -m examples.ppr.judge`."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from verl_pivot.commands.tables import table_console
from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

from examples.machine import machine_overrides  # noqa: E402
from examples.options import all_of, chosen_names, names_option  # noqa: E402
from examples.ppr.corpus import MOST_HELD_OUT, Corpus, make_corpus  # noqa: E402
from examples.ppr.judge_policy import (  # noqa: E402
    MAX_ANSWER_TOKENS,
    MAX_QUESTION_TOKENS,
    draw_turns,
    judge_sft_config,
    teach_judge,
)
from examples.ppr.serving import MODEL_NAME, JudgeModels, digest_of, judge_digest, served_judge  # noqa: E402
from examples.ppr.training import BASE, ONE_QUESTION, OUTCOME, PRINCIPLES  # noqa: E402
from examples.quickstart.run import phase, run  # noqa: E402
from examples.quickstart.training import Training, shell, train  # noqa: E402
from examples.units import Unit, finish  # noqa: E402
from verl_pivot.data.rollout_dumps import FOLDER  # noqa: E402
from verl_pivot.types import JsonObject  # noqa: E402

console = table_console()
_KINDS = {"pprm": PRINCIPLES, "pprm_one_question": ONE_QUESTION}
"""{name of the judge: file of its principles}"""
_BENCH = "bench.json"
_NUM_PROFILED = 400
"""Most turns that are profiled for RL; the profile of more turns would take longer than RL itself."""
_NO_VALIDATION = ("--validation-share", "0")
_ANSWERS = ("--max-added-principles", "0", "--answer-format", "text", "--max-tokens", str(MAX_ANSWER_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTraining(Training):
    """PivotRL on the labelled turns: a judge is a policy with one turn, which the verifier `process_score` scores."""

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=pivotrl"),
            *machine_overrides(),
            *self.sizes,
            f"data.val_files={self.rows}",  # not validated on; select sets no rows aside
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

    The oracle labels the turns of the arm outcome. The base policy learns to answer as the oracle does, by SFT and then
    by PivotRL. Each judge is tested on turns that the base policy took on the held-out questions.

    Run the command again to continue.

    Example: python -m examples.ppr.judge --out outputs/ppr-1 --steps 10
    """
    chosen = chosen_names(judges, _KINDS, kind="judge")
    source = source_of(out, seed)
    corpus = make_corpus(out / "world", MOST_HELD_OUT)
    for name in chosen:
        judge = TaughtJudge(name=name, folder=out / "judges" / name, seed=seed, corpus=corpus, source=source)
        finish(judge.taught, judge.teach)
        judge.show_bench(judge.sft)
        if steps > 0:
            finish(judge.reinforced(steps), partial(judge.reinforce, steps))
            judge.show_bench(judge.training(steps).trained)


class JudgeSource(NamedTuple):
    """Files from which judges are taught, and on which they are tested."""

    policy: Path
    """The base policy, from which the training of a judge starts."""
    trained: list[Path]
    """Dumps of the arm `outcome`, in the order of its steps."""
    held_out: Path
    """Dump of the base policy's turns on the held-out questions."""


def source_of(out: Path, seed: int) -> JudgeSource:
    """The dumps of a seed.

    Raises:
        BadParameter: If one of the arms is not finished.
    """
    unit = out / f"seed-{seed}"
    for arm in (OUTCOME, BASE):
        progress = Unit(arm=arm, seed=seed, folder=unit / arm, settings={}).progress
        if progress is None or progress.seconds is None:
            raise typer.BadParameter(
                f"{unit / arm} is not finished; run examples.ppr with --arms {BASE},{OUTCOME} first"
            )
    trained = sorted((unit / OUTCOME / "rollouts" / FOLDER).glob("*.jsonl"), key=lambda path: int(path.stem))
    return JudgeSource(unit / "policy", trained, unit / BASE / "validation" / FOLDER / "0.jsonl")


@dataclass(frozen=True, kw_only=True)
class TaughtJudge:
    """One judge, taught by SFT and then by RL: two units, of which a finished one is not repeated."""

    name: str
    folder: Path
    seed: int
    corpus: Corpus
    source: JudgeSource

    @property
    def principles(self) -> Path:
        return _KINDS[self.name]

    @property
    def turns(self) -> Path:
        """Labelled turns for training."""
        return self.folder / "turns.parquet"

    @property
    def drawn(self) -> Path:
        """The labelled turns that are profiled for RL."""
        return self.folder / "rl_turns.parquet"

    @property
    def tested(self) -> Path:
        """Labelled turns on the held-out questions."""
        return self.folder / "held_out.parquet"

    @property
    def sft(self) -> Path:
        return self.folder / "sft"

    @cached_property
    def made_of(self) -> JsonObject:
        return {
            "turns": digest_of(self.source.trained),
            "held_out": digest_of([self.source.held_out]),
            "principles": self.principles.read_text(),
            "policy": judge_digest(self.source.policy),
            "sft": asdict(judge_sft_config(self.seed)),
        }

    @property
    def taught(self) -> Unit:
        return Unit(arm=self.name, seed=self.seed, folder=self.folder, settings=self.made_of)

    def reinforced(self, num_steps: int) -> Unit:
        training = self.training(num_steps)
        settings = {**self.made_of, **training.settings, "labels": digest_of([self.turns])}
        return Unit(arm=f"{self.name}, RL", seed=self.seed, folder=training.folder, settings=settings)

    def training(self, num_steps: int) -> JudgeTraining:
        return JudgeTraining(
            model=self.sft,
            rows=self.folder / "pivots.parquet",
            folder=self.folder / "rl",
            seed=self.seed,
            num_steps=num_steps,
            learning_rate=1e-4,
            batch_size=16,
            group_size=8,
        )

    def teach(self) -> None:
        """Label turns, and teach the base policy to answer as the oracle does."""
        seconds: dict[str, float] = {}
        with phase("labels", f"{self.name}: the oracle labels turns", seconds):
            self._label(self.source.trained, self.corpus.training, self.turns)
            self._label([self.source.held_out], self.corpus.held_out, self.tested)
        with phase("SFT", f"{self.name}: SFT of the base policy on the labels", seconds):
            teach_judge(self.sft, self.source.policy, self.turns, judge_sft_config(self.seed))
        with phase("bench", f"{self.name}: how good is it after SFT?", seconds):
            self._bench(self.sft)

    def reinforce(self, num_steps: int) -> None:
        """Import, profile, select and train, or continue where an earlier run was interrupted."""
        training, seconds = self.training(num_steps), dict[str, float]()
        with phase("RL", f"{self.name}: RL by the labels", seconds):
            self._select(training)
            console.print(shell(training.command), highlight=False, markup=False, soft_wrap=True, style="dim")
            if not training.trained.is_dir():
                train(training)
        with phase("bench", f"{self.name}: how good is it after RL?", seconds):
            self._bench(training.trained)

    def _select(self, training: JudgeTraining) -> None:
        if training.rows.is_file():
            return
        draw_turns(self.turns, self.drawn, _NUM_PROFILED, self.seed)
        for command in self.selection(training):
            run(*command)

    def selection(self, training: JudgeTraining) -> list[tuple[str | Path, ...]]:
        """Arguments of the commands import, profile and select, which find the rows of RL among the drawn turns.

        No row is set aside for validation: `process bench` measures a judge on other turns. With a split, a profile
        whose few mixed turns all belong to tasks of one part would be refused.
        """
        trajectories, profile = (self.folder / each for each in ("turns.jsonl", "profile.jsonl"))
        lengths = ("--max-prompt-tokens", str(MAX_QUESTION_TOKENS))
        sampling = (*lengths, "--max-new-tokens", str(MAX_ANSWER_TOKENS), "--seed", str(self.seed))
        return [
            ("import", self.drawn, "--allow-no-tools", "--out", trajectories),
            ("profile", trajectories, "--model", self.sft, "--out", profile, *sampling),
            ("select", trajectories, "--profile", profile, "--out", training.rows, *lengths, *_NO_VALIDATION),
        ]

    def show_bench(self, judge: Path) -> None:
        console.print_json((judge / _BENCH).read_text())

    def _label(self, dumps: Sequence[Path], rows: Path, turns: Path) -> None:
        log = turns.with_suffix(".judge.log")
        with served_judge("oracle", JudgeModels(), self.corpus.question_files, log, console) as url:
            endpoint = ("--base-url", url, "--model", MODEL_NAME, "--samples", "1")
            files: tuple[Path | str, ...] = ("--rows", rows, "--principles", self.principles, "--out", turns)
            run("process", "label", *dumps, *files, *endpoint, *_ANSWERS)

    def _bench(self, judge: Path) -> None:
        """Run `verl-pivot process bench` on a judge, and write the result into the judge's folder."""
        models = JudgeModels(pprm=judge, one_question=judge)
        with served_judge(self.name, models, self.corpus.question_files, judge / "bench.log", console) as url:
            program = Path(sys.executable).parent / "verl-pivot"
            arguments = ("process", "bench", self.tested, "--base-url", url, "--model", MODEL_NAME, *_ANSWERS)
            command = [str(each) for each in (program, *arguments, "--principles", self.principles, "--json")]
            console.print(f"$ {shlex.join(['verl-pivot', *command[1:]])}", highlight=False, markup=False, style="dim")
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        (judge / _BENCH).write_text(done.stdout)


def start() -> None:
    """Run `main` with the command line's arguments."""
    typer.run(main)
