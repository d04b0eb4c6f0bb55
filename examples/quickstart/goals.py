"""Tasks that a state of the shop solves, whatever was asked for: questions that queries answered, and refunds."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from examples.quickstart.shop import Shop, open_image
from examples.quickstart.tasks import Order, Task, answer_of, make_task, request_of
from verl_pivot.tools.contract import AchievedTask
from verl_pivot.types import JsonObject

_SUM: Final = re.compile(r"select (count|sum|total)\((?:\*|id|amount)\) from orders where customer_id = (\d+)")
_PRICE: Final = re.compile(
    r"select amount from orders where (?:customer_id = (\d+) and item = '(\w+)'|item = '(\w+)' and customer_id = (\d+))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A task about any customer of a shop."""

    family: str
    customer_id: int
    orders: tuple[int, ...] = ()
    """Ids of the orders that it is about; empty for a question about all of them."""
    part: int | None = None
    """Amount to pay back; None means the whole order."""

    @property
    def as_metadata(self) -> JsonObject:
        return {"customer_id": self.customer_id, "orders": [*self.orders], "part": self.part}


def goal_of(metadata: JsonObject) -> Goal | None:
    """The goal in the metadata of a task that `achieved` named; None for a task that its seed alone defines."""
    given = metadata.get("goal")
    if given is None:
        return None
    assert isinstance(given, dict), metadata
    customer_id, orders, part = given["customer_id"], given["orders"], given["part"]
    assert isinstance(customer_id, int), metadata
    assert isinstance(orders, list), metadata
    assert isinstance(part, int | None), metadata
    numbers = tuple(order for order in orders if isinstance(order, int))
    return Goal(family=str(metadata["family"]), customer_id=customer_id, orders=numbers, part=part)


def task_of_goal(goal: Goal, seed: int, *, held_out: bool) -> Task:
    """The task with this goal in the shop of a seed."""
    with Shop(open_image(seed, held_out)) as shop:
        name, email = next((row[1], row[2]) for row in shop.customers() if row[0] == goal.customer_id)
        rows = shop.orders(goal.customer_id)
    orders = tuple(Order(item=item, id=order_id, amount=amount) for item, order_id, amount in rows)
    requested = tuple(order for number in goal.orders for order in orders if order.id == number) or orders[:1]
    return Task(
        id=f"goal-{seed}",
        family=goal.family,
        seed=seed,
        held_out=held_out,
        request=request_of(goal.family, name, email, requested, goal.part),
        customer_id=goal.customer_id,
        name=name,
        email=email,
        orders=orders,
        requested=requested,
        part=goal.part,
        answer=answer_of(goal.family, email, orders, requested),
    )


def task_of(metadata: JsonObject) -> Task:
    """The task that a row's metadata name."""
    seed, held_out = metadata["seed"], metadata["held_out"] is True
    assert isinstance(seed, int), metadata
    goal = goal_of(metadata)
    return make_task(seed, held_out=held_out) if goal is None else task_of_goal(goal, seed, held_out=held_out)


def achieved_task(goal: Goal, seed: int, *, held_out: bool) -> AchievedTask:
    """The goal in the form that `Environment.achieved` returns."""
    task = task_of_goal(goal, seed, held_out=held_out)
    return AchievedTask(metadata={**task.metadata, "goal": goal.as_metadata}, request=task.request)


def progress_of(task: Task, answered: Sequence[Goal], refunds: Mapping[int, float], shown: Set[int]) -> float:
    """Share of a task's look-ups, query and refunds that are done; 0 once something else was paid back.

    Args:
        task: The task.
        answered: Questions that queries answered.
        refunds: {id of an order: amount that was paid back}.
        shown: Numbers in the results of tools.
    """
    wanted = {each.id: task.part or each.amount for each in task.requested} if task.answer is None else {}
    if any(refunds[number] != wanted.get(number) for number in refunds):
        return 0.0
    done = [refunds.get(number) == amount for number, amount in wanted.items()]
    if task.family != "refund_order":  # its request names the order
        done += [number in shown for number in (task.customer_id, *wanted)]
    if task.answer is not None and task.family != "email":
        done.append(_question_of(task) in answered)
    return sum(done) / len(done)


def _question_of(task: Task) -> Goal:
    """The question of a task, as `goal_of_query` returns it."""
    if task.family in ("count", "total"):
        return Goal(family=task.family, customer_id=task.customer_id)
    return Goal(family="price", customer_id=task.customer_id, orders=(task.requested[0].id,))


def goal_of_query(query: str, shop: Shop) -> Goal | None:
    """The question that a query answers, if it is written as the shop's clerks write it; None for any other query."""
    if found := _SUM.fullmatch(query):
        family = "count" if found[1] == "count" else "total"
        return Goal(family=family, customer_id=int(found[2])) if shop.orders(int(found[2])) else None
    if found := _PRICE.fullmatch(query):
        customer_id, item = int(found[1] or found[4]), found[2] or found[3]
        orders = [number for name, number, _ in shop.orders(customer_id) if name == item]
        return Goal(family="price", customer_id=customer_id, orders=tuple(orders)) if len(orders) == 1 else None
    return None


def goal_of_refunds(refunds: dict[int, int], shown: frozenset[int], shop: Shop) -> Goal | None:
    """The refund request that these refunds fulfil exactly; None if no single request does.

    Args:
        refunds: {id of an order: amount that was paid back}.
        shown: Numbers in the results of tools.
        shop: The shop.
    """
    for customer_id, _, _ in shop.customers():
        amounts = {number: amount for _, number, amount in shop.orders(customer_id)}
        if not refunds or not refunds.keys() <= amounts.keys():
            continue
        orders = tuple(refunds)
        is_whole = all(refunds[number] == amounts[number] for number in orders)
        if len(orders) == 1 and orders[0] not in shown:  # so the request must have named it
            part = None if is_whole else refunds[orders[0]]
            return Goal(family="refund_order", customer_id=customer_id, orders=orders, part=part)
        if is_whole and len(orders) <= 2 and {*orders} <= shown:
            family = "refund_item" if len(orders) == 1 else "refund_two"
            return Goal(family=family, customer_id=customer_id, orders=orders)
    return None
