"""Schemas of tools -> unlabelled tasks that a model invents for them, checked and without duplicates (MCP-RL)."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow
import pyarrow.parquet
from pydantic import Field, ValidationError

from verl_pivot.data.files import replacing
from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import encode_json, object_of_unique_names
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import VerifierError
from verl_pivot.quality.ngrams import words_of
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem
from verl_pivot.verifiers.judge_client import without_wrapping
from verl_pivot.verifiers.judge_prompts import Fence

MAX_PER_QUESTION: Final = 24
"""Scenarios that one question asks for; the released code asks once for all of its 24."""
_NEAR: Final = 0.8
"""Jaccard similarity of the words of two tasks, from which on they are near duplicates."""
_MAX_KNOWN: Final = 100
"""Number of the newest scenarios that a question shows, so that the model does not repeat them."""
_SCHEMA = pyarrow.schema(
    {
        "data_source": pyarrow.string(),
        "prompt": pyarrow.list_(pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})),
        "ability": pyarrow.string(),
        "reward_model": pyarrow.struct({"style": pyarrow.string(), "ground_truth": pyarrow.string()}),
        "extra_info": pyarrow.struct({"index": pyarrow.int64(), "difficulty": pyarrow.int64()}),
    }
)


class ToolScenario(Options):
    """A task for a policy with tools."""

    task: Annotated[str, Field(min_length=1, max_length=4000)]
    difficulty: Annotated[int, Field(ge=1, le=5)]


class WrittenScenario(Options):
    """A scenario in a model's answer, whose values have not been checked."""

    task: str
    difficulty: int


class ScenarioAnswer(Options):
    """A model's answer."""

    scenarios: list[WrittenScenario]


@dataclass(slots=True, kw_only=True)
class ScenarioDraw:
    """Scenarios that were kept, and why the others were refused."""

    scenarios: list[ToolScenario] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """{reason: number of scenarios, or of whole answers}"""
    first_refused: dict[str, str] = field(default_factory=dict)
    """{reason: detail of the first refusal}"""
    num_questions: int = 0
    _words: list[frozenset[str]] = field(default_factory=list)

    def add(self, task: str, difficulty: int) -> None:
        """Keep a scenario, or count why it is refused."""
        try:
            scenario = ToolScenario(task=task.strip(), difficulty=difficulty)
        except ValidationError as error:
            self.refuse("invalid", first_problem(error))
            return
        words = frozenset(words_of(scenario.task))
        if not words:
            self.refuse("no_text", repr(scenario.task[:80]))
        elif without_chat_tokens(scenario.task) != scenario.task:
            self.refuse("chat_token", repr(scenario.task[:80]))
        elif any(_overlap(words, other) >= _NEAR for other in self._words):
            self.refuse("near_duplicate", repr(scenario.task[:80]))
        else:
            self.scenarios.append(scenario)
            self._words.append(words)

    def refuse(self, reason: str, detail: str) -> None:
        self.refused[reason] += 1
        self.first_refused.setdefault(reason, detail)

    @property
    def difficulties(self) -> dict[int, int]:
        """{difficulty: number of scenarios}"""
        counts = Counter(scenario.difficulty for scenario in self.scenarios)
        return {difficulty: counts[difficulty] for difficulty in range(1, 6)}


def scenario_question(tools: Sequence[JsonObject], number: int, known: Sequence[ToolScenario]) -> list[JsonObject]:
    """Messages that ask for exactly `number` scenarios.

    Args:
        tools: Schemas of the tools, in OpenAI's form.
        number: Number of scenarios to invent.
        known: Scenarios that exist already.
    """
    fence = Fence()
    shown = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    texts = [fence.around("The tools:", shown)]
    if known:
        listed = "\n".join(f"- {scenario.task}" for scenario in known[-_MAX_KNOWN:])
        texts.append(fence.around("Tasks that there are already, none of which you repeat:", listed))
    asked = (
        f"Think out exactly {number} different tasks that a user could give to an assistant with these tools. Each can "
        "be done with these tools alone, needs at least one of them, says all that is needed to do it, and does not "
        "name the tools. Give each a difficulty from 1, which one call solves, to 5, which takes many calls that "
        "depend on each other; all five occur about equally often.\n"
        'Answer {"scenarios": [{"task": "...", "difficulty": 1 to 5}, ...]}.'
    )
    system = fence.system("You think out tasks by which an assistant that has tools is trained.")
    return [{**system}, {"role": "user", "content": "\n\n".join((*texts, asked))}]


