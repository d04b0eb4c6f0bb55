"""Judges: several models are asked in both orders, and the majority decides; without a majority it is undecided."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

from pydantic import Field

from verl_pivot.all_at_once import all_at_once
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.steps import CheckStep, check_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Malformed, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.judge_prompts import Fence, conversation_text

JUDGE = "judge"
"""Role of the models that judge."""
VoteT = TypeVar("VoteT", bound=Hashable)
THREE_JUDGES = (JUDGE, JUDGE, JUDGE)


def majority(votes: Sequence[VoteT | None]) -> VoteT | None:
    """The vote that more than half of all judges gave; None if there is none. Judges without a vote count as judges."""
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return None
    ((vote, count),) = counts.most_common(1)
    return vote if 2 * count > len(votes) else None


class PairAnswer(Options):
    """A judge's answer about two texts."""

    reason: str
    first_is_right: bool
    second_is_right: bool


class PairVerdict(NamedTuple):
    """Which of two texts are right."""

    first: bool
    second: bool


async def judged_pair(
    workshop: Workshop, state: str, first: str, second: str, criterion: str, *, roles: Sequence[str] = THREE_JUDGES
) -> PairVerdict | None:
    """Which of two texts are right, by majority; a judge whose answers differ between the two orders has no vote.

    Args:
        workshop: Workshop that asks the judges.
        state: Context that both texts answer, such as the conversation so far.
        first: First text.
        second: Second text.
        criterion: Condition under which a text is right.
        roles: [num_judges] role of each judge; a role that is listed several times is asked with different seeds.

    Returns:
        None if there is no majority.
    """

    async def vote(number: int, role: str) -> PairVerdict | None:
        found = [
            await _answer_to_pair(workshop, state, texts, criterion, role=role, k=2 * number + turn)
            for turn, texts in enumerate(((first, second), (second, first)))
        ]
        if isinstance(found[0], Malformed) or isinstance(found[1], Malformed):
            return None
        forth = PairVerdict(first=found[0].first_is_right, second=found[0].second_is_right)
        back = PairVerdict(first=found[1].second_is_right, second=found[1].first_is_right)
        return forth if forth == back else None

    return majority(await all_at_once(vote(number, role) for number, role in enumerate(roles)))


async def _answer_to_pair(
    workshop: Workshop, state: str, texts: tuple[str, str], criterion: str, *, role: str, k: int
) -> PairAnswer | Malformed:
    fence = _fence(workshop, k)
    shown = (
        fence.around("What is answered:", state),
        fence.around("Answer 1:", texts[0]),
        fence.around("Answer 2:", texts[1]),
    )
    question = (
        f"{criterion}\nWhich of the two answers are right by this? Both may be, or neither. "
        'Answer {"reason": "...", "first_is_right": true or false, "second_is_right": true or false}.'
    )
    messages = _messages(fence, "You judge two answers of an assistant.", (*shown, question))
    return await workshop.ask_for(PairAnswer, messages, role=role, k=k, temperature=0.0)


class FulfilledAnswer(Options):
    """A judge's answer whether a text fulfils its criterion."""

    reason: str
    fulfilled: bool


class JudgeCheckOptions(Options):
    criterion: str = Field(min_length=1)
    """Criterion that a trajectory has to fulfil, such as "The request is natural and has one answer."."""
    roles: tuple[str, ...] = Field(default=THREE_JUDGES, min_length=1)
    """Roles of the judges; a role that is listed several times is asked with different seeds."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


class JudgedText(NamedTuple):
    """A text, and the criterion that judges check."""

    task: str
    """Sentence that tells the judge what it judges."""
    title: str
    """Line above the text."""
    text: str
    criterion: str


async def fulfilled_votes(
    workshop: Workshop, judged: JudgedText, *, roles: Sequence[str], max_tokens: int, first_k: int = 0
) -> list[bool | None]:
    """[num_judges] whether a text fulfils its criterion; None for a judge whose answers differ between the two orders.

    Args:
        workshop: Workshop that asks the judges.
        judged: The text and its criterion.
        roles: [num_judges] role of each judge; a role that is listed several times is asked with different seeds.
        max_tokens: Maximum number of tokens of one answer.
        first_k: Number of the first draw; each judge takes two numbers, from which the seeds derive.
    """

    async def vote(role: str, k: int) -> bool | None:
        answers = [
            await workshop.ask_for(
                FulfilledAnswer,
                _fulfilled_question(_fence(workshop, k + turn), judged, order),
                role=role,
                k=k + turn,
                max_tokens=max_tokens,
                temperature=0.0,
            )
            for turn, order in enumerate(("true or false", "false or true"))
        ]
        votes = {None if isinstance(each, Malformed) else each.fulfilled for each in answers}
        return votes.pop() if len(votes) == 1 else None

    return await all_at_once(vote(role, first_k + 2 * number) for number, role in enumerate(roles))


@check_step("judge", options=JudgeCheckOptions)
def judge_check(options: JudgeCheckOptions) -> CheckStep:
    """Passes a trajectory if the majority of the judges says that it fulfils the criterion.

    Each judge is asked with true first and with false first.
    """

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        if draft.trajectory is None:
            return Verdict.undecided("no_trajectory")
        conversation = conversation_text(draft.trajectory.messages)
        judged = JudgedText(
            "You judge a conversation of an assistant.", "The conversation:", conversation, options.criterion
        )
        votes = await fulfilled_votes(workshop, judged, roles=options.roles, max_tokens=options.max_tokens)
        decided = majority(votes)
        if decided is None:
            return Verdict.undecided("judges_undecided", f"votes: {votes}")
        return Verdict.accept() if decided else Verdict.refuse("judged_wrong", f"votes: {votes}")

    return check


def _fulfilled_question(fence: Fence, judged: JudgedText, order: str) -> list[JsonObject]:
    question = f'{judged.criterion}\nIs this fulfilled? Answer {{"reason": "...", "fulfilled": {order}}}.'
    return _messages(fence, judged.task, (fence.around(judged.title, judged.text), question))


def _fence(workshop: Workshop, k: int) -> Fence:
    """A fence whose random word depends only on the seeds, so that equal questions have equal texts."""
    return Fence(f"{workshop.seed(k, 0):08x}{workshop.seed(k, 1):08x}")


def _messages(fence: Fence, task: str, parts: Sequence[str]) -> list[JsonObject]:
    system: JsonObject = {**fence.system(task)}
    return [system, {"role": "user", "content": "\n\n".join(parts)}]
