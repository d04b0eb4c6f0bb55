"""Launches of users in shell scripts, which are read and not run, and what is replaced in them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from tests.launch_checks.test_checks import write_pivots
from tests.support.tiny_model import write_model
from verl_pivot.commands.next_steps import launch_command
from verl_pivot.data.sampling_record import SamplingRecord
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import ConfigError
from verl_pivot.launch import check_config
from verl_pivot.launch_checks.checks import check_launch
from verl_pivot.launch_checks.gpus import check_gpus
from verl_pivot.profiling.profiles import ProfileSettings
from verl_pivot.smoke.composing import SmokeMachine
from verl_pivot.smoke.given_settings import given_settings
from verl_pivot.smoke.launch_script import launch_of
from verl_pivot.smoke.shortening import shortened, with_method

CPU = SmokeMachine(has_accelerator=False, num_workers=1, engine="sglang")
GPUS = SmokeMachine(has_accelerator=True, num_workers=8, engine="vllm")


def launch(folder: Path, text: str, **environment: str) -> tuple[str, ...]:
    (folder / "train.sh").write_text(text)
    return launch_of(folder / "train.sh", environment)


def test_a_script_in_the_form_of_verls_examples_gives_its_overrides(tmp_path: Path) -> None:
    """The script has arrays, variables with defaults, a line in several parts, and words after the launch."""
    script = r"""
#!/usr/bin/env bash
set -xeuo pipefail
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-8B}
export NNODES=2
rollout_n=16   # per prompt
DATA=(
    data.train_files="$HOME/data/gsm8k/train.parquet"  # rows
    data.train_batch_size=1024
)
DATA+=(
    'data.val_files=${data.train_files}'
)
python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=$MODEL_PATH \
    actor_rollout_ref.rollout.n=${rollout_n} \
    trainer.logger='["console","wandb"]' \
    trainer.nnodes=$NNODES "$@" 2>&1 | tee train.log
"""

    assert launch(tmp_path, script, HOME="/home/me") == (
        "data.train_files=/home/me/data/gsm8k/train.parquet",
        "data.train_batch_size=1024",
        "data.val_files=${data.train_files}",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "actor_rollout_ref.rollout.n=16",
        'trainer.logger=["console","wandb"]',
        "trainer.nnodes=2",
    )


def test_the_environment_comes_before_a_default_and_an_assignment_before_the_environment(tmp_path: Path) -> None:
    script = "A=${A:-1}\nB=2\nX=1 python -m verl.trainer.main_ppo a=$A b=$B\n"

    assert launch(tmp_path, script, A="7", B="7") == ("a=7", "b=2")


def test_a_launch_behind_other_words_is_found_and_ends_where_the_command_does(tmp_path: Path) -> None:
    script = "cd /tmp && ray job submit --address=$A -- python3 -m verl.trainer.main_ppo a=1 > log 2>&1 && echo b=1\n"

    assert launch(tmp_path, script) == ("a=1",)


def test_a_variable_without_a_value_adds_no_override_and_one_with_several_is_not_guessed(tmp_path: Path) -> None:
    script = "python -m verl.trainer.main_ppo a=1 ${MORE:-} b=2\n"

    assert launch(tmp_path, script) == ("a=1", "b=2")
    assert launch(tmp_path, script, MORE="c=3") == ("a=1", "c=3", "b=2")
    with pytest.raises(ConfigError, match=r"has \$\{MORE:-\}, whose value 'c=3 d=4' may be one override or several"):
        launch(tmp_path, script, MORE="c=3 d=4")


def test_a_variable_that_only_some_runs_assign_keeps_its_name_and_is_not_guessed(tmp_path: Path) -> None:
    script = """
A=1
B=1
C=1
if [ -z "$X" ]; then
  A=2
