"""launch_checks: a launch that would fail or train nothing is refused with one sentence before Ray starts."""

import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_pivot.data.pivots import AGENT_NAME, SCHEMA
from verl_pivot.errors import ConfigError
from verl_pivot.launch import check_config, own_sentence
from verl_pivot.launch_checks import checks
from verl_pivot.launch_checks.agent_loops import LOOPS_WITHOUT_OUR_TOOLS
from verl_pivot.launch_checks.checks import check_launch, remember_run
from verl_pivot.launch_checks.engine import check_engine, check_model
from verl_pivot.launch_checks.folders import check_folders
from verl_pivot.launch_checks.gpus import check_gpus
from verl_pivot.launch_checks.groups import check_arguments
from verl_pivot.launch_checks.owned_settings import check_owned_settings
from verl_pivot.launch_checks.run_record import RunRecord
from verl_pivot.launch_checks.training_files import read_files
from verl_pivot.launch_checks.values import check_token_limits
from verl_pivot.launch_checks.void_settings import check_void_settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with a model's config of 512 tokens and two files of 64 pivots of 20 tokens each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    write_pivots(tmp_path / "pivots.parquet")
    write_pivots(tmp_path / "pivots.validation.parquet")
    return tmp_path


def write_pivots(
    path: Path, *, num: int = 64, tokens: int = 20, verifier: str = "tool_call", **changes: object
) -> None:
    row = {
        "data_source": "made_up", "prompt": "[]", "tools": "[]", "expert": "{}", "verifier": verifier,
        "verifier_options": "{}", "metadata": "{}", "trajectory_id": "t", "turn_index": 0, "num_prompt_tokens": tokens,
        "agent_name": "pivot_turn", "split": "train", "ability": "agent", **changes,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * num, schema=SCHEMA), path)


def composed(*overrides: str, method: str = "pivotrl") -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"+method={method}", "data.train_files=pivots.parquet", "data.val_files=pivots.validation.parquet",
                "actor_rollout_ref.model.path=model", "actor_rollout_ref.rollout.name=sglang", "trainer.logger=console",
                "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}", *overrides,
            ],
        )  # fmt: skip


def check(*overrides: str, method: str = "pivotrl") -> None:
    """Check a launch of a method with these overrides, on `pivots.parquet` and `model`."""
    config = composed(*overrides, method=method)
    groups = {override[1:].split("=")[0]: override.split("=")[1] for override in overrides if override.startswith("+")}
    check_launch(config, {"method": method, **groups})


def refusal(*overrides: str, method: str = "pivotrl") -> str:
    with pytest.raises(ConfigError) as caught:
        check(*overrides, method=method)
    return str(caught.value)


def test_a_launch_without_a_mistake_passes(folder: Path) -> None:
    check()
    check("trainer.total_training_steps=2", "pivot.curriculum.enabled=False")


def test_a_router_beside_stock_verl_passes_and_its_own_settings_are_checked(folder: Path) -> None:
    write_tasks(folder / "tasks.parquet")
    overrides = [
        "+router=cache_aware", "data.train_files=tasks.parquet", "data.val_files=tasks.parquet",
        "actor_rollout_ref.model.path=model", "actor_rollout_ref.rollout.name=sglang", "trainer.logger=console",
    ]  # fmt: skip
    fill = "pivot.router.kv_forecast.fill=0.5"
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*overrides, fill])

    check_config(config, overrides)
    check_launch(config, {"router": "cache_aware"})
    check_gpus(config, 8)
    check_owned_settings(config, ["+router"], overrides)
    remember_run(config, {"router": "cache_aware"})
    with pytest.raises(ConfigError, match=r"fill=0\.5 does nothing beside a pivot\.router\.policy other than"):
        check_void_settings(config, [*overrides, fill])


def test_a_missing_training_file_is_named_with_what_writes_it(folder: Path) -> None:
    assert refusal("data.train_files=pivot.parquet") == (
        f"data.train_files: there is no file pivot.parquet in {folder}; it is written by `verl-pivot select`"
    )
    assert refusal("data.val_files=v.parquet").startswith(f"data.val_files: there is no file v.parquet in {folder}; ")


def test_a_missing_file_of_tasks_is_named_by_its_whole_path(folder: Path) -> None:
    path = Path.home() / "nobody.parquet"
    with pytest.raises(ConfigError, match=f"^data.val_files: there is no file {path}; name a parquet file of tasks$"):
        read_files("data.val_files", ["~/nobody.parquet"])


def test_a_column_of_ones_own_that_makes_tasks_pivots_is_refused(folder: Path) -> None:
    write_tasks(folder / "tasks.parquet", expert="Jane", verifier="qa", num_prompt_tokens=9)

    assert refusal("data.train_files=tasks.parquet", method="tool_rollout") == (
        "data.train_files: tasks.parquet has the column expert, which makes its rows pivots, but no trajectory_id, "
        "turn_index, tools, verifier_options, metadata: rename the column, or write pivots with `verl-pivot select`"
    )


def test_a_key_without_a_file_is_refused_and_a_dataset_of_ones_own_is_left_alone(folder: Path) -> None:
    assert refusal("data.val_files=null") == "data.val_files names no file"
    check("data.train_files=shards", "data.custom_cls.path=mine.py", "data.custom_cls.name=Mine")


