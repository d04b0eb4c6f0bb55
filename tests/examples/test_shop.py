"""The quickstart's shop: its tools, its tasks, and the verifier `state` on it, on real SQLite."""

import asyncio
import json
import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.quickstart.shop import TOOLS, CallResult, Shop, is_held_out, open_image
from examples.quickstart.tasks import (
    FAMILIES,
    UNSEEN_FAMILIES,
    VERIFIER,
    VERIFIER_OPTIONS,
    Task,
    answer_matches,
    make_task,
    record,
    record_logs,
    write_trajectories,
)
from verl_pivot.data.turns import turns as expert_turns
from verl_pivot.types import Json, Message, Role, ToolCall, Trajectory, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier


def call(tool: str, **arguments: Json) -> ToolCall:
    return ToolCall(name=tool, arguments=arguments)


def act(tool: str, **arguments: Json) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(call(tool, **arguments),))


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def judge(action: Message, turn: Turn) -> Verdict:
    return asyncio.run(get_verifier(VERIFIER, VERIFIER_OPTIONS)(action, turn))


def ask(tool: str, **arguments: Json) -> CallResult:
    with Shop(open_image(0, False)) as opened:
        return opened.call(call(tool, **arguments))


def find_task(family: str, *, held_out: bool = False) -> Task:
    return next(task for seed in range(500) if (task := make_task(seed, held_out=held_out)).family == family)


def make_turns(family: str) -> tuple[Turn, ...]:
    return expert_turns(record(find_task(family), random.Random(0)))


# The tools


def test_equal_seeds_give_equal_shops_and_other_seeds_others() -> None:
    assert open_image(3, False) == open_image(3, False)
    with Shop(open_image(3, False)) as one, Shop(open_image(4, False)) as other:
        assert one.dump() != other.dump()


def test_a_customer_is_found_by_name_and_by_email() -> None:
    with Shop(open_image(0, False)) as opened:
        customer_id, name, email = opened.customers()[0]
        by_name, by_email = (
            opened.call(call("find_customer", name=name)),
            opened.call(call("find_customer", email=email)),
        )
    assert by_name == by_email == CallResult(text=json.dumps([[customer_id, name, email]]), ok=True)


def test_sql_and_list_orders_show_the_same_rows() -> None:
    with Shop(open_image(0, False)) as opened:
        customer_id = opened.customers()[0][0]
        listed = opened.call(call("list_orders", customer_id=customer_id))
        query = f"select item, id, amount from orders where customer_id = {customer_id}"
        assert opened.call(call("run_sql", query=query)) == listed
        item, *_ = first = json.loads(listed.text)[0]
        assert json.loads(opened.call(call("list_orders", customer_id=customer_id, item=item)).text) == [first]


def test_a_refund_changes_the_state_once_and_not_beyond_the_amount() -> None:
    with Shop(open_image(0, False)) as opened:
        _, order_id, amount = opened.orders(opened.customers()[0][0])[0]
        before = opened.dump()
        assert opened.call(call("refund", order_id=order_id, amount=4.0)).text == '{"refunded": 4}'
        assert opened.dump() != before
        assert opened.call(call("refund", order_id=order_id)).text == json.dumps({"refunded": amount - 4})
        assert opened.call(call("refund", order_id=order_id)).text == '{"error": "amount not open"}'


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("sell", {}, "no tool sell"),
        ("find_customer", {}, "an argument needed"),
        ("find_customer", {"phone": "1"}, "no argument phone"),
        ("find_customer", {"name": 1}, "name must be string"),
        ("list_orders", {"customer_id": True}, "customer_id must be integer"),
        ("list_orders", {"customer_id": "7"}, "customer_id must be integer"),
        ("refund", {"amount": 3}, "order_id needed"),
        ("refund", {"order_id": 1}, "no such order"),
        ("refund", {"order_id": 2**70}, "Python int too large to convert to SQLite INTEGER"),
        ("run_sql", {"query": "select 1; select 2"}, "You can only execute one statement at a time."),
        ("run_sql", {"query": "select x'00' from orders"}, "only text and numbers"),
    ],
)
def test_a_wrong_call_gives_an_error_with_its_reason(tool: str, arguments: dict[str, Json], error: str) -> None:
    assert ask(tool, **arguments) == CallResult(text=json.dumps({"error": error}), ok=False)


