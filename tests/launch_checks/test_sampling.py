"""A launch samples as the profile of its pivots did, or stops with a list of the differences."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tests.data.test_previous_version import FILES
from tests.launch_checks.test_checks import write_pivots
from tests.planning.test_planning import measured, request
from tests.support.tiny_model import write_model
from verl_pivot.commands.next_steps import launch_command
from verl_pivot.commands.profile import profile_command
from verl_pivot.data.sampling_record import SamplingRecord
from verl_pivot.engines.engine import Sampling
from verl_pivot.engines.model_identity import template_digest, text_digest, weights_digest
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.checks import check_launch
from verl_pivot.launch_checks.sampling import sampling_of
from verl_pivot.planning.lengths import choose_lengths
from verl_pivot.planning.plan_commands import launch_words, profile_words, shape_of
from verl_pivot.profiling.profiles import ProfileSettings

KWARGS = {"enable_thinking": False, "style": "a, 'b'"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pivots(tmp_path / "pivots.validation.parquet")
    return tmp_path


def settings(model: Path, **changes: object) -> ProfileSettings:
    made = ProfileSettings(
        model=str(model), input_sha256="", num_samples=8, sampling=Sampling(), max_prompt_tokens=4096,
        chat_template_kwargs={}, model_digest=weights_digest(str(model)), template_digest=template_digest(str(model)),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def composed(overrides: Sequence[str]) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def check(profile: ProfileSettings, model: Path, *overrides: str) -> None:
    """Check a launch with these overrides on pivots of this profile."""
    write_pivots(Path("pivots.parquet"), sampling=profile.sampling_record().encoded())
    check_file("pivots.parquet", model, *overrides)


def check_file(pivots: str, model: Path, *overrides: str) -> None:
    config = composed(
        [
            "+method=pivotrl", f"data.train_files={pivots}", "data.val_files=pivots.validation.parquet",
            f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.rollout.name=sglang", "trainer.logger=console",
            *overrides,
        ]
    )  # fmt: skip
    check_launch(config, {"method": "pivotrl"})


def refusal(profile: ProfileSettings, model: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(profile, model, *overrides)
    return str(caught.value)


def test_the_defaults_of_profile_and_training_agree(model: Path) -> None:
    import inspect

    defaults = {name: each.default for name, each in inspect.signature(profile_command).parameters.items()}
    config = composed(["+method=pivotrl", "data.train_files=a.parquet", f"actor_rollout_ref.model.path={model}"])
    record = sampling_of(config)

    assert settings(model).sampling_record() == record
    assert {name: defaults[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens")} == {
        "temperature": record.temperature, "top_p": record.top_p, "top_k": record.top_k,
        "max_new_tokens": record.max_new_tokens,
    }  # fmt: skip
    assert defaults["max_prompt_tokens"] == config.data.max_prompt_length
    assert {name: value for name, value in asdict(Sampling()).items() if name != "seed"} == {
        name: defaults[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens")
    }


def test_a_launch_that_samples_as_the_profile_did_passes_without_a_word(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(settings(model), model)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.max_response_length=512", "data.max_response_length is 512 here and 2048 in the profile"),
        ("pivot.max_turn_tokens=512", "pivot.max_turn_tokens is 512 here and 2048 in the profile"),
        ("actor_rollout_ref.rollout.temperature=0.7", "actor_rollout_ref.rollout.temperature is 0.7 here and 1.0 in"),
        ("actor_rollout_ref.rollout.top_p=0.95", "actor_rollout_ref.rollout.top_p is 0.95 here and 1.0 in the profile"),
        ("actor_rollout_ref.rollout.top_k=20", "actor_rollout_ref.rollout.top_k is 20 here and -1 in the profile"),
        (
            "+data.apply_chat_template_kwargs.enable_thinking=False",
            'data.apply_chat_template_kwargs is {"enable_thinking": false} here and {} in the profile',
        ),
        (
            "actor_rollout_ref.model.custom_chat_template='{{ messages }}'",
            f"the chat template differs (digest {text_digest('{{ messages }}')[:12]} here, ",
        ),
    ],
)
def test_a_launch_that_samples_otherwise_stops_with_both_values(
    folder: Path, model: Path, override: str, said: str
) -> None:
    message = refusal(settings(model), model, override)

    assert message.startswith(
        f"data.train_files: the pivots of pivots.parquet were profiled with other settings than this launch samples "
        f"with: {said}"
    )
    assert message.endswith(
        ". Set the launch to the settings of the profile, profile again with those of the launch, or add "
        "pivot.allow_other_sampling=True to train nevertheless"
    )


def test_other_weights_stop_the_launch_and_a_moved_folder_does_not(folder: Path, model: Path, tmp_path: Path) -> None:
    import shutil

    moved = shutil.copytree(model, tmp_path / "moved")
    check(settings(model), moved)

    (weights,) = moved.glob("*.safetensors")
    weights.write_bytes(bytes(byte ^ 1 for byte in weights.read_bytes()))
    assert f"the weights in actor_rollout_ref.model.path={moved} are not those of the profile (digest " in refusal(
        settings(model), moved
    )


def test_a_launch_that_only_validates_may_have_any_model_and_sampling(folder: Path, model: Path) -> None:
    check(settings(model, model_digest="of the model before training"), model, "trainer.val_only=True")


def test_a_model_of_the_hub_is_told_by_its_name(folder: Path, model: Path) -> None:
    profile = replace(settings(model), model="no-one/no-model", model_digest=None)

    assert f'actor_rollout_ref.model.path is "{model}" here and "no-one/no-model" in the profile' in refusal(
        profile, model
    )


def test_every_difference_is_said_once_and_the_switch_goes_on_with_a_line(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    switch = "pivot.allow_other_sampling=True"
    sampled = settings(model, sampling=Sampling(temperature=0.6, max_new_tokens=256))
    write_pivots(folder / "a.parquet", sampling=sampled.sampling_record().encoded())
    write_pivots(folder / "b.parquet", sampling=sampled.sampling_record().encoded())

    check_file("[a.parquet,b.parquet]", model, switch)

    assert capsys.readouterr().err == (
        f"verl-pivot, note: {switch}: data.max_response_length is 2048 here and 256 in the profile; "
        "actor_rollout_ref.rollout.temperature is 1.0 here and 0.6 in the profile\n"
    )


def test_a_trial_without_a_gpu_goes_on_with_another_model(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(settings(model, model_digest="of a larger model"), model, "+local=cpu", "data.max_response_length=24")

    said = capsys.readouterr().err
    assert said.startswith(
        "verl-pivot, note: pivot.allow_other_sampling=True: the weights in actor_rollout_ref.model.path="
    )
    assert said.endswith("; data.max_response_length is 24 here and 2048 in the profile\n")


def test_one_file_of_another_profile_among_several_stops_the_launch(folder: Path, model: Path) -> None:
    write_pivots(folder / "a.parquet", sampling=settings(model).sampling_record().encoded())
    write_pivots(folder / "b.parquet")
    other = settings(model, sampling=Sampling(top_k=5))
    write_pivots(folder / "c.parquet", sampling=other.sampling_record().encoded())

    check_file("[a.parquet,b.parquet]", model)
    with pytest.raises(ConfigError, match="top_k is -1 here and 5 in the profile"):
        check_file("[a.parquet,b.parquet,c.parquet]", model)


def test_files_of_an_earlier_version_are_read_with_one_line(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = pyarrow.parquet.read_table(FILES / "pivots.parquet")
    assert "sampling" not in old.column_names
    pyarrow.parquet.write_table(pyarrow.concat_tables([old] * 64), folder / "old.parquet")

    check_file("old.parquet", model)

    assert capsys.readouterr().err == (
        "verl-pivot, note: rows of old.parquet do not say how they were profiled, so their sampling cannot be compared "
        "with that of this launch\n"
    )


def test_the_launch_that_select_prints_samples_as_the_profile_did(folder: Path, model: Path) -> None:
    """The profile's settings are not the defaults, and its template variables contain quotes and a comma."""
    import shlex

    profile = settings(
        model,
        sampling=Sampling(temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=333),
        max_prompt_tokens=777,
        chat_template_kwargs=KWARGS,
    )
    program = ["python", "-m", "verl.trainer.main_ppo"]
    words = shlex.split(launch_command(Path("pivots.parquet"), 64, profile, []))

    assert words[:3] == program
    assert sampling_of(composed(words[3:])) == profile.sampling_record()
    check(profile, model, *words[4:])