def test_a_training_file_that_is_no_parquet_or_empty_is_refused(folder: Path) -> None:
    (folder / "broken.parquet").write_text("{}")
    write_pivots(folder / "empty.parquet", num=0)

    assert refusal("data.train_files=broken.parquet").startswith("data.train_files: broken.parquet cannot be read as")
    assert refusal("data.train_files=empty.parquet") == "data.train_files: empty.parquet holds no rows"


def test_a_training_file_without_pivots_is_refused_by_pivotrl_alone(folder: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "Hello."}], "data_source": "made_up"}] * 64
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "problems.parquet")

    assert refusal("data.train_files=problems.parquet") == (
        "data.train_files: problems.parquet holds no pivot; write it with `verl-pivot select`, or use "
        "+method=tool_rollout for rows that are whole tasks"
    )
    check("data.train_files=problems.parquet", "data.train_batch_size=64", method="tool_rollout")
    assert refusal("data.train_files=problems.parquet", "data.prompt_key=question", method="tool_rollout") == (
        "data.train_files: problems.parquet has no column 'question' (data.prompt_key)"
    )


def test_a_reward_function_is_refused_by_pivotrl_where_all_rows_are_pivots(folder: Path) -> None:
    function = "reward.custom_reward_function.path=mine.py"
    (folder / "mine.py").write_text("def compute_score(**_): return 0.0\n")
    rows = [{"prompt": [{"role": "user", "content": "Hello."}], "data_source": "made_up"}] * 64
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "problems.parquet")

    assert refusal(function).startswith("reward.custom_reward_function.path=mine.py does nothing, since all rows of ")
    check(function, "data.val_files=problems.parquet")
    check(function, "data.train_files=problems.parquet", "data.train_batch_size=64", method="tool_rollout")


def test_a_reward_function_that_is_not_there_is_refused_without_running_its_file(folder: Path) -> None:
    write_tasks(folder / "tasks.parquet")
    key = "reward.custom_reward_function"
    files = ("data.train_files=tasks.parquet", "data.val_files=tasks.parquet", "data.train_batch_size=64")
    mine = (*files, f"{key}.path=mine.py")

    assert refusal(*mine, method="tool_rollout") == (
        f"{key}.path=mine.py: there is no file mine.py in {folder}; name the file of the reward function"
    )
    (folder / "mine.py").write_text("raise SystemExit\nasync def score(**_): ...\nother = score\n")
    assert refusal(*mine, method="tool_rollout") == (
        f"{key}.path=mine.py has no compute_score: name its reward function with {key}.name"
    )
    check(*mine, f"{key}.name=score", method="tool_rollout")
    check(*files, f"{key}.path=file://{folder}/mine.py", f"{key}.name=other", method="tool_rollout")
    (folder / "mine.py").write_text("from others import *\n")
    check(*mine, method="tool_rollout")
    (folder / "mine.py").write_text("def compute_score(:\n")
    assert refusal(*mine, method="tool_rollout").startswith(f"{key}.path=mine.py is not valid Python: ")


def test_batches_of_prompts_that_do_not_divide_the_batch_of_a_step_are_refused(folder: Path) -> None:
    size = "data.gen_batch_size=48"

    assert refusal(size) == (
        f"{size} must divide data.train_batch_size=64, since verl takes the prompts of a step in batches of that size: "
        "leave it out, or choose a divisor"
    )
    check("data.gen_batch_size=16")
    check(size, "trainer.v1.trainer_mode=colocate_async")


def write_tasks(path: Path, **columns: object) -> None:
    row = {"prompt": [{"role": "user", "content": "Hello."}], "data_source": "made_up", **columns}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row] * 64), path)


@pytest.mark.parametrize("method", ["tool_rollout", "grpo_roc"])
@pytest.mark.parametrize("key", ["data.train_files", "data.val_files"])
def test_rows_that_name_verls_own_loop_with_tools_are_refused_by_methods_with_tools(
    folder: Path, method: str, key: str
) -> None:
    write_tasks(folder / "tasks.parquet")
    write_tasks(folder / "theirs.parquet", agent_name="tool_agent")
    write_tasks(folder / "ours.parquet", agent_name="pivot_tools")
    files = {"data.train_files": "tasks.parquet", "data.val_files": "tasks.parquet"}
    size = "data.train_batch_size=64"

    for file in ("tasks", "ours"):
        check(size, *(f"{name}={value}" for name, value in (files | {key: f"{file}.parquet"}).items()), method=method)
    overrides = [f"{name}={value}" for name, value in (files | {key: "theirs.parquet"}).items()]
    assert refusal(size, *overrides, method=method) == (
        f"{key} has rows whose column agent_name is tool_agent, so verl's own loop would play them, without the "
        "tools of pivot.rollout.tools: remove the column, or write pivot_tools in it"
    )


def test_rows_with_a_loop_of_ones_own_train_by_the_method_that_needs_no_records(folder: Path) -> None:
    write_tasks(folder / "mine.parquet", agent_name="mine")
    files = ("data.train_files=mine.parquet", "data.val_files=mine.parquet", "data.train_batch_size=64")

    check(*files, method="tool_rollout")
    assert "column agent_name is mine, a loop that keeps no record of calls" in refusal(*files, method="grpo_roc")