@pytest.mark.parametrize(
    "query",
    [
        "delete from orders",
        "update orders set refunded = amount",
        "insert into customers values (1, 'a', 'b')",
        "drop table orders",
        "create table mine (a)",
        "attach ':memory:' as other",
        "pragma query_only = 0",
        "select * from sqlite_master",
        "select * from pragma_table_info('orders')",
        "select load_extension('x')",
        "select randomblob(100000000)",
        "select random()",
        "begin",
        "vacuum",
    ],
)
def test_sql_can_only_read(query: str) -> None:
    with Shop(open_image(0, False)) as opened:
        before = opened.dump()
        assert not opened.call(call("run_sql", query=query)).ok
        assert opened.dump() == before


@pytest.mark.parametrize(
    "query",
    [
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
        "select count(*) from orders a, orders b, orders c, orders d, orders e, orders f, orders g",
        "select a.id from orders a, orders b",
        "select max(name) from (select '" + "x" * 30_000 + "' as name from customers)",
    ],
)
def test_sql_that_runs_too_long_or_returns_too_much_is_stopped(query: str) -> None:
    assert not ask("run_sql", query=query).ok


@given(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=60, deadline=None)
def test_no_argument_breaks_the_shop(text: str, number: int, amount: float) -> None:
    for result in (
        ask("find_customer", name=text, email=text),
        ask("run_sql", query=text),
        ask("list_orders", customer_id=number),
        ask("refund", order_id=number, amount=amount),
    ):
        json.loads(result.text)


# The tasks


def test_every_family_occurs_and_two_only_in_held_out_tasks() -> None:
    training = [make_task(seed, held_out=False) for seed in range(300)]
    held_out = {make_task(seed, held_out=True).family for seed in range(300)}
    assert held_out == set(FAMILIES)
    assert {task.family for task in training} == set(FAMILIES) - set(UNSEEN_FAMILIES)
    assert all(task.name in task.request for task in training if task.family == "price")


def test_held_out_tasks_share_nothing_with_training() -> None:
    training = [make_task(seed, held_out=False) for seed in range(400)]
    held_out = [make_task(seed, held_out=True) for seed in range(400)]
    assert not {task.name for task in training} & {task.name for task in held_out}
    assert not {task.email for task in training} & {task.email for task in held_out}
    numbers = [
        {number for task in tasks for order in task.orders for number in (order.id, order.amount, task.customer_id)}
        | {task.part for task in tasks if task.part is not None}
        for tasks in (training, held_out)
    ]
    assert not numbers[0] & numbers[1]
    assert not any(map(is_held_out, numbers[0]))
    assert all(map(is_held_out, numbers[1]))


@pytest.mark.parametrize("held_out", [False, True])
def test_the_expert_solves_every_task_in_two_to_six_turns(held_out: bool) -> None:
    logs = record_logs(range(300), held_out=held_out)
    assert all(log.passed for log in logs)
    assert {len(expert_turns(log)) for log in logs} == {2, 3, 4, 6}


def test_a_careless_clerk_fails_some_tasks() -> None:
    passed = [log.passed for log in record_logs(range(300), carelessness=0.3)]
    assert 0.4 < sum(passed) / len(passed) < 0.9


def test_clerks_choose_different_equivalent_actions_and_a_seed_always_the_same() -> None:
    task = find_task("refund_item")
    texts = {str(record(task, random.Random(seed)).messages) for seed in range(20)}
    assert len(texts) > 5
    assert record(task, random.Random(1)) == record(task, random.Random(1))


def test_a_task_that_was_not_done_is_not_passed() -> None:
    task = find_task("refund_item")
    with task.open_shop() as opened:
        assert not task.passed(say("Done."), opened.dump())
        opened.call(call("refund", order_id=task.requested[0].id))
        assert task.passed(say("Done."), opened.dump())
        assert not task.passed(act("refund", order_id=task.requested[0].id), opened.dump())


def test_trajectories_are_written_as_openai_messages_with_tools(tmp_path: Path) -> None:
    path = tmp_path / "logs.jsonl"
    logs = record_logs(range(5))
    write_trajectories(path, logs)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["id"] for row in rows] == [log.id for log in logs]
    assert set(rows[0]) == {"id", "messages", "tools", "reward", "metadata"}
    assert rows[0]["tools"] == list(TOOLS)
    assert {row["reward"] for row in rows} == {1.0}
    first_call = next(message for message in rows[0]["messages"] if message["role"] == "assistant")["tool_calls"][0]
    assert isinstance(first_call["function"]["arguments"], str)
    answer = next(message for message in rows[0]["messages"] if message["role"] == "tool")
    assert answer["tool_call_id"] == first_call["id"]


# The verifier


@pytest.mark.parametrize("held_out", [False, True])
def test_every_expert_action_is_accepted(held_out: bool) -> None:
    turns = [turn for log in record_logs(range(150), held_out=held_out) for turn in expert_turns(log)]
    assert {judge(turn.expert, turn).score for turn in turns} == {1.0}


