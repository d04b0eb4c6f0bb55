"""A small shop on SQLite: a seed -> the shop's state, a ToolCall -> CallResult."""

import json
import random
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from verl_pivot.types import Json, JsonObject, ToolCall

SYSTEM = "Help the customer of a shop."
ITEMS = ("lamp", "chair", "desk", "clock", "vase", "rug", "mirror", "kettle", "radio", "bench", "shelf", "stool")
NAME_PARTS = (
    ("Ka", "Mi", "To", "Le", "Su", "Ra", "Jo", "Ne", "Vi", "Da", "Pe", "Lu"),
    ("ro", "la", "ne", "mi", "sa", "to", "ri", "na", "vo", "di", "ka", "lu"),
)
EMAIL_PARTS = (
    ("fox", "sun", "red", "jet", "zen", "fig", "cap", "dot", "gum", "hat", "kit", "log"),
    ("cat", "bay", "fan", "hub", "lad", "pot", "ray", "way", "box", "gem", "net", "pin"),
)

_MAX_SQL_OPS = 20_000
_MAX_ROWS = 50
_MAX_TEXT_BYTES = 20_000
_SQL_FUNCTIONS = frozenset({"count", "sum", "total", "min", "max", "avg", "abs", "round", "lower", "upper", "like"})
_PARAMETERS = {
    "find_customer": {"name": "string", "email": "string"},
    "list_orders": {"customer_id": "integer", "item": "string"},
    "run_sql": {"query": "string"},
    "refund": {"order_id": "integer", "amount": "number"},
}
_REQUIRED = {"find_customer": [], "list_orders": ["customer_id"], "run_sql": ["query"], "refund": ["order_id"]}
_DESCRIPTIONS = {
    "find_customer": "Customers with this name or e-mail: id, name, e-mail.",
    "list_orders": "Item, id and amount of a customer's orders, of one item if it is given.",
    "run_sql": "Run one SQL query that only reads. Tables: customers(id, name, email), "
    "orders(item, id, amount, refunded, customer_id).",
    "refund": "Pay back an order, all of it unless an amount is given.",
}
_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


def _schema(tool: str) -> JsonObject:
    properties: JsonObject = {name: {"type": kind} for name, kind in _PARAMETERS[tool].items()}
    required: list[Json] = [*_REQUIRED[tool]]
    parameters: JsonObject = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": tool, "description": _DESCRIPTIONS[tool], "parameters": parameters},
    }


TOOLS = tuple(_schema(tool) for tool in _PARAMETERS)


class ToolError(ValueError):
    """Refusal of a call by the shop; the policy reads the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Result of one call."""

    text: str
    """JSON text, as it stands in the tool message."""
    ok: bool
    """Whether the call was done; False if the shop refused it."""


def is_held_out(number: int) -> bool:
    """Whether a number is kept for held-out tasks: about a fifth of all numbers, with every digit at every place."""
    return sum(map(int, str(number))) % 5 == 0