def test_settings_of_rollouts_with_tools_are_refused_where_no_row_is_played_with_them(folder: Path) -> None:
    """Pivots are played by the loop of single turns; beside them rows for validation may be whole tasks."""
    write_tasks(folder / "tasks.parquet")
    write_tasks(folder / "single.parquet", agent_name="single_turn_agent")
    tools, loop = "+pivot.rollout.tools=tools.yaml", "actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools"
    said = "pivot.rollout does nothing, since no agent loop of the rows "

    assert refusal(tools).startswith(f"{said}(pivot_turn) reads it: set actor_rollout_ref.rollout.agent.")
    assert refusal(tools, "data.val_files=tasks.parquet").startswith(f"{said}(pivot_turn, single_turn_agent) reads it")
    assert refusal(tools, loop, "data.val_files=single.parquet").startswith(said)
    check(tools, loop, "data.val_files=tasks.parquet")
    write_tasks(folder / "ours.parquet", agent_name="pivot_tools")
    check(tools, "data.val_files=ours.parquet")


def test_the_loops_that_do_not_read_settings_of_rollouts_with_tools_are_those_of_verl_and_single_turns() -> None:
    import verl.experimental.agent_loop  # noqa: F401  registers verl's loops
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    of_verl = {name for name, each in _agent_loop_registry.items() if each["_target_"].startswith("verl.")}
    assert of_verl | {AGENT_NAME} == LOOPS_WITHOUT_OUR_TOOLS


def test_a_batch_larger_than_the_training_file_is_refused(folder: Path) -> None:
    said = " rows and a step takes data.train_batch_size="

    assert f"has 64{said}65: lower it" in refusal("data.train_batch_size=65")
    assert f"has 10{said}64: lower it" in refusal("data.train_max_samples=10")


def test_prompts_that_cannot_fit_are_refused(folder: Path) -> None:
    assert refusal("data.max_prompt_length=19") == (
        "data.train_files holds a prompt of 20 tokens, and data.max_prompt_length is 19: raise it, or write the file "
        "again with `verl-pivot select --max-prompt-tokens 19`"
    )
    assert "leaves no room for an answer in the context of 20 tokens" in refusal(
        "actor_rollout_ref.rollout.max_model_len=20"
    )


def test_verifiers_that_do_not_exist_or_take_other_options_are_refused(folder: Path) -> None:
    write_pivots(folder / "unknown.parquet", verifier="nobody")
    write_pivots(folder / "options.parquet", verifier_options='{"mood": 1}')
    (folder / "mine.py").write_text("import json\nx = json.nothing\n")

    assert refusal("data.train_files=unknown.parquet").startswith(
        "data.train_files: rows of unknown.parquet name the verifier 'nobody': "
    )
    assert "mood" in refusal("data.train_files=options.parquet")
    assert refusal("pivot.verifier_modules=[mine.py]").startswith(
        "verifier module 'mine.py' fails when it is imported: AttributeError: module 'json' has no attribute 'nothing'"
    )


def write_checkpoint(folder: Path, step: int) -> None:
    (folder / f"global_step_{step}").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_a_resume_that_would_train_no_step_is_refused(folder: Path) -> None:
    write_checkpoint(folder / "run", 2)
    here = "trainer.default_local_dir=run"

    assert refusal(here, "trainer.total_training_steps=2") == (
        "run holds a checkpoint of step 2 and the launch ends at step 2, so that it would resume and train no step: "
        "raise trainer.total_training_steps (or trainer.total_epochs), begin anew with trainer.resume_mode=disable, or "
        "name another trainer.default_local_dir"
    )
    assert "ends at step 1" in refusal(here, "trainer.total_epochs=1")  # the 64 rows are one batch
    check(here, "trainer.total_training_steps=3")
    check(here, "trainer.total_training_steps=2", "trainer.resume_mode=disable")
    check(here, "trainer.total_training_steps=2", "trainer.val_only=True")


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("actor_rollout_ref.actor.ppo", ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=400",)),
        ("actor_rollout_ref.rollout.log_prob", ()),
        ("actor_rollout_ref.ref.log_prob", ("actor_rollout_ref.actor.use_kl_loss=True",)),
        ("critic.ppo", ("algorithm.adv_estimator=gae", "critic.use_dynamic_bsz=True", "pivot.objective=verl")),
    ],
)
def test_micro_batches_cut_by_tokens_that_cannot_hold_the_longest_row_are_refused(
    folder: Path, key: str, overrides: tuple[str, ...]
) -> None:
    key = f"{key}_max_token_len_per_gpu"
    lengths = ("data.max_prompt_length=300", "data.max_response_length=100", *overrides)
    dynamic = "actor_rollout_ref.actor.use_dynamic_bsz=True"

    assert refusal(*lengths, dynamic, f"{key}=399") == (
        f"{key}=399 cannot hold a row of 400 tokens, as long as rows may be, and with use_dynamic_bsz=True verl would "
        "end at the first such row: set it to 400 or more, or lower data.max_prompt_length + data.max_response_length"
    )
    check(*lengths, dynamic, f"{key}=400")


def test_micro_batches_cut_by_tokens_hold_rows_that_are_split_or_as_long_as_the_context(folder: Path) -> None:
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    dynamic = "actor_rollout_ref.actor.use_dynamic_bsz=True"

    check(f"{key}=399")  # all micro-batches have the same number of rows
    check(dynamic, f"{key}=256", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
          "data.max_prompt_length=400")  # fmt: skip
    check(dynamic, f"{key}=512")  # prompt and response may have 6,144 tokens, and the model has 512
    assert f"{key}=511 cannot hold a row of 512 tokens" in refusal(dynamic, f"{key}=511")


