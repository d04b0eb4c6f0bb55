"""A notebook that stands in for a session of the sandbox: it runs the cells of tests in this process."""

import ast
import asyncio
import contextlib
import io
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from verl_pivot.errors import SessionLostError
from verl_pivot.sandbox.execution import Limits, Result, SessionState, Status
from verl_pivot.sandbox.host_functions import AnswerCall, CallLimits, HostFunction
from verl_pivot.tools.workspace import Workspace


class KilledError(BaseException):
    """Raised by `kill()` in a cell, as if the cell had ended its interpreter."""


class LostError(BaseException):
    """Raised by `lose()` in a cell, as if the node had died with the session."""


def _raises(kind: type[BaseException]) -> Callable[[], None]:
    def function() -> None:
        raise kind

    return function


class FakeNotebook:
    """Runs cells as a session does. Cells may call `kill()` and `lose()` beside the host's functions."""

    opened: ClassVar[list["FakeNotebook"]] = []

    def __init__(self, functions: Sequence[HostFunction]) -> None:
        self.functions = list(functions)
        self.cells: list[str] = []
        self.is_closed = False
        self._epoch = 0
        self._names = self._fresh()
        FakeNotebook.opened.append(self)

    async def run(
        self,
        code: str,
        *,
        wall_seconds: float | None = None,
        answer_call: AnswerCall | None = None,
        call_limits: CallLimits | None = None,
    ) -> Result:
        self.cells.append(code)
        self._loop, self._answer_call = asyncio.get_running_loop(), answer_call
        self._failure: Exception | None = None
        fields = await asyncio.to_thread(self._run, code)
        if self._failure is not None:
            raise self._failure
        if fields is None:
            raise SessionLostError("the session is lost with its node")
        state = SessionState(id="fake", epoch=self._epoch, num_cells=len(self.cells))
        return Result(session=state, **fields)

    async def close(self) -> None:
        self.is_closed = True

    def _run(self, code: str) -> dict[str, Any] | None:
        stdout, error, value, status = io.StringIO(), None, None, Status.OK
        with contextlib.redirect_stdout(stdout):
            try:
                value = self._evaluate(code)
            except KilledError:
                self._epoch += 1
                self._names = self._fresh()
                status = Status.SESSION_KILLED
            except LostError:
                return None
            except BaseException as raised:  # noqa: BLE001  a cell may raise anything
                status = Status.ERROR
                error = "".join(traceback.format_exception_only(raised))
        return {"status": status, "stdout": stdout.getvalue(), "stderr": error or "", "error": error, "value": value}

    def _evaluate(self, code: str) -> str | None:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), self._names)
        if not isinstance(last, ast.Expr):
            return None
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self._names)
        return None if value is None else repr(value)

    def _fresh(self) -> dict[str, Any]:
        host: dict[str, Any] = {each.name: self._host_function(each) for each in self.functions}
        return {"__name__": "__main__", "kill": _raises(KilledError), "lose": _raises(LostError), **host}

    def _host_function(self, function: HostFunction) -> Callable[..., Any]:
        properties: Any = function.parameters.get("properties") or {}
        names: list[str] = list(properties)

        def call(*values: Any, **named: Any) -> Any:
            if self._answer_call is None:
                raise RuntimeError("nobody answers calls")
            arguments: dict[str, Any] = dict(zip(names, values, strict=False)) | named
            coroutine: Any = self._answer_call(function.name, arguments)
            try:
                reply = asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
            except Exception as failure:
                self._failure = failure
                raise
            if reply.error is not None:
                raise RuntimeError(reply.error)
            return reply.value

        return call


async def open_fake_notebook(_: Workspace, limits: Limits, functions: Sequence[HostFunction] = ()) -> FakeNotebook:
    """Stands in for `Workspace.open_session`."""
    return FakeNotebook(functions)