def test_equivalent_actions_are_accepted() -> None:
    turns = make_turns("refund_item")
    task = find_task("refund_item")
    order = task.requested[0]
    for action, turn in [
        (act("run_sql", query=f"select id, name, email from customers where id = {task.customer_id}"), turns[0]),
        (act("find_customer", name=task.name, email=task.email), turns[0]),
        (act("run_sql", query=f"SELECT item, id, amount FROM orders WHERE id={order.id}"), turns[1]),
        (act("list_orders", item=order.item, customer_id=task.customer_id), turns[1]),
        (act("refund", order_id=order.id), turns[2]),
        (act("refund", amount=float(order.amount), order_id=order.id), turns[2]),
    ]:
        assert judge(action, turn) == Verdict(score=1.0, reason="accepted")
    assert judge(say("I paid it back."), turns[3]) == Verdict(score=1.0, reason="solved")


def test_near_misses_are_refused_with_a_reason() -> None:
    turns = make_turns("refund_item")
    task = find_task("refund_item")
    order = task.requested[0]
    other = next(each for each in task.orders if each != order)
    for action, turn, reason in [
        (act("find_customer", name="Nobody"), turns[0], "wrong_output"),
        (act("refund", order_id=order.id, amount=order.amount - 1), turns[2], "wrong_output"),
        (act("refund", order_id=other.id, amount=1), turns[2], "wrong_output"),
        (act("refund", order_id=1), turns[2], "runtime_error"),
        (say("Done."), turns[2], "message_instead_of_call"),
        (act("list_orders", customer_id=task.customer_id), turns[3], "call_instead_of_message"),
        (say(""), turns[3], "empty_message"),
        (say("It is 3."), make_turns("price")[2], "not_solved"),
        (replace(turns[2].expert, tool_calls=turns[2].expert.tool_calls * 2), turns[2], "wrong_number_of_calls"),
    ]:
        verdict = judge(action, turn)
        assert (verdict.score, verdict.reason) == (0.0, reason)


def test_the_same_result_on_another_order_is_another_state() -> None:
    turn = make_turns("refund_item")[2]
    task = find_task("refund_item")
    other = next(each for each in task.orders if each != task.requested[0])
    expert = act("refund", order_id=task.requested[0].id, amount=5)
    verdict = judge(act("refund", order_id=other.id, amount=5), replace(turn, expert=expert))
    assert (verdict.score, verdict.reason) == (0.0, "wrong_state")


def test_an_answer_must_say_the_number_last() -> None:
    assert answer_matches("Order 17: 48.", "48")
    assert answer_matches("It is redcat@post.de.", "redcat@post.de")
    assert not answer_matches("Order 48: 17.", "48")
    assert not answer_matches("Done.", "48")
    assert not answer_matches("It is 480.", "48")
    assert answer_matches("Done.", None)
    assert not answer_matches("", None)


def test_a_turn_that_cannot_be_judged_is_undecided() -> None:
    turn = make_turns("refund_item")[2]
    broken_expert = replace(turn, expert=act("refund", order_id=1))
    other_shop = replace(turn, metadata={**turn.metadata, "seed": 99})
    lost_result = replace(turn, state=(*turn.state[:-1], Message(role=Role.USER, content="?")))
    wrong_expert = replace(make_turns("price")[2], expert=say("It is 3."))
    verdicts = [judge(turn.expert, each) for each in (broken_expert, other_shop, lost_result)]
    verdicts.append(judge(say("It is 4."), wrong_expert))
    assert {(verdict.score, verdict.reason) for verdict in verdicts} == {(None, "broken_gold")}
    for verdict, detail in zip(
        verdicts,
        ("the expert's call fails", "cannot be run again", "cannot be run again", "not accept the expert's message"),
        strict=True,
    ):
        assert detail in verdict.detail


def test_the_verifier_survives_pickle() -> None:
    verifier = pickle.loads(pickle.dumps(get_verifier(VERIFIER, VERIFIER_OPTIONS)))
    turn = make_turns("refund_item")[0]
    assert asyncio.run(verifier(turn.expert, turn)) == judge(turn.expert, turn)


def test_the_written_reward_says_whether_the_trajectory_passed(tmp_path: Path) -> None:
    logs: list[Trajectory] = record_logs(range(50), carelessness=0.5)
    write_trajectories(tmp_path / "logs.jsonl", logs)
    rewards = [json.loads(line)["reward"] for line in (tmp_path / "logs.jsonl").read_text().splitlines()]
    assert rewards == [float(log.passed is True) for log in logs]
    assert set(rewards) == {0.0, 1.0}
