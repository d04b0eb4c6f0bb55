"""Domain `shop`: refunds and questions about the customers of the quickstart's shop, with four tools."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Final

from examples.quickstart.shop import SYSTEM, TOOLS, Shop, open_image
from examples.quickstart.tasks import answer_matches
from examples.study.domains.protocol import Clerk, StudyTask, act, say
from verl_pivot.tools.contract import Observation
from verl_pivot.types import ErrorKind, Json, JsonObject, Message, Role, ToolCall

_SEEN: Final = {"refund": 3, "refund_total": 3, "refund_count": 3, "refund_two": 2}
_UNSEEN: Final = {"refund_two_total": 1, "refund_two_count": 1}
_WHO: Final = ("I am {name}.", "My e-mail is {email}.", "I am {name}, {email}.")
_REFUND: Final = {1: ("Refund the {item}.", "I want my {item} refunded."), 2: ("Refund the {item} and the {other}.",)}
_ASK: Final = {
    "total": ("What is the sum of all?", "Tell me the sum of everything."),
    "count": ("How many times did I order?", "Count how many times I bought."),
}


class ShopDomain:
    """Tasks of one customer: one or two refunds, and then often a question about all of the customer's orders."""

    name = "shop"
    tools: Sequence[JsonObject] = TOOLS
    fault = "It guesses a count or a sum instead of asking the database for it."

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        return "state", {"environment": "examples.study.environment:StudyEnvironment"}

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        rng = random.Random(f"study-shop-{seed}-{held_out}")
        weights = {**_SEEN, **_UNSEEN} if held_out or every_family else _SEEN
        family = rng.choices(list(weights), list(weights.values()))[0]
        with Shop(open_image(seed, held_out)) as shop:
            customer, name, email = rng.choice(shop.customers())
            orders = shop.orders(customer)
        requested = rng.sample(orders, 2 if "two" in family else 1)
        question = family.rpartition("_")[2]
        answers = {"total": sum(amount for _, _, amount in orders), "count": len(orders)}
        texts = [rng.choice(_WHO), rng.choice(_REFUND[len(requested)]), rng.choice(_ASK.get(question, ("",)))]
        items = {"item": requested[0][0], "other": requested[-1][0]}
        return StudyTask(
            id=f"shop-{family}-{seed}-{held_out}",
            domain=self.name,
            family=family,
            system=SYSTEM,
            request=" ".join(filter(None, texts)).format(name=name, email=email, **items),
            metadata={
                "domain": self.name,
                "seed": seed,
                "held_out": held_out,
                "customer": customer,
                "name": name,
                "email": email,
                "refunds": [[item, number, amount] for item, number, amount in requested],
                "question": question if question in answers else None,
                "answer": str(answers[question]) if question in answers else None,
            },
        )

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """Find the customer, look up and refund each order, ask for the answer, and give it."""
        asked, answer = task.metadata["question"], task.metadata["answer"]
        actions = [_find(task, clerk)]
        for item, number, amount in _refunds(task.metadata):
            actions += [_look_up(task, item, clerk), _refund(number, amount, clerk)]
        if asked is None:
            return [*actions, say(clerk.way("Done.", "It is refunded."))]
        if clerk.errs():
            return [*actions, say(f"About {clerk.rng.randint(1, 99)}.")]
        of_all = f"from orders where customer_id = {task.metadata['customer']}"
        columns = {"total": ("sum(amount)", "total(amount)"), "count": ("count(*)", "count(id)")}[str(asked)]
        query = f"select {clerk.way(*columns)} {of_all}"
        return [*actions, act("run_sql", query=query), say(clerk.way("It is {}.", "That is {}.").format(answer))]

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> "ShopWorld":
        seed, held_out = metadata["seed"], metadata["held_out"] is True
        assert isinstance(seed, int), metadata
        return ShopWorld(Shop(open_image(seed, held_out)), metadata)


class ShopWorld:
    """The shop of one task."""

    def __init__(self, shop: Shop, metadata: JsonObject, *, was_asked: bool = False) -> None:
        self._shop, self._metadata = shop, metadata
        self._was_asked = was_asked
        """Whether a query gave the answer; without it, a right answer is a guess and does not count."""

    async def call(self, call: ToolCall) -> Observation:
        result = self._shop.call(call)
        answer = self._metadata["answer"]
        self._was_asked |= call.name == "run_sql" and result.ok and json.loads(result.text) == [[_number(answer)]]
        return Observation(result.text, None if result.ok else ErrorKind.REFUSED)

    def passed(self, answer: Message) -> bool:
        wanted = self._metadata["answer"]
        is_answered = answer.role is Role.ASSISTANT and not answer.tool_calls
        is_right = answer_matches(answer.content, None if wanted is None else str(wanted))
        return (
            is_answered and is_right and self._shop.dump() == self._fulfilled() and (wanted is None or self._was_asked)
        )

    def _fulfilled(self) -> str:
        with ShopDomain().open(self._metadata)._shop as shop:
            for _, number, amount in _refunds(self._metadata):
                shop.call(ToolCall(name="refund", arguments={"order_id": number, "amount": amount}))
            return shop.dump()

    def state(self) -> Json:
        return self._shop.dump()

    def fork(self) -> "ShopWorld":
        return ShopWorld(Shop(self._shop.image()), self._metadata, was_asked=self._was_asked)

    async def close(self) -> None:
        self._shop.__exit__()


def _number(answer: Json) -> int | None:
    return None if answer is None else int(str(answer))


def _refunds(metadata: Mapping[str, Json]) -> list[tuple[str, int, int]]:
    rows = metadata["refunds"]
    assert isinstance(rows, list), metadata
    return [(str(row[0]), int(str(row[1])), int(str(row[2]))) for row in rows if isinstance(row, list)]


def _find(task: StudyTask, clerk: Clerk) -> Message:
    given = [(key, str(task.metadata[key])) for key in ("name", "email") if str(task.metadata[key]) in task.request]
    one_of_them = [[each] for each in given] if len(given) > 1 else []
    pairs = clerk.way(given, *one_of_them)
    where = " and ".join(f"{key} = '{value}'" for key, value in pairs)
    return clerk.way(
        act("find_customer", **dict(pairs)),
        act("run_sql", query=f"select id, name, email from customers where {where}"),
    )


def _look_up(task: StudyTask, item: str, clerk: Clerk) -> Message:
    customer = task.metadata["customer"]
    where = f"customer_id = {customer} and item = '{item}'"
    return clerk.way(
        act("list_orders", customer_id=customer, item=item),
        act("run_sql", query=f"select item, id, amount from orders where {where}"),
    )


def _refund(number: int, amount: int, clerk: Clerk) -> Message:
    return clerk.way(act("refund", order_id=number), act("refund", order_id=number, amount=amount))
