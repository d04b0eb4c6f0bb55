"""ServerMemory: the servers of a shard, kept by the Ray cluster, so that they outlive the shard's actor."""

from collections.abc import Mapping
from typing import Any

import ray
from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_NAMESPACE = "verl_pivot_router"


class ServerMemory:
    """The servers of one shard, in the key-value store of the Ray cluster."""

    def __init__(self, actor_id: str) -> None:
        """`actor_id` is Ray's id of the shard's actor, which stays the same when Ray restarts it."""
        self._key = actor_id

    def save(self, servers: Mapping[str, Any]) -> None:
        """Keep {server: handle of its actor} in place of those before."""
        _internal_kv_put(self._key, cloudpickle.dumps(dict(servers)), namespace=_NAMESPACE)

    def load(self) -> dict[str, Any] | None:
        """{server: handle of its actor}; None if none were ever kept."""
        kept = _internal_kv_get(self._key, namespace=_NAMESPACE)
        return None if kept is None else cloudpickle.loads(kept)


def memory_of(actor: Any) -> ServerMemory:
    """The servers of the shard of an actor, given Ray's handle of it."""
    return ServerMemory(actor._actor_id.hex())


def own_memory() -> ServerMemory:
    """The servers of the shard of the actor that calls."""
    return ServerMemory(ray.get_runtime_context().get_actor_id())
