"""A router's status -> metrics of the Ray cluster, which its Prometheus endpoint has beside all others."""

from typing import Any

from ray.util.metrics import Gauge

_OF_SERVERS = {
    "inflight": "Requests that run on a server",
    "committed_tokens": "Tokens of conversations that have a place on a server",
    "capacity_tokens": "KV cache of a server",
    "used_tokens": "Tokens in a server's KV cache, by itself",
    "queued": "Requests that wait within a server, by itself",
}
_OF_ROUTER = {
    "waiting": "Requests that wait for a server",
    "conversations": "Conversations that have begun and not ended",
    "utilisation": "Tokens that engines say are in use / their capacity",
    "imbalance": "Most requests on a server / mean",
}


class RouterGauges:
    """Named `verl_pivot_router_<name>`; counts of what happened keep their names."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def set(self, status: dict[str, Any]) -> None:
        """Take in what `Router.status` says."""
        for name, value in router_values(status).items():
            self._gauge(name, _OF_ROUTER.get(name, "Since the router began")).set(value)
        for server, values in server_values(status).items():
            for name, value in values.items():
                self._gauge(name, _OF_SERVERS[name], "server").set(value, tags={"server": server})

    def _gauge(self, name: str, description: str, *tags: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"verl_pivot_router_{name}", description, tag_keys=tags)
        return self._gauges[name]


def router_values(status: dict[str, Any]) -> dict[str, float]:
    """{name: value} of the whole router."""
    engines, inflight = status["engines"].values(), status["servers"].values()
    values = {"waiting": status["waiting"], "conversations": status["conversations"], **status["counts"]}
    if capacity := sum(engine["capacity"] for engine in engines):
        values["utilisation"] = sum(engine["used"] for engine in engines) / capacity
    if total := sum(inflight):
        values["imbalance"] = max(inflight) * len(inflight) / total
    return values


def server_values(status: dict[str, Any]) -> dict[str, dict[str, float]]:
    """{server: {name: value}}."""
    values: dict[str, dict[str, float]] = {
        server: {"inflight": status["servers"][server], "committed_tokens": tokens["committed"]}
        for server, tokens in status["tokens"].items()
    }
    for server, engine in status["engines"].items():
        values[server] |= {
            "capacity_tokens": engine["capacity"],
            "used_tokens": engine["used"],
            "queued": engine["num_waiting"],
        }
    return values
