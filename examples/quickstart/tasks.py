"""Tasks for the shop, and the clerk who works on them: a seed -> Task -> one recorded trajectory."""

import json
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

from examples.quickstart.shop import SYSTEM, TOOLS, Shop, is_held_out, open_image
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory

VERIFIER = "state"
VERIFIER_OPTIONS: JsonObject = {"environment": "examples.quickstart.environment:ShopEnvironment"}
_FACT = re.compile(r"[a-z]+@[a-z.]+[a-z]|\d+(?:\.\d+)?")
_WEIGHTS = {"email": 2, "price": 2, "count": 2, "total": 2, "refund_item": 3, "refund_order": 2, "refund_two": 1}
_UNSEEN_WEIGHTS = {"price_by_email": 2, "refund_part": 1}
UNSEEN_FAMILIES = tuple(_UNSEEN_WEIGHTS)
"""Families that only held-out tasks have. Each combines two that training has: the question of `price` with a customer
who gives only an e-mail, and the item of `refund_item` with the amount of `refund_order`."""
FAMILIES = (*_WEIGHTS, *UNSEEN_FAMILIES)
_PRICE_REQUESTS = ("{who} What did the {item} cost?", "{who} Tell me the cost of my {item}.")
_REQUESTS = {
    "email": ("What is the e-mail of {name}?", "Tell me the e-mail of {name}."),
    "price": _PRICE_REQUESTS,
    "price_by_email": _PRICE_REQUESTS,
    "count": ("{who} How many times did I order?", "{who} Count how many times I bought."),
    "total": ("{who} What is the sum of all?", "{who} Tell me the sum of everything."),
    "refund_item": ("{who} Refund the {item}.", "{who} I want my {item} refunded."),
    "refund_order": ("Refund order {order}.", "Refund order {order}, only {part}."),
    "refund_two": ("{who} Refund the {item} and the {other}.",),
    "refund_part": ("{who} Refund the {item}, only {part}.", "{who} I want my {item} refunded, only {part}."),
}
_WHO = ("I am {name}.", "I am {name}, {email}.", "My e-mail is {email}.")
_WHO_OF = {"price": _WHO[:2], "price_by_email": _WHO[2:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order of the task's customer."""

    item: str
    id: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One customer's request, and the check that it was fulfilled."""

    id: str
    family: str
    seed: int
    """Seed of the shop's state, together with `held_out`."""
    held_out: bool
    request: str
    """Message of the user."""
    customer_id: int
    name: str
    email: str
    orders: tuple[Order, ...]
    """All orders of that customer, as the shop lists them."""
    requested: tuple[Order, ...]
    """Orders that the request is about, in the order in which it names them."""
    part: int | None
    """Amount to pay back; None means the whole order."""
    answer: str | None
    """Number or e-mail that the last message must give; None if only the state counts."""

    @property
    def metadata(self) -> JsonObject:
        """Values from which the shop is rebuilt and the answer is checked."""
        return {"seed": self.seed, "held_out": self.held_out, "family": self.family, "answer": self.answer}

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first action."""
        return Message(role=Role.SYSTEM, content=SYSTEM), Message(role=Role.USER, content=self.request)

    def open_shop(self) -> Shop:
        return Shop(open_image(self.seed, self.held_out))

    def passed(self, last: Message, state: str) -> bool:
        """Whether the last message and the final state (`Shop.dump`) fulfil the request."""
        is_answered = last.role is Role.ASSISTANT and not last.tool_calls and answer_matches(last.content, self.answer)
        return is_answered and state == self._fulfilled_state()

    def _fulfilled_state(self) -> str:
        with self.open_shop() as shop:
            for order in self.requested if self.family.startswith("refund") else ():
                shop.call(_act("refund", {"order_id": order.id, "amount": self.part or order.amount}).tool_calls[0])
            return shop.dump()


def answer_matches(text: str, answer: str | None) -> bool:
    """Whether the last number or e-mail in a message is the answer; if `answer` is None, any text is accepted."""
    return bool(text) if answer is None else _FACT.findall(text)[-1:] == [answer]


def make_task(seed: int, *, held_out: bool) -> Task:
    """One task; training and held-out tasks share no name, e-mail, customer, order id or amount."""
    rng = random.Random(f"task-{seed}-{held_out}")
    weights = {**_WEIGHTS, **_UNSEEN_WEIGHTS} if held_out else _WEIGHTS
    family = rng.choices(list(weights), list(weights.values()))[0]
    with Shop(open_image(seed, held_out)) as shop:
        customer_id, name, email = rng.choice(shop.customers())
        orders = tuple(
            Order(item=item, id=order_id, amount=amount) for item, order_id, amount in shop.orders(customer_id)
        )
    requested = tuple(rng.sample(orders, 2 if family == "refund_two" else 1))
    template = rng.choice(_REQUESTS[family])
    part = rng.choice(_parts(requested[0].amount, held_out)) if "{part}" in template else None
    who = rng.choice(_WHO_OF.get(family, _WHO)).format(name=name, email=email)
    request = template.format(
        who=who, name=name, item=requested[0].item, other=requested[-1].item, order=requested[0].id, part=part
    )
    return Task(
        id=f"{'held' if held_out else 'shop'}-{seed}",
        family=family,
        seed=seed,
        held_out=held_out,
        request=request,
        customer_id=customer_id,
        name=name,
        email=email,
        orders=orders,
        requested=requested,
        part=part,
        answer=answer_of(family, email, orders, requested),
    )


def _parts(amount: int, held_out: bool) -> list[int]:
    return [part for part in range(5, amount) if is_held_out(part) is held_out]


def request_of(family: str, name: str, email: str, requested: tuple[Order, ...], part: int | None) -> str:
    """Request of a customer who gives a name, in the first wording of the family that fits `part`."""
    template = next(each for each in _REQUESTS[family] if ("{part}" in each) == (part is not None))
    who, first, last = _WHO[0].format(name=name), requested[0], requested[-1]
    return template.format(who=who, name=name, email=email, item=first.item, other=last.item, order=first.id, part=part)


def answer_of(family: str, email: str, orders: tuple[Order, ...], requested: tuple[Order, ...]) -> str | None:
    """The number or e-mail that the last message must give; None if only the state counts."""
    answers = {
        "email": email,
        "price": str(requested[0].amount),
        "price_by_email": str(requested[0].amount),
        "count": str(len(orders)),
        "total": str(sum(order.amount for order in orders)),
    }
    return answers.get(family)


def record(task: Task, rng: random.Random, *, carelessness: float = 0.0) -> Trajectory:
    """Let the clerk work on one task and record the trajectory.

    Args:
        task: The customer's request.
        rng: Random generator that chooses among equivalent actions and decides where the clerk makes mistakes.
        carelessness: Chance that the clerk guesses an answer. A wrong order and a forgotten refund are each an eighth
            as likely. At 0.0 the clerk is an expert.
    """
    messages = list(task.opening)
    with task.open_shop() as shop:
        for number, action in enumerate(_plan(task, rng, carelessness)):
            messages.append(_numbered(action, number))
            for call in messages[-1].tool_calls:
                result = shop.call(call)
                messages.append(Message(role=Role.TOOL, content=result.text, tool_call_id=call.id, name=call.name))
        passed = task.passed(messages[-1], shop.dump())
    return Trajectory(
        id=task.id,
        messages=tuple(messages),
        tools=TOOLS,
        passed=passed,
        verifier=VERIFIER,
        verifier_options=VERIFIER_OPTIONS,
        metadata=task.metadata,
    )


def record_logs(seeds: range, *, held_out: bool = False, carelessness: float = 0.0) -> list[Trajectory]:
    """One trajectory per seed; equal seeds give equal trajectories."""
    return [
        record(make_task(seed, held_out=held_out), random.Random(f"clerk-{seed}"), carelessness=carelessness)
        for seed in seeds
    ]


def write_trajectories(path: Path, trajectories: list[Trajectory]) -> None:
    """Write trajectories as JSONL in the OpenAI format, which `verl-pivot import` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(_row(trajectory)) + "\n" for trajectory in trajectories))


