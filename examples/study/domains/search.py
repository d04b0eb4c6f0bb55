"""Domain `search`: questions whose answer is three pages away, with the tool `search` over generated worlds."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from examples.study.domains.protocol import Clerk, StudyTask, act, say
from examples.world.entities import Entity, Kind, WorldSize, make_documents, make_world
from examples.world.pages import Pages
from examples.world.questions import Lookup
from examples.world.sentences import FACT_NAMES
from verl_pivot.tools.contract import Observation
from verl_pivot.tools.search import SearchTool
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

SYSTEM = "Answer by searching."


class Chain(NamedTuple):
    """A chain of facts that leads from the page of one entity to the pages of others."""

    about: Kind
    """Kind of the entity that the question names."""
    facts: tuple[str, ...]
    """Facts in order; each stands on the page of the entity that the fact before it gives."""


CHAINS: Final = {
    "founder_population": Chain("firm", ("founder", "birth_town", "population")),
    "employer_population": Chain("person", ("employer", "seat", "population")),
    "founder_seat": Chain("firm", ("founder", "employer", "seat")),
    "employer_year": Chain("person", ("employer", "founder", "birth_year")),
    "mayor_employer": Chain("firm", ("seat", "mayor", "employer")),
    "mayor_year": Chain("firm", ("seat", "mayor", "birth_year")),
}
_SEEN: Final = {"founder_population": 4, "founder_seat": 2, "employer_year": 2, "mayor_employer": 1}
_UNSEEN: Final = {"employer_population": 3, "mayor_year": 1}
_ASK: Final = ("What is the {facts} of {name}?", "Tell me the {facts} of {name}.")
_QUERIES: Final = ("{name} {fact}", "{fact} of {name}")
_ANSWERS: Final = ("It is {}.", "That is {}.")
_SIZE: Final = WorldSize(people=500, firms=180, towns=60, held_out_share=0.4)
_TASKS_OF_A_WORLD: Final = 25
"""Number of consecutive seeds that share a world; two worlds share names only by chance."""


class SearchDomain:
    """Tasks of one question, about a person or a firm of a generated world."""

    name = "search"
    tools: Sequence[JsonObject] = (SearchTool.schema,)
    fault = "Where it must read the number of a town's people, it searches for the first name again."

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        """The verifier `search_query` judges searches, which need not name the fact, and `qa` the last message."""
        answers: list[Json] = [form.format(task.metadata["answer"]) for form in ("{}", *_ANSWERS)]
        searches: JsonObject = {"argument": "search.query", "min_share": 0.5}
        answer: JsonObject = {"place": "all", "answers": answers}
        parts: list[Json] = [{"name": "search_query", "options": searches}, {"name": "qa", "options": answer}]
        return "first_decided", {"verifiers": parts}

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        rng = random.Random(f"study-search-{seed}-{held_out}")
        weights = {**_SEEN, **_UNSEEN} if held_out or every_family else _SEEN
        family = rng.choices(list(weights), list(weights.values()))[0]
        chain, number = CHAINS[family], seed // _TASKS_OF_A_WORLD
        half = {each.name: each for each in _world(number) if each.is_held_out is held_out}
        named = [each for each in half.values() if each.kind == chain.about and _is_kept(each.name) is held_out]
        lookups = _lookups(chain, rng.choice(named).name, half)
        asked = " of the ".join(FACT_NAMES[fact] for fact in reversed(chain.facts))
        return StudyTask(
            id=f"search-{family}-{seed}-{held_out}",
            domain=self.name,
            family=family,
            system=SYSTEM,
            request=rng.choice(_ASK).format(facts=asked, name=lookups[0].entity),
            metadata={
                "domain": self.name,
                "world": number,
                "name": lookups[0].entity,
                "lookups": [list(each) for each in lookups],
                "answer": lookups[-1].value,
                "first_number": _first_number(half[lookups[0].entity]),
            },
        )

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """Search for the page of each fact in turn, and answer with the value of the last one."""
        *before, last = lookups_of(task.metadata)
        actions = [_search(each.entity, each.fact, clerk) for each in before]
        entity, answer = last.entity, last.value
        if last.fact == "population" and clerk.errs():
            entity, answer = before[0].entity, str(task.metadata["first_number"])
        return [*actions, _search(entity, last.fact, clerk), say(clerk.way(*_ANSWERS).format(answer))]

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> "SearchWorld":
        return SearchWorld(metadata)


class SearchWorld:
    """The pages of one generated world; the pages that were read so far are its state."""

    def __init__(self, metadata: JsonObject) -> None:
        number = metadata["world"]
        assert isinstance(number, int), metadata
        self._metadata, self._tool = metadata, _search_tool(number)
        self._read: tuple[str, ...] = ()
        """Pages that were read so far; an answer that none of them tells is a guess and does not count."""

    async def call(self, call: ToolCall) -> Observation:
        observation = await self._tool.call(call.arguments, Workspace({}))
        self._read = (*self._read, observation.text)
        return observation

    def passed(self, answer: Message) -> bool:
        last = lookups_of(self._metadata)[-1]
        is_right = answer.content in [form.format(last.value) for form in _ANSWERS]
        was_read = any(last.is_answered_by(page) for page in self._read)
        return answer.role is Role.ASSISTANT and not answer.tool_calls and is_right and was_read

    def state(self) -> Json:
        return list(self._read)

    def fork(self) -> "SearchWorld":
        twin = SearchWorld(self._metadata)
        twin._read = self._read
        return twin

    async def close(self) -> None:
        """Do nothing, since nothing is open."""


def lookups_of(metadata: Mapping[str, Json]) -> list[Lookup]:
    """Lookups that lead to the answer of a task, in order."""
    rows = metadata["lookups"]
    assert isinstance(rows, list), metadata
    return [Lookup(*map(str, row)) for row in rows if isinstance(row, list)]


def _search(entity: str, fact: str, clerk: Clerk) -> Message:
    return act("search", query=clerk.way(*_QUERIES).format(name=entity, fact=FACT_NAMES[fact]))


def _lookups(chain: Chain, name: str, half: Mapping[str, Entity]) -> list[Lookup]:
    lookups: list[Lookup] = []
    for fact in chain.facts:
        lookups.append(Lookup(name, fact, half[name].facts[fact]))
        name = lookups[-1].value
    return lookups


def _first_number(entity: Entity) -> str:
    """The wrong answer of a careless clerk, which reads the page of the first entity again: the year on that page."""
    return entity.facts["founded" if entity.kind == "firm" else "birth_year"]


def _is_kept(name: str) -> bool:
    """Whether a name is kept for held-out tasks: about a fifth of all names, whichever world they are from."""
    return sum(map(ord, name)) % 5 == 0


@lru_cache(maxsize=16)
def _world(number: int) -> tuple[Entity, ...]:
    return make_world(number, _SIZE)


@lru_cache(maxsize=64)
def _search_tool(number: int) -> SearchTool:
    """The tool `search` over the pages of a world, which a process generates and indexes only once."""
    documents = make_documents(_world(number), number, num_fillers=0)
    with tempfile.TemporaryDirectory(prefix="verl-pivot-study-") as folder:  # open files stay readable after it
        return Pages.of(documents, Path(folder)).tool
