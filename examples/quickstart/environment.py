"""ShopEnvironment: a task in the shop as an environment, with four tools, a score of the outcome, and copies."""

import copy
import json
import re
from collections.abc import Sequence

from examples.quickstart.goals import Goal, achieved_task, goal_of, goal_of_query, goal_of_refunds, progress_of, task_of
from examples.quickstart.shop import Shop
from examples.quickstart.tasks import Task
from verl_pivot.tools.contract import AchievedTask, Environment, Observation, tool
from verl_pivot.types import ErrorKind, Json, JsonObject, Message, ToolCall, Verdict

_NUMBER = re.compile(r"\d+")


class ShopEnvironment(Environment):
    """One customer's task in a shop of its own, which lives as long as the rollout.

    The quickstart's verifier `state` runs actions on its copies; the example `tool_rollout` plays whole tasks in it.
    Methods are `async` because a connection of SQLite must stay in the thread that opened it.
    """

    def __init__(self, metadata: JsonObject) -> None:
        self._task: Task = task_of(metadata)
        self._goal = goal_of(metadata)
        self._shop = self._task.open_shop()
        self._shown: frozenset[int] = frozenset()
        """Numbers in the results of tools so far."""
        self._answered: tuple[Goal, ...] = ()
        """Questions that queries answered, about customers whose id was in an earlier result."""
        self._refunds: dict[int, int] = {}
        """{id of an order: amount that was paid back}"""

    @tool
    async def find_customer(self, name: str | None = None, email: str | None = None) -> Observation:
        """Customers with this name or e-mail: id, name, e-mail."""
        return self._call("find_customer", name=name, email=email)

    @tool
    async def list_orders(self, customer_id: int, item: str | None = None) -> Observation:
        """Item, id and amount of a customer's orders, of one item if it is given."""
        return self._call("list_orders", customer_id=customer_id, item=item)

    @tool
    async def run_sql(self, query: str) -> Observation:
        """Run one SQL query that only reads.

        Tables: customers(id, name, email), orders(item, id, amount, refunded, customer_id).
        """
        return self._call("run_sql", query=query)

    @tool
    async def refund(self, order_id: int, amount: float | None = None) -> Observation:
        """Pay back an order, all of it unless an amount is given."""
        return self._call("refund", order_id=order_id, amount=amount)

    async def score(self, answer: Message | None) -> Verdict:
        """Accept the rollout if the last message gives the right answer and the shop has the right state."""
        if answer is None:
            return Verdict.refuse("no_answer")
        passed = self._task.passed(answer, self._shop.dump()) and self._goal in (None, *self._solved())
        return Verdict.accept(reason="solved") if passed else Verdict.refuse("not_solved")

    def progress(self) -> float:
        return progress_of(self._task, self._answered, self._refunds, self._shown)

    def achieved(self) -> Sequence[AchievedTask]:
        """Tasks that this rollout solved, whatever the customer wanted: questions that were looked up, or refunds.

        A question counts only after the look-up that gives its numbers, since a guess solves nothing. So for a task
        that was named here, `score` requires this look-up too.
        """
        return [achieved_task(goal, self._task.seed, held_out=self._task.held_out) for goal in self._solved()]

    def fork(self) -> "ShopEnvironment":
        twin = copy.copy(self)
        twin._shop = Shop(self._shop.image())
        twin._refunds = dict(self._refunds)
        return twin

    def state(self) -> str:
        return self._shop.dump()

    async def close(self) -> None:
        self._shop.__exit__()

    def _call(self, tool_name: str, /, **arguments: Json) -> Observation:
        given: JsonObject = {key: value for key, value in arguments.items() if value is not None}
        result = self._shop.call(ToolCall(name=tool_name, arguments=given))
        if result.ok:
            self._note(tool_name, given, result.text)
        return Observation(result.text, None if result.ok else ErrorKind.REFUSED)

    def _note(self, tool_name: str, given: JsonObject, result: str) -> None:
        """Store what a call solved, and then the numbers in its result."""
        if tool_name == "run_sql":
            goal = goal_of_query(str(given["query"]), self._shop)
            if goal is not None and goal.customer_id in self._shown:
                self._answered = tuple(dict.fromkeys((*self._answered, goal)))
        if tool_name == "refund":
            number = int(str(given["order_id"]))
            self._refunds[number] = self._refunds.get(number, 0) + json.loads(result)["refunded"]
        self._shown |= frozenset(map(int, _NUMBER.findall(result)))

    def _solved(self) -> tuple[Goal, ...]:
        """Goals that the state solves; after a refund these are no questions, since a question changes nothing."""
        if not self._refunds:
            return self._answered
        goal = goal_of_refunds(self._refunds, self._shown, self._shop)
        return () if goal is None else (goal,)