async def draw_scenarios(
    ask: Callable[[list[JsonObject], int], Awaitable[ChatAnswer]],
    tools: Sequence[JsonObject],
    number: int,
    *,
    spare_questions: int,
    on_new: Callable[[int], object],
) -> ScenarioDraw:
    """Ask a model until there are exactly `number` scenarios.

    Source: MCP-RL of openpipe-art 0.5.18 (`art/mcp/generate_scenarios.py`). Differs: each scenario is checked, near
    duplicates are refused, and missing scenarios are asked for again.

    Args:
        ask: (messages, number of the question) -> the model's answer.
        tools: Schemas of the tools.
        number: Total number of scenarios.
        spare_questions: Questions allowed beyond the fewest that can yield `number` scenarios.
        on_new: Called with the number of new scenarios after each answer.

    Raises:
        VerifierError: If there are fewer after the last question.
    """
    draw = ScenarioDraw()
    most = -(-number // MAX_PER_QUESTION) + spare_questions
    while len(draw.scenarios) < number and draw.num_questions < most:
        missing = number - len(draw.scenarios)
        messages = scenario_question(tools, min(missing, MAX_PER_QUESTION), draw.scenarios)
        answer = await ask(messages, draw.num_questions)
        draw.num_questions += 1
        _take(draw, answer, number)
        on_new(len(draw.scenarios) - (number - missing))
    if len(draw.scenarios) < number:
        shown = "; ".join(
            f"{count} {reason}, such as {draw.first_refused[reason]}" for reason, count in draw.refused.items()
        )
        raise VerifierError(
            f"the model wrote {len(draw.scenarios)} of {number} scenarios in {draw.num_questions} questions "
            f"(refused: {shown or 'none'}): lower the number, allow more questions, or ask another model"
        )
    return draw


def _take(draw: ScenarioDraw, answer: ChatAnswer, number: int) -> None:
    """Add the scenarios of an answer, up to `number` in all."""
    if answer.finish_reason == "length":
        draw.refuse("answer_cut_off", f"an answer of {answer.num_completion_tokens} tokens")
        return
    try:
        written = _read(answer.text)
    except ValueError as error:
        draw.refuse("answer_invalid", str(error)[:200])
        return
    for each in written.scenarios:
        if len(draw.scenarios) == number:
            draw.refuse("surplus", repr(each.task[:80]))
        else:
            draw.add(each.task, each.difficulty)


def _read(text: str) -> ScenarioAnswer:
    """Raises ValueError if the text is no answer of the form asked for."""
    try:
        written: Any = json.loads(without_wrapping(text), object_pairs_hook=object_of_unique_names)
        return ScenarioAnswer.model_validate(written, strict=True)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _overlap(words: frozenset[str], others: frozenset[str]) -> float:
    """Jaccard similarity of two sets of words, of which at least one is not empty."""
    return len(words & others) / len(words | others)


def write_scenarios(
    out: Path, scenarios: Sequence[ToolScenario], instructions: str, metadata: JsonObject | None = None
) -> None:
    """Write a row in verl's columns for each scenario; none has a ground truth.

    Args:
        out: The parquet file.
        scenarios: The scenarios.
        instructions: Text after each task in the prompt; empty for the task alone.
        metadata: Column `metadata` of every row; None for rows without one.
    """
    rows = [
        {
            "data_source": "scenarios",
            "prompt": [{"role": "user", "content": f"{each.task}\n{instructions}" if instructions else each.task}],
            "ability": "tools",
            "reward_model": {"style": "ruler", "ground_truth": None},
            "extra_info": {"index": index, "difficulty": each.difficulty},
        }
        for index, each in enumerate(scenarios)
    ]
    table = pyarrow.Table.from_pylist(rows, schema=_SCHEMA)
    if metadata is not None:
        table = table.append_column("metadata", pyarrow.array([encode_json(metadata)] * len(rows)))
    with replacing(out) as unfinished:
        pyarrow.parquet.write_table(table, unfinished)
