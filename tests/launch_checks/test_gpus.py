"""GPUs of a launch: engines, machines and checkpoints that do not fit its number of GPUs are refused."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.engine import check_critic_attention, check_sequence_parallel, check_served_adapter
from verl_pivot.launch_checks.gpus import check_engine_size, check_gpus
from verl_pivot.launch_checks.process import needs_critic
from verl_pivot.launch_checks.resuming import check_num_gpus
from verl_pivot.launch_checks.separate_trainer import check_separate_trainer
from verl_pivot.launch_checks.values import check_shared_mini_batches

ROLLOUT = "actor_rollout_ref.rollout"


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", ["+method=tool_rollout", *overrides])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("trainer.n_gpus_per_node=1",),  # verl's own default of tensor_model_parallel_size is 2
            f"one engine takes 2 GPUs ({ROLLOUT}: tensor_model_parallel_size=2), but all engines together have 1 "
            "(trainer: nnodes=1 x n_gpus_per_node=1), so verl would start none: lower "
            f"{ROLLOUT}.tensor_model_parallel_size",
        ),
        (
            (f"{ROLLOUT}.data_parallel_size=8",),
            f"one engine takes 16 GPUs ({ROLLOUT}: tensor_model_parallel_size=2 x data_parallel_size=8), but all "
            "engines together have 8 (trainer: nnodes=1 x n_gpus_per_node=8), so verl would start none: lower "
            f"{ROLLOUT}.data_parallel_size",
        ),
        (
            ("trainer.v1.trainer_mode=separate_async", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1"),
            f"one engine takes 2 GPUs ({ROLLOUT}: tensor_model_parallel_size=2), but all engines together have 1 "
            f"({ROLLOUT}: nnodes=1 x n_gpus_per_node=1), so verl would start none: lower "
            f"{ROLLOUT}.tensor_model_parallel_size",
        ),
    ],
)
def test_an_engine_that_takes_more_gpus_than_there_are_is_refused(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine_size(composed(*overrides))

    assert str(caught.value) == said


def test_gpus_that_engines_cannot_share_without_a_rest_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine_size(composed("trainer.n_gpus_per_node=3"))

    assert str(caught.value) == (
        "3 GPUs (trainer: nnodes=1 x n_gpus_per_node=3) cannot be shared by engines of 2 GPUs each without a rest, "
        f"which verl does not allow: change {ROLLOUT}.tensor_model_parallel_size or trainer.n_gpus_per_node"
    )


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("trainer.nnodes=3", "data.train_batch_size=64", f"{ROLLOUT}.n=16"),
            "actor_rollout_ref.actor.ppo_mini_batch_size=64 prompts of actor_rollout_ref.rollout.n=16 rollouts cannot "
            "be shared equally among 24 GPUs (trainer.nnodes x trainer.n_gpus_per_node / ulysses_sequence_parallel_size"
            "), and verl would end in the first update: set it, and data.train_batch_size with it, to a multiple of 3",
        ),
        (
            ("data.train_batch_size=64", f"{ROLLOUT}.n=1", "critic.ppo_mini_batch_size=4", "critic.enable=True"),
            "critic.ppo_mini_batch_size=4 prompts of actor_rollout_ref.rollout.n=1 rollouts cannot be shared equally "
            "among 8 GPUs (trainer.nnodes x trainer.n_gpus_per_node / ulysses_sequence_parallel_size), and verl would "
            "end in the first update: set it, and data.train_batch_size with it, to a multiple of 8",
        ),
    ],
)
def test_mini_batches_that_the_gpus_cannot_share_are_refused(overrides: tuple[str, ...], said: str) -> None:
    config = composed("actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}", *overrides)
    with pytest.raises(ConfigError) as caught:
        check_shared_mini_batches(config, trains_critic=needs_critic(config))

    assert str(caught.value) == said


@pytest.mark.parametrize(
    "overrides",
    [
        ("trainer.nnodes=3", "actor_rollout_ref.actor.ppo_mini_batch_size=48"),
        ("trainer.nnodes=3", "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=3"),
        ("trainer.nnodes=3", "actor_rollout_ref.actor.strategy=megatron"),
        ("critic.ppo_mini_batch_size=1", f"{ROLLOUT}.n=1"),  # no critic is trained
        ("+local=cpu", "actor_rollout_ref.actor.ppo_mini_batch_size=1", f"{ROLLOUT}.n=1"),
    ],
)
def test_mini_batches_that_the_gpus_share_pass(overrides: tuple[str, ...]) -> None:
    sizes = ("actor_rollout_ref.actor.ppo_mini_batch_size=64", f"{ROLLOUT}.n=16")
    config = composed(*sizes, *overrides)

    check_shared_mini_batches(config, trains_critic=needs_critic(config))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1"),
        ("trainer.nnodes=2", f"{ROLLOUT}.tensor_model_parallel_size=16"),
        ("+local=cpu",),
    ],
)
def test_an_engine_that_fits_passes(overrides: tuple[str, ...]) -> None:
    check_engine_size(composed(*overrides))


def test_a_launch_that_takes_more_gpus_than_the_machine_has_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    alone = {"RAY_TMPDIR": str(tmp_path)}

    with pytest.raises(ConfigError) as caught:
        check_gpus(composed(), 0, alone)
    assert str(caught.value) == (
        "the launch takes GPUs (trainer: nnodes=1 x n_gpus_per_node=8), this machine has none, and no Ray cluster runs "
        "here: start the cluster first (ray start --head), or add +local=cpu to try the launch without a GPU"
    )
    with pytest.raises(ConfigError) as caught:
        check_gpus(composed("trainer.nnodes=2"), 8, alone)
    assert str(caught.value) == (
        "the launch takes 16 GPUs (trainer: nnodes=2 x n_gpus_per_node=8), this machine has 8, and no Ray cluster runs "
        "here: start the cluster first (ray start --head), or lower trainer.n_gpus_per_node"
    )
    separate = ("trainer.v1.trainer_mode=separate_async", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4")
    with pytest.raises(ConfigError) as caught:
        check_gpus(composed("trainer.n_gpus_per_node=5", *separate), 8, alone)
    assert str(caught.value) == (
        f"the launch takes 9 GPUs (trainer: nnodes=1 x n_gpus_per_node=5, {ROLLOUT}: nnodes=1 x n_gpus_per_node=4), "
        "this machine has 8, and no Ray cluster runs here: start the cluster first (ray start --head), or lower "
        "trainer.n_gpus_per_node"
    )
    check_gpus(composed("trainer.n_gpus_per_node=4", *separate), 8, alone)
    with pytest.raises(ConfigError, match=r"this machine has 4, "):
        check_gpus(composed("+ray_kwargs.ray_init.address=local"), 4, {"RAY_ADDRESS": "head:6379"})


def test_a_launch_that_can_have_its_gpus_passes(tmp_path: Path) -> None:
    alone = {"RAY_TMPDIR": str(tmp_path)}

    check_gpus(composed(), 8, alone)
    check_gpus(composed("+local=cpu"), 0, alone)
    check_gpus(composed(), 0, alone | {"RAY_ADDRESS": "head:6379"})
    check_gpus(composed("+ray_kwargs.ray_init.address=auto"), 0, alone)
    check_gpus(composed("+ray_kwargs.ray_init.num_gpus=8"), 0, alone)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    check_gpus(composed(), 0, alone)


def test_a_checkpoint_of_fsdp_is_resumed_by_as_many_gpus_as_saved_it_and_one_without_shards_by_any(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "global_step_3"
    check_num_gpus(folder, 2)
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')

    check_num_gpus(folder, 2)
    check_num_gpus(None, 1)
    with pytest.raises(ConfigError) as caught:
        check_num_gpus(folder, 1)

    assert str(caught.value) == (
        f"{folder} was saved by 2 GPUs, and verl cannot resume it on the 1 GPUs of the launch (trainer.nnodes x "
        "trainer.n_gpus_per_node): use 2 GPUs, or begin anew with trainer.resume_mode=disable and the policy that "
        "`verl-pivot next-stage` writes from it"
    )


def test_sequences_are_split_over_gpus_with_flash_attention_alone() -> None:
    check_sequence_parallel(1, "sdpa")
    check_sequence_parallel(2, None)
    check_sequence_parallel(2, "flash_attention_3")
    with pytest.raises(ConfigError, match=r"^ulysses_sequence_parallel_size=2 splits .* attn_implementation=sdpa each"):
        check_sequence_parallel(2, "sdpa")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            (),
            "trainer.v1.trainer_mode=separate_async sends weights to engines on other GPUs, but "
            f"{ROLLOUT}.checkpoint_engine.backend=naive, verl's default, cannot: set it to nccl, or another backend of "
            "verl",
        ),
        (
            ("+local=cpu", f"{ROLLOUT}.checkpoint_engine.backend=nixl"),
            f"{ROLLOUT}.checkpoint_engine.backend=nixl needs a GPU, so that trainer.v1.trainer_mode=separate_async "
            "does not run with +local=cpu: try the launch with trainer.v1.trainer_mode=colocate_async",
        ),
        (
            (f"{ROLLOUT}.checkpoint_engine.backend=nccl", "data.train_batch_size=64"),
            "with trainer.v1.trainer_mode=separate_async data.train_batch_size=64 must be "
            "trainer.v1.separate_async.parameter_sync_step=4 times actor_rollout_ref.actor.ppo_mini_batch_size=32",
        ),
    ],
)
def test_a_trainer_with_separate_engines_that_would_not_start_is_refused(overrides: tuple[str, ...], said: str) -> None:
    sizes = ("data.train_batch_size=128", "actor_rollout_ref.actor.ppo_mini_batch_size=32")
    with pytest.raises(ConfigError) as caught:
        check_separate_trainer(composed(*sizes, "trainer.v1.trainer_mode=separate_async", *overrides))

    assert str(caught.value) == said


@pytest.mark.parametrize("backend", ["nccl", "of_my_own"])
def test_a_trainer_with_separate_engines_that_hands_its_weights_over_passes(backend: str) -> None:
    sizes = ("data.train_batch_size=128", "actor_rollout_ref.actor.ppo_mini_batch_size=32")
    place = () if backend == "nccl" else ("+local=cpu",)

    check_separate_trainer(
        composed(
            *sizes, *place, "trainer.v1.trainer_mode=separate_async", f"{ROLLOUT}.checkpoint_engine.backend={backend}"
        )
    )
    check_separate_trainer(composed())


def test_an_adapter_that_sglang_does_not_take_is_refused_and_one_that_is_merged_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.5.12")
    for engine, rank, is_merged in (("sglang", 0, False), ("sglang", 4, True), ("vllm", 4, False)):
        check_served_adapter(engine, rank, is_merged=is_merged)

    with pytest.raises(
        ConfigError, match=r"lora_rank=4: SGLang 0\.5\.12 .* set actor_rollout_ref\.model\.lora\.merge=True"
    ):
        check_served_adapter("sglang", 4, is_merged=False)


def test_a_critic_of_fsdp_needs_flash_attention() -> None:
    check_critic_attention("fsdp2", has_flash_attention=True)
    check_critic_attention("megatron", has_flash_attention=False)
    for strategy in ("fsdp", "fsdp2"):
        with pytest.raises(ConfigError, match=rf"^verl loads the critic of critic\.strategy={strategy} with flash att"):
            check_critic_attention(strategy, has_flash_attention=False)
