"""Settings of verl that +method=l0 owns, and settings that do not work with its advantages of steps: OwnedSettings."""

from verl_pivot.advantages.steps import STEP_ESTIMATOR
from verl_pivot.hooks import TOOL_METHODS
from verl_pivot.launch_checks.owned_setting import Launch, OwnedSetting, changed, other_than

NOTEBOOK_LOOP = "pivot_notebook"
"""Name of this package's agent loop with a notebook, the only one that gives returns to steps."""
_L0 = ("+method=l0",)
_STEPS = (*_L0, "+method=ppr")
_OTHERS = tuple(f"+method={each}" for each in ("pivotrl", *TOOL_METHODS))
_ACTOR = "actor_rollout_ref.actor"
_AGENT = "actor_rollout_ref.rollout.agent"
_ESTIMATOR = "algorithm.adv_estimator"
ESTIMATORS = (STEP_ESTIMATOR, "grpo")
"""Estimators that work with trajectories of several rows."""


def has_steps(launch: Launch) -> bool:
    """Whether the launch has advantages of steps."""
    return bool(launch.value(_ESTIMATOR) == STEP_ESTIMATOR)


def _estimator(launch: Launch, key: str) -> str | None:
    return None if launch.value(key) in ESTIMATORS else key


def _foreign_estimator(launch: Launch, key: str) -> str | None:
    return key if has_steps(launch) and launch.value("pivot.process") is None else None


def _kl_in_reward(launch: Launch, key: str) -> str | None:
    return key if has_steps(launch) and launch.value(key) else None


def _changed_beside_steps(launch: Launch, key: str) -> str | None:
    return changed(launch, key) if has_steps(launch) else None


def _token_rejection(launch: Launch, key: str) -> str | None:
    return key if has_steps(launch) and "token" in str(launch.value(key)) else None


def _mini_batch(launch: Launch, key: str) -> str | None:
    is_read = launch.value("trainer.v1.trainer_mode") == "separate_async"  # as the size of each batch in a step
    return None if is_read or launch.value(key) == launch.value("data.train_batch_size") else key


def _critic(launch: Launch, key: str) -> str | None:
    return key if launch.value(key) else None


def _critic_beside_steps(launch: Launch, key: str) -> str | None:
    return key if has_steps(launch) and launch.value(key) else None


STEP_SETTINGS = (
    OwnedSetting(
        key=_ESTIMATOR,
        parts=_L0,
        effect="treats each row of a trajectory as a separate rollout",
        remedy=f"leave it out for {STEP_ESTIMATOR}, which gives each step an advantage, or set grpo, which gives each "
        "trajectory one from its answer alone",
        misused=_estimator,
    ),
    OwnedSetting(
        key=_ESTIMATOR,
        parts=_OTHERS,
        effect="needs rewards of steps or turns, which only +method=l0 and +method=ppr give",
        remedy="use one of these methods, or set another estimator",
        misused=_foreign_estimator,
    ),
    OwnedSetting(
        key="algorithm.use_kl_in_reward",
        parts=_L0,
        effect="subtracts a penalty at each token, but the estimator reads one reward in each step",
        remedy=f"leave it out, and set {_ACTOR}.kl_loss_coef",
        misused=_kl_in_reward,
    ),
    OwnedSetting(
        key="algorithm.rollout_correction.rollout_rs",
        parts=_STEPS,
        effect="masks single tokens, which splits a step in two for the estimator",
        remedy="reject whole rows, for example with seq_mean_k1",
        misused=_token_rejection,
    ),
    *(
        OwnedSetting(
            key=key,
            parts=parts,
            effect="does nothing, since the estimator of steps does not read it",
            remedy=remedy,
            misused=_changed_beside_steps,
        )
        for key, parts, remedy in (
            ("algorithm.gamma", _L0, "set pivot.notebook.gamma"),
            ("algorithm.lam", _STEPS, "leave it out"),
            ("algorithm.norm_adv_by_std_in_grpo", _STEPS, "leave it out"),
        )
    ),
    OwnedSetting(
        key=f"{_ACTOR}.ppo_mini_batch_size",
        parts=_L0,
        effect="does nothing, since each batch is one update, whatever the number of its rows",
        remedy="leave it out, and set data.train_batch_size",
        misused=_mini_batch,
    ),
    OwnedSetting(
        key="critic.enable",
        parts=_L0,
        effect="trains a critic whose values no estimator of the method reads",
        remedy="leave it out",
        misused=_critic,
    ),
    OwnedSetting(
        key="critic.enable",
        parts=("+method=ppr",),
        effect="trains a critic whose values the estimator of steps does not read",
        remedy="leave it out",
        misused=_critic_beside_steps,
    ),
    OwnedSetting(
        key=f"{_AGENT}.agent_loop_manager_class",
        parts=_L0,
        effect="switches off the manager that marks validation prompts, which are scored by the answer alone",
        remedy="leave it out, or name the class of this package, or your own subclass of it",
        misused=lambda launch, key: key if launch.value(key) is None else None,
    ),
    OwnedSetting(
        key=f"{_AGENT}.default_agent_loop",
        parts=_L0,
        effect="chooses an agent loop that gives steps no returns",
        remedy=f"leave it out, or register your own agent loop that gives them under the name {NOTEBOOK_LOOP}",
        misused=other_than(NOTEBOOK_LOOP),
    ),
)
"""Settings in the order in which they are checked."""
