"""The study with a real model and on a GPU: its launches against those on the CPU, and folders that are refused."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from hydra import compose, initialize_config_module  # noqa: E402

from examples.study.arms import Arm, ArmKind  # noqa: E402
from examples.study.claims import read_design  # noqa: E402
from examples.study.models import study_model  # noqa: E402
from examples.study.request import StudyRequest  # noqa: E402
from examples.study.study import Study  # noqa: E402
from verl_pivot.errors import ConfigError  # noqa: E402
from verl_pivot.local.environment import has_accelerator  # noqa: E402
from verl_pivot.smoke.tiny_model import write_tokenizer  # noqa: E402

DESIGN = read_design()
STUDY = DESIGN.study
MUST_DIFFER = {
    "+local", "pivot.trial_steps",  # set on the CPU only
    "trainer.nnodes", "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.enforce_eager", "actor_rollout_ref.model.use_remove_padding",
    "+actor_rollout_ref.model.override_config.attn_implementation", "trainer.logger",
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend",
    "+actor_rollout_ref.rollout.engine_kwargs.sglang.sampling_backend", "++ray_kwargs.ray_init.address",
}  # fmt: skip
"""Keys in which a launch on a GPU may differ from one on the CPU."""
OF_A_MODEL = {
    "actor_rollout_ref.model.path", "actor_rollout_ref.actor.optim.lr", "data.max_prompt_length",
    "data.max_response_length", "pivot.max_turn_tokens", "pivot.rollout.max_turn_tokens",
    "+pivot.rollout.max_turn_tokens", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
}  # fmt: skip
"""Keys in which a launch of a given model on a GPU may differ from one of the study's own model there."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder like that of a real model; these tests never read its weights."""
    folder = write_tokenizer(tmp_path_factory.mktemp("weights") / "a-model")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    return folder


def study_of(folder: Path, *, gpu: bool, model: Path | None = None) -> Study:
    return StudyRequest(out=folder, seeds="1", gpu=gpu, model=model).study(Console(quiet=True))


def command(study: Study, arm: Arm) -> list[str]:
    return study.seeds[0].training_of(arm.name).command


def keys_that_differ(one: list[str], other: list[str]) -> set[str]:
    return {argument.partition("=")[0] for argument in set(one) ^ set(other)}


@pytest.mark.skipif(has_accelerator(), reason="on a GPU both are the same")
@pytest.mark.parametrize("arm", STUDY.all_arms, ids=lambda arm: arm.name)
def test_a_launch_on_a_gpu_differs_from_the_cpus_only_as_it_must(arm: Arm, tmp_path: Path, checkpoint: Path) -> None:
    cpu, gpu = (command(study_of(tmp_path, gpu=on_gpu), arm) for on_gpu in (False, True))
    given = command(study_of(tmp_path, gpu=True, model=checkpoint), arm)

    assert "+local=cpu" in cpu
    assert not [each for each in (*gpu, *given) if each.startswith("+local")]
    # tuned.yaml has rates of the tiny policy alone.
    best = None if DESIGN.tuned is None else DESIGN.tuned.best(arm.name)
    rate = {"actor_rollout_ref.actor.optim.lr"} if best and best.learning_rate != arm.learning_rate else set()
    assert {"+local", "trainer.n_gpus_per_node", *rate} <= keys_that_differ(cpu, gpu) <= MUST_DIFFER | rate
    assert keys_that_differ(gpu, given) <= OF_A_MODEL


@pytest.mark.parametrize("arm", STUDY.arms, ids=lambda arm: arm.name)
def test_a_launch_of_a_given_model_on_a_gpu_composes(arm: Arm, tmp_path: Path, checkpoint: Path) -> None:
    study = study_of(tmp_path, gpu=True, model=checkpoint)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=command(study, arm)[3:])

    assert config.trainer.n_gpus_per_node == 1
    assert config.actor_rollout_ref.rollout.name in ("sglang", "vllm")
    assert config.actor_rollout_ref.rollout.engine_kwargs.sglang.get("device") != "cpu"
    assert config.pivot.get("trial_steps") is None
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 3072)
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 2
    if arm.kind in (ArmKind.TURNS, ArmKind.TASKS):
        assert config.actor_rollout_ref.actor.optim.lr == pytest.approx(1e-6)
        assert config.actor_rollout_ref.model.path == str(checkpoint)


def test_a_given_model_has_no_unit_for_its_policy_and_stands_behind_the_hash(tmp_path: Path, checkpoint: Path) -> None:
    study = study_of(tmp_path, gpu=True, model=checkpoint)

    assert study.stages[0][0].arm == "profile"
    (seed,) = study.seeds
    assert seed.policy == checkpoint
    assert seed.model.name.startswith("a-model, weights ")
    assert seed.digest.endswith(f" with model={seed.model.name.replace(' ', '_')}")
    about = study.results.about
    assert (about.policy, about.options) == (seed.model.name, ("--model", "a-model", "--gpu"))
    assert not about.is_taught_at_random
    assert str(tmp_path) not in " ".join(about.arms["pivotrl"].command)
    assert "actor_rollout_ref.model.path=MODEL" in about.arms["pivotrl"].command


def test_without_weights_a_gpu_teaches_a_wide_model_as_the_tiny_one_is_taught(tmp_path: Path) -> None:
    wide, tiny = (study_model(None, on_gpu=on_gpu) for on_gpu in (True, False))

    lessons, own = wide.settings(1), tiny.settings(1)
    changed = {"hidden_size": 896, "head_size": 64, "num_layers": 24, "learning_rate": 3e-4, "model": wide.name}
    assert lessons == {**own, **changed}
    assert study_of(tmp_path, gpu=True).results.about.is_taught_at_random
    assert wide.lengths == tiny.lengths


@pytest.mark.skipif(has_accelerator(), reason="needs a machine without a GPU")
def test_a_study_on_a_gpu_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="--gpu: torch sees no GPU on this machine"):
        study_model(None, on_gpu=True).check_machine()
    study_model(None, on_gpu=False).check_machine()


@pytest.mark.parametrize(
    ("removed", "problem"),
    [
        (("tokenizer.json", "tokenizer_config.json"), "has weights but no tokenizer: copy tokenizer.json"),
        (("model.safetensors",), "has no weights"),
        (("config.json",), "has no config.json"),
        (("chat_template.jinja",), "has no chat template"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(
    removed: tuple[str, ...], problem: str, checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "copy")
    for name in removed:
        (folder / name).unlink()

    with pytest.raises(ConfigError, match=problem):
        study_model(folder, on_gpu=True)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        study_model(tmp_path / "missing", on_gpu=False)
