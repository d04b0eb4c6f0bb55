"""Tools and a writer's votes -> FieldEdges between results and arguments that recordings and schemas do not show."""

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.synthesis.data_flow import is_name
from verl_pivot.synthesis.tool_graph import MAX_NEIGHBOURS, EdgeOrigin, FieldEdge, parameters_of
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import Json, JsonObject, Malformed
from verl_pivot.validation import Options

VOTER = "voter"
"""Role of the writer that votes."""
_MAX_TOKENS = 2048
_COMMON = 10
"""A word counts as too common if more than one in 10 tools has it, and more than MAX_NEIGHBOURS tools."""
_WORD = re.compile(r"[^\W\d_]{3,}")


class FieldVote(Options):
    result: str
    """Field of the result, with dots between keys."""
    tool: str
    argument: str


class VoterAnswer(Options):
    """Arguments of other tools that one tool's result gives."""

    edges: tuple[FieldVote, ...] = Field(max_length=100)


async def voted_edges(
    tools: Sequence[JsonObject], known: Sequence[FieldEdge], workshop: Workshop, num_votes: int, most: int
) -> list[FieldEdge]:
    """The edges that more than half of the votes support; an answer that cannot be read supports no edge.

    For each tool, the writer sees the tools without an edge from it that share the most distinctive words with it; in
    Magnet (arXiv:2503.07826, section 3) it sees 30 neighbours. If the votes name several fields for an argument, the
    field with the most votes is taken.

    Args:
        tools: Schemas in OpenAI's format.
        known: Edges from recordings and schemas.
        workshop: Workshop with the writer.
        num_votes: Number of answers for each tool.
        most: Maximum number of neighbours that the writer sees for each tool.
    """
    shown = neighbours(tools, {(edge.source, edge.target) for edge in known}, most)
    by_name = {name_of(tool): tool for tool in tools}
    votes = await all_at_once(
        _votes(by_name[name], [by_name[other] for other in others], workshop, (number, num_votes))
        for number, (name, others) in enumerate(shown.items())
    )
    return [edge for name, found in zip(shown, votes, strict=True) for edge in _majority(name, found, num_votes)]


def neighbours(tools: Sequence[JsonObject], linked: Collection[tuple[str, str]], most: int) -> dict[str, list[str]]:
    """{tool: its neighbours, nearest first}; neighbours share distinctive words. Tools without any are left out.

    Args:
        tools: Schemas in OpenAI's format.
        linked: Pairs (tool, other tool) that do not count as neighbours, because they have an edge.
        most: Maximum number of neighbours of a tool.
    """
    words = {name_of(tool): _words(tool) for tool in tools}
    havers: dict[str, list[str]] = defaultdict(list)
    for name, found in words.items():
        for word in found:
            havers[word].append(name)
    telling = {word: math.log(1 + len(tools) / len(names)) for word, names in havers.items()}
    limit = max(MAX_NEIGHBOURS, len(tools) // _COMMON)
    near: dict[str, list[str]] = {}
    for name, found in words.items():
        scores: dict[str, float] = defaultdict(float)
        for word in sorted(found):
            if len(havers[word]) <= limit:
                for other in havers[word]:
                    scores[other] += telling[word]
        others = [other for other in scores if other != name and (name, other) not in linked]
        if others:
            near[name] = heapq.nsmallest(most, others, key=lambda other: (-scores[other], other))
    return near


def _words(tool: JsonObject) -> set[str]:
    """Words of a tool's name, description and arguments."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    properties = parameters_of(tool).get("properties")
    texts = [name_of(tool), str(function.get("description", "")), *(properties if isinstance(properties, dict) else ())]
    return set(_WORD.findall(" ".join(texts).casefold()))


async def _votes(
    source: JsonObject, others: Sequence[JsonObject], workshop: Workshop, numbers: tuple[int, int]
) -> list[set[FieldVote]]:
    """[num_votes] valid edges of each answer, which name a shown tool, one of its arguments, and a field."""
    number, num_votes = numbers
    shown = "\n".join(encode_json(other["function"]) for other in others)
    prompt: list[JsonObject] = [
        {
            "role": "user",
            "content": (
                "A result of the first tool may hold values that other tools take as arguments, such as ids. Name each "
                "such argument, with the field of the result that holds it (keys joined by dots). Name only what the "
                f"tool surely returns.\nFirst tool: {encode_json(source['function'])}\nOther tools:\n{shown}"
            ),
        }
    ]
    answers = await all_at_once(
        workshop.ask_for(VoterAnswer, prompt, role=VOTER, k=number * num_votes + vote, max_tokens=_MAX_TOKENS)
        for vote in range(num_votes)
    )
    arguments = {name_of(other): parameters_of(other).get("properties") or {} for other in others}
    return [
        set() if isinstance(answer, Malformed) else {each for each in answer.edges if _is_possible(each, arguments)}
        for answer in answers
    ]


def _is_possible(vote: FieldVote, arguments: Mapping[str, Json]) -> bool:
    known = arguments.get(vote.tool)
    return isinstance(known, dict) and vote.argument in known and all(map(is_name, vote.result.split(".")))


def _majority(source: str, votes: Sequence[set[FieldVote]], num_votes: int) -> list[FieldEdge]:
    fields: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    num_for: Counter[tuple[str, str]] = Counter()
    for found in votes:
        num_for.update({(vote.tool, vote.argument) for vote in found})
        for vote in found:
            fields[vote.tool, vote.argument][vote.result] += 1
    return [
        FieldEdge(source, min(fields[end], key=lambda field: (-fields[end][field], field)), *end, EdgeOrigin.VOTED)
        for end in sorted(num_for)
        if num_for[end] * 2 > num_votes
    ]
