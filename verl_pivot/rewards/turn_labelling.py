"""Turns -> labels: the median of a stronger judge's scores, or the mean outcome of the rollouts with that turn."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.rewards.labelled_turns import JudgedTurn, LabelledTurn
from verl_pivot.rewards.principle_answers import reason_to_count
from verl_pivot.rewards.principles import Fit, PrincipleSet, TurnQuestion, turn_question
from verl_pivot.rewards.turn_judge import TurnJudge, TurnJudgement, all_or_none
from verl_pivot.rewards.written_answers import ordered_answer, plain_answer


@dataclass(slots=True, kw_only=True)
class Labels:
    """Turns with their labels, and what was left out."""

    turns: list[LabelledTurn] = field(default_factory=list)
    questions: list[TurnQuestion] = field(default_factory=list)
    """[num_turns]"""
    num_asked: int = 0
    """Number of answers of the judge or of continuations, cached ones included."""
    num_cached: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    """{reason why an answer was invalid: number of such answers}"""
    num_unlabelled: int = 0
    """Turns for which no answer was valid."""
    left_out: Counter[str] = field(default_factory=Counter)
    """{reason why turns could not be continued: number of such turns}"""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    """Tokens of the answers that are not cached."""


async def labels_by_judge(
    turns: Sequence[JudgedTurn],
    judge: TurnJudge,
    *,
    num_samples: int,
    temperature: float,
    seed: int,
    on_answers: Callable[[int], object],
) -> Labels:
    """Ask a judge several times about each turn; equal questions are asked once.

    Args:
        turns: The turns.
        judge: A judge that is stronger than the one to train.
        num_samples: Answers for each turn.
        temperature: Temperature of the answers; with 0 all answers to a question are the same.
        seed: Seed of the first answer; the others have the following ones.
        on_answers: Called with the number of answers since the previous call, of num_turns * num_samples in all. An
            answer to a question about several equal turns counts once for each of them.

    Raises:
        VerifierError: If the judge cannot be reached or keeps failing, or the cache cannot be written.
        ConfigError: If it refuses every question.
    """
    questions = [judge.question(turn.task, turn.earlier, turn.turn) for turn in turns]
    different = {question.name: question for question in questions}
    num_equal = Counter(question.name for question in questions)

    async def sample(question: TurnQuestion, number: int) -> TurnJudgement:
        judged = await judge.ask_once(question, seed + number, temperature)
        on_answers(num_equal[question.name])
        return judged

    pairs = [(question, number) for question in different.values() for number in range(num_samples)]
    answered = await all_or_none([sample(question, number) for question, number in pairs])
    samples: dict[str, list[TurnJudgement]] = defaultdict(list)
    for (question, _), judged in zip(pairs, answered, strict=True):
        samples[question.name].append(judged)
    labels = Labels()
    for judged in answered:
        _count(labels, judged)
    for turn, question in zip(turns, questions, strict=True):
        if (labelled := _median(turn, samples[question.name], judge.principle_set)) is None:
            labels.num_unlabelled += 1
        else:
            labels.turns.append(labelled)
            labels.questions.append(question)
    return labels


def labels_by_outcomes(turns: Sequence[JudgedTurn], principle_set: PrincipleSet, fit: Fit) -> Labels:
    """Label each turn by the mean outcome of all rollouts in which it follows the same turns of the same task.

    Args:
        turns: The turns, each with an outcome in [0, 1].
        principle_set: Principles in the questions, and the form of the answers.
        fit: Cuts the texts of a question.
    """
    questions = [turn_question(turn.task, turn.earlier, turn.turn, principle_set, fit) for turn in turns]
    outcomes: dict[str, list[float]] = defaultdict(list)
    for turn, question in zip(turns, questions, strict=True):
        assert turn.outcome is not None, turn.id
        outcomes[question.name].append(turn.outcome)
    labels = Labels(questions=questions)
    for turn, question in zip(turns, questions, strict=True):
        same = outcomes[question.name]
        label = fmean(same)
        labels.turns.append(
            LabelledTurn(
                judged=turn,
                label=label,
                spread=pstdev(same),
                num_samples=len(same),
                num_valid=len(same),
                labelled_by="outcomes",
                answer=plain_answer(label, turn.turn.text, principle_set),
            )
        )
    return labels


def _median(turn: JudgedTurn, samples: Sequence[TurnJudgement], principle_set: PrincipleSet) -> LabelledTurn | None:
    valid = [(judged.score, judged.answers[-1]) for judged in samples if judged.score is not None]
    if not valid:
        return None
    scores = [score for score, _ in valid]
    label = median(scores)
    nearest: tuple[float, ChatAnswer] = min(valid, key=lambda each: abs(each[0] - label))
    return LabelledTurn(
        judged=turn,
        label=label,
        spread=pstdev(scores),
        num_samples=len(samples),
        num_valid=len(valid),
        labelled_by="judge",
        answer=ordered_answer(nearest[1].text, principle_set),
    )


def _count(labels: Labels, judged: TurnJudgement) -> None:
    labels.num_asked += 1
    if judged.score is None:
        labels.invalid[reason_to_count(judged.reason)] += 1
    for answer in judged.answers:
        labels.num_cached += answer.is_cached
        labels.num_prompt_tokens += 0 if answer.is_cached else answer.num_prompt_tokens
        labels.num_completion_tokens += 0 if answer.is_cached else answer.num_completion_tokens
