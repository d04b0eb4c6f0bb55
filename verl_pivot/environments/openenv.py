"""Entry `- environment: openenv:URL` of a tools file -> a session with an OpenEnv server for each rollout.

The protocol is that of openenv-core 0.3 (`openenv/core/env_server`): JSON messages on the WebSocket `/ws`, whose
connection is the session, and the schema of actions at `/schema`.
"""

import asyncio
import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from pydantic import Field

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, encode_json
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.environments.server_address import ServerAddress
from verl_pivot.environments.stepped import (
    RewardRule,
    Step,
    SteppedEnvironment,
    SteppedOptions,
    drawn_seed_of,
    reset_options,
    seed_of,
)
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.sandbox.execution import MIB
from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.registry import register_framework
from verl_pivot.types import ErrorKind, Json, JsonObject
from verl_pivot.user_code import named

_MAX_SECONDS_BETWEEN_TRIES = 4.0
_SECONDS_TO_CLOSE = 1.0
"""Seconds that a server has to agree to the end of a session, before the connection is cut."""
_MAX_DETAIL = 500


class OpenenvEntry(SteppedOptions, ServerAddress):
    """Entry `- environment: openenv:URL`: an environment of an OpenEnv server, with a session for each rollout."""

    wait_seconds: Annotated[float, Field(ge=0.0)] = 600.0
    """Seconds that a rollout waits for a session while the server says that it has no room for another one."""
    max_message_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    """Maximum size of a message in MiB; a larger one ends the session."""
    frozen: Path | None = None
    """File with a saved answer of `/schema`; a server whose actions differ from it is refused. None: no such check."""

    @property
    def seconds_to_begin(self) -> float:
        return self.wait_seconds + self.timeout_seconds


@register_framework("openenv", options=OpenenvEntry)
class OpenenvSource:
    """Opens the session of each rollout; the schema of actions is read once."""

    can_branch = False  # a server has a limited number of sessions, for which rollouts would wait for each other
    drawn_seed = staticmethod(drawn_seed_of)

    def __init__(self, entry: OpenenvEntry) -> None:
        """Read the schema of actions.

        Raises:
            ConfigError: If the server cannot be reached, its answer is no schema of an object, or the schema differs
                from the frozen one.
        """
        self._entry, self._label = entry, f"openenv:{entry.url}"
        parameters = _parameters(entry.get("/schema").get("action"), f"{entry.url}/schema")
        if entry.frozen is not None:
            _check_frozen(entry.frozen, parameters, entry.url)
        self._schema = entry.schema_of_step(self._label, parameters)
        self.tools, self.pays_by_turn = (self._schema,), entry.reward is RewardRule.TURNS

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> SteppedEnvironment:
        """The environment of one rollout.

        Raises:
            DataError: If `metadata.seed` is no seed, or `metadata.options` no object.
        """
        reset: JsonObject = {"seed": seed_of(metadata, row), **(reset_options(metadata) or {})}
        return SteppedEnvironment(_OpenenvStepper(self._entry, reset), self._entry, self._schema, self._label)


def _parameters(schema: Json, place: str) -> JsonObject:
    """JSON schema of an action without `metadata`, which every action of OpenEnv may have and no policy writes."""
    if not isinstance(schema, dict):
        raise ConfigError(f"{place} gives no schema of actions under `action`, got {schema!r:.80}")
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    return {**schema, "properties": {name: each for name, each in properties.items() if name != "metadata"}}


def _check_frozen(path: Path, parameters: JsonObject, url: str) -> None:
    """Refuse actions that differ from those in a file, since the prompts would change."""
    remedy = f"run `curl {url}/schema > {path}` to freeze the actions again"
    try:
        frozen = as_object(decode_json(path.read_bytes(), what="it"), "it")
    except (OSError, BadRowError) as error:
        raise ConfigError(f"frozen: {path} holds no answer of /schema: {error}; {remedy}") from error
    if encode_json(_parameters(frozen.get("action"), str(path))) != encode_json(parameters):
        raise ConfigError(f"the actions of the server {url} differ from those frozen in {path}; {remedy}")


