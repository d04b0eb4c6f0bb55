"""The quickstart's training: its command, its log, and a failure."""

from dataclasses import fields
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples import machine  # noqa: E402
from examples.quickstart import training  # noqa: E402
from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS  # noqa: E402
from examples.quickstart.training import Training, keep_steps, kept_steps, read_steps, train  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.launch_checks.sampling import sampling_of  # noqa: E402
from verl_pivot.smoke.composing import SmokeMachine  # noqa: E402

LINE = (
    "\x1b[36m(TaskRunnerV1 pid=1)\x1b[0m step:{step} - pivot/undecided_rows:0.0 - verifier/state/solved:0.25 - "
    "actor/lr:5e-04 - critic/score/mean:{score} - num_turns/min:np.int32(2) - timing_s/step:2.5\n"
)


def make_training(folder: Path, **changes: object) -> Training:
    values: dict[str, object] = {
        "model": folder / "no-such-model",
        "rows": folder / "pivots.parquet",
        "folder": folder / "training",
        "seed": 0,
        "num_steps": 2,
        "learning_rate": 5e-4,
        "batch_size": 16,
        "group_size": 8,
    }
    return Training(**{**values, **changes})  # type: ignore[arg-type]  # a factory


def test_steps_are_read_from_verls_console_log(tmp_path: Path) -> None:
    log = tmp_path / "launch.log"
    log.write_text(
        "noise\nstep:0 - val-core/reward/mean@1:0.5\n" + LINE.format(step=1, score=0.5) + LINE.format(step=2, score=1.0)
    )

    steps = read_steps(log)

    assert [(step["step"], step["critic/score/mean"]) for step in steps] == [(1.0, 0.5), (2.0, 1.0)]
    assert steps[0]["actor/lr"] == 5e-4
    assert steps[0]["num_turns/min"] == 2.0
    assert steps[0]["verifier/state/solved"] == 0.25


def test_a_launch_on_a_gpu_logs_to_the_console_and_its_steps_are_read_from_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SmokeMachine(has_accelerator=True, num_workers=1, engine="sglang")
    monkeypatch.setattr(machine, "this_machine", lambda num_workers: gpu)
    monkeypatch.setattr(training, "machine_overrides", machine.machine_overrides.__wrapped__)  # without its cache
    there = make_training(tmp_path)

    assert "+local=cpu" not in there.command
    assert "trainer.logger=[console]" in there.command
    assert there.log == there.printed


def test_a_launch_without_a_gpu_writes_a_log_of_its_own(tmp_path: Path) -> None:
    here = make_training(tmp_path)

    assert "trainer.logger=[console]" not in here.command
    assert here.log == here.folder / "launch.log"


def test_steps_of_a_launch_that_was_killed_are_kept_and_one_taken_twice_counts_once(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    training.folder.mkdir()
    assert kept_steps(training) == []
    training.log.write_text(LINE.format(step=1, score=0.25) + LINE.format(step=2, score=0.5))
    keep_steps(training)
    training.log.write_text(LINE.format(step=2, score=0.75) + LINE.format(step=3, score=1.0))
    keep_steps(training)
    scores = {step["step"]: step["critic/score/mean"] for step in kept_steps(training)}
    assert scores == {1.0: 0.25, 2.0: 0.75, 3.0: 1.0}


def test_the_settings_of_a_training_do_not_depend_on_where_its_folder_lies(tmp_path: Path) -> None:
    settings = [make_training(tmp_path / name).settings for name in ("a", "b")]
    assert settings[0] == settings[1]
    assert settings[0]["actor_rollout_ref.model.path"] == "../no-such-model"
    assert settings[0] != make_training(tmp_path / "a", learning_rate=1e-4).settings


def test_the_command_is_verls_own_with_one_method(tmp_path: Path) -> None:
    command = make_training(tmp_path).command

    assert command[:5] == ["python", "-m", "verl.trainer.main_ppo", "+method=pivotrl", "+local=cpu"]
    assert len({argument.partition("=")[0] for argument in command[3:]}) == len(command) - 3


def test_the_training_samples_as_the_profile_of_the_example_does(tmp_path: Path) -> None:
    config = checked_config(make_training(tmp_path).command[3:])
    record = sampling_of(config)

    assert (record.max_new_tokens, config.data.max_prompt_length) == (MAX_NEW_TOKENS, MAX_PROMPT_TOKENS)
    assert (record.temperature, record.top_p, record.top_k, record.chat_template_kwargs) == (1.0, 1.0, -1, {})


class TrainingWithMisspeltKey(Training):
    """A training whose launch stops before Ray starts."""

    @property
    def command(self) -> list[str]:
        return [*super().command, "+pivot.curiculum=True"]


@pytest.mark.slow
def test_a_training_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    values = {field.name: getattr(make_training(tmp_path), field.name) for field in fields(Training)}

    with pytest.raises(SystemExit, match=r"training failed; the end of .*printed.txt:\n[\s\S]*pivot.curiculum"):
        train(TrainingWithMisspeltKey(**values))
