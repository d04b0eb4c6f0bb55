"""A scripted clerk of the quickstart's shop, which makes mistakes at times, and scripted judges of its labels.

`answer`, `first_judge`, `second_judge` and `third_judge` are programs for `verl-pivot synthesize --writers`.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from examples.quickstart.tasks import Task, make_task, record
from verl_pivot.data.messages import parse_message
from verl_pivot.data.turns import turns
from verl_pivot.synthesis.data_flow import result_value
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.synthesis.wrong_calls import wrong_calls
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn
from verl_pivot.verifiers.scoring import score_message

MISTAKES = 0.2
"""Share of the clerk's calls that are mistakes."""
JUDGES_ERR = 0.15
"""Share of the labels about which each judge is wrong, independently of the other judges."""
_ANSWER = re.compile(r"Answer [12]:\n<(\w+)>\n(.*?)\n</\1>", re.DOTALL)


_known: dict[str, Task] = {}
"""{request: first task with this request} of all tasks made so far."""
_seeds = count()


def tasks(num: int) -> list[Task]:
    """The first `num` tasks with distinct requests."""
    while len(_known) < num:
        _learn()
    return list(islice(_known.values(), num))


def task_of(request: str) -> Task:
    """The task with this request, of the tasks that `tasks` gives."""
    while request not in _known:
        _learn()
    return _known[request]


def _learn() -> None:
    task = make_task(next(_seeds), held_out=False)
    _known.setdefault(task.request, task)


def careful(task: Task, messages: Sequence[Message]) -> Message:
    """The expert's next action: the first step of the task whose result is not in the conversation yet."""
    results = list(_results(messages))
    refunded = [
        call.arguments.get("order_id") for call, value in results if isinstance(value, dict) and "refunded" in value
    ]
    rows = [row for _, value in results if isinstance(value, list) for row in value if isinstance(row, list)]
    if task.family == "refund_order":
        return _say("Done.") if refunded else _act("refund", _amount(task, {"order_id": task.requested[0].id}))
    customer = next((row[0] for row in rows if len(row) == 3 and (row[1] == task.name or row[2] == task.email)), None)
    if customer is None:
        key = "name" if task.name in task.request else "email"
        return _act("find_customer", {key: getattr(task, key)})
    if task.family == "email":
        return _say(f"It is {task.email}.")
    if task.answer is not None:
        told = [found for call, value in results if call.name == "run_sql" for found in _only_number(value)]
        return _say(f"It is {told[-1]}.") if told else _act("run_sql", {"query": _query(task, customer)})
    for item in (each.item for each in task.requested):
        order = next((row[1] for row in rows if len(row) == 3 and row[0] == item), None)
        if order is None:
            return _act("list_orders", {"customer_id": customer, "item": item})
        if order not in refunded:
            return _act("refund", _amount(task, {"order_id": order}))
    return _say("Done.")


def answer(question: WriterQuestion) -> Json:
    """The clerk's next action; whether it is a mistake depends on the conversation alone."""
    messages = [parse_message(each) for each in question.messages]
    task = task_of(messages[1].content)
    action = careful(task, messages)
    rng = random.Random(f"clerk-{task.seed}-{len(messages)}")
    if action.tool_calls and rng.random() < MISTAKES:
        action = _mistaken(task, messages, action, rng)
    return action.as_dict()


def labelled_turn(task: Task) -> Turn:
    """The turn of an expert's log whose call is the label of a task."""
    rng = random.Random(f"label-{task.seed}")
    return rng.choice([turn for turn in turns(record(task, rng)) if turn.expert.tool_calls])


async def is_right(action: Message, turn: Turn) -> bool:
    """Whether an action has the same effects in the shop as the expert's action."""
    return (await score_message(action, turn)).score == 1.0


async def judged(question: WriterQuestion, name: str) -> str:
    """A judge's verdict on two answers; for a share of the labels it is wrong, and then about both answers."""
    text = str(question.messages[-1]["content"])
    request = re.search(r"^user: (.*)$", text, re.MULTILINE)
    assert request is not None, text
    turn = labelled_turn(task_of(request[1]))
    answers = [parse_message(json.loads(found)) for _, found in _ANSWER.findall(text)]
    says = [await is_right(each, turn) for each in answers]
    if random.Random(f"{name}-{turn.id}").random() < JUDGES_ERR:
        says = [not each for each in says]
    return json.dumps({"reason": "", "first_is_right": says[0], "second_is_right": says[1]})


async def first_judge(question: WriterQuestion) -> str:
    return await judged(question, "first")


async def second_judge(question: WriterQuestion) -> str:
    return await judged(question, "second")


async def third_judge(question: WriterQuestion) -> str:
    return await judged(question, "third")


def _mistaken(task: Task, messages: Sequence[Message], action: Message, rng: random.Random) -> Message:
    """A mistake in place of an action: a guess instead of a query, or a call with a value from elsewhere."""
    if action.tool_calls[0].name == "run_sql":
        return _say(f"About {rng.randint(1, 99)}.")
    wrong = wrong_calls(replace(labelled_turn(task), state=tuple(messages), expert=action), rng)
    return replace(action, tool_calls=(wrong[0],)) if wrong else action


def _results(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, Json]]:
    """Each call with its result, parsed as JSON."""
    calls = [call for message in messages for call in message.tool_calls]
    texts = [message.content for message in messages if message.role is Role.TOOL]
    for call, text in zip(calls, texts, strict=True):
        yield call, result_value(text)


def _only_number(value: Json) -> list[Json]:
    """The value of a result that is one row with one column; empty for any other result."""
    match value:
        case [[found]]:
            return [found]
    return []


def _amount(task: Task, arguments: JsonObject) -> JsonObject:
    return arguments if task.part is None else {**arguments, "amount": task.part}


def _query(task: Task, customer: Json) -> str:
    column = {"count": "count(*)", "total": "sum(amount)"}.get(task.family, "amount")
    where = f"customer_id = {customer}"
    if column == "amount":
        where += f" and item = '{task.requested[0].item}'"
    return f"select {column} from orders where {where}"


def _act(tool: str, arguments: JsonObject) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=tool, arguments=arguments),))


def _say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)
