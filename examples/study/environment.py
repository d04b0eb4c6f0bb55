"""StudyEnvironment: a task of any domain as an environment, with its tools and the score of its outcome."""

import copy
from collections.abc import Sequence

from examples.study.domains.known import domain_of
from verl_pivot.tools.contract import Environment, Observation
from verl_pivot.types import Json, JsonObject, Message, ToolCall, Verdict


class StudyEnvironment(Environment):
    """One task, named by the metadata of its row; the rollouts of all arms and the verifier `state` use it."""

    has_own_limits = True  # the sandbox limits each program; waiting for the sandbox, among 1,000 tasks, has no limit

    def __init__(self, metadata: JsonObject) -> None:
        domain = domain_of(metadata)
        self._tools = domain.tools
        self._world = domain.open(metadata)

    @property
    def tools(self) -> Sequence[JsonObject]:
        return self._tools

    async def call(self, call: ToolCall) -> Observation:
        return await self._world.call(call)

    async def score(self, answer: Message | None) -> Verdict:
        if answer is None:
            return Verdict.refuse("no_answer")
        return Verdict.accept(reason="solved") if self._world.passed(answer) else Verdict.refuse("not_solved")

    def fork(self) -> "StudyEnvironment":
        twin = copy.copy(self)
        twin._world = self._world.fork()
        return twin

    def state(self) -> Json:
        return self._world.state()

    async def close(self) -> None:
        await self._world.close()
