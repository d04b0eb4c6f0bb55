"""The quickstart's shop as an environment: one customer's whole task, rewarded by its outcome."""

from collections.abc import Sequence

from examples.quickstart.shop import TOOLS
from examples.quickstart.tasks import Task, make_task
from verl_pivot.tools.contract import Environment, ErrorKind, Observation
from verl_pivot.types import JsonObject, Message, ToolCall, Verdict


class ShopEnvironment(Environment):
    """Its state is the shop of the row's task; what the policy changes there lasts as long as the trajectory."""

    def __init__(self, metadata: JsonObject) -> None:
        seed = metadata["seed"]
        assert isinstance(seed, int), metadata
        self._task: Task = make_task(seed, held_out=metadata["held_out"] is True)
        self._shop = self._task.open_shop()

    @property
    def tools(self) -> Sequence[JsonObject]:
        return TOOLS

    async def call(self, call: ToolCall) -> Observation:
        result = self._shop.call(call)
        return Observation(result.text, None if result.ok else ErrorKind.REFUSED)

    async def score(self, answer: Message | None) -> Verdict:
        """1 if the customer is told the right thing and the shop is as it should be."""
        if answer is None:
            return Verdict(score=0.0, reason="no_answer")
        passed = self._task.passed(answer, self._shop.dump())
        return Verdict(score=float(passed), reason="solved" if passed else "not_solved")

    async def close(self) -> None:
        self._shop.__exit__()