def test_micro_batches_of_l0_hold_a_whole_context() -> None:
    config = composed("actor_rollout_ref.actor.use_dynamic_bsz=True", method="l0")

    with pytest.raises(
        ConfigError, match=r"=16384 cannot hold a row of 19456 tokens.* or lower pivot\.notebook\.max_con"
    ):
        check_token_limits(config, None, trains_critic=False)
    check_token_limits(config, 16_384, trains_critic=False)


def test_a_validation_alone_that_would_train_is_refused(folder: Path) -> None:
    alone, skipped = "trainer.val_only=True", "trainer.val_before_train=False"

    assert refusal(alone, skipped) == (
        f"{alone} does nothing beside {skipped}, so that verl would train: leave out {skipped}"
    )
    check(alone)
    check(skipped)


def test_more_steps_than_the_epochs_have_are_refused(folder: Path) -> None:
    write_pivots(folder / "three.parquet", num=15)  # 3 steps of 4 rows in each epoch
    write_checkpoint(folder / "run", 90)
    here = ("data.train_files=three.parquet", "data.train_batch_size=4", "trainer.default_local_dir=run")

    assert refusal(*here, "trainer.total_training_steps=125") == (
        "trainer.total_training_steps=125 is more than the 90 steps of trainer.total_epochs=30 (3 in each epoch), "
        "after which verl would end without its last checkpoint and validation: raise trainer.total_epochs to 42 "
        "or more"
    )
    check(*here, "trainer.total_training_steps=125", "trainer.total_epochs=42")


def test_a_stage_has_its_steps_on_a_small_set_of_problems(folder: Path) -> None:
    write_tasks(folder / "hard.parquet")
    files = ("data.train_files=hard.parquet", "data.val_files=hard.parquet", "data.train_batch_size=64")

    check(*files, "+stage=rstar2_3", method="grpo_roc")


def test_a_resume_of_shards_of_another_number_of_gpus_is_refused(folder: Path) -> None:
    write_checkpoint(folder / "run", 2)
    (folder / "run" / "global_step_2" / "actor").mkdir()
    (folder / "run" / "global_step_2" / "actor" / "fsdp_config.json").write_text('{"world_size": 4}')
    here = ("trainer.default_local_dir=run", "trainer.total_training_steps=3", "trainer.nnodes=2")

    assert refusal(*here, "trainer.n_gpus_per_node=4").startswith(
        "run/global_step_2 was saved by 4 GPUs, and verl cannot resume it on the 8 GPUs of the launch"
    )
    check(*here, "trainer.n_gpus_per_node=2")


def test_a_run_that_keeps_the_optimizer_and_has_taken_no_step_is_checked_as_any_checkpoint(folder: Path) -> None:
    """`verl-pivot next-stage --keep-optimizer` writes it."""
    write_checkpoint(folder / "run", 0)
    (folder / "run" / "global_step_0" / "actor").mkdir()
    (folder / "run" / "global_step_0" / "actor" / "fsdp_config.json").write_text('{"world_size": 4}')
    here, four = "trainer.default_local_dir=run", "trainer.n_gpus_per_node=4"

    assert refusal(here).startswith("run/global_step_0 was saved by 4 GPUs, and verl cannot resume it on the 8 GPUs of")
    check(here, four)
    assert refusal(here, four, "algorithm.adv_estimator=gae", "pivot.objective=verl").startswith(
        "run/global_step_0 holds no critic, and the launch trains one"
    )


def test_a_resume_without_the_critic_that_the_launch_trains_is_refused(folder: Path) -> None:
    """PPO trains a critic, so its launch is refused; an estimator without values needs no critic."""
    write_checkpoint(folder / "run", 2)
    (folder / "run" / "global_step_2" / "actor").mkdir()
    write_tasks(folder / "qa.parquet")
    here = ("trainer.default_local_dir=run", "trainer.total_training_steps=3", "pivot.process.mode=outcome",
            "data.train_files=qa.parquet", "data.val_files=qa.parquet", "data.train_batch_size=64")  # fmt: skip

    assert refusal(*here, method="ppr").startswith("run/global_step_2 holds no critic, and the launch trains one")
    check(*here, "algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=2", method="ppr")


@pytest.mark.parametrize("section", ["actor", "actor.fsdp_config"])
def test_sequences_split_over_gpus_without_flash_attention_are_refused_wherever_verl_reads_it(
    folder: Path, section: str
) -> None:
    size = f"actor_rollout_ref.{section}.ulysses_sequence_parallel_size=2"

    assert refusal(size, "+actor_rollout_ref.model.override_config.attn_implementation=sdpa").startswith(
        "ulysses_sequence_parallel_size=2 splits sequences over GPUs"
    )
    check(size)


def test_a_critic_without_flash_attention_is_refused_on_a_machine_with_a_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tasks(folder / "qa.parquet")
    here = ("pivot.process.mode=outcome", "data.train_files=qa.parquet", "data.val_files=qa.parquet",
            "data.train_batch_size=64", "trainer.default_local_dir=run")  # fmt: skip
    check(*here, method="ppr")

    monkeypatch.setattr(checks, "has_accelerator", lambda: True)

    assert refusal(*here, method="ppr").startswith("verl loads the critic of critic.strategy=fsdp with flash attention")
    check(*here, "algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=2", method="ppr")


