"""routing.gauges: the values that a router's status gives its gauges."""

from verl_pivot.routing.engine_load import EngineLoad
from verl_pivot.routing.gauges import router_values, server_values
from verl_pivot.routing.router import Router
from verl_pivot.routing.settings import make_routing_policy, parse_router


async def test_gauges_show_the_routers_own_accounts_and_no_capacity_that_is_not_known() -> None:
    """Two requests of 100 tokens run on a server that holds 1,000; another server has reported nothing."""
    chosen = parse_router({"policy": "static", "max_response_tokens": 100}, "test")
    router = Router(make_routing_policy(chosen), lambda: 0.0, forget_after_seconds=60.0)
    router.add_server("a", EngineLoad(capacity=1_000, num_requests=7, max_running=64))
    for number in range(2):
        await router.acquire(f"on a/{number}", 100, f"prompt {number}", reports_end=True)
    router.add_server("b", None)
    router.remove_server("c")
    router.observe("a", EngineLoad(capacity=1_000, num_requests=9, max_running=64))

    status = router.status()

    assert status["max_running"] == {"a": 64}
    assert server_values(status) == {
        "a": {"inflight": 2, "committed_tokens": 200, "capacity_tokens": 1_000},
        "b": {"inflight": 0, "committed_tokens": 0},
    }
    values = router_values(status)
    assert (values["utilisation"], values["imbalance"], values["waiting"], values["ignored"]) == (0.2, 2.0, 0, 1)


def test_a_router_without_servers_has_neither_utilisation_nor_imbalance() -> None:
    chosen = parse_router({"policy": "static", "max_response_tokens": 100}, "test")
    router = Router(make_routing_policy(chosen), lambda: 0.0, forget_after_seconds=60.0)

    assert not {"utilisation", "imbalance"} & router_values(router.status()).keys()
