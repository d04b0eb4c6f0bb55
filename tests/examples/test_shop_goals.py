"""Tasks that a state of the shop solves: questions answered after the customer's look-up, and refunds made."""

import asyncio
import json
from collections.abc import Sequence

from examples.quickstart.environment import ShopEnvironment
from examples.quickstart.goals import Goal, achieved_task, task_of
from examples.quickstart.tasks import Task, make_task
from tests.examples.test_shop import act, find_task, say
from verl_pivot.tools.contract import AchievedTask
from verl_pivot.types import JsonObject, Message


def played(metadata: JsonObject, actions: Sequence[Message]) -> ShopEnvironment:
    """Environment of the shop after these calls."""
    environment = ShopEnvironment(metadata)

    async def play() -> None:
        for action in actions:
            for call in action.tool_calls:
                await getattr(environment, call.name)(**call.arguments)

    asyncio.run(play())
    return environment


def score(environment: ShopEnvironment, text: str) -> float | None:
    return asyncio.run(environment.score(say(text))).score


def goal(task: Task, family: str, *orders: int, part: int | None = None) -> AchievedTask:
    named = Goal(family=family, customer_id=task.customer_id, orders=orders, part=part)
    return achieved_task(named, task.seed, held_out=False)


def test_a_query_for_another_question_solves_that_one_behind_the_look_up_alone() -> None:
    task = find_task("total")
    find = act("find_customer", name=task.name)
    count = act("run_sql", query=f"select count(*) from orders where customer_id = {task.customer_id}")

    failed = played(task.metadata, [find, count])
    assert failed.achieved() == [goal(task, "count")]
    (named,) = failed.achieved()
    assert named.request == f"I am {task.name}. How many times did I order?"

    number = len(task.orders)
    assert score(played(named.metadata, [find, count]), f"It is {number}.") == 1.0
    assert score(played(named.metadata, [count]), f"It is {number}.") == 0.0
    assert score(played(named.metadata, []), f"It is {number}.") == 0.0
    assert score(played(named.metadata, [find, count]), f"It is {number + 1}.") == 0.0
    assert played(task.metadata, [count]).achieved() == []


def test_a_forgotten_refund_leaves_the_one_that_was_made() -> None:
    task = find_task("refund_two")
    first, second = task.requested
    find = act("find_customer", name=task.name)
    look = act("list_orders", customer_id=task.customer_id, item=first.item)
    refund = act("refund", order_id=first.id)

    failed = played(task.metadata, [find, look, refund])
    assert failed.achieved() == [goal(task, "refund_item", first.id)]
    (named,) = failed.achieved()
    assert score(played(named.metadata, [find, look, refund]), "Done.") == 1.0
    assert score(played(named.metadata, [look, refund, act("refund", order_id=second.id)]), "Done.") == 0.0
    # Without a look-up the request must say the order's number.
    assert played(task.metadata, [refund]).achieved() == [goal(task, "refund_order", first.id)]


def test_a_part_that_was_paid_back_is_in_the_request() -> None:
    task = find_task("refund_item")
    order = task.requested[0]

    (named,) = played(task.metadata, [act("refund", order_id=order.id, amount=5)]).achieved()

    assert named.request == f"Refund order {order.id}, only 5."
    assert score(played(named.metadata, [act("refund", order_id=order.id, amount=5)]), "Done.") == 1.0


def test_other_queries_and_refused_calls_solve_nothing() -> None:
    task = find_task("count")
    find = act("find_customer", name=task.name)
    where = f"from orders where customer_id = {task.customer_id}"
    others = [f"select max(amount) {where}", f"select count(*) {where} and 1", "select count(*) from orders"]

    for query in others:
        assert played(task.metadata, [find, act("run_sql", query=query)]).achieved() == []
    assert played(task.metadata, [act("refund", order_id=1)]).achieved() == []


def test_the_task_of_a_seed_is_its_own_and_a_copy_knows_what_was_solved() -> None:
    for task in (make_task(seed, held_out=False) for seed in range(20)):
        assert task_of(json.loads(json.dumps(task.metadata))) == task
    task = find_task("count")
    find = act("find_customer", name=task.name)
    query = act("run_sql", query=f"select sum(amount) from orders where customer_id = {task.customer_id}")
    twin = played(task.metadata, [find, query]).fork()

    assert twin.achieved() == [goal(task, "total")]