def test_a_checkpoint_that_is_named_and_not_there_is_refused(folder: Path) -> None:
    path = "trainer.resume_mode=resume_path"

    assert "needs trainer.resume_from_path to end in global_step_<number>, got None" in refusal(path)
    assert refusal(path, "trainer.resume_from_path=run/global_step_3") == (
        "trainer.resume_from_path=run/global_step_3 is not a folder: give the folder of a checkpoint"
    )
    assert "must be auto, disable or resume_path" in refusal("trainer.resume_mode=never")


def test_a_named_checkpoint_with_a_slash_at_its_end_is_refused(folder: Path) -> None:
    write_checkpoint(folder / "run", 2)
    key = "trainer.resume_from_path"

    assert refusal("trainer.resume_mode=resume_path", f"{key}=run/global_step_2/") == (
        f"{key}=run/global_step_2/ ends in a slash, behind which verl finds no number of a step: write "
        f"{key}=run/global_step_2"
    )
    check("trainer.resume_mode=resume_path", f"{key}=run/global_step_2")


def test_a_checkpoint_whose_folder_was_removed_does_not_count(folder: Path) -> None:
    write_checkpoint(folder / "run", 2)
    (folder / "run" / "global_step_2").rmdir()

    check("trainer.default_local_dir=run", "trainer.total_training_steps=2")


def remember(*overrides: str, **groups: str) -> None:
    """Record what a launch with these overrides begins from."""
    remember_run(composed(*overrides), {"method": "pivotrl", **groups})


@pytest.mark.heavy
def test_the_folder_of_another_stage_or_model_is_refused(folder: Path) -> None:
    here, saves = "trainer.default_local_dir=run", "trainer.save_freq=1"
    remember(here, saves)
    check(here, saves)  # the folder has no checkpoint yet
    write_checkpoint(folder / "run", 2)
    (folder / "model").rename(folder / "other")
    model = "actor_rollout_ref.model.path=other"

    assert refusal(here, saves, model, "trainer.total_training_steps=9") == (
        f"run holds step 2 of a run that began from {folder}/model with +method=pivotrl, and this launch begins from "
        f"{folder}/other with +method=pivotrl: verl would continue with the weights, optimizer and step count of the "
        "earlier run; name another trainer.default_local_dir, begin anew in this one with trainer.resume_mode=disable, "
        "or continue that run with trainer.resume_mode=resume_path"
    )
    assert "run holds step 2" in refusal(here, model, "trainer.val_only=True")  # this would validate the old weights
    check(here, model, "trainer.resume_mode=disable")
    remember(here, saves, model, "trainer.resume_mode=disable", method="grpo_roc", stage="rstar2_1")
    assert refusal(
        here, model, "trainer.total_training_steps=9", "data.train_batch_size=64", "+stage=rstar2_2", method="grpo_roc"
    ).startswith(
        f"run holds step 2 of a run that began from {folder}/other with +method=grpo_roc +stage=rstar2_1, and this "
        f"launch begins from {folder}/other with +method=grpo_roc +stage=rstar2_2: "
    )


def test_checkpoints_of_a_run_that_a_later_one_replaced_are_not_taken_for_its_own(folder: Path) -> None:
    here = ("trainer.default_local_dir=run", "trainer.save_freq=1", "trainer.total_training_steps=9")
    anew = (*here, "trainer.resume_mode=disable")
    remember(*here)
    write_checkpoint(folder / "run", 2)
    check(*here)  # the run's own
    check(*anew)
    remember(*anew)

    assert refusal(*here) == (
        "run holds step 2 of an earlier run, since the last run there began anew, or from another checkpoint, and "
        "ended before its first one: begin anew again with trainer.resume_mode=disable, continue the earlier run with "
        "trainer.resume_mode=resume_path, or name another trainer.default_local_dir"
    )
    check(*anew)
    check(*here, "trainer.resume_mode=resume_path", "trainer.resume_from_path=run/global_step_2")
    note = folder / "run" / "latest_checkpointed_iteration.txt"
    os.utime(note, ns=(0, note.stat().st_mtime_ns + 1))  # the new run has saved its own step 2
    check(*here)


def note_again(run: Path, step: int) -> None:
    """Note a checkpoint of this step at a time of its own, as a later run does."""
    note = run / "latest_checkpointed_iteration.txt"
    before = note.stat().st_mtime_ns
    (run / f"global_step_{step}").mkdir(exist_ok=True)
    note.write_text(str(step))
    os.utime(note, ns=(0, before + 1))


def test_a_run_that_is_continued_by_name_is_the_run_of_its_folder_again(folder: Path) -> None:
    here = ("trainer.default_local_dir=run", "trainer.save_freq=1", "trainer.total_training_steps=9")
    named = (*here, "trainer.resume_mode=resume_path", "trainer.resume_from_path=run/global_step_2")
    write_tasks(folder / "tasks.parquet")
    other = (*here, "data.train_files=tasks.parquet", "data.val_files=tasks.parquet", "data.train_batch_size=64")
    remember(*here)
    write_checkpoint(folder / "run", 2)
    remember(*other, "trainer.resume_mode=disable", method="tool_rollout")  # it ends before its first checkpoint

    remember(*named)
    check(*here)  # before its first checkpoint
    note_again(folder / "run", 3)

    check(*here)
    assert refusal(*other, method="tool_rollout").startswith(
        f"run holds step 3 of a run that began from {folder}/model with +method=pivotrl, and this launch begins from "
    )