class Shop:
    """The shop's state and its tools. Use it as a context manager, which closes the database."""

    def __init__(self, image: bytes) -> None:
        """Open a private copy of the state in `image`."""
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.deserialize(image)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT_BYTES)

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def image(self) -> bytes:
        """The whole state, from which other shops can be opened."""
        return self._db.serialize()

    def dump(self) -> str:
        """Both tables as text; equal dumps mean equal states."""
        customers = self._db.execute("select * from customers order by id").fetchall()
        orders = self._db.execute("select * from orders order by id").fetchall()
        return json.dumps(_plain([customers, orders]))

    def customers(self) -> list[tuple[int, str, str]]:
        """Id, name and e-mail of each customer."""
        return self._db.execute("select id, name, email from customers order by id").fetchall()

    def orders(self, customer_id: int) -> list[tuple[str, int, int]]:
        """Item, id and amount of each order of a customer."""
        return self._db.execute(
            "select item, id, amount from orders where customer_id = ? order by id", (customer_id,)
        ).fetchall()

    def call(self, call: ToolCall) -> CallResult:
        """Run one call; a refusal is a result and not an exception."""
        try:
            _check_arguments(call)
            return CallResult(text=json.dumps(_plain(self._run(call.name, call.arguments))), ok=True)
        except (ValueError, OverflowError, sqlite3.Error, sqlite3.Warning) as error:
            # ValueError and OverflowError: text and integers that SQLite cannot hold.
            return CallResult(text=json.dumps({"error": str(error)}), ok=False)

    def _run(self, tool: str, arguments: JsonObject) -> object:
        if tool == "find_customer":
            where = " and ".join(f"{name} = ?" for name in arguments)
            return self._select(f"select id, name, email from customers where {where}", *arguments.values())
        if tool == "list_orders":
            where = " and ".join(f"{name} = ?" for name in arguments)
            return self._select(f"select item, id, amount from orders where {where}", *arguments.values())
        if tool == "run_sql":
            return self._run_sql(str(arguments["query"]))
        return self._refund(arguments)

    def _select(self, sql: str, *values: Json) -> list[tuple[object, ...]]:
        rows = self._db.execute(sql, values).fetchmany(_MAX_ROWS + 1)
        if len(rows) > _MAX_ROWS:
            raise ToolError("too many rows")
        return rows

    def _run_sql(self, query: str) -> list[tuple[object, ...]]:
        self._db.set_authorizer(_authorize)
        self._db.set_progress_handler(lambda: 1, _MAX_SQL_OPS)
        try:
            return self._select(query)
        finally:
            self._db.set_authorizer(None)
            self._db.set_progress_handler(None, 0)

    def _refund(self, arguments: JsonObject) -> JsonObject:
        rows = self._select("select amount - refunded from orders where id = ?", arguments["order_id"])
        if not rows:
            raise ToolError("no such order")
        amount_open = rows[0][0]
        amount = arguments.get("amount", amount_open)
        if not (isinstance(amount, int | float) and isinstance(amount_open, int | float) and 0 < amount <= amount_open):
            raise ToolError("amount not open")
        self._db.execute("update orders set refunded = refunded + ? where id = ?", (amount, arguments["order_id"]))
        return {"refunded": amount}


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    """SQLite's authorizer for `run_sql`, which allows only reads of the two tables with a few functions."""
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first in {"customers", "orders"})
        or (action == sqlite3.SQLITE_FUNCTION and second in _SQL_FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _check_arguments(call: ToolCall) -> None:
    if call.name not in _PARAMETERS:
        raise ToolError(f"no tool {call.name}")
    types = _PARAMETERS[call.name]
    for name, value in call.arguments.items():
        if name not in types:
            raise ToolError(f"no argument {name}")
        if isinstance(value, bool) or not isinstance(value, _TYPES[types[name]]):
            raise ToolError(f"{name} must be {types[name]}")
    if missing := [name for name in _REQUIRED[call.name] if name not in call.arguments]:
        raise ToolError(f"{missing[0]} needed")
    if not call.arguments:
        raise ToolError("an argument needed")


def _plain(value: object) -> Json:
    """Rows as JSON values; whole floats become integers, so that 48.0 is written as 48."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, int | float | str):
        return value
    raise ToolError("only text and numbers")


@lru_cache(maxsize=4096)
def open_image(seed: int, held_out: bool) -> bytes:
    """The state of a seed's shop: five customers with two or three orders each."""
    rng = random.Random(f"shop-{seed}-{held_out}")
    names = rng.sample(_pool(NAME_PARTS, held_out), 5)
    handles = rng.sample(_pool(EMAIL_PARTS, held_out), 5)
    customer_ids = rng.sample(_numbers(100, 999, held_out), 5)
    order_ids = iter(sorted(rng.sample(_numbers(100, 999, held_out), 15)))
    with Shop(_empty_image()) as shop:
        for customer_id, name, handle in zip(customer_ids, names, handles, strict=True):
            shop._db.execute("insert into customers values (?, ?, ?)", (customer_id, name, f"{handle}@post.de"))
            for item in rng.sample(ITEMS, rng.choice((2, 3))):
                amount = rng.choice(_numbers(10, 99, held_out))
                shop._db.execute(
                    "insert into orders values (?, ?, ?, 0, ?)", (item, next(order_ids), amount, customer_id)
                )
        return shop.image()


@lru_cache(maxsize=1)
def _empty_image() -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute("create table customers (id integer primary key, name text, email text)")
    database.execute(
        "create table orders (item text, id integer primary key, amount number, refunded number, customer_id integer)"
    )
    image = database.serialize()
    database.close()
    return image


@lru_cache(maxsize=8)
def _numbers(first: int, last: int, held_out: bool) -> list[int]:
    return [number for number in range(first, last + 1) if is_held_out(number) is held_out]


@lru_cache(maxsize=4)
def _pool(parts: tuple[tuple[str, ...], tuple[str, ...]], held_out: bool) -> list[str]:
    """Words made of two parts; a fifth of the pairs is held out, and every part occurs in both sets of pairs."""
    pairs = product(enumerate(parts[0]), enumerate(parts[1]))
    return [start + end for (i, start), (j, end) in pairs if ((i + j) % 5 == 0) is held_out]
