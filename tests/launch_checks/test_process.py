"""pivot.process in a launch: one sentence stops it if turns could not be judged, or their rewards not be used."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.owned_settings import check_owned_settings
from verl_pivot.launch_checks.process import BY_ROW, BY_TOKEN, check_process, needs_critic, placement_of_rewards
from verl_pivot.launch_checks.resuming import check_critic
from verl_pivot.launch_checks.void_settings import check_void_settings

JUDGE = ("pivot.process.base_url=http://judge:30000/v1", "pivot.process.model=PPRM")


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["+method=ppr", *overrides])


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_process(composed(*overrides))
    return str(caught.value)


def test_a_launch_with_a_judge_passes_and_mode_outcome_needs_none() -> None:
    check_process(composed(*JUDGE))
    check_process(composed("pivot.process.base_url=[http://a:1/v1,http://b:1]", "pivot.process.model=PPRM"))
    check_process(composed("pivot.process.mode=outcome"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "pivot.process.base_url is missing: set it to the value for the judge's OpenAI-compatible endpoint, or"),
        (("pivot.process.base_url=http://judge:1",), "pivot.process.model is missing"),
        ((*JUDGE, "pivot.process.base_url=judge:30000"), "pivot.process.base_url=judge:30000: give it as http://host"),
        ((*JUDGE, "pivot.process.mode=shift"), "pivot.process.mode: Input should be 'renorm', 'sum', 'scaled'"),
        ((*JUDGE, "+pivot.process.beta=1"), "pivot.process.beta: unknown key; known: "),
        ((*JUDGE, "pivot.process.mu=2"), "pivot.process.mu: Input should be less than or equal to 1"),
        (
            (*JUDGE, "pivot.process.principles=no.yaml"),
            "pivot.process.principles: no.yaml cannot be read: No such file",
        ),
        ((*JUDGE, "pivot.process.api_key_variable=NO_SUCH_KEY"), "NO_SUCH_KEY: the environment has no such variable"),
        ((*JUDGE, "algorithm.adv_estimator=gdpo"), "algorithm.adv_estimator=gdpo is made for the outcome alone"),
        ((*JUDGE, "algorithm.adv_estimator=grpo_passk"), "and pivot.process.mode=renorm gives each turn a reward"),
        (
            (*JUDGE, "algorithm.adv_estimator=grpo"),
            "algorithm.use_kl_in_reward=True with algorithm.adv_estimator=grpo normalises by the group's",
        ),
        (
            ("pivot.process.mode=outcome", "algorithm.adv_estimator=grpo_vectorized"),
            "set algorithm.use_kl_in_reward=False",
        ),
        (
            (*JUDGE, "pivot.process.max_question_tokens=256", "pivot.rollout.max_turns=8"),
            "is too low for questions about pivot.rollout.max_turns=8 turns: raise it to 544 or more",
        ),
        ((*JUDGE, "critic.enable=False"), "critic.enable=False leaves algorithm.adv_estimator=gae without values"),
    ],
)
def test_what_cannot_be_judged_or_used_is_refused(overrides: tuple[str, ...], message: str) -> None:
    assert message in refusal(*overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "needs one or more principles"),
        ("- {name: a, text: x}\n- {name: a, text: y}", "each with a name of its own"),
        ("- {name: a}", "0.text: Field required; it must be a list of principles with name and text"),
        ("- [", "is not valid YAML"),
        ("name: a", "it must be a list of principles"),
    ],
)
def test_a_file_of_principles_that_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "principles.yaml"
    path.write_text(text)

    said = refusal(*JUDGE, f"pivot.process.principles={path}")

    assert str(path) in said
    assert message in said


def test_every_estimator_of_verl_takes_the_reward_of_each_turn_or_their_sum_or_is_refused() -> None:
    """If this fails, verl has a new estimator: add to launch_checks/process.py which rewards it takes."""
    from verl.trainer.ppo.core_algos import AdvantageEstimator

    refused = set()
    for estimator in AdvantageEstimator:
        try:
            check_process(
                composed(*JUDGE, "algorithm.use_kl_in_reward=False", f"algorithm.adv_estimator={estimator.value}")
            )
        except ConfigError:
            refused.add(estimator.value)

    assert refused == {each.value for each in AdvantageEstimator} - BY_TOKEN - BY_ROW
    assert refused == {"gdpo", "grpo_passk", "remax"}


@pytest.mark.parametrize(
    ("estimator", "taken"),
    [
        ("gae", "each turn's own reward, and those of later turns"),
        ("rloo", "the sum of a trajectory's rewards, the same on all its turns"),
        ("step_reinforce_pp", "the return of each turn, normalised over all turns of the batch"),
        ("mine", "rewards in its own way; each reward is on the last token of its turn"),
    ],
)
def test_a_launch_says_what_its_estimator_takes_of_the_rewards_of_turns(estimator: str, taken: str) -> None:
    config = composed(*JUDGE, f"algorithm.adv_estimator={estimator}")

    check_process(config)
    assert (
        placement_of_rewards(config) == f"pivot.process.mode=renorm: algorithm.adv_estimator={estimator} takes {taken}"
    )
    assert placement_of_rewards(composed("pivot.process.mode=outcome")) is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("critic.enable=True", "trains a critic whose values the estimator of steps does not read"),
        ("algorithm.lam=0.9", "does nothing, since the estimator of steps does not read it"),
        ("algorithm.norm_adv_by_std_in_grpo=False", "does nothing, since the estimator of steps does not read it"),
        ("algorithm.rollout_correction.rollout_rs=token_k1", "masks single tokens, which splits a step in two"),
    ],
)
def test_what_the_estimator_of_steps_does_not_read_is_refused_beside_it(override: str, said: str) -> None:
    steps = (*JUDGE, "algorithm.adv_estimator=step_reinforce_pp")

    check_owned_settings(composed(*steps, "algorithm.gamma=0.9"), ["+method=ppr"], [])
    with pytest.raises(ConfigError, match=said):
        check_owned_settings(composed(*steps, override), ["+method=ppr"], [override])


def test_kl_in_the_reward_goes_with_groups_that_no_deviation_divides() -> None:
    check_process(composed(*JUDGE, "algorithm.adv_estimator=rloo"))
    check_process(composed(*JUDGE, "algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=False"))


def test_verls_grpo_blows_the_kl_of_equal_rewards_up_to_whole_advantages() -> None:
    """If this fails, verl's GRPO has changed, and the launch check of algorithm.use_kl_in_reward may be removed."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    kl = torch.tensor([[0.02], [0.04], [0.06], [0.08]])
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=1.0 - 0.001 * kl, response_mask=torch.ones(4, 1), index=np.array(["a"] * 4)
    )

    assert advantages[:, 0].tolist() == pytest.approx([1.12, 0.37, -0.37, -1.12], abs=0.02)


