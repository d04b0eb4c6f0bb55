"""RunIndex -> the page of `verl-pivot inspect` over HTTP: static files, and the data that they ask for."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from aiohttp import web

from verl_pivot import __version__
from verl_pivot.inspect.filter_values import filter_from
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.guarded_page import GuardedPage, answered, converted, in_thread
from verl_pivot.inspect.history import FollowedPrompt, history
from verl_pivot.inspect.opened import open_rollout
from verl_pivot.inspect.prompt_changes import prompt_changes
from verl_pivot.inspect.queries import RolloutPlace, RunIndex
from verl_pivot.inspect.rollout_table import COLUMNS
from verl_pivot.inspect.texts import read_lines
from verl_pivot.inspect.verdict_marks import marks_path, read_marks, toggle_mark
from verl_pivot.runs.run import differing_settings, run_names
from verl_pivot.tools.http_service import decoded_body, json_answer
from verl_pivot.types import JsonObject

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two checks of the files."""
_SECONDS_BETWEEN_SIGNS = 15.0
"""Seconds without news after which a browser is sent a comment, so that a closed browser is noticed."""
_MAX_ROWS = 500
"""Maximum number of rows that one request may ask for."""


class InspectPage(GuardedPage):
    """The page for one index."""

    def __init__(self, index: RunIndex, *, token: str, host: str) -> None:
        """Create the page; nothing is read yet.

        Args:
            index: Index of the runs that are shown.
            token: Token that requests for data must carry.
            host: Address that the server listens on.
        """
        super().__init__(token=token, host=host)
        self._index = index
        self._is_changed = asyncio.Condition()
        self._is_open = True
        self._marking = asyncio.Lock()
        self._stopped: list[str] = []

    def app(self) -> web.Application:
        """The web application, to be run by one event loop."""
        app = self.guarded_app("app.js")
        for path, answer in (
            ("/api/run", self._run),
            ("/api/metrics", self._metrics),
            ("/api/ordered", self._ordered),
            ("/api/rows", self._rows),
            ("/api/find", self._find),
            ("/api/rollout", self._rollout),
            ("/api/history", self._history),
            ("/api/changes", self._changes),
            ("/api/marks", self._marks),
        ):
            app.router.add_get(path, in_thread(answer))
        app.router.add_post("/api/mark", self._mark)
        app.router.add_get("/api/events", self._events)
        app.cleanup_ctx.append(self._following)
        app.on_shutdown.append(self._end_events)
        return app

    # ---- following

    async def _following(self, app: web.Application) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow())
        following.add_done_callback(self._note_end)
        yield
        following.cancel()
        await asyncio.wait([following])

    def _note_end(self, following: "asyncio.Task[None]") -> None:
        """Report that reading has stopped, if an error (a bug of this package) ended it."""
        if not following.cancelled() and (error := following.exception()) is not None:
            logger.error("reading has stopped", exc_info=error)
            self._stopped = ["reading has stopped with an error, which the terminal shows; what was read is still here"]

    async def _follow(self) -> None:
        while True:
            before = self._index.generation
            is_more = await asyncio.to_thread(self._index.refresh)
            if self._index.generation != before:
                await self._tell()
            await asyncio.sleep(0 if is_more else _SECONDS_BETWEEN_LOOKS)

    async def _tell(self) -> None:
        async with self._is_changed:
            self._is_changed.notify_all()

    async def _end_events(self, app: web.Application) -> None:
        """End the open event streams, for which the server would wait."""
        self._is_open = False
        await self._tell()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the number of the change, whenever something is new."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        told = -1
        try:
            while self._is_open:
                if self._index.generation != told:
                    told = self._index.generation
                    await response.write(f"data: {told}\n\n".encode())
                else:
                    await response.write(b": still here\n\n")
                async with self._is_changed:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._is_changed.wait(), _SECONDS_BETWEEN_SIGNS)
        except ConnectionResetError:  # the browser was closed
            pass
        return response

    # ---- answers

    def _run(self, query: JsonObject) -> object:
        index = self._index
        names = run_names([run.path for run in index.runs])
        return {
            "version": __version__,
            "generation": index.generation,
            "runs": [
                {
                    "name": name,
                    "path": str(run.path),
                    "method": run.method,
                    "checkpoints": run.checkpoints,
                    "metrics": series.names,
                    "steps": series.steps,
                    "settings": run.settings,
                }
                for name, run, series in zip(names, index.runs, index.metrics, strict=True)
            ],
            "differences": differing_settings(dict(zip(names, index.runs, strict=True))),
            "num_rollouts": index.num_rollouts,
            "num_files": index.num_files,
            "num_unread": index.num_unread,
            "problems": [*self._stopped, *index.problems],
            "facets": index.facets(),
            "rollout_steps": index.steps(),
            "columns": COLUMNS,
        }

    def _metrics(self, query: JsonObject) -> object:
        """[num_runs] {metric: points} of the metrics that the query names, one on each line."""
        names = str(query.get("names", "")).split("\n")
        return [{name: series.points(name) for name in names} for series in self._index.metrics]

    def _ordered(self, query: JsonObject) -> object:
        order = converted({key: query.pop(key) for key in ("sort", "is_descending") if key in query}, RolloutOrder)
        generation = self._index.generation  # before the query, which may not see what is read meanwhile
        found = self._index.ordered(filter_from(query, RolloutFilter), order)
        return {
            "generation": generation,
            "ids": base64.b64encode(found.ids).decode(),
            "groups": base64.b64encode(found.groups).decode(),
            "mean_score": found.mean_score,
            "num_kept": found.num_kept,
        }

    def _rows(self, query: JsonObject) -> object:
        ids = converted(str(query.get("ids", "")).split(",")[:_MAX_ROWS], list[int])
        return [each.as_dict() for each in self._index.rows(ids)]

    def _find(self, query: JsonObject) -> object:
        return self._index.find(converted(query, RolloutPlace)).as_dict()

    def _rollout(self, query: JsonObject) -> object:
        found = self._index.find(converted(query, RolloutPlace))
        return {
            "row": found.as_dict(),
            "group": [each.as_dict() for each in self._index.group(found.group_number)],
            **msgspec.structs.asdict(open_rollout(self._index, found)),
        }

    def _history(self, query: JsonObject) -> object:
        return [each._asdict() for each in history(self._index, converted(query, FollowedPrompt))]

    def _changes(self, query: JsonObject) -> object:
        """How each run but the first compares with it on the prompts that both have."""
        return [msgspec.to_builtins(each) for each in prompt_changes(self._index)]

    def _marks(self, query: JsonObject) -> object:
        """[num_runs] verdicts that were marked as wrong, and the files that they stand in."""
        paths = map(marks_path, self._index.runs)
        return [{"path": str(path), "marks": read_marks(path)} for path in paths]

    async def _mark(self, request: web.Request) -> web.Response:
        """Mark a verdict as wrong, or take its mark away; the answer holds all marks."""
        place = await decoded_body(request, RolloutPlace)
        async with self._marking:
            return json_answer(await answered(lambda: self._toggled(place)))

    def _toggled(self, place: RolloutPlace) -> object:
        found = self._index.find(place)
        lines = read_lines(self._index.row_place(found))
        toggle_mark(marks_path(self._index.runs[found.run]), found, lines, open_rollout(self._index, found).prompt)
        return self._marks({})
