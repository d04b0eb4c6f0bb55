"""pivot.objective in a launch: what it sets, and what contradicts it."""

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import InstantiationException
from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.launch import check_config
from verl_pivot.objective.settings import OBJECTIVES

ACTOR = "actor_rollout_ref.actor"


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["+method=pivotrl", "data.train_files=pivots.parquet", *overrides])


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_config(composed(*overrides), overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("objective", "loss_mode", "loss_agg_mode", "clip_ratio_c"),
    [
        ("paper", "pivot_action", "seq-mean-token-sum", 1e9),
        ("nemo_rl", "vanilla", "token-mean", 1e9),
        ("verl", "vanilla", "seq-mean-token-mean", 3.0),
    ],
)
def test_an_objective_sets_verls_loss_and_its_aggregation(
    objective: str, loss_mode: str, loss_agg_mode: str, clip_ratio_c: float
) -> None:
    config = composed(f"pivot.objective={objective}")
    actor = config.actor_rollout_ref.actor

    check_config(config, [])
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode, actor.clip_ratio_c) == (
        loss_mode, loss_agg_mode, clip_ratio_c,
    )  # fmt: skip
    assert objective in OBJECTIVES


def test_the_papers_objective_is_the_default() -> None:
    actor = composed().actor_rollout_ref.actor

    check_config(composed(), [])
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == ("pivot_action", "seq-mean-token-sum")


def test_the_objective_verl_takes_what_the_command_sets() -> None:
    config = composed("pivot.objective=verl", f"{ACTOR}.loss_agg_mode=token-sum", f"{ACTOR}.policy_loss.loss_mode=gspo")

    check_config(config, [])

    assert config.actor_rollout_ref.actor.loss_agg_mode == "token-sum"


def test_both_bounds_of_the_clip_reach_the_loss_and_the_one_that_verl_does_not_read_is_not_set() -> None:
    actor = composed(f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.28").actor_rollout_ref.actor

    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.28)


def test_an_unknown_objective_is_refused() -> None:
    assert refusal("pivot.objective=papers") == "unknown pivot.objective=papers; known: paper, nemo_rl, verl"


@pytest.mark.parametrize(
    ("objective", "setting", "value"),
    [
        ("paper", "loss_agg_mode=token-mean", "seq-mean-token-sum"),
        ("paper", "clip_ratio_c=3.0", "1000000000.0"),
        ("paper", "policy_loss.loss_mode=vanilla", "pivot_action"),
        ("nemo_rl", "loss_agg_mode=seq-mean-token-mean", "token-mean"),
        ("nemo_rl", "policy_loss.loss_mode=gspo", "vanilla"),
    ],
)
def test_a_setting_that_contradicts_the_objective_is_refused(objective: str, setting: str, value: str) -> None:
    assert refusal(f"pivot.objective={objective}", f"{ACTOR}.{setting}") == (
        f"{ACTOR}.{setting} contradicts pivot.objective={objective}, which needs {value}: leave it out, or set "
        "pivot.objective=verl to choose it yourself"
    )


def test_a_library_of_ones_own_goes_beside_the_module_that_registers_the_loss() -> None:
    key, paper = "actor_rollout_ref.model.external_lib", "pivot.objective=paper"
    both = f"{key}=[mine,verl_pivot.objective.policy_loss]"

    assert refusal(paper, f"{key}=mine").endswith(f"set {both}")
    assert refusal(paper, f"{key}=null").endswith(f"set {key}=[verl_pivot.objective.policy_loss]")
    check_config(composed(paper, both), [])
    check_config(composed("pivot.objective=nemo_rl", f"{key}=mine"), [])


def test_verl_imports_a_list_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, users cannot load a library of their own beside ours: see launch_checks/objective.py."""
    from verl.utils.config import omega_conf_to_dataclass

    imported: list[object] = []
    monkeypatch.setattr("verl.workers.config.model.import_external_libs", imported.append)
    model = composed("actor_rollout_ref.model.external_lib=[json,os]", "actor_rollout_ref.model.path=/nowhere")

    with pytest.raises(InstantiationException, match="/nowhere"):
        omega_conf_to_dataclass(model.actor_rollout_ref.model)

    assert imported == [["json", "os"]]
    assert type(imported[0]) is list


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus"])
def test_advantages_that_differ_within_an_action_are_refused(estimator: str) -> None:
    override = f"algorithm.adv_estimator={estimator}"

    assert f"{override} gives tokens of one action different advantages" in refusal("pivot.objective=paper", override)
    check_config(composed("pivot.objective=nemo_rl", override), [])


def test_weights_that_differ_within_an_action_are_refused() -> None:
    key = "algorithm.rollout_correction.rollout_is"

    assert refusal("pivot.objective=paper", f"{key}=token").endswith("weighs whole actions: set it to sequence")
    check_config(composed("pivot.objective=paper", f"{key}=sequence"), [])
