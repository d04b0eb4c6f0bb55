"""Entry `- environment: nemo_gym:URL` of a tools file -> a session with a server of NeMo Gym for each rollout.

The protocol is the one that agents of nemo-gym 0.7 speak with a resources server (`simple_agent/app.py`): the row goes
to `/seed_session`, each call is a POST, and `/verify` gets the row and the response. A cookie names the session.
"""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import aiohttp
from pydantic import Field

from verl_pivot.data.json_values import BadRowError, as_object, encode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools
from verl_pivot.environments.nemo_gym_answers import ServerAnswer, posted, reward_of
from verl_pivot.environments.server_address import ServerAddress
from verl_pivot.errors import ConfigError, DataError, ToolFailureError
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.registry import register_framework
from verl_pivot.tools.tool_response import shortened
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import EnvironmentReturn, ErrorKind, Json, JsonObject, Message, Verdict

_PARAMS = "responses_create_params"
_REFUSED = {400: ErrorKind.REFUSED, 422: ErrorKind.INVALID_ARGUMENT}
"""{status of a call's answer: kind of the policy's mistake}; any other error status is a failure of the system."""
_OWN_PATHS = frozenset({"aggregate_metrics", "close_session", "mcp", "seed_session", "verify"})
"""Paths of a resources server that are not tools."""
_MAX_DETAIL = 500


class NemoGymEntry(ServerAddress):
    """Entry `- environment: nemo_gym:URL`: the tools of a resources server of NeMo Gym, and its reward."""

    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Time limit of one call, and of the beginning of a session, in seconds."""
    verify_seconds: Annotated[float, Field(gt=0.0)] = 600.0
    """Time limit of `/verify`, which may ask a judge, in seconds."""
    max_characters: Annotated[int, Field(ge=16)] = 16384
    """Maximum length of an observation in characters; `pivot.rollout.max_observation_tokens` limits it further."""
    max_message_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    """Maximum size of an answer in MiB; if it is larger, the call fails."""


@register_framework("nemo_gym", options=NemoGymEntry)
class NemoGymSource:
    """Opens the session of each rollout, whose tools the row names."""

    tools: tuple[JsonObject, ...] = ()
    pays_by_turn = False
    can_branch = False  # a server need not do the same when a session is repeated

    def __init__(self, entry: NemoGymEntry) -> None:
        """Ask the server for its paths.

        Raises:
            ConfigError: If the server cannot be reached, or is no resources server.
        """
        self._entry = entry
        paths = entry.get("/openapi.json").get("paths")
        if not isinstance(paths, dict) or not {"/seed_session", "/verify"} <= paths.keys():
            raise ConfigError(
                f"{entry.url} has no /seed_session and /verify; give the address of a resources server of NeMo Gym, "
                "not that of an agent or a model"
            )

    def drawn_seed(self, metadata: JsonObject, row: Mapping[str, Any]) -> None:
        """None: the server makes a session from the row alone."""

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
            raise DataError(
                f"the row has a tool {min(taken)!r}, but this is a path of the server itself; leave the tool out"
            )
        return NemoGymSession(self._entry, metadata, tools)


class NemoGymSession:
    """A session with a resources server during one rollout."""

    def __init__(self, entry: NemoGymEntry, row: JsonObject, schemas: tuple[JsonObject, ...]) -> None:
        """Hold a session that has not begun.

        Args:
            entry: The entry of the tools file.
            row: The row of NeMo Gym.
            schemas: Schemas of the row's tools, in OpenAI's form.
        """
        self._entry, self._row = entry, row
        self._place = f"environment nemo_gym:{entry.url}"
        policy = CallPolicy(timeout_seconds=entry.timeout_seconds, in_order=True)
        self.tools = tuple(_ServerTool(self, schema, policy) for schema in schemas)
        self._http: aiohttp.ClientSession | None = None
        self._output: list[Json] = []
        """Items of the response so far, in the form of OpenAI's Responses API."""

    async def begin(self) -> str:
        """Begin the session with the row; returns no text, since the row's prompt tells the policy everything.

        Raises:
            ToolFailureError: If the server fails, or does not answer in time.
        """
        jar = aiohttp.CookieJar(unsafe=True)  # `unsafe` allows cookies of IP addresses
        self._http = aiohttp.ClientSession(
            headers=self._entry.header_values(),
            cookie_jar=jar,
            trust_env=True,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        answer = await self._posted("/seed_session", self._row, self._entry.timeout_seconds)
        answer.check()
        return ""

    def progress(self) -> None:
        """None: a server judges a session only at its end."""

    async def call(self, name: str, arguments: JsonObject) -> Observation:
        """Call a tool of the server.

        Raises:
            ToolError: If the server refuses the arguments.
            ToolFailureError: If the server fails.
        """
        answer = await self._posted(f"/{name}", arguments, None)
        if answer.status not in _REFUSED:
            answer.check()
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
            return EnvironmentReturn(score=reward_of(verified.read()), reason="verified")
        except ToolFailureError as error:
            return Verdict.undecided("environment_failed", str(error)[:_MAX_DETAIL])

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

    async def _posted(self, path: str, body: JsonObject, seconds: float | None) -> ServerAnswer:
        """The answer to a POST request.

        Raises:
            ToolFailureError: If there is no answer within `seconds`, or it is too large.
        """
        assert self._http is not None, "a session begins before its calls"
        asked = posted(self._http, self._entry.url, path, body, max_mib=self._entry.max_message_mib)
        try:
            return await asyncio.wait_for(asked, seconds)
        except TimeoutError as error:
            raise ToolFailureError(f"{self._place}{path} did not answer within {seconds:g} s") from error


class _ServerTool:
    """One tool of a row, which the server runs."""

    def __init__(self, session: NemoGymSession, schema: JsonObject, policy: CallPolicy) -> None:
        self.schema, self.policy, self._session = schema, policy, session

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._session.call(name_of(self.schema), arguments)
