"""HTTP service of a tools file in the protocol of verl-tool: turns of trajectories -> observations.

A trajectory has its own tools from its first action until `finish`, or until it has not acted for a while.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import web

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import PivotError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.http_service import UnanswerableRequestError, decoded_body, json_answer, make_app
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.tool_server_wire import ActionBody, ObservedAnswer, WireObservation
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import ErrorKind, JsonObject, Malformed, ToolCall

logger = logging.getLogger(__name__)

_UNREADABLE = (
    ErrorKind.MALFORMED_CALL,
    ErrorKind.UNKNOWN_TOOL,
    ErrorKind.MISSING_ARGUMENT,
    ErrorKind.INVALID_ARGUMENT,
    ErrorKind.TOO_MANY_CALLS,
)
"""Mistakes that make an action invalid; a program that fails is a valid action."""
_SWEEPS = 4
"""Number of searches for idle trajectories in every `idle_seconds`."""


class ActionForm(NamedTuple):
    """How a policy writes calls, and reads observations."""

    read: Callable[[str], Sequence[ToolCall | Malformed]]
    """The calls of a turn."""
    template: str = "{text}"
    """Text around each observation."""


@dataclass(slots=True, kw_only=True)
class _ServedTrajectory:
    """The tools of one trajectory, whose actions run one at a time."""

    tools: RolloutTools | None = None
    """None before the first action."""
    open: AsyncExitStack = field(default_factory=AsyncExitStack)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_used: float = field(default_factory=time.monotonic)
    has_ended: bool = False


class _ActionResult(NamedTuple):
    """Answer of the service to one action."""

    observation: str | WireObservation
    is_done: bool
    is_valid: bool


class ToolService:
    """The service of one tools file."""

    def __init__(self, toolset: Toolset, form: ActionForm, *, max_calls_per_turn: int, idle_seconds: float) -> None:
        """Make the service; `app` gives its web application.

        Args:
            toolset: The tools.
            form: How actions and observations are written.
            max_calls_per_turn: Most calls of one action that are run.
            idle_seconds: Seconds without an action after which an unfinished trajectory is ended.
        """
        self._toolset, self._form = toolset, form
        self._max_calls_per_turn, self._idle_seconds = max_calls_per_turn, idle_seconds
        self._trajectories: dict[str, _ServedTrajectory] = {}

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories that have not ended."""
        return len(self._trajectories)

    def app(self) -> web.Application:
        """The web application, to be run by one event loop."""
        app = make_app()
        app.router.add_post("/get_observation", self._get_observation)
        app.router.add_get("/health", self._health)
        app.cleanup_ctx.append(self._ending)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer({"status": "healthy", "trajectories": self.num_trajectories})

    async def _get_observation(self, request: web.Request) -> web.Response:
        body = await decoded_body(request, ActionBody)
        number = len(body.trajectory_ids)
        for name in ("actions", "extra_fields", "finish", "is_last_step"):
            values = getattr(body, name)
            if values is not None and len(values) != number:
                raise UnanswerableRequestError(f"{name} has {len(values)} entries, and trajectory_ids has {number}")
        if not number:
            raise UnanswerableRequestError("a request needs at least one action")
        over = body.finish or [False] * number
        last = body.is_last_step or [False] * number
        extra = body.extra_fields or [{} for _ in range(number)]
        results = await asyncio.gather(*map(self._result, body.trajectory_ids, body.actions, extra, over, last))
        return json_answer(
            ObservedAnswer(
                observations=[each.observation for each in results],
                dones=[each.is_done for each in results],
                valids=[each.is_valid for each in results],
            )
        )

    async def _result(self, key: str, action: str, extra: JsonObject, is_over: bool, is_last: bool) -> _ActionResult:
        """Answer to one action; `is_over` ends the trajectory without running the action, `is_last` after it."""
        if is_over:
            await self._end(key)
            return _ActionResult("", True, True)
        while True:
            trajectory = self._trajectories.setdefault(key, _ServedTrajectory())
            async with trajectory.turn:
                if trajectory.has_ended:  # while this action waited: it begins the trajectory anew
                    continue
                result = await self._act(trajectory, action, extra)
                trajectory.last_used = time.monotonic()
            if result.is_done or is_last:
                await self._end(key)
            return result

    async def _act(self, trajectory: _ServedTrajectory, action: str, extra: JsonObject) -> _ActionResult:
        calls = self._form.read(action)
        if not calls:
            return _ActionResult(WireObservation(obs="", invalid_reason="the action holds no call"), False, False)
        opening = ""
        try:
            if trajectory.tools is None:
                row = {"metadata": encode_json(extra)}
                opened = self._toolset.open(row, max_calls_per_turn=self._max_calls_per_turn)
                trajectory.tools = await trajectory.open.enter_async_context(opened)
                opening = opened.opening
            outcomes = await trajectory.tools.toolbox.run(calls)
        except PivotError as error:  # tools that cannot be opened for this row
            return _failed(str(error))
        if failure := next((outcome.failure for outcome in outcomes if outcome.failure), ""):
            return _failed(failure)
        return self._observed(outcomes, opening)

    def _observed(self, outcomes: Sequence[CallOutcome], opening: str) -> _ActionResult:
        """The observations of calls, the first one behind what the environments show at their beginning."""
        found = [outcome.observation for outcome in outcomes if outcome.observation is not None]
        texts = [each.text for each in found]
        if opening:
            texts[:1] = ["\n\n".join([opening, *texts[:1]])]
        text = "".join(self._form.template.replace("{text}", each) for each in texts)
        return _ActionResult(
            text, any(each.end is not None for each in found), all(each.error not in _UNREADABLE for each in found)
        )

    async def _end(self, key: str) -> None:
        """End a trajectory after its running action; nothing happens if the trajectory has ended already."""
        trajectory = self._trajectories.pop(key, None)
        if trajectory is not None:
            async with trajectory.turn:
                trajectory.has_ended = True
                try:
                    await trajectory.open.aclose()
                except (PivotError, OSError) as error:  # its actions have been answered
                    logger.warning("the tools of trajectory %s were not closed: %s", key, error)

    async def _ending(self, app: web.Application) -> AsyncIterator[None]:
        """End idle trajectories while the service runs, and all trajectories when it ends."""
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        await asyncio.wait([sweeping])
        for key in list(self._trajectories):
            await self._end(key)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / _SWEEPS)
            latest = time.monotonic() - self._idle_seconds
            for key, trajectory in list(self._trajectories.items()):
                if trajectory.last_used < latest and not trajectory.turn.locked():
                    await self._end(key)


def _failed(failure: str) -> _ActionResult:
    """A failure of the system, in the form of verl-tool's own server: a valid action with an empty observation."""
    return _ActionResult(WireObservation(obs="", error=failure), True, False)
