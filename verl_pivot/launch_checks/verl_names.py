"""Names in a launch that verl looks up in its registries -> an error for one that is in none of them."""

from collections.abc import Collection
from importlib.util import find_spec
from warnings import catch_warnings, simplefilter

from omegaconf import DictConfig, OmegaConf
from rapidfuzz.distance import OSA

from verl_pivot.advantages.steps import STEP_ESTIMATOR
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.objective import LOSS_MODULE
from verl_pivot.objective.settings import ACTION_LOSS


def check_verl_names(config: DictConfig) -> None:
    """Refuse a trainer mode, logger, advantage estimator, policy loss or rollout engine that verl does not know.

    verl itself says so when it first needs them: after the engines are up, or after the first rollouts. A library that
    `actor_rollout_ref.model.external_lib` names may register its own estimators and losses. If the launch has such a
    library, both are left to verl.

    Raises:
        ConfigError: Naming the key, the nearest name that verl knows, and all names.
    """
    if find_spec("verl") is None:
        return
    with catch_warnings():
        simplefilter("ignore")  # verl warns of each engine that is not installed
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
        from verl.utils.tracking import Tracking
        from verl.workers.rollout.replica import RolloutReplicaRegistry

    _check(config, "trainer.v1.trainer_mode", TRAINER_REGISTRY)
    for name in _listed(config.trainer.logger):
        _check_name("trainer.logger", str(name), (*Tracking.supported_backend, "tracking"))
    if OmegaConf.is_missing(config.actor_rollout_ref.rollout, "name"):
        raise ConfigError("add the rollout engine to the command: actor_rollout_ref.rollout.name=sglang, or vllm")
    _check(config, "actor_rollout_ref.rollout.name", RolloutReplicaRegistry._registry)
    if _has_other_library(config.actor_rollout_ref.model.external_lib):
        return
    _check(config, "algorithm.adv_estimator", {*ADV_ESTIMATOR_REGISTRY, STEP_ESTIMATOR})
    _check(config, "actor_rollout_ref.actor.policy_loss.loss_mode", {*POLICY_LOSS_REGISTRY, ACTION_LOSS})


def _check(config: DictConfig, key: str, known: Collection[str]) -> None:
    _check_name(key, str(OmegaConf.select(config, key)), known)


def _check_name(key: str, name: str, known: Collection[str]) -> None:
    names = sorted(str(getattr(each, "value", each)) for each in known)
    if name in names:
        return
    nearest = min(names, key=lambda each: OSA.distance(name, each))
    raise ConfigError(f"verl does not know {key}={name}: did you mean {nearest}? Known: {', '.join(names)}")


def _has_other_library(named: object) -> bool:
    return any(library not in (None, LOSS_MODULE) for library in _listed(named))


def _listed(named: object) -> list[object]:
    """The value of a key that takes a name or a list of names."""
    if named is None:
        return []
    return [named] if isinstance(named, str) else list(named)  # type: ignore[call-overload]
