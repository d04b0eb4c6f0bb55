"""Entry `- environment: nemo_gym:URL` of a tools file -> a session with a server of NeMo Gym for each rollout.

The protocol is the one that agents of nemo-gym 0.7 speak with a resources server (`simple_agent/app.py`): the row goes
to `/seed_session`, each call is a POST, and `/verify` gets the row and the response, in a session that a cookie names.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import aiohttp
from pydantic import Field

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools
from verl_pivot.environments.server_address import ServerAddress
from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.sandbox.execution import MIB
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.registry import register_framework
from verl_pivot.tools.tool_response import shortened
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import EnvironmentReturn, ErrorKind, Json, JsonObject, Message, Verdict
from verl_pivot.user_code import named

_PARAMS = "responses_create_params"
_REFUSED = {400: ErrorKind.REFUSED, 422: ErrorKind.INVALID_ARGUMENT}
"""{status of a call's answer: kind of the policy's mistake}; any other status that is no success is the system's."""
_OWN_PATHS = frozenset({"aggregate_metrics", "close_session", "mcp", "seed_session", "verify"})
"""Paths of a resources server that are no tools."""
_MAX_DETAIL = 500


class NemoGymEntry(ServerAddress):
    """Entry `- environment: nemo_gym:URL`: the tools of a resources server of NeMo Gym, and its reward."""

    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Seconds of one call, and of the beginning."""
    verify_seconds: Annotated[float, Field(gt=0.0)] = 600.0
    """Seconds of `/verify`, which may ask a judge."""
    max_characters: Annotated[int, Field(ge=16)] = 16384
    """Most characters of an observation; `pivot.rollout.max_observation_tokens` limits the text further."""
    max_message_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    """Size of an answer above which the call fails."""


@register_framework("nemo_gym", options=NemoGymEntry)
class NemoGymSource:
    """Opens the session of each rollout, whose tools the row names."""

    tools: tuple[JsonObject, ...] = ()
    pays_by_turn = False
    can_branch = False  # what a server does with a session again is its own affair

    def __init__(self, entry: NemoGymEntry) -> None:
        """Ask the server what it answers to.

        Raises:
            ConfigError: If it cannot be reached, or is no resources server.
        """
        self._entry = entry
        paths = entry.get("/openapi.json").get("paths")
        if not isinstance(paths, dict) or not {"/seed_session", "/verify"} <= paths.keys():
            raise ConfigError(
                f"{entry.url} has no /seed_session and /verify; give the address of a resources server of NeMo Gym, "
                "not that of an agent or a model"
            )

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> "NemoGymSession":
        """The session of one rollout, whose row of NeMo Gym is the column `metadata`.

        Raises:
            DataError: If `metadata` is no such row.
        """
        try:
            params = as_object(metadata.get(_PARAMS), f"metadata.{_PARAMS}")
            tools = parse_tools(params.get("tools") or [])
        except BadRowError as error:
            raise DataError(f"the column metadata must hold the row of NeMo Gym: {error}") from error
        if taken := _OWN_PATHS & set(map(name_of, tools)):
            raise DataError(f"the row brings a tool {min(taken)!r}, which is the server's own path; leave it out")
        return NemoGymSession(self._entry, metadata, tools)


class _Answer(NamedTuple):
    """Answer of the server to one request."""

    status: int
    text: str


class NemoGymSession:
    """A session with a resources server during one rollout."""

    def __init__(self, entry: NemoGymEntry, row: JsonObject, schemas: tuple[JsonObject, ...]) -> None:
        """Hold a session that has not begun.

        Args:
            entry: The entry of the tools file.
            row: The row of NeMo Gym.
            schemas: Its tools, in OpenAI's form.
        """
        self._entry, self._row = entry, row
        self._place = f"environment nemo_gym:{entry.url}"
        policy = CallPolicy(timeout_seconds=entry.timeout_seconds)
        self.tools = tuple(_ServerTool(self, schema, policy) for schema in schemas)
        self._lock = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None
        self._output: list[Json] = []
        """Items of the response so far, in the form of OpenAI's Responses API."""

    async def begin(self) -> str:
        """Begin the session with the row; the row's prompt says what the policy must know.

        Raises:
            ToolFailureError: If the server fails, or does not answer in time.
        """
        jar = aiohttp.CookieJar(unsafe=True)  # also for addresses that are numbers
        self._http = aiohttp.ClientSession(
            headers=self._entry.header_values(),
            cookie_jar=jar,
            trust_env=True,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        answer = await self._posted("/seed_session", self._row, self._entry.timeout_seconds)
        self._check(answer, "/seed_session")
        return ""

    def progress(self) -> None:
        """Nothing: a server judges a session at its end alone."""

    async def call(self, name: str, arguments: JsonObject) -> Observation:
        """Call a tool of the server.

        Raises:
            ToolError: If the server refuses the arguments.
            ToolFailureError: If the server fails.
        """
        async with self._lock:  # so that the response has the calls in the order in which they were made
            answer = await self._posted(f"/{name}", arguments, None)
            if answer.status not in _REFUSED:
                self._check(answer, f"/{name}")
            text = shortened(answer.text, self._entry.max_characters)
            number = len(self._output) // 2
            call: JsonObject = {"name": name, "arguments": encode_json(arguments), "call_id": f"call_{number}"}
            self._output.append({"type": "function_call", **call})
            self._output.append({"type": "function_call_output", "call_id": f"call_{number}", "output": text})
        if (kind := _REFUSED.get(answer.status)) is not None:
            raise ToolError(text, kind)
        return Observation(text)

    async def score(self, answer: Message | None) -> Verdict:
        """The reward that `/verify` gives; undecided if the server or its judge fails."""
        body = {**self._row, "response": self._response(answer)}
        try:
            verified = await self._posted("/verify", body, self._entry.verify_seconds)
            self._check(verified, "/verify")
            result = as_object(decode_json(verified.text), "the answer of /verify")
        except (ToolFailureError, BadRowError) as error:
            return Verdict.undecided("environment_failed", str(error)[:_MAX_DETAIL])
        if (failure := _failure_of(result)) is not None:
            return Verdict.undecided("environment_failed", f"{self._place}: {failure}"[:_MAX_DETAIL])
        reward = result.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            return Verdict.undecided("environment_failed", f"{self._place} gave the reward {reward!r:.80}")
        return EnvironmentReturn(score=float(reward), reason="verified")

    def _response(self, answer: Message | None) -> JsonObject:
        """The rollout as a response of OpenAI's Responses API."""
        params = self._row[_PARAMS]
        assert isinstance(params, dict), "checked when the session was made"
        output = list(self._output)
        if answer is not None:
            parts: list[Json] = [{"type": "output_text", "text": answer.content, "annotations": []}]
            output.append(
                {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": parts}
            )
        return {
            "id": "resp_0", "object": "response", "created_at": 0, "model": "policy", "output": output,
            "parallel_tool_calls": params.get("parallel_tool_calls", True),
            "tool_choice": params.get("tool_choice", "auto"), "tools": params.get("tools") or [],
        }  # fmt: skip

    async def close(self) -> None:
        """Close the connections; NeMo Gym has no request that ends a session."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _posted(self, path: str, body: JsonObject, seconds: float | None) -> _Answer:
        """The answer to a POST request.

        Raises:
            ToolFailureError: If there is none, or not within that many seconds, or it is too large.
        """
        assert self._http is not None, "a session begins before its calls"
        limit, read = self._entry.max_message_mib * MIB, bytearray()
        try:
            async with asyncio.timeout(seconds), self._http.post(f"{self._entry.url}{path}", json=body) as response:
                async for chunk in response.content.iter_chunked(MIB):
                    read += chunk
                    if len(read) > limit:
                        raise ToolFailureError(f"{self._place}{path} answered more than {limit // MIB} MiB")
        except TimeoutError as error:
            raise ToolFailureError(f"{self._place}{path} did not answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ToolFailureError(f"{self._place}{path}: {named(error)}") from error
        return _Answer(response.status, read.decode("utf-8", "replace"))

    def _check(self, answer: _Answer, path: str) -> None:
        if not 200 <= answer.status < 300:
            text = answer.text[:_MAX_DETAIL]
            raise ToolFailureError(f"{self._place}{path} answered with status {answer.status}: {json.dumps(text)}")


def _failure_of(verified: JsonObject) -> str | None:
    """What failed where the server says that its reward does not count; None if it does."""
    if (failure := verified.get("_ng_failure_class")) is not None:
        return str(failure)
    if verified.get("mask_sample") is not True:
        return None
    return str(verified.get("failure_reason") or verified.get("failure_kind") or "mask_sample")


class _ServerTool:
    """One tool of a row, which the server runs."""

    def __init__(self, session: NemoGymSession, schema: JsonObject, policy: CallPolicy) -> None:
        self.schema, self.policy, self._session = schema, policy, session

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._session.call(name_of(self.schema), arguments)
