"""Address of an SGLang or vLLM server -> EngineLoad: its KV capacity, its requests and how many it runs at once."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, NamedTuple

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from verl_pivot.errors import EngineError
from verl_pivot.validation import first_problem

_GOLDEN_SECTION = (5**0.5 - 1) / 2
"""Part of a period between the polls of two servers: its multiples spread any number of servers evenly."""
_LABEL = re.compile(r'\b(\w++)="((?:[^"\\]|\\.)*+)"', re.ASCII)
_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Disaggregation(BaseModel):
    """Role of a server in a prefill-decode pair, with SGLang's names."""

    mode: str
    """prefill, decode, or null where the server does both."""


class _RankLoad(BaseModel):
    """Load of one data-parallel rank, with SGLang's names."""

    num_running_reqs: _Count
    num_waiting_reqs: _Count
    max_total_num_tokens: Annotated[int, Field(ge=1, lt=2**53)]
    max_running_requests: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """None from servers that do not report it."""
    disaggregation: _Disaggregation | None = None
    """None from servers that do not report it."""


class _LoadsResponse(BaseModel):
    """Answer of a server's `/v1/loads`."""

    loads: Annotated[list[_RankLoad], Field(min_length=1)]


class EngineLoad(BaseModel):
    """Load of one server, summed over its data-parallel ranks."""

    capacity: int
    """Tokens that the KV cache holds."""
    num_requests: int
    """Requests that the engine runs or has in its own queue."""
    max_running: int | None = None
    """Maximum number of requests that the engine runs at once; None if the engine does not report it."""
    is_prefill_half: bool = False
    """Whether the server only prefills, and another one decodes, which verl does not name to the router. The numbers
    here are then not those of the pair."""

    @property
    def limits(self) -> tuple[int, int | None] | None:
        """KV tokens and requests that the engine takes; None if they are not known."""
        return None if self.is_prefill_half else (self.capacity, self.max_running)


def poll_share(number: int) -> float:
    """Share of a period after which a server is polled, by its number, so that all are polled at different moments."""
    return number * _GOLDEN_SECTION % 1.0


class _MetricSample(NamedTuple):
    """One line of Prometheus' text format."""

    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> EngineLoad:
    """Load of a vLLM server from its `/metrics`, which do not say how many requests it runs at once.

    Args:
        text: The metrics in Prometheus' text format.

    Raises:
        EngineError: If the metrics are not those of vLLM, or vLLM keeps no statistics.
    """
    caches = _samples(text, "vllm:cache_config_info")
    requests = [*_samples(text, "vllm:num_requests_running"), *_samples(text, "vllm:num_requests_waiting")]
    if not caches or not requests:
        raise EngineError(
            "the metrics lack vllm:cache_config_info or vllm:num_requests_running/_waiting; turn them on with "
            "actor_rollout_ref.rollout.disable_log_stats=False"
        )
    capacity = 0
    for cache in caches:
        blocks, size = cache.labels.get("num_gpu_blocks", ""), cache.labels.get("block_size", "")
        if not (blocks.isdecimal() and size.isdecimal()):
            raise EngineError(f"vllm:cache_config_info has num_gpu_blocks={blocks!r} and block_size={size!r}")
        capacity += int(blocks) * int(size)
    return EngineLoad(capacity=capacity, num_requests=round(sum(sample.value for sample in requests)))


def _samples(text: str, name: str) -> Sequence[_MetricSample]:
    """[num_engines] samples of one metric; each data-parallel engine of a server has one."""
    found = re.finditer(rf"^{name}(?:\{{(.*)\}})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)$", text, re.MULTILINE | re.ASCII)
    return [_MetricSample(dict(_LABEL.findall(match[1] or "")), float(match[2])) for match in found]


async def read_load(session: aiohttp.ClientSession, address: str) -> EngineLoad:
    """Read a server's load from SGLang's `/v1/loads` or vLLM's `/metrics`, which costs no generation.

    Args:
        session: HTTP session; its timeout applies.
        address: host:port of the server.

    Raises:
        EngineError: If the server does not answer, or answers with impossible values.
    """
    url = f"http://{address}/v1/loads"
    try:
        async with session.get(url, params={"include": "core,disagg"}) as response:
            if response.status != HTTPStatus.NOT_FOUND:
                response.raise_for_status()
                return _sglang_load(await response.read())
        url = f"http://{address}/metrics"
        async with session.get(url, raise_for_status=True) as response:
            return parse_metrics(await response.text())
    except ValidationError as error:
        raise EngineError(f"{url} does not report a load: {first_problem(error)}") from error
    except (aiohttp.ClientError, TimeoutError, OSError, EngineError) as error:
        raise EngineError(f"{url} does not report a load: {type(error).__name__}: {error}") from error


def _sglang_load(answer: bytes) -> EngineLoad:
    ranks = _LoadsResponse.model_validate_json(answer).loads
    max_running = [rank.max_running_requests for rank in ranks if rank.max_running_requests is not None]
    return EngineLoad(
        capacity=sum(rank.max_total_num_tokens for rank in ranks),
        num_requests=sum(rank.num_running_reqs + rank.num_waiting_reqs for rank in ranks),
        max_running=sum(max_running) if len(max_running) == len(ranks) else None,
        is_prefill_half=any(rank.disaggregation and rank.disaggregation.mode == "prefill" for rank in ranks),
    )