class _OpenenvStepper:
    """One session with an OpenEnv server."""

    def __init__(self, entry: OpenenvEntry, reset: JsonObject) -> None:
        """Store the arguments; `begin` opens the session.

        Args:
            entry: The entry of the tools file.
            reset: Arguments of `reset`; the server leaves out those that its environment does not take.
        """
        self._entry, self._reset = entry, reset
        self._place = f"environment openenv:{entry.url}"
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def begin(self) -> Step:
        """Open the session, as soon as the server has room, and reset its environment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._entry.wait_seconds
        for number in count():
            async with asyncio.timeout(self._entry.timeout_seconds):
                answer = await self._asked({"type": "reset", "data": self._reset}, may_connect=True)
            error = answer.get("data") if answer.get("type") == "error" else None
            if not isinstance(error, dict) or error.get("code") != "CAPACITY_REACHED":
                return self._step_of(answer)
            await self.close()
            if loop.time() >= deadline:
                raise ToolFailureError(f"{self._place} had no room for another session: {error.get('message')}")
            await asyncio.sleep(min(0.25 * 1.5**number, _MAX_SECONDS_BETWEEN_TRIES))
        raise AssertionError("the tries end with a session or an error")

    async def step(self, arguments: JsonObject) -> Step:
        """Take a step."""
        answer = await self._asked({"type": "step", "data": arguments})
        error = answer.get("data") if answer.get("type") == "error" else None
        if isinstance(error, dict) and error.get("code") == "VALIDATION_ERROR":
            raise ToolError(f"the server refuses the action: {_problems(error)}", ErrorKind.INVALID_ARGUMENT)
        return self._step_of(answer)

    async def close(self) -> None:
        """End the session; the server then closes its environment."""
        http, socket, self._http, self._socket = self._http, self._socket, None, None
        if socket is not None:
            await socket.close()
        if http is not None:
            await http.close()

    async def _asked(self, message: JsonObject, *, may_connect: bool = False) -> JsonObject:
        """Send a message; returns the server's answer.

        Raises:
            ToolFailureError: If there is no connection, or the answer is no JSON object.
        """
        try:
            if may_connect:
                self._socket = await self._connected()
            assert self._socket is not None, "an environment begins before its steps"
            await self._socket.send_json(message)
            received = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise ToolFailureError(f"{self._place}: {named(error)}") from error
        if received.type is not aiohttp.WSMsgType.TEXT:
            cause = f"code {self._socket.close_code}" if received.data is None else str(received.data)
            raise ToolFailureError(f"{self._place} ended the session ({cause}) instead of answering")
        try:
            return as_object(decode_json(received.data), "a message")
        except BadRowError as error:
            raise ToolFailureError(f"{self._place} sent an invalid message: {error}") from error

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        self._http = aiohttp.ClientSession(headers=self._entry.header_values(), trust_env=True)
        max_bytes = self._entry.max_message_mib * MIB
        limit = aiohttp.ClientWSTimeout(ws_close=_SECONDS_TO_CLOSE)
        return await self._http.ws_connect(f"{self._entry.url}/ws", max_msg_size=max_bytes, timeout=limit)

    def _step_of(self, answer: JsonObject) -> Step:
        """The step that an answer describes.

        Raises:
            ToolFailureError: If the answer is an error, or no observation.
        """
        data = answer.get("data")
        if answer.get("type") == "error":
            raise ToolFailureError(f"{self._place} answered with an error: {json.dumps(data)[:_MAX_DETAIL]}")
        if answer.get("type") != "observation" or not isinstance(data, dict) or "observation" not in data:
            raise ToolFailureError(f"{self._place} answered without an observation: {json.dumps(answer)[:_MAX_DETAIL]}")
        observation, reward, done = data["observation"], data.get("reward"), data.get("done", False)
        if not isinstance(reward, int | float | None) or not isinstance(done, bool):
            raise ToolFailureError(f"{self._place} gave an invalid reward {reward!r:.80} or done {done!r:.80}")
        text = observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
        return Step(text, float(reward or 0.0), StopReason.ENVIRONMENT_TERMINATED if done else None)


def _problems(error: JsonObject) -> str:
    """Message about each wrong field of an action; servers check actions with pydantic."""
    listed = error.get("errors")
    problems = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    texts = [f"{'.'.join(map(str, as_list(each.get('loc', []), 'loc')))}: {each.get('msg')}" for each in problems]
    return ("; ".join(texts) or str(error.get("message")))[:_MAX_DETAIL]
