"""Step `question_graph`: a topic -> a request, and questions that answer it together; some depend on others' answers.

ASTRA (arXiv:2601.21558, section 3) calls this a decomposition trace; its number of hops is the length of its longest
chain.
"""

from collections.abc import Sequence
from random import Random
from typing import Self

from pydantic import Field, JsonValue, model_validator

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import first_good, good
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Malformed
from verl_pivot.validation import Options

GRAPH = "question_graph"
"""Key of the draft value that holds the draft's graph."""


class AskedQuestion(Options):
    """One question of a graph."""

    id: int
    """Number of the question, counted from 1; questions can be answered in the order of their numbers."""
    question: str = Field(min_length=1)
    answer: JsonValue
    depends_on: tuple[int, ...]
    """Numbers of the questions whose answers this question needs."""
    needs_tool: bool
    """Whether the question needs a tool; otherwise it can be answered from the answers of other questions."""


class QuestionGraph(Options):
    """A request, and the questions whose answers together answer it."""

    request: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """Answer to the request."""
    questions: tuple[AskedQuestion, ...] = Field(min_length=1)

    def known_before(self, question: AskedQuestion) -> tuple[AskedQuestion, ...]:
        """The questions whose answers a question needs."""
        return tuple(self.questions[number - 1] for number in question.depends_on)

    @property
    def with_tools(self) -> tuple[AskedQuestion, ...]:
        """Questions that get a tool: those that need one, and those whose answers other questions need."""
        needed = {number for each in self.questions for number in each.depends_on}
        return tuple(each for each in self.questions if each.needs_tool or each.id in needed)

    @property
    def num_hops(self) -> int:
        """Number of questions in the longest chain."""
        hops: list[int] = []
        for each in self.questions:
            hops.append(1 + max((hops[number - 1] for number in each.depends_on), default=0))
        return max(hops)


class QuestionGraphOptions(Options):
    topics: tuple[str, ...] = Field(min_length=1)
    """Topics of the requests; one is drawn for each draft."""
    min_hops: int = Field(default=3, ge=2)
    """Minimum number of questions in the longest chain; the number is drawn for each draft."""
    max_hops: int = Field(default=5, ge=2)
    """Maximum number of questions in the longest chain."""
    max_questions: int = Field(default=8, ge=2)
    """Maximum number of questions of a request."""
    attempts: int = Field(default=2, ge=1)
    """Maximum number of draws of a graph; the first draw without a problem is used."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the writer."""
    max_tokens: int = Field(default=4096, ge=16)
    """Maximum number of tokens of one answer."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not self.min_hops <= self.max_hops <= self.max_questions:
            raise ValueError(
                "min_hops <= max_hops <= max_questions is needed, got "
                f"{self.min_hops}, {self.max_hops} and {self.max_questions}"
            )
        return self


@make_step("question_graph", options=QuestionGraphOptions)
class QuestionGraphStep:
    """Gives each draft a graph in `values`; its topic and its number of hops are drawn at random."""

    def __init__(self, options: QuestionGraphOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        options, rng = self._options, Random(workshop.seed(0))
        topic, num_hops = rng.choice(options.topics), rng.randint(options.min_hops, options.max_hops)
        prompt = _prompt(topic, num_hops, options.max_questions)

        async def draw(k: int) -> QuestionGraph | Malformed:
            graph = await workshop.ask_for(
                QuestionGraph, prompt, k=k, max_tokens=options.max_tokens, temperature=options.temperature
            )
            if isinstance(graph, Malformed):
                return graph
            try:
                return graph_problem(graph, num_hops, options.max_questions) or graph
            except BadRowError as error:  # half of a surrogate pair
                return Malformed(reason=error.reason, detail=str(error))

        graph = good(await first_good(draw, range(1, options.attempts + 1)))
        return [draft.made(0).with_values(**{GRAPH: graph.model_dump(mode="json"), "topic": topic})]


def graph_of(draft: Draft, workshop: Workshop) -> QuestionGraph:
    """The graph of a draft.

    Raises:
        ConfigError: If no earlier step has made one.
    """
    if GRAPH not in draft.values:
        raise ConfigError(f"step {workshop.step} needs questions: put step question_graph before it")
    return QuestionGraph.model_validate(draft.values[GRAPH])


def graph_problem(graph: QuestionGraph, num_hops: int, max_questions: int) -> Malformed | None:
    """The problem of a graph that a program can find; None if there is none.

    Args:
        graph: The graph.
        num_hops: Number of questions that its longest chain must have.
        max_questions: Maximum number of questions.

    Raises:
        BadRowError: If the graph has text that JSON cannot hold.
    """
    whole = encode_json(graph.model_dump(mode="json"))
    if without_chat_tokens(whole) != whole or not graph.request.strip():
        detail = f"the request is empty, or the graph contains markers of a chat template: {graph.request!r}"
        return Malformed(reason="bad_request", detail=detail)
    if len(graph.questions) > max_questions:
        detail = f"the graph has {len(graph.questions)} questions, more than {max_questions}"
        return Malformed(reason="too_many_questions", detail=detail)
    for number, each in enumerate(graph.questions, start=1):
        if problem := _question_problem(each, number):
            return problem
    if graph.num_hops != num_hops:
        detail = f"the longest chain has {graph.num_hops} questions instead of {num_hops}"
        return Malformed(reason="other_number_of_hops", detail=detail)
    return None


def _question_problem(question: AskedQuestion, number: int) -> Malformed | None:
    needed = question.depends_on
    if question.id != number:
        return Malformed(reason="bad_graph", detail=f"question number {number} has the id {question.id}")
    if len({*needed}) < len(needed) or not all(0 < other < number for other in needed):
        detail = f"question {number} must depend on earlier questions only, each listed once, got {list(needed)}"
        return Malformed(reason="bad_graph", detail=detail)
    if question.answer is None or question.answer in ("", [], {}):
        return Malformed(reason="no_answer", detail=f"question {number} has no answer")
    return None


def _prompt(topic: str, num_hops: int, max_questions: int) -> list[JsonObject]:
    lines = [
        f"Write a request that a user could make to an assistant with tools. It is about: {topic}.",
        "Then write the questions that answer it together, and their answers. Facts may be made up, if they look real "
        "and agree with each other.",
        f"- Number them from 1, at most {max_questions}, so that each needs the answers of earlier ones alone. "
        "`depends_on` lists exactly those whose answers it needs: questions that do not need each other do not depend "
        "on each other.",
        f"- The longest chain, in which each question depends on the one before, has {num_hops} questions.",
        "- Each question asks for one thing, which one call of one tool can tell. Together they answer everything that "
        "the request asks for, and nothing else.",
        "- `needs_tool` is true for what must be looked up or computed exactly. Where others depend on a question, it "
        "is true.",
        "- An answer is a JSON value of one type, without a sentence around it: a name, a number, a list.",
        "- The request names what the first questions need, word for word, and none of the answers.",
    ]
    return [{"role": "user", "content": "\n".join(lines)}]
