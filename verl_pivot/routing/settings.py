"""Content of a router YAML, or of `pivot.router` -> RouterSettings -> the routing policy that they name."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.routing.baselines import CacheAware, KvAdmission, LeastInflight, Static
from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.routing_policy import RoutingPolicy
from verl_pivot.validation import Options, validated


class CacheAwareOptions(Options):
    """Options of `cache_aware`, with the names and defaults of SGLang's gateway."""

    cache_threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3
    """Share of a request's tokens that a server must have cached to be chosen for its cache."""
    balance_abs_threshold: Annotated[int, Field(ge=0)] = 64
    """Number of requests by which the busiest server may exceed the idlest before load alone decides."""
    balance_rel_threshold: Annotated[float, Field(ge=1.0)] = 1.5
    """Ratio of the busiest server's number of requests to the idlest server's, which must be exceeded too."""


class LeastInflightOptions(Options):
    """Options of `least_inflight`."""

    max_sessions: Annotated[int, Field(ge=1)] | None = 10_000
    """Maximum number of conversations whose server is remembered; null remembers all."""


class StaticOptions(Options):
    """Options of `static`."""

    num_conversations: Annotated[int, Field(ge=1)] = 1024
    """Number of rollouts of a step: data.train_batch_size * rollout.n."""


class RouterSettings(Options):
    """Settings of a router: the keys of its YAML, see configs/router/kv_forecast.yaml."""

    router_class: str = "verl_pivot.routing.router_actor.KvRouter"
    """Class of the router actor, which verl reads."""
    policy: Literal["kv_forecast", "kv_admission", "cache_aware", "least_inflight", "static"] = "kv_forecast"
    """Name of the routing policy."""
    max_response_tokens: Annotated[int, Field(ge=1)]
    """Maximum number of tokens in the response of a whole conversation, observations of tools included."""
    engines_per_shard: Annotated[int, Field(ge=1)] = 64
    """Maximum number of engines that one actor of the router serves. More engines are divided among several actors, see
    `routing.shards`."""
    poll_seconds: Annotated[float, Field(gt=0.0)] = 2.0
    """Seconds between two reads of an engine's load."""
    forget_after_seconds: Annotated[float, Field(gt=0.0)] = 1800.0
    """Seconds without a call after which a conversation counts as over."""
    kv_forecast: ForecastOptions = ForecastOptions()
    cache_aware: CacheAwareOptions = CacheAwareOptions()
    least_inflight: LeastInflightOptions = LeastInflightOptions()
    static: StaticOptions = StaticOptions()

    def for_shard(self, num_shards: int) -> "RouterSettings":
        """The settings for the router of one of `num_shards` shards, which gets an equal share of the conversations."""
        sessions = self.least_inflight.max_sessions
        return self.model_copy(
            update={
                "least_inflight": LeastInflightOptions(
                    max_sessions=None if sessions is None else math.ceil(sessions / num_shards)
                ),
                "static": StaticOptions(num_conversations=math.ceil(self.static.num_conversations / num_shards)),
            }
        )


_ROUTING_POLICIES: dict[str, Callable[[RouterSettings], RoutingPolicy]] = {
    "kv_forecast": lambda settings: KvForecast(budget=settings.max_response_tokens, options=settings.kv_forecast),
    "kv_admission": lambda settings: KvAdmission(budget=settings.max_response_tokens),
    "cache_aware": lambda settings: CacheAware(**settings.cache_aware.model_dump()),
    "least_inflight": lambda settings: LeastInflight(max_sessions=settings.least_inflight.max_sessions),
    "static": lambda settings: Static(num_conversations=settings.static.num_conversations),
}


def parse_router(values: object, section: str) -> RouterSettings:
    """The checked settings of a router.

    Args:
        values: Content of the YAML, or of `pivot.router`.
        section: Name that messages put before the key.

    Raises:
        ConfigError: If a key is wrong; the message names the first such key, and lists the known keys if it is unknown.
    """
    return validated(RouterSettings, values, section)


def make_routing_policy(settings: RouterSettings) -> RoutingPolicy:
    """A new routing policy without servers."""
    return _ROUTING_POLICIES[settings.policy](settings)