def _plan(task: Task, rng: random.Random, carelessness: float) -> list[Message]:
    """Actions of the clerk, the last of which is the message to the user."""
    if task.family == "refund_order":
        return [_refund(task.requested[0], task.part, rng, amount_known=False), _say(rng, None)]
    find = _find(task, rng)
    if task.family == "email":
        return [find, _say(rng, task.answer)]
    if task.answer is not None:
        if rng.random() < carelessness:
            return [find, Message(role=Role.ASSISTANT, content=f"About {rng.randint(1, 99)}.")]
        return [find, _query_answer(task, rng), _say(rng, task.answer)]
    return [find, *_refund_all(task, rng, carelessness), _say(rng, None)]


def _refund_all(task: Task, rng: random.Random, carelessness: float) -> list[Message]:
    """Look up and refund each requested order; a careless clerk sometimes takes another order or forgets the refund."""
    actions = []
    for requested in task.requested:
        order = rng.choice(task.orders) if rng.random() < carelessness / 8 else requested
        actions.append(_look_up(task, order, rng))
        if rng.random() >= carelessness / 8:
            actions.append(_refund(order, task.part, rng, amount_known=True))
    return actions


def _find(task: Task, rng: random.Random) -> Message:
    keys = {key: value for key, value in (("name", task.name), ("email", task.email)) if value in task.request}
    pairs = rng.sample(list(keys.items()), rng.randint(1, len(keys)))
    if rng.random() < 0.2:
        where = " and ".join(f"{key} = '{value}'" for key, value in pairs)
        return _sql(f"select id, name, email from customers where {where}")
    return _act("find_customer", dict(pairs))


