"""A router's YAML, checked: which policy schedules, and its limits."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from verl_pivot.routing.baselines import CacheAware, KvAdmission, LeastInflight, Static
from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.policy import Policy
from verl_pivot.settings import validated


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CacheAwareOptions(_Section):
    """Names and defaults of SGLang's gateway."""

    cache_threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    balance_abs_threshold: Annotated[int, Field(ge=0)] = 64
    balance_rel_threshold: Annotated[float, Field(ge=1.0)] = 1.5


class LeastInflightOptions(_Section):
    max_sessions: Annotated[int, Field(ge=1)] | None = 10_000
    """Conversations that are remembered; null: all."""


class StaticOptions(_Section):
    num_conversations: Annotated[int, Field(ge=1)] = 1024
    """Rollouts of a step: data.train_batch_size * rollout.n."""


class RouterSettings(_Section):
    """Keys of a router's YAML; see configs/router/kv_forecast.yaml for what they mean to a user."""

    router_class: str = "verl_pivot.routing.kv_router.KvRouter"
    """Read by verl."""
    policy: Literal["kv_forecast", "kv_admission", "cache_aware", "least_inflight", "static"] = "kv_forecast"
    max_response_tokens: Annotated[int, Field(ge=1)]
    poll_seconds: Annotated[float, Field(gt=0.0)] = 2.0
    forget_after_seconds: Annotated[float, Field(gt=0.0)] = 1800.0
    kv_forecast: ForecastOptions = ForecastOptions()
    cache_aware: CacheAwareOptions = CacheAwareOptions()
    least_inflight: LeastInflightOptions = LeastInflightOptions()
    static: StaticOptions = StaticOptions()


_POLICIES: dict[str, Callable[[RouterSettings], Policy]] = {
    "kv_forecast": lambda chosen: KvForecast(budget=chosen.max_response_tokens, options=chosen.kv_forecast),
    "kv_admission": lambda chosen: KvAdmission(budget=chosen.max_response_tokens),
    "cache_aware": lambda chosen: CacheAware(**chosen.cache_aware.model_dump()),
    "least_inflight": lambda chosen: LeastInflight(max_sessions=chosen.least_inflight.max_sessions),
    "static": lambda chosen: Static(num_conversations=chosen.static.num_conversations),
}


def parse_router(values: object, place: str) -> RouterSettings:
    """The settings in a YAML or under `pivot.router`.

    Raises:
        ConfigError: Naming the key, and of an unknown one those that are known.
    """
    return validated(RouterSettings, values, place)


def make_policy(settings: RouterSettings) -> Policy:
    """A new one, without servers."""
    return _POLICIES[settings.policy](settings)