def test_a_run_from_another_checkpoint_than_the_latest_of_its_folder_does_not_go_on_from_that_one(folder: Path) -> None:
    here = ("trainer.default_local_dir=run", "trainer.save_freq=1", "trainer.total_training_steps=9")
    by_name = (*here, "trainer.resume_mode=resume_path")
    for run in ("run", "elsewhere"):
        write_checkpoint(folder / run, 1)
        write_checkpoint(folder / run, 2)

    for checkpoint in ("run/global_step_1", "elsewhere/global_step_2"):
        remember(*by_name, f"trainer.resume_from_path={checkpoint}")
        assert refusal(*here).startswith(
            "run holds step 2 of an earlier run, since the last run there began anew, or from"
        )
    note_again(folder / "run", 2)
    check(*here)


def test_the_folder_of_another_method_is_refused_and_that_of_an_unnamed_one_is_not() -> None:
    pivotrl, tools, unnamed = (RunRecord.of("m", None, method) for method in ("pivotrl", "tool_rollout", None))

    assert pivotrl.is_other(tools)
    assert not pivotrl.is_other(pivotrl)
    assert not pivotrl.is_other(unnamed)
    assert not unnamed.is_other(pivotrl)
    assert pivotrl.is_other(RunRecord.of("m", "rstar2_1", "pivotrl"))


def test_a_run_is_remembered_where_it_saves_checkpoints_and_resumes_none(folder: Path) -> None:
    remember("trainer.default_local_dir=a")
    remember("trainer.default_local_dir=b", "trainer.save_freq=1", "trainer.val_only=True")
    write_checkpoint(folder / "c", 2)
    remember("trainer.default_local_dir=c", "trainer.save_freq=1")
    write_checkpoint(folder / "d", 0)  # as `verl-pivot next-stage --keep-optimizer` writes it
    remember("trainer.default_local_dir=d", "trainer.save_freq=1")

    assert [path.parent.name for path in sorted(folder.rglob("verl_pivot_run.json"))] == ["d"]


def test_a_curriculum_needs_the_numbers_of_a_profile_and_files_of_its_own(folder: Path) -> None:
    on = "pivot.curriculum.enabled=True"
    write_pivots(folder / "profiled.parquet", reward_var=0.25, reward_mean=0.5)

    assert "starts from the reward variances of a profile" in refusal(on)
    check(on, "data.train_files=profiled.parquet")
    assert "data.val_files must differ" in refusal(
        on, "data.train_files=profiled.parquet", "data.val_files=profiled.parquet"
    )
    assert "needs data.dataloader_num_workers=0, got 2" in refusal(
        on, "data.train_files=profiled.parquet", "data.dataloader_num_workers=2"
    )


def test_a_stage_or_tool_format_of_another_method_is_refused(folder: Path) -> None:
    assert (
        refusal("+stage=rstar2_1") == "+stage=rstar2_1 applies to +method=grpo_roc, and the command has +method=pivotrl"
    )
    assert "+tool_format=retool applies to +method=tool_rollout or +method=grpo_roc" in refusal("+tool_format=retool")
    with pytest.raises(ConfigError, match=r"and the command has no \+method$"):
        check_arguments(["+stage=rstar2_1", "trainer.nnodes=2"])
    with pytest.raises(ConfigError, match=r"^\+tail=partial applies to .* and the command has no \+method$"):
        check_arguments(["+tail=partial"])


@pytest.mark.parametrize("named", [["+method=grpo_roc"], ["+experiment=mine"], ["-cn", "mine"], ["--config-dir=conf"]])
def test_a_method_may_stand_in_a_config_of_ones_own(named: list[str]) -> None:
    check_arguments([*named, "+stage=rstar2_1", "+ray_kwargs.ray_init.num_cpus=2"])


def test_an_engine_that_is_not_installed_is_named_with_its_command() -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine("trtllm")
    assert str(caught.value).startswith(
        "actor_rollout_ref.rollout.name=trtllm, but tensorrt_llm is not installed: see the documentation of verl, or "
        "choose actor_rollout_ref.rollout.name=sglang, which is installed"
    )
    check_engine("sglang")
    check_engine("an_engine_of_ones_own")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("./model", "actor_rollout_ref.model.path=./model is not a folder on this machine"),
        ("/a/b", "actor_rollout_ref.model.path=/a/b is not a folder on this machine"),
        ("no-one/no-model", "this launch downloads nothing: run `hf download no-one/no-model` first"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(ConfigError) as caught:
        check_model(path, {"HF_HUB_OFFLINE": "1"})

    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["path", "tokenizer_path"])
def test_a_spelling_of_the_models_path_that_verl_does_not_know_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    key = f"actor_rollout_ref.model.{key}"
    said = "verl opens no path that ends in a slash or begins with ~: write"

    assert refusal(f"{key}=./model/") == f"{key}=./model/: {said} {key}=./model"
    assert refusal(f"{key}=no-one/no-model//") == f"{key}=no-one/no-model//: {said} {key}=no-one/no-model"
    assert refusal(f"{key}='~/model'") == f"{key}=~/model: {said} {key}={folder}/model"
    check(f"{key}=./model")


def test_a_model_below_a_home_that_does_not_have_it_is_refused() -> None:
    for path in ("~/there-is-no-model-here", "~no-user-of-this-name/model"):
        with pytest.raises(ConfigError, match=f"^actor_rollout_ref.model.path={path} is not a folder on this machine"):
            check_model(path)


