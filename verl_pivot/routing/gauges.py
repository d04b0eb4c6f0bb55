"""Status of a router -> gauges `verl_pivot_router_*` on the Ray cluster's Prometheus endpoint."""

from collections.abc import Iterator

from ray.util.metrics import Gauge

from verl_pivot.routing.router_state import RouterStatus

_SERVER_GAUGES = {
    "inflight": "Requests that run on a server",
    "committed_tokens": "Tokens of conversations that are assigned to a server",
    "capacity_tokens": "Tokens that a server's KV cache holds",
}
_ROUTER_GAUGES = {
    "waiting": "Requests that wait for a server",
    "conversations": "Conversations in progress",
    "utilisation": "Committed tokens / capacity, over all servers whose capacity is known",
    "imbalance": "Requests on the busiest server / mean over the servers",
}


class RouterGauges:
    """Prometheus gauges `verl_pivot_router_<name>`; those of RouterCounts have the names of its fields."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def set(self, status: RouterStatus) -> Iterator[None]:
        """Set all gauges to the values of a status; yields after each gauge, since 64 servers have 200 gauges."""
        for name, value in router_values(status).items():
            self._gauge(name, _ROUTER_GAUGES.get(name, "Count since the router started")).set(value)
            yield
        for server, values in server_values(status).items():
            for name, value in values.items():
                self._gauge(name, _SERVER_GAUGES[name], "server").set(value, tags={"server": server})
                yield

    def _gauge(self, name: str, description: str, *tags: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"verl_pivot_router_{name}", description, tag_keys=tags)
        return self._gauges[name]


def router_values(status: RouterStatus) -> dict[str, float]:
    """{gauge: value} for the gauges of the whole router."""
    inflight = status["servers"].values()
    known = [tokens for tokens in status["tokens"].values() if tokens["capacity"] is not None]
    values: dict[str, float] = {
        "waiting": status["waiting"],
        "conversations": status["conversations"],
        **status["counts"],
    }
    if capacity := sum(tokens["capacity"] or 0 for tokens in known):
        values["utilisation"] = sum(tokens["committed"] for tokens in known) / capacity
    if total := sum(inflight):
        values["imbalance"] = max(inflight) * len(inflight) / total
    return values


def server_values(status: RouterStatus) -> dict[str, dict[str, float]]:
    """{server: {gauge: value}} for the gauges of each server."""
    values: dict[str, dict[str, float]] = {}
    for server, tokens in status["tokens"].items():
        values[server] = {"inflight": status["servers"][server], "committed_tokens": tokens["committed"]}
        if tokens["capacity"] is not None:
            values[server]["capacity_tokens"] = tokens["capacity"]
    return values
