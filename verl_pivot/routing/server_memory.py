"""ServerMemory: the servers of a shard, kept by the Ray cluster, so that they outlive the shard's actor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

_NAMESPACE = "verl_pivot_router"


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The servers of one shard, in the key-value store of the Ray cluster.

    An actor gets this object instead of its servers. Ray puts handles of other actors into its object store, and does
    not restart an actor whose arguments lie there.
    """

    key: str = field(default_factory=lambda: uuid4().hex)

    def save(self, servers: Mapping[str, Any]) -> None:
        """Store {server: handle of its actor} in place of what was stored before."""
        _internal_kv_put(self.key, cloudpickle.dumps(dict(servers)), namespace=_NAMESPACE)

    def load(self) -> dict[str, Any]:
        """{server: handle of its actor}, as it was stored last."""
        servers: dict[str, Any] = cloudpickle.loads(_internal_kv_get(self.key, namespace=_NAMESPACE))
        return servers


def remembered(servers: Mapping[str, Any]) -> ServerMemory:
    """A new memory of {server: handle of its actor}."""
    memory = ServerMemory()
    memory.save(servers)
    return memory
