"""Domain `sql`: questions about one person in a database, with the tool `sql` and the verifier `sql`."""

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from examples.quickstart.shop import is_held_out
from examples.quickstart.tasks import answer_matches
from examples.study.domains.names import draw_names
from examples.study.domains.protocol import Clerk, StudyTask, act, say
from verl_pivot.tools.contract import Observation
from verl_pivot.tools.sql import SqlTool, SqlToolOptions
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

SYSTEM = "Answer by SQL."


class Schema(NamedTuple):
    """Names of the tables and columns for people and the things that they have."""

    people: str
    things: str
    owner: str
    kind: str
    kinds: tuple[str, ...]
    size: str


SCHEMAS: Final = {
    "Library": Schema("authors", "books", "author_id", "genre", ("novel", "poem", "drama"), "pages"),
    "School": Schema("teachers", "courses", "teacher_id", "topic", ("maths", "music", "sport"), "hours"),
    "Farm": Schema("farmers", "fields", "farmer_id", "crop", ("wheat", "maize", "beans"), "acres"),
    "Harbour": Schema("captains", "ships", "captain_id", "cargo", ("steel", "grain", "fruit"), "tons"),
}
_SEEN: Final = {"count": 1, "count_kind": 4, "sum": 1}
_UNSEEN: Final = {"sum_kind": 3}
_ASK: Final = {
    "count": ("How many {things} has {name}?", "Count the {things} of {name}."),
    "count_kind": ("How many {kind} {things} has {name}?", "Count the {kind} {things} of {name}."),
    "sum": ("How many {size} has {name}?", "Sum the {size} of {name}."),
    "sum_kind": ("How many {size} of {kind} has {name}?", "Sum the {size} of {kind} of {name}."),
}
_NUM_PEOPLE, _NUM_THINGS = 4, 14


class SqlDomain:
    """Tasks with a database of their own; the question uses the words of its schema."""

    name = "sql"
    tools: Sequence[JsonObject] = (SqlTool.schema,)
    fault = "It leaves out the condition on the kind that the question names."

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        """The verifier `sql` judges queries; it cannot judge the last message, which `state` does."""
        query: JsonObject = {"scripts": [task.metadata["script"]], "argument": "sql.query"}
        answer: JsonObject = {"environment": "examples.study.environment:StudyEnvironment"}
        return "first_decided", {"verifiers": [{"name": "sql", "options": query}, {"name": "state", "options": answer}]}

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        rng = random.Random(f"study-sql-{seed}-{held_out}")
        word, schema = rng.choice(list(SCHEMAS.items()))
        weights = {**_SEEN, **_UNSEEN} if held_out or every_family else _SEEN
        family = rng.choices(list(weights), list(weights.values()))[0]
        people, things = _rows(schema, rng, held_out)
        number, name = rng.choice(people)
        kind = rng.choice([row[2] for row in things if row[1] == number])
        request = rng.choice(_ASK[family]).format(things=schema.things, size=schema.size, kind=kind, name=name)
        filtered = kind if family.endswith("_kind") else None
        is_sum = family.startswith("sum")
        answer, unfiltered = (str(_answer(things, number, each, is_sum=is_sum)) for each in (filtered, None))
        return StudyTask(
            id=f"sql-{family}-{seed}-{held_out}",
            domain=self.name,
            family=family,
            system=SYSTEM,
            request=f"{word}. {request}",
            metadata={
                "domain": self.name,
                "script": _script(schema, people, things),
                "schema": word,
                "number": number,
                "name": name,
                "kind": filtered,
                "is_sum": is_sum,
                "answer": answer,
                "unfiltered": unfiltered,
            },
        )

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """Look at the table, find the person, ask about what the person has, and give the answer."""
        metadata = task.metadata
        schema = SCHEMAS[str(metadata["schema"])]
        kind, answer = metadata["kind"], metadata["answer"]
        if kind is not None and clerk.errs():
            kind, answer = None, metadata["unfiltered"]
        quote = clerk.way("'", '"')
        where = clerk.way("name = '{}'", "'{}' = name").format(metadata["name"])
        return [
            _query(f"select name from pragma_table_info({quote}{schema.things}{quote})"),
            _query(f"select id from {schema.people} where {where}"),
            _query(_asked(schema, None if kind is None else str(kind), metadata, clerk)),
            say(clerk.way("It is {}.", "That is {}.").format(answer)),
        ]

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> "SqlWorld":
        return SqlWorld(metadata, trusted=trusted)