def test_a_model_that_can_be_downloaded_passes() -> None:
    check_model("no-one/no-model", {})
    check_model("hdfs://cluster/a/model", {"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConfigError("a is not b"), "a is not b"),
        (
            RuntimeError(
                "\x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=1)\n  File x, line 1\n"
                "verl_pivot.errors.VerifierError: first\n\nDuring handling ...\n"
                "verl_pivot.errors.UserCodeError: turn a:0: verifier 'x' raised KeyError: 'y'"
            ),
            "turn a:0: verifier 'x' raised KeyError: 'y'",
        ),
        (
            RuntimeError(
                "\x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=1, ip=10.0.0.1, actor_id=a)\n  File x, line 1\n"
                "ray.exceptions.RayTaskError(ConfigError): ray::AgentLoopWorkerTQ.run() (pid=2, ip=10.0.0.2)\n"
                "verl_pivot.errors.ConfigError: the Python package mcp is not installed"
            ),
            "on 10.0.0.2: the Python package mcp is not installed",
        ),
        (
            RuntimeError("ray::TaskRunnerV1.run() (pid=1, ip=10.0.0.1)\nverl_pivot.errors.ConfigError: a is not b"),
            "a is not b",
        ),
        (RuntimeError("something else"), None),
    ],
)
def test_the_last_line_is_the_sentence_of_the_error_that_it_comes_from(error: Exception, sentence: str | None) -> None:
    assert own_sentence(error, "10.0.0.1") == sentence


@pytest.mark.heavy
@pytest.mark.parametrize(
    "key", ["trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.default_local_dir"]
)
def test_a_folder_for_results_that_cannot_be_made_is_refused(folder: Path, key: str) -> None:
    (folder / "notes").write_text("")
    (folder / "lost").symlink_to(folder / "nowhere")
    saving = "trainer.save_freq=1"

    assert refusal(f"{key}=notes", saving) == (
        f"{key}=notes cannot be made, since notes is not a folder: choose another path"
    )
    assert "since lost is not a folder" in refusal(f"{key}=lost", saving)
    assert f"since {folder}/notes is not a folder" in refusal(f"{key}=notes/a/b", saving)
    assert refusal(f"{key}=/proc/dumps", saving).startswith(
        f"{key}=/proc/dumps cannot be written, since /proc refuses files ("
    )
    before = sorted(folder.iterdir())
    check(f"{key}=new/folder", saving)
    check(f"{key}={folder}", saving)
    assert sorted(folder.iterdir()) == before


def test_folders_that_a_launch_does_not_write_to_are_left_alone(folder: Path) -> None:
    (folder / "notes").write_text("")

    check("trainer.default_local_dir=notes", "trainer.save_freq=-1", "trainer.resume_mode=disable")
    check_folders({"trainer.rollout_data_dir": None, "trainer.validation_data_dir": "s3://bucket/dumps"})


@pytest.mark.parametrize("validation", ["dumps", "../{folder}/dumps", "dumps/pivot", "link"])
def test_dumps_of_training_and_validation_in_one_folder_are_refused(folder: Path, validation: str) -> None:
    (folder / "dumps").mkdir()
    (folder / "link").symlink_to("dumps")
    given = validation.format(folder=folder.name)

    with pytest.raises(ConfigError) as caught:
        check_folders({"trainer.rollout_data_dir": "dumps", "trainer.validation_data_dir": given})

    assert str(caught.value) == (
        f"trainer.rollout_data_dir=dumps and trainer.validation_data_dir={given} put the dumps of training and of "
        "validation into one folder, where the second of a step replaces the first: choose another path for one of them"
    )


def test_dumps_of_training_and_validation_in_two_folders_are_fine(folder: Path) -> None:
    check_folders({"trainer.rollout_data_dir": "dumps", "trainer.validation_data_dir": "dumps/validation"})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_batch_size=0", "data.train_batch_size=0: must be a whole number of at least 1"),
        ("data.train_batch_size=null", "data.train_batch_size=null: must be a whole number of at least 1"),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size=0",
            "actor_rollout_ref.actor.ppo_mini_batch_size=0: must be a whole number of at least 1",
        ),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size=5",
            "data.train_batch_size=64 must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size=5, or else "
            "verl pads the update with rows that were not sampled",
        ),
        ("data.max_response_length=0", "data.max_response_length=0: must be a whole number of at least 1"),
        ("trainer.n_gpus_per_node=0", "trainer.n_gpus_per_node=0: must be a whole number of at least 1"),
        ("data.train_batch_size=true", "data.train_batch_size=True: must be a whole number of at least 1"),
        ("trainer.save_freq=often", "trainer.save_freq=often: must be a number"),
        ("trainer.save_freq=null", "trainer.save_freq=null: must be a number"),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=two",
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=two: must be a number",
        ),
        ("actor_rollout_ref.rollout.temperature=hot", "actor_rollout_ref.rollout.temperature=hot: must be a number"),
        ("actor_rollout_ref.rollout.val_kwargs.n=all", "actor_rollout_ref.rollout.val_kwargs.n=all: must be a number"),
        ("actor_rollout_ref.rollout.max_model_len=8k", "actor_rollout_ref.rollout.max_model_len=8k: must be a number"),
        ("trainer.total_epochs=0", "trainer.total_epochs=0: must be a whole number of at least 1"),
        ("trainer.total_training_steps=0", "trainer.total_training_steps=0: must be a whole number of at least 1"),
        ("actor_rollout_ref.rollout.n=-1", "actor_rollout_ref.rollout.n=-1: must be a whole number of at least 1"),
        (
            "actor_rollout_ref.rollout.temperature=0",
            "actor_rollout_ref.rollout.temperature=0: must be above 0, or else all rollouts of a group are the same "
            "and none has an advantage",
        ),
        (
            "trainer.logger=[console,swanlab]",
            "trainer.logger names swanlab, which is not installed: pip install swanlab, or trainer.logger=[console]",
        ),
        (
            "actor_rollout_ref.model.path=null",
            "actor_rollout_ref.model.path names no model: give a folder or a Hugging Face name",
        ),
        (
            "actor_rollout_ref.model.path=model/config.json",
            "actor_rollout_ref.model.path=model/config.json is a file: name the folder with the checkpoint",
        ),
    ],
)
def test_a_value_with_which_nothing_can_be_trained_is_refused(folder: Path, override: str, said: str) -> None:
    assert refusal(override) == said


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("trainer.v1.trainer_mode", "colocated_async", "colocate_async"),
        ("algorithm.adv_estimator", "gpro", "grpo"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "vanila", "vanilla"),
        ("actor_rollout_ref.rollout.name", "sglnag", "sglang"),
        ("trainer.logger", "consoel", "console"),
    ],
)
def test_a_name_that_verl_does_not_know_is_refused_with_the_nearest(
    folder: Path, key: str, written: str, meant: str
) -> None:
    said = refusal(f"{key}={written}", method="tool_rollout")

    assert said.startswith(f"verl does not know {key}={written}: did you mean {meant}? Known: ")