def _look_up(task: Task, order: Order, rng: random.Random) -> Message:
    if rng.random() < 0.2:
        where = f"customer_id = {task.customer_id} and item = '{order.item}'"
        return _sql(f"select item, id, amount from orders where {where}")
    return _act("list_orders", {"customer_id": task.customer_id, "item": order.item})


def _query_answer(task: Task, rng: random.Random) -> Message:
    of_item, of_customer = f"item = '{task.requested[0].item}'", f"customer_id = {task.customer_id}"
    if task.family == "count":
        column, where = rng.choice(("count(*)", "count(id)")), of_customer
    elif task.family == "total":
        column, where = rng.choice(("sum(amount)", "total(amount)")), of_customer
    else:  # the price of one item, whichever way the customer is found
        column, where = "amount", " and ".join(rng.sample((of_item, of_customer), 2))
    return _sql(f"select {column} from orders where {where}")


def _refund(order: Order, part: int | None, rng: random.Random, *, amount_known: bool) -> Message:
    arguments: JsonObject = {"order_id": order.id}
    if part is not None:
        arguments["amount"] = part
    elif amount_known and rng.random() < 0.5:
        arguments["amount"] = order.amount
    return _act("refund", arguments if rng.random() < 0.7 else dict(reversed(arguments.items())))


def _say(rng: random.Random, answer: str | None) -> Message:
    texts = ("Done.", "It is refunded.") if answer is None else ("It is {}.", "That is {}.")
    return Message(role=Role.ASSISTANT, content=rng.choice(texts).format(answer))


def _sql(query: str) -> Message:
    return _act("run_sql", {"query": query})


def _act(tool: str, arguments: JsonObject) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=tool, arguments=arguments),))


def _numbered(action: Message, number: int) -> Message:
    """The action with ids for its calls, which the tool messages repeat."""
    calls = tuple(replace(call, id=f"call_{number}_{i}") for i, call in enumerate(action.tool_calls))
    return replace(action, tool_calls=calls)


def _row(trajectory: Trajectory) -> JsonObject:
    messages: list[Json] = [_openai(message) for message in trajectory.messages]
    return {
        "id": trajectory.id,
        "messages": messages,
        "tools": list(trajectory.tools),
        "reward": float(trajectory.passed is True),
        "metadata": trajectory.metadata,
    }


def _openai(message: Message) -> JsonObject:
    """A message as the OpenAI API logs it: arguments are a JSON string, and a message with calls has no content."""
    row = message.as_dict()
    if message.tool_calls:
        row["content"] = None
        row["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return row