class SqlWorld:
    """The database of one task; queries can only read it."""

    def __init__(self, metadata: JsonObject, *, trusted: bool) -> None:
        self._metadata, self._trusted = metadata, trusted
        self._results: tuple[str, ...] = ()
        """Results of the queries so far; an answer that none of them gives is a guess and does not count."""

    async def call(self, call: ToolCall) -> Observation:
        observation = await (self._run_trusted(call) if self._trusted else _run_in_sandbox(call, self._metadata))
        self._results = (*self._results, observation.text)
        return observation

    async def _run_trusted(self, call: ToolCall) -> Observation:
        database = sqlite3.connect(":memory:")
        database.executescript(str(self._metadata["script"]))
        rows = database.execute(str(call.arguments["query"])).fetchall()
        database.close()
        return Observation("\n".join(json.dumps(row) for row in rows) or "no rows")

    def passed(self, answer: Message) -> bool:
        wanted = str(self._metadata["answer"])
        was_asked = f"[{wanted}]" in self._results
        is_answer = answer.role is Role.ASSISTANT and not answer.tool_calls
        return is_answer and was_asked and answer_matches(answer.content, wanted)

    def state(self) -> Json:
        return list(self._results)

    def fork(self) -> "SqlWorld":
        twin = SqlWorld(self._metadata, trusted=self._trusted)
        twin._results = self._results
        return twin

    async def close(self) -> None:
        """Do nothing, since nothing is open."""


async def _run_in_sandbox(call: ToolCall, metadata: JsonObject) -> Observation:
    return await SqlTool(SqlToolOptions()).call(call.arguments, Workspace(metadata))


def _rows(
    schema: Schema, rng: random.Random, held_out: bool
) -> tuple[list[tuple[int, str]], list[tuple[int, int, str, int]]]:
    """People with their ids, and things with id, owner, kind and size; each person has at least one thing."""
    numbers = [number for number in range(100, 1000) if is_held_out(number) is held_out]
    sizes = [number for number in range(10, 100) if is_held_out(number) is held_out]
    names = draw_names(rng, _NUM_PEOPLE, held_out=held_out)
    people = list(zip(rng.sample(numbers, _NUM_PEOPLE), names, strict=True))
    owners = [*(number for number, _ in people), *(rng.choice(people)[0] for _ in range(_NUM_THINGS - _NUM_PEOPLE))]
    ids = sorted(rng.sample(numbers, _NUM_THINGS))
    return people, [
        (number, owner, rng.choice(schema.kinds), rng.choice(sizes)) for number, owner in zip(ids, owners, strict=True)
    ]


def _script(schema: Schema, people: Sequence[tuple[int, str]], things: Sequence[tuple[int, int, str, int]]) -> str:
    owner, kind, size = schema.owner, schema.kind, schema.size
    lines = [
        f"create table {schema.people} (id integer primary key, name text);",
        f"create table {schema.things} (id integer primary key, {owner} integer, {kind} text, {size} integer);",
        *(f"insert into {schema.people} values ({number}, '{name}');" for number, name in people),
        *(f"insert into {schema.things} values ({a}, {b}, '{c}', {d});" for a, b, c, d in things),
    ]
    return "\n".join(lines)


def _answer(things: Sequence[tuple[int, int, str, int]], owner: int, kind: str | None, *, is_sum: bool) -> int:
    found = [size for _, number, word, size in things if number == owner and kind in (None, word)]
    return sum(found) if is_sum else len(found)


def _asked(schema: Schema, kind: str | None, metadata: Mapping[str, Json], clerk: Clerk) -> str:
    column = f"sum({schema.size})" if metadata["is_sum"] else clerk.way("count(*)", "count(id)")
    owned = f"{schema.owner} = {metadata['number']}"
    filtered = f"{schema.kind} = '{kind}'"
    conditions = owned if kind is None else clerk.way(f"{owned} and {filtered}", f"{filtered} and {owned}")
    return f"select {column} from {schema.things} where {conditions}"


def _query(query: str) -> Message:
    return act("sql", query=query)
