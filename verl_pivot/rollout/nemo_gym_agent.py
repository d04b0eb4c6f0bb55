"""Agent server of NeMo Gym, which drives the policy -> its report at the end of a rollout.

The protocol is that of agents of nemo-gym 0.7 (`base_responses_api_agent.py`): `/run` gets the row, plays it with the
model server that NeMo Gym's own configuration names, and answers with the row, the response and its reward. The row's
`responses_create_params.metadata`, which agents send along with each request, says which trajectory it belongs to.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import aiohttp

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.environments.nemo_gym_answers import posted, reward_of
from verl_pivot.errors import DataError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.rollout.environment_process import EnvironmentReport, ended
from verl_pivot.rollout.model_gateway import PolicyEndpoint
from verl_pivot.rollout.policy_relay import METADATA_KEY, PolicyRelay, address_of
from verl_pivot.rollout.settings import NemoGymAgent
from verl_pivot.types import JsonObject

_PARAMS = "responses_create_params"
_MAX_ANSWER_MIB = 256


async def run_agent(
    agent: NemoGymAgent, columns: Mapping[str, Any], endpoint: PolicyEndpoint, *, is_stuck: Callable[[], bool]
) -> EnvironmentReport:
    """Let an agent play one row.

    Args:
        agent: Settings of the agent server.
        columns: Columns of the dataset's row, whose `metadata` holds the row of NeMo Gym.
        endpoint: Endpoint of the policy.
        is_stuck: Whether the agent has been silent for too long, asked twice a second.

    Raises:
        DataError: If `metadata` is no such row.
        ToolFailureError: If the agent fails or hangs, or gives no valid reward.
    """
    row = _row(columns.get("metadata"))
    await (await _relay(agent.policy_port).get()).start()
    async with aiohttp.ClientSession(
        headers=agent.address.header_values(), trust_env=True, timeout=aiohttp.ClientTimeout(total=None)
    ) as http:
        body = _with_address(row, address_of(endpoint))
        asked = asyncio.create_task(posted(http, agent.address.url, "/run", body, max_mib=_MAX_ANSWER_MIB))
        try:
            result = (await ended(asked, f"nemo_gym_agent:{agent.address.url}", is_stuck)).read()
        finally:
            asked.cancel()
    return EnvironmentReport(reward=reward_of(result), metrics=_metrics(result, row))


@cache
def _relay(port: int) -> LoopLocal[PolicyRelay]:
    """The address of the policy that NeMo Gym's configuration names, the same for all agent loops of this process."""
    return LoopLocal(partial(PolicyRelay, port))


def _row(metadata: object) -> JsonObject:
    try:
        row = as_object(decode_json(str(metadata)), "metadata")
        as_object(row.get(_PARAMS), f"metadata.{_PARAMS}")
    except BadRowError as error:
        raise DataError(f"the column metadata must hold the row of NeMo Gym, as a JSON string: {error}") from error
    return row


def _with_address(row: JsonObject, address: str) -> JsonObject:
    params = row[_PARAMS]
    assert isinstance(params, dict), "checked when the row was read"
    given = params.get("metadata")
    metadata: JsonObject = {**(given if isinstance(given, dict) else {}), METADATA_KEY: address}
    return {**row, _PARAMS: {**params, "metadata": metadata}}


def _metrics(result: JsonObject, row: JsonObject) -> dict[str, float]:
    """Numbers that the environment added to the row."""
    added = {name: value for name, value in result.items() if name not in row and not name.startswith("_")}
    numbers = {name: float(value) for name, value in added.items() if isinstance(value, int | float)}
    return {
        name: value for name, value in numbers.items() if math.isfinite(value) and name not in ("reward", "mask_sample")
    }
