"""ShopEnvironment: a task in the shop as an environment, with four tools, a score of the outcome, and copies."""

import copy

from examples.quickstart.shop import Shop
from examples.quickstart.tasks import Task, make_task
from verl_pivot.tools.contract import Environment, Observation, tool
from verl_pivot.types import ErrorKind, Json, JsonObject, Message, ToolCall, Verdict


class ShopEnvironment(Environment):
    """One customer's task in a shop of its own, which lives as long as the rollout.

    The quickstart's verifier `state` runs actions on its copies; the example `tool_rollout` plays whole tasks in it.
    Methods are `async` because a connection of SQLite must stay in the thread that opened it.
    """

    def __init__(self, metadata: JsonObject) -> None:
        seed = metadata["seed"]
        assert isinstance(seed, int), metadata
        self._task: Task = make_task(seed, held_out=metadata["held_out"] is True)
        self._shop = self._task.open_shop()

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
        passed = self._task.passed(answer, self._shop.dump())
        return Verdict.accept(reason="solved") if passed else Verdict.refuse("not_solved")

    def fork(self) -> "ShopEnvironment":
        twin = copy.copy(self)
        twin._shop = Shop(self._shop.image())
        return twin

    def state(self) -> str:
        return self._shop.dump()

    async def close(self) -> None:
        self._shop.__exit__()

    def _call(self, tool_name: str, /, **arguments: Json) -> Observation:
        given: JsonObject = {key: value for key, value in arguments.items() if value is not None}
        result = self._shop.call(ToolCall(name=tool_name, arguments=given))
        return Observation(result.text, None if result.ok else ErrorKind.REFUSED)