fi
[ -z "$Y" ] && B=2
for i in 1 2; do C=$i; done
D=4  # don't read this, nor "that
python -m verl.trainer.main_ppo a=$A b=$B c=$C d=$D e=x#y
"""

    assert launch(tmp_path, script) == ("a=$A", "b=$B", "c=$C", "d=4", "e=x#y")


def test_an_array_to_which_only_some_runs_add_is_not_guessed(tmp_path: Path) -> None:
    script = """
echo done
MORE=(a=1)
if [ -n "$X" ]; then
  MORE+=(b=2)
fi
python -m verl.trainer.main_ppo "${MORE[@]}" c=3
"""

    assert launch(tmp_path, script) == ("a=1", "${MORE[@]}", "c=3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello\n", "holds no launches of verl.trainer.main_ppo"),
        ("python -m verl.trainer.main_ppo a=1\npython -m verl.trainer.main_ppo a=2\n", "holds 2 launches"),
        ("python -m verl.trainer.main_ppo a='1\n", "cannot be read as a shell script: No closing quotation"),
    ],
)
def test_a_script_without_one_launch_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        launch(tmp_path, text)


@pytest.mark.parametrize(
    "value",
    ["$(date +%s)", "`date`", "$SEED", "${SEED:?set it}", "${SEED?}", "${SEED:+1}", "${SEED:=1}", "${SEED%/}",
     "${SEED##*/}", "${#SEED}", "${!SEED}", "${SEED/a/b}", "${SEED:0:3}", "${SEED^^}", "${SEED,}"],
)  # fmt: skip
def test_what_only_a_shell_can_tell_is_refused_unless_it_is_replaced(value: str, tmp_path: Path) -> None:
    word = f"data.seed={value}"
    with pytest.raises(ConfigError, match="whose value only a shell can compute: write the value into the file"):
        shortened((word,), tmp_path, tmp_path / "model", CPU)

    shortened((word.replace("data.seed", "trainer.default_local_dir"),), tmp_path, tmp_path / "model", CPU)


def test_an_expansion_that_only_a_shell_knows_is_refused_with_its_word_also_behind_an_assignment(
    tmp_path: Path,
) -> None:
    script = "ROOT=${DATA%/}\npython -m verl.trainer.main_ppo data.train_files=$ROOT/a.parquet\n"

    with pytest.raises(
        ConfigError, match=r"^the launch has 'data\.train_files=\$\{DATA%/\}/a\.parquet', whose value only"
    ):
        shortened(launch(tmp_path, script, DATA="/data/"), tmp_path, tmp_path / "model", CPU)


def test_interpolations_of_hydra_stay(tmp_path: Path) -> None:
    words = ("a=${data.seed}", "b=${now:%Y-%m-%d}", "c=${oc.env:HOME,x}", "d=${eval:1+2}", "e=${verl_pivot.config:a/b}")

    assert shortened(words, tmp_path, tmp_path / "model", CPU).overrides[:5] == words


def test_only_model_sizes_steps_and_what_is_saved_are_replaced(tmp_path: Path) -> None:
    words = (
        "+method=grpo_roc", "+stage=rstar2_1", "data.train_files=a.parquet", "data.train_batch_size=512",
        "actor_rollout_ref.model.path=big", "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=16",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size=2", "algorithm.gamma=0.9", "trainer.save_freq=20",
        "trainer.logger=[console]", "trainer.n_gpus_per_node=8",
    )  # fmt: skip

    short = shortened(words, tmp_path, tmp_path / "model", GPUS)

    kept = ("+method=grpo_roc", "+stage=rstar2_1", "data.train_files=a.parquet",
            "actor_rollout_ref.rollout.name=vllm", "algorithm.gamma=0.9")  # fmt: skip
    assert short.overrides[:5] == kept
    assert {str(each) for each in short.replacements} == {
        f"actor_rollout_ref.model.path: big -> {tmp_path}/model",
        "actor_rollout_ref.rollout.tensor_model_parallel_size: 4 -> 1",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size: 2 -> 1",
        "data.train_batch_size: 512 -> 32",
        "data.train_max_samples: - -> 512",
        "data.max_response_length: - -> 512",
        "actor_rollout_ref.actor.ppo_mini_batch_size: - -> 32",
        "actor_rollout_ref.rollout.n: 16 -> 4",
        "pivot.resampling.equal_rewards: - -> keep",
        "trainer.total_training_steps: - -> 2",
        "trainer.val_before_train: - -> False",
        "trainer.test_freq: - -> -1",
        "trainer.save_freq: 20 -> -1",
        "trainer.resume_mode: - -> disable",
        f"trainer.default_local_dir: - -> {tmp_path}/checkpoints",
        f"trainer.rollout_data_dir: - -> {tmp_path}/rollouts",
        "trainer.nnodes: - -> 1",
        "++ray_kwargs.ray_init.address: - -> local",
    }


def test_on_gpus_a_short_launch_joins_no_cluster_whatever_the_command_says(tmp_path: Path) -> None:
    for words in ((), ("+ray_kwargs.ray_init.address=auto",), ("ray_kwargs.ray_init.address=head:6379",)):
        short = shortened(words, tmp_path, tmp_path / "model", GPUS).overrides
        assert [word for word in short if "ray_init" in word] == ["++ray_kwargs.ray_init.address=local"]


def test_on_a_cpu_the_engine_is_the_one_that_runs_there(tmp_path: Path) -> None:
    short = shortened(("actor_rollout_ref.rollout.name=vllm",), tmp_path, tmp_path / "model", CPU)

    assert "actor_rollout_ref.rollout.name=sglang" in short.overrides
    assert {"+local=cpu", "pivot.trial_steps=null", "ray_kwargs.ray_init.num_gpus=1"} <= set(short.overrides)


@pytest.mark.parametrize(
    "words",
    [
        ("pivot.max_turn_tokens=2048", "data.max_response_length=2048", "data.gen_batch_size=64"),
        ("trainer.val_only=True", "trainer.total_epochs=1", "actor_rollout_ref.rollout.max_model_len=40960"),
        (
            "trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=4", "trainer.nnodes=8",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
        ),
        (
            "data.max_prompt_length=16000", "data.max_response_length=512",
            "actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16512",
        ),
    ],
)  # fmt: skip
def test_the_checks_of_a_launch_pass_its_short_one(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pivots were profiled with another model and other lengths."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    profiled = SamplingRecord(
        model="big", model_digest="of the big model", max_new_tokens=2048, temperature=1.0, top_p=1.0, top_k=-1,
        chat_template_kwargs={}, template_digest=None,
    )  # fmt: skip
    for file in ("pivots.parquet", "pivots.validation.parquet"):
        write_pivots(tmp_path / file, sampling=profiled.encoded())
    launch = ("+method=pivotrl", "data.train_files=pivots.parquet", "data.train_batch_size=64",
              "actor_rollout_ref.model.path=big", "actor_rollout_ref.rollout.name=sglang", *words)  # fmt: skip

    short = shortened(launch, tmp_path, tmp_path / "model", replace(GPUS, num_workers=1)).overrides

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=list(short))
    check_config(config, short)
    check_launch(config, {"method": "pivotrl"})
    check_gpus(config, 2, {"RAY_ADDRESS": "head:6379"})


def replacements(folder: Path, *words: str, machine: SmokeMachine = GPUS) -> dict[str, tuple[str | None, str]]:
    """{key: (value before, value after)} of a launch that is made short."""
    found = shortened(words, folder, folder / "model", machine).replacements
    return {each.key: (each.before, each.after) for each in found}


def test_the_launch_that_select_prints_is_made_short_with_engines_of_one_gpu(tmp_path: Path) -> None:
    """verl's own default is an engine of two GPUs, and a response that the profile bounded is never lengthened."""
    settings = ProfileSettings(
        model="my-policy", input_sha256="", num_samples=8, sampling=Sampling(max_new_tokens=512),
        max_prompt_tokens=16_000, chat_template_kwargs={},
    )  # fmt: skip
    (tmp_path / "train.sh").write_text(launch_command(Path("pivots.parquet"), 64, settings, ()))
    words = launch_of(tmp_path / "train.sh", {})

    found = replacements(tmp_path, *words, machine=replace(GPUS, num_workers=1))

    assert found["actor_rollout_ref.rollout.tensor_model_parallel_size"] == (None, "1")
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16512" in words
    assert not {"data.max_response_length", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"} & set(found)


def test_responses_are_cut_and_never_lengthened(tmp_path: Path) -> None:
    key = "data.max_response_length"

    for before, after in (("256", "256"), ("8192", "1024"), ("$LENGTH", "1024")):
        assert f"{key}={after}" in shortened((f"{key}={before}",), tmp_path, tmp_path / "model", CPU).overrides
    assert replacements(tmp_path)[key] == (None, "512")  # verl's default


def test_sizes_that_would_not_divide_a_short_step_are_one(tmp_path: Path) -> None:
    keys = (
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.expert_parallel_size",
        "critic.fsdp.ulysses_sequence_parallel_size",
    )

    found = replacements(tmp_path, *(f"{key}=32" for key in keys))

    assert {key: found[key] for key in keys} == dict.fromkeys(keys, ("32", "1"))
    assert "critic.ppo_micro_batch_size_per_gpu" not in found


def test_a_critic_is_not_warmed_up_alone(tmp_path: Path) -> None:
    assert replacements(tmp_path, "trainer.critic_warmup=20")["trainer.critic_warmup"] == ("20", "0")


def test_micro_batches_hold_a_sequence_that_the_launch_splits_over_gpus(tmp_path: Path) -> None:
    limit = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    split = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"

    assert replacements(tmp_path, f"{limit}=8192", f"{split}=4")[limit] == ("8192", "32768")
    assert limit not in replacements(tmp_path, f"{limit}=8192")
    assert limit not in replacements(tmp_path, f"{split}=4")


OWN_CONFIG = """# @package _global_
defaults: [/method: grpo_roc]
data: {max_response_length: 256}
actor_rollout_ref: {actor: {ppo_micro_batch_size_per_gpu: 32}, rollout: {n: 16}}
"""


def test_a_method_and_sizes_in_a_config_of_the_users_own_count_as_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(OWN_CONFIG)
    words = ("--config-dir", "conf", "+experiment=mine", "data.max_prompt_length=$LENGTH")

    given = given_settings(words)
    found = replacements(tmp_path, *words[:-1])

    assert (given["method"], given["data.max_prompt_length"]) == ("grpo_roc", "$LENGTH")
    assert found["pivot.resampling.equal_rewards"] == (None, "keep")
    assert found["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == (None, "1")
    assert found["data.max_response_length"] == (None, "256")
    with pytest.raises(ConfigError, match=r"^Hydra cannot compose .*Could not find 'experiment/yours'.* --config-dir$"):
        given_settings(("--config-dir", "conf", "+experiment=yours"))


def test_a_limit_of_one_turn_stays_where_the_short_response_holds_it(tmp_path: Path) -> None:
    key, response = "pivot.rollout.max_turn_tokens", "data.max_response_length=2048"

    for before, after in (("512", "512"), ("4096", "1024"), ("$LIMIT", "1024"), ("null", "null")):
        words = (f"{key}={before}", response)
        assert f"{key}={after}" in shortened(words, tmp_path, tmp_path / "model", CPU).overrides
    assert not any(key in word for word in shortened((), tmp_path, tmp_path / "model", CPU).overrides)


def test_a_method_beside_another_one_of_the_launch_is_refused() -> None:
    assert with_method(("a=1",), "l0") == ("a=1", "+method=l0")
    assert with_method(("+method=l0",), "l0") == ("+method=l0",)
    with pytest.raises(ConfigError, match=r"the launch has \+method=ppr: leave out l0, or change the script"):
        with_method(("+method=ppr",), "l0")
