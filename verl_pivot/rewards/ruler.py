"""Trajectories of one prompt -> the question that compares them, and the judge's answer -> a score for each (RULER)."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, TypeAlias

from pydantic import Field, ValidationError

from verl_pivot.engines.text_cut import Tokenizer, fit_together
from verl_pivot.rewards.principle_answers import InvalidAnswerError, decoded_answer
from verl_pivot.rewards.principles import OBSERVATION, FencedQuestion, ShownTurn, fenced_question, harmless
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem

RUBRIC = (
    "- A trajectory that reaches the goal of the task scores far above every one that does not reach it.\n"
    "- Of two that reach it, the one that needed less for it scores higher: fewer needless calls, detours and repeated "
    "mistakes.\n"
    "- Trajectories that differ little get scores that differ little.\n"
    "- One that does not reach the goal gets credit for the part of the way that it went."
)
"""Rubric by which trajectories are compared, unless the user gives another one."""
_TASK = (
    "You compare trajectories: attempts of an assistant at one task, each in one or several turns, with the help of "
    "tools. You see the task, the tools, what all attempts have in common, and then each of them. Their order is "
    "random and says nothing. What a turn claims counts only as far as what the tools gave back bears it out."
)
_Turns: TypeAlias = tuple[ShownTurn, ...]


class TrajectoryScore(Options):
    """The judge's answer for one trajectory."""

    number: int
    """Number of the trajectory in the question, from 1."""
    explanation: str
    score: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class GroupAnswer(Options):
    """The judge's answer about a group."""

    scores: list[TrajectoryScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuestion(FencedQuestion):
    """Question about the trajectories of one prompt."""

    numbers: tuple[int, ...]
    """[num_trajectories] number of each trajectory in the question, from 1; equal for trajectories with equal texts."""


def group_question(
    task: str,
    tools: Sequence[JsonObject],
    trajectories: Sequence[Sequence[ShownTurn]],
    *,
    rubric: str = RUBRIC,
    seed: int = 0,
    max_tokens: int,
    tokenizer: Tokenizer,
) -> GroupQuestion:
    """The question about the trajectories of one prompt.

    Trajectories with equal texts are shown once. Equal groups give equal questions, whatever the order of trajectories.

    Source: RULER of openpipe-art 0.5.18 (`art/rewards/ruler.py`), with a rubric in our words. Differs: the order is
    random, and each turn and observation stands in a fence of its own that no text can forge.

    Args:
        task: Task that the policy was given.
        tools: Schemas of the tools that the policy could call.
        trajectories: [num_trajectories] the turns of each, at least one.
        rubric: Rubric by which trajectories are compared.
        seed: Seed of the order, which also depends on the texts.
        max_tokens: Largest number of tokens of all texts together. The common part and each trajectory have equal
            shares. If one of them is longer than its share, a note replaces the middle of its texts, old texts first.
        tokenizer: Tokenizer that counts them.

    Raises:
        ValueError: If there is no trajectory, or one has no turn.
    """
    if not trajectories or not all(trajectories):
        raise ValueError(f"a group needs trajectories with turns, got {[len(turns) for turns in trajectories]} turns")
    given = [tuple(map(_harmless_turn, turns)) for turns in trajectories]
    distinct = sorted(set(given), key=lambda turns: [(turn.text, turn.observation) for turn in turns])
    random.Random(f"{seed} {distinct}").shuffle(distinct)
    num_shared = _num_shared(distinct)
    share = max_tokens // (len(distinct) + 1)
    texts = _common_texts(task, tools, distinct[0][:num_shared], share, tokenizer)
    for number, turns in enumerate(distinct, 1):
        texts += _trajectory_texts(number, turns[num_shared:], num_shared, share, tokenizer)
    asked = fenced_question(
        _TASK, "Answer only with the JSON object that is asked for.", texts, _asked(rubric, distinct)
    )
    numbers = {turns: number for number, turns in enumerate(distinct, 1)}
    return GroupQuestion(
        messages=asked.messages,
        name=asked.name,
        fence_word=asked.fence_word,
        numbers=tuple(numbers[turns] for turns in given),
    )


def scores_of_group(text: str, question: GroupQuestion) -> list[float]:
    """[num_trajectories] scores in [0, 1] from the judge's answer, in the order in which trajectories were given.

    Args:
        text: The answer, which was not cut off.
        question: The question that it answers.

    Raises:
        InvalidAnswerError: If the answer does not score each trajectory once, and within [0, 1].
    """
    scores = _read(text).scores
    shown = set(question.numbers)
    counts = Counter(each.number for each in scores)
    if unknown := sorted(counts.keys() - shown):
        raise InvalidAnswerError(f"there is no trajectory {unknown[0]}")
    if missing := sorted(shown - counts.keys()):
        raise InvalidAnswerError(f"trajectory {missing[0]} has no score")
    if twice := sorted(number for number, count in counts.items() if count > 1):
        raise InvalidAnswerError(f"trajectory {twice[0]} has {counts[twice[0]]} scores")
    by_number = {each.number: each.score for each in scores}
    return [by_number[number] for number in question.numbers]


def _read(text: str) -> GroupAnswer:
    written = decoded_answer(text)
    try:
        return GroupAnswer.model_validate(written, strict=True)
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error


def _harmless_turn(turn: ShownTurn) -> ShownTurn:
    return ShownTurn(text=harmless(turn.text), observation=harmless(turn.observation))


def _num_shared(distinct: Sequence[_Turns]) -> int:
    """Number of first turns that all trajectories share, without the last turn of any; 0 for a single trajectory."""
    if len(distinct) == 1:
        return 0
    same = takewhile(lambda turns: len(set(turns)) == 1, zip(*distinct, strict=False))
    return min(sum(1 for _ in same), min(map(len, distinct)) - 1)


def _common_texts(
    task: str, tools: Sequence[JsonObject], turns: _Turns, share: int, tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    """(title, text) of what all trajectories have in common; old turns are cut first, the task last."""
    shown_tools = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    titled = [
        ("The task:", harmless(task)),
        *([("The tools:", harmless(shown_tools))] if tools else []),
        *_titled(turns, "Turn {}, which all trajectories have:", 0),
    ]
    return _fitted(titled, [*range(1 + bool(tools), len(titled)), *range(bool(tools), -1, -1)], share, tokenizer)


def _trajectory_texts(
    number: int, turns: _Turns, num_before: int, share: int, tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    """(title, text) of the turns of one trajectory; observations are cut before turns, and old ones first."""
    titled = list(_titled(turns, f"Trajectory {number}, turn {{}}:", num_before))
    return _fitted(titled, [*range(1, len(titled), 2), *range(0, len(titled), 2)], share, tokenizer)


def _titled(turns: _Turns, title: str, num_before: int) -> Iterator[tuple[str, str]]:
    """Title and text of each turn, and of the observation after it."""
    for number, turn in enumerate(turns, num_before + 1):
        yield title.format(number), turn.text
        yield f"{OBSERVATION} after it:", turn.observation


def _fitted(
    titled: Sequence[tuple[str, str]], order: Sequence[int], max_tokens: int, tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    fitted = fit_together([text for _, text in titled], order, max_tokens, tokenizer)
    return [(title, text) for (title, _), text in zip(titled, fitted, strict=True)]


def _asked(rubric: str, distinct: Sequence[_Turns]) -> str:
    """Text after the trajectories: the rubric and the form of the answer."""
    form = '{"scores": [{"number": 1, "explanation": "...", "score": 0.0 to 1.0}, ...]}'
    return (
        "Give each trajectory a score from 0 to 1, by comparing it with the others and by this rubric:\n"
        f"{rubric}\n\nAnswer {form}, with each number from 1 to {len(distinct)} once."
    )
