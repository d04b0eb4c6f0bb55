"""Answers of servers of NeMo Gym to POST requests -> their text, and the reward that they give."""

import json
import math
from typing import NamedTuple

import aiohttp

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.errors import EnvironmentLostError, ToolFailureError
from verl_pivot.sandbox.execution import MIB
from verl_pivot.types import JsonObject
from verl_pivot.user_code import named

_MAX_DETAIL = 500


class ServerAnswer(NamedTuple):
    """Answer of a server to one request."""

    url: str
    """Where the request went."""
    status: int
    text: str

    def check(self) -> None:
        """Raises ToolFailureError unless the status is a success."""
        if not 200 <= self.status < 300:
            text = json.dumps(self.text[:_MAX_DETAIL])
            raise ToolFailureError(f"{self.url} answered with status {self.status}: {text}")

    def read(self) -> JsonObject:
        """The JSON object that the answer holds.

        Raises:
            ToolFailureError: If the status is no success, or there is no such object.
        """
        self.check()
        try:
            return as_object(decode_json(self.text, what=f"the answer of {self.url}"), f"the answer of {self.url}")
        except BadRowError as error:
            raise ToolFailureError(str(error)) from error


async def posted(http: aiohttp.ClientSession, url: str, path: str, body: JsonObject, *, max_mib: int) -> ServerAnswer:
    """The answer to a POST request.

    Args:
        http: Connections and cookies.
        url: Address of the server.
        path: Path on the server, with its slash.
        body: JSON of the request.
        max_mib: Maximum size of an answer in MiB; a larger one counts as a failure.

    Raises:
        ToolFailureError: If the answer is too large; EnvironmentLostError if the server does not answer.
    """
    read = bytearray()
    try:
        async with http.post(f"{url}{path}", json=body) as response:
            async for chunk in response.content.iter_chunked(MIB):
                read += chunk
                if len(read) > max_mib * MIB:
                    raise ToolFailureError(f"{url}{path} answered more than {max_mib} MiB")
    except (aiohttp.ClientError, OSError) as error:
        raise EnvironmentLostError(f"{url}{path}: {named(error)}") from error
    return ServerAnswer(f"{url}{path}", response.status, read.decode("utf-8", "replace"))


def reward_of(verified: JsonObject) -> float:
    """The reward of a rollout that NeMo Gym has verified.

    Raises:
        ToolFailureError: If NeMo Gym says that the reward does not count, or it is no finite number.
    """
    if (failure := verified.get("_ng_failure_class")) is not None:
        raise ToolFailureError(f"NeMo Gym could not verify: {failure}")
    if verified.get("mask_sample") is True:
        reason = verified.get("failure_reason") or verified.get("failure_kind") or "mask_sample"
        raise ToolFailureError(f"NeMo Gym masks the rollout: {reason}")
    reward = verified.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ToolFailureError(f"NeMo Gym gave the reward {reward!r:.80}")
    return float(reward)