def test_verls_own_reward_model_without_a_reward_function_would_pass_the_judge_by() -> None:
    config = composed(*JUDGE, "reward.reward_model.enable=True")

    with pytest.raises(ConfigError, match=r"reward\.custom_reward_function\.path verl uses the reward model alone"):
        check_owned_settings(config, ["+method=ppr"], [])


@pytest.mark.parametrize(
    ("override", "beside"),
    [
        ("pivot.process.mu=0.5", "pivot.process.mode=sum"),
        ("pivot.process.alpha=0.25", "pivot.process.mode=renorm"),
        ("pivot.process.max_added_principles=1", "pivot.process.form=released"),
        ("pivot.process.model=other", "pivot.process.mode=outcome"),
        ("pivot.process.per_turn=mean", "pivot.process.mode=outcome"),
        ("pivot.process.mode=sum", "pivot.rollout.max_turns=1"),
    ],
)
def test_a_setting_that_does_nothing_is_refused(override: str, beside: str) -> None:
    overrides = [*JUDGE, beside, override]

    with pytest.raises(ConfigError, match="does nothing beside"):
        check_void_settings(composed(*overrides), [override])


@pytest.mark.parametrize("key", ["mode=sum", "mu=0.5", "alpha=0.25", "per_turn=mean", "reward=gain", "invalid=zero"])
def test_how_turns_are_paid_is_refused_where_their_mean_score_is_a_term(key: str, tmp_path: Path) -> None:
    (tmp_path / "sum.yaml").write_text("terms: {paid: {value: outcome}, judged: {value: process}}\n")
    override, rewards = f"pivot.process.{key}", f"pivot.rewards={tmp_path / 'sum.yaml'}"
    config = composed(*JUDGE, override, rewards)

    with pytest.raises(ConfigError, match=r"does nothing beside a term of pivot\.rewards with the value process"):
        check_void_settings(config, [override])
    check_void_settings(composed(*JUDGE, rewards), [*JUDGE, rewards])
    assert placement_of_rewards(composed(*JUDGE, rewards)) is None
    assert placement_of_rewards(composed(*JUDGE, "pivot.rewards=course")) is not None


def test_the_critic_is_needed_where_verl_makes_one() -> None:
    from verl.trainer.ppo.utils import need_critic

    for overrides in ((), ("algorithm.adv_estimator=reinforce_plus_plus",), ("critic.enable=True",)):
        config = composed(*JUDGE, *overrides)
        with pytest.warns() if overrides[:1] == ("algorithm.adv_estimator=reinforce_plus_plus",) else _nothing():
            assert needs_critic(config) == need_critic(config)


def _nothing() -> object:
    from contextlib import nullcontext

    return nullcontext()


def test_a_checkpoint_without_a_critic_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_3"
    (folder / "actor").mkdir(parents=True)

    check_critic(None)
    with pytest.raises(ConfigError, match="global_step_3 holds no critic, and the launch trains one"):
        check_critic(folder)
    (folder / "critic").mkdir()
    check_critic(folder)