def test_a_library_of_ones_own_may_register_further_estimators(folder: Path) -> None:
    library = "actor_rollout_ref.model.external_lib=[verl_pivot.objective.policy_loss,mine.estimators]"

    check("algorithm.adv_estimator=mine", library)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_groups_of_one_rollout_are_refused_where_rollouts_are_compared(folder: Path, estimator: str) -> None:
    one = "actor_rollout_ref.rollout.n=1"

    assert refusal(one, f"algorithm.adv_estimator={estimator}").startswith(f"{one}, and algorithm.adv_estimator=")
    check(one, "algorithm.adv_estimator=reinforce_plus_plus")


def test_an_adapter_that_is_not_there_is_refused(folder: Path) -> None:
    key = "actor_rollout_ref.model.lora_adapter_path"

    assert refusal(f"{key}=adapter").startswith(f"{key}=adapter has no adapter_config.json")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    check(f"{key}=adapter")


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    key = "actor_rollout_ref.rollout.max_model_len"
    length = json.loads((folder / "model" / "config.json").read_text())["max_position_embeddings"]

    assert refusal(f"{key}={length + 1}").startswith(
        f"{key}={length + 1} is longer than the model's context of {length}"
    )
    check(f"{key}={length}")


def test_pivots_are_parquet_and_other_rows_may_be_json(folder: Path) -> None:
    for name in ("rows.jsonl", "rows.csv"):
        (folder / name).write_text('{"prompt": []}\n')

    assert refusal("data.train_files=rows.jsonl").startswith("data.train_files: rows.jsonl is not a parquet file: ")
    check("data.train_files=rows.jsonl", method="tool_rollout")
    assert refusal("data.train_files=rows.csv", method="tool_rollout") == (
        "data.train_files: verl cannot read rows.csv: its name must end in one of .parquet, .json, .jsonl"
    )


def test_a_launch_stops_where_its_pool_of_sandboxes_lacks_what_its_tools_or_verifiers_need(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tools.yaml").write_text("- tool: jupyter_code\n")
    monkeypatch.setenv("VERL_PIVOT_SANDBOX_POOL", "{protocol: sandbox_fusion, urls: [http://127.0.0.1:9]}")
    config = composed("pivot.rollout.tools=tools.yaml", method="tool_rollout")
    with pytest.raises(ConfigError, match="tool 'jupyter_code' needs sessions, which a pool of sandbox_fusion does"):
        check_config(config, [])

    monkeypatch.setenv("VERL_PIVOT_SANDBOX_POOL", "{protocol: code_judge, urls: [http://127.0.0.1:9]}")
    write_pivots(folder / "pivots.parquet", verifier="math")
    with pytest.raises(ConfigError, match="verifier 'math' needs files, which a pool of code_judge does not have"):
        check()


def test_an_environment_that_drives_needs_no_tools_file_and_no_section_that_reads_calls() -> None:
    environment = "pivot.rollout.environment={command: [python, my_agent.py]}"
    check_config(composed(environment, method="tool_rollout"), [])

    for method, message in (
        ("mcp_rl", r"pivot\.ruler needs the calls of a tools file"),
        ("grpo_roc", "format_tag does nothing beside `environment`"),
        ("ppr", "does nothing beside `environment`"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_config(composed(environment, method=method), [])


def test_an_environment_that_cannot_be_started_is_refused() -> None:
    for environment, message in (
        ("{command: [no-such-program]}", "the program 'no-such-program' was not found"),
        ("{verifiers: wordle, python: /nowhere/python}", "the Python '/nowhere/python' was not found"),
        ("verifiers:wordle", "does not have the package verifiers; run `.* -m pip install verifiers`"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_config(composed(f"pivot.rollout.environment={environment}", method="tool_rollout"), [])
