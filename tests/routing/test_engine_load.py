"""routing.engine_load: when servers are polled, and what vLLM answers; SGLang is in the tests of the router's actor."""

import re
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.support.web_servers import running
from verl_pivot.errors import EngineError
from verl_pivot.routing.engine_load import EngineLoad, parse_metrics, poll_share, read_load


@given(st.integers(2, 1_000))
def test_polls_of_any_number_of_servers_are_spread_over_the_period(num_servers: int) -> None:
    """The longest gap between two polls is at most 2.7 times the mean gap, and the shortest at least 0.38 times."""
    shares = sorted(poll_share(number) for number in range(num_servers))
    gaps = [later - earlier for earlier, later in pairwise([*shares, 1.0 + shares[0]])]

    assert max(gaps) < 2.7 / num_servers
    assert min(gaps) > 0.38 / num_servers


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/models/Qwen2.5-0.5B \\"mine\\""} 7.0
vllm:num_requests_running{engine="1",model_name="/models/Qwen2.5-0.5B \\"mine\\""} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="/models/Qwen2.5-0.5B \\"mine\\""} 3.0
vllm:num_requests_waiting{engine="1",model_name="/models/Qwen2.5-0.5B \\"mine\\""} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="/models/Qwen2.5-0.5B \\"mine\\""} 0.25
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="573",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="570",sliding_window="None"} 1.0
# HELP vllm:request_success_total Count of successfully processed requests.
vllm:request_success_total{engine="0",finished_reason="stop"} 1.2e+06
"""
"""Metrics in the format of vLLM 0.11, with two data-parallel engines."""


def test_the_load_of_vllm_is_that_of_all_its_engines() -> None:
    assert parse_metrics(VLLM) == EngineLoad(capacity=(573 + 570) * 16, num_requests=12, max_running=None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "with actor_rollout_ref.rollout.disable_log_stats=False"),
        (VLLM.replace("vllm:", "other:"), "with actor_rollout_ref.rollout.disable_log_stats=False"),
        (VLLM.replace('"573"', '"None"'), "has num_gpu_blocks='None' and block_size='16'"),
        (VLLM.replace('"570"', '"None"'), "has num_gpu_blocks='None' and block_size='16'"),
        (re.sub(r"\} .*", "} 1.2.3", VLLM), "with actor_rollout_ref.rollout.disable_log_stats=False"),
    ],
)
def test_metrics_without_a_capacity_are_no_load(text: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        parse_metrics(text)


async def test_a_server_without_sglangs_loads_is_asked_for_its_metrics() -> None:
    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with running(app) as url, aiohttp.ClientSession() as session:
        load = await read_load(session, url.removeprefix("http://"))

    assert load.capacity == 18_288


async def metrics(request: web.Request) -> web.Response:
    return web.Response(text=VLLM)
