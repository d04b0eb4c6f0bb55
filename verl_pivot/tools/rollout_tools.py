"""The tools of one rollout: its toolbox, workspace, environments and servers, opened together and closed together."""

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Protocol

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import PivotError
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.contract import AchievedTask
from verl_pivot.tools.environments import OpenedEnvironment, RunningEnvironment
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, Message, Verdict

logger = logging.getLogger(__name__)


class _TrajectoryServer(Protocol):
    """A server with a state for each trajectory."""

    def opened(self, workspace: Workspace) -> AbstractAsyncContextManager[None]:
        """Hold the server's state for one trajectory."""
        ...


class RolloutTools:
    """The tools of one rollout, with its workspace and its environments, which are closed at the end."""

    def __init__(
        self,
        toolbox: Toolbox,
        environments: list[OpenedEnvironment],
        servers: Sequence[_TrajectoryServer] = (),
        *,
        failure: PivotError | None = None,
    ) -> None:
        self.toolbox = toolbox
        self.failure = failure
        """Why the tools cannot be used, which is raised when they are entered; None if they can."""
        self.opening = ""
        """First observations of the environments, once they have begun; they are appended to the prompt."""
        self._environments, self._servers = environments, servers
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "RolloutTools":
        """Open the tools; servers are waited for in the order of the file, so that rollouts cannot deadlock.

        Raises:
            ToolFailureError: If an environment cannot begin.
            PivotError: The failure because of which the tools cannot be used; the environments are closed by then.
        """
        async with AsyncExitStack() as stack:  # closes all, even if opening or closing one of them fails
            stack.push_async_callback(self.toolbox.workspace.close)
            for environment in self._environments:
                stack.push_async_callback(environment.close)
            if self.failure is not None:
                try:
                    await stack.aclose()
                except (PivotError, OSError) as error:  # which must not hide the failure
                    logger.warning("an environment of a row that cannot be used was not closed: %s", error)
                raise self.failure
            for server in self._servers:
                await stack.enter_async_context(server.opened(self.toolbox.workspace))
            openings = [await environment.begin() for environment in self._environments]
            self.opening = "\n\n".join(filter(None, openings))
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def score(self, answer: Message | None) -> Verdict | None:
        """Verdict of the first environment that decides the outcome; None if none does.

        Args:
            answer: The policy's last message; None if a limit or a tool ended the rollout before there was one.
        """
        for environment in self._environments:
            verdict = await environment.score(answer)
            if verdict is not None:
                return verdict
        return None

    def progress(self) -> float | None:
        """Progress of the first environment that reports one; None if none does."""
        found = (environment.progress() for environment in self._environments)
        return next((progress for progress in found if progress is not None), None)

    def states(self) -> list[Json]:
        """State of each environment that is a class of the user, as its `state` gives it."""
        return [each.state() for each in self._environments if isinstance(each, RunningEnvironment)]

    def achieved(self) -> list[AchievedTask]:
        """Tasks that the environments report as solved."""
        running = (each for each in self._environments if isinstance(each, RunningEnvironment))
        return [task for environment in running for task in environment.achieved()]

    def fork(self) -> "RolloutTools | None":
        """A copy in the same state, to be entered as the original was; None if a part cannot be copied.

        Such a part is a tool outside of environments, an environment without `fork`, a server, or anything that a tool
        kept in the workspace.
        """
        running = [each for each in self._environments if isinstance(each, RunningEnvironment) and each.can_fork]
        known = {name_of(tool.schema) for each in running for tool in each.tools}
        if len(running) < len(self._environments) or known != set(self.toolbox.tools) or self._servers:
            return None
        if not self.toolbox.workspace.is_unused:
            return None
        copies: list[OpenedEnvironment] = []
        failure: PivotError | None = None
        try:
            for each in running:
                copies.append(each.fork())
        except PivotError as error:
            if not copies:
                raise
            failure = error  # raised when the copy is entered, which closes the copies that were made
        tools = {name_of(tool.schema): tool for copy in copies for tool in copy.tools}
        workspace = Workspace(self.toolbox.workspace.metadata)
        return RolloutTools(replace(self.toolbox, tools=tools, workspace=workspace), [*copies], failure=failure)