def test_the_launch_that_select_prints_has_micro_batches_that_hold_the_longest_row(folder: Path, model: Path) -> None:
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    usual, long = (
        launch_command(Path("pivots.parquet"), 64, replace(settings(model), max_prompt_tokens=tokens), [])
        for tokens in (16_384 - 2048, 30_000)
    )

    assert key not in usual
    assert f"{key}=32048" in long.split()


def test_the_launch_of_a_model_with_a_slash_at_its_end_has_none(folder: Path) -> None:
    shape = shape_of(64, num_epochs=1, num_gpus=1, tensor_parallel_size=1)
    lengths = choose_lengths(measured(10), context_tokens=None)
    of_select = launch_command(Path("pivots.parquet"), 64, replace(settings(Path("sft")), model="./sft/"), [])

    assert "actor_rollout_ref.model.path=./sft" in of_select.split()
    assert "actor_rollout_ref.model.path=./sft" in launch_words(request(model="./sft/"), lengths, shape)


def test_the_launch_of_a_plan_samples_as_the_profile_of_the_plan_does() -> None:
    asked = request(chat_template_kwargs=KWARGS)
    lengths = choose_lengths(measured(10), context_tokens=None, max_new_tokens=192)
    told = dict(pairwise(profile_words(asked, lengths)))
    shape = shape_of(64, num_epochs=1, num_gpus=1, tensor_parallel_size=1)
    record = sampling_of(composed(launch_words(asked, lengths, shape)[3:]))

    assert (record.model, record.max_new_tokens, record.chat_template_kwargs) == (told["--model"], 192, KWARGS)
    assert told["--max-new-tokens"] == "192"
    assert not {"--temperature", "--top-p", "--top-k"} & set(told)
    assert (record.temperature, record.top_p, record.top_k) == (1.0, 1.0, -1)


def test_a_record_that_cannot_be_read_is_a_sentence(folder: Path, model: Path) -> None:
    write_pivots(folder / "pivots.parquet", sampling='{"model": "a"}')

    with pytest.raises(
        ConfigError, match=r"by another version of verl-pivot: .*; write the file again with `verl-pivot select`"
    ):
        check_file("pivots.parquet", model)


def test_the_record_holds_what_the_profile_says() -> None:
    profile = settings(Path("nowhere"), sampling=Sampling(top_k=3, seed=9), chat_template_kwargs=KWARGS)

    assert asdict(SamplingRecord.decoded(profile.sampling_record().encoded())) == {
        "model": "nowhere", "model_digest": None, "max_new_tokens": 2048, "temperature": 1.0, "top_p": 1.0, "top_k": 3,
        "chat_template_kwargs": KWARGS, "template_digest": None,
    }  # fmt: skip
