"""RulerJudge: the trajectories of one prompt -> a score for each, from a judge behind an OpenAI-compatible endpoint."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from verl_pivot.engines.chat import ChatAnswer, response_format
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.errors import VerifierError
from verl_pivot.off_loop import run_off_loop
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principles import ShownTurn, size_of_turns
from verl_pivot.rewards.ruler import RUBRIC, GroupAnswer, GroupQuestion, group_question, scores_of_group
from verl_pivot.rewards.ruler_settings import RulerSettings
from verl_pivot.rewards.valid_answers import AskedForm, ValidAnswers
from verl_pivot.types import JsonObject


class ComparedTrajectory(NamedTuple):
    """One trajectory of a group, as the judge sees it."""

    task: str
    """Task that the policy was given, the same in the whole group."""
    tools: Sequence[JsonObject]
    """Schemas of the tools that the policy could call, the same in the whole group."""
    turns: Sequence[ShownTurn]
    """[num_turns] at least one"""


_CONTROL = [
    ComparedTrajectory("Add 1 and 2.", (), [ShownTurn(text="I add 1 and 2, which gives 3.")]),
    ComparedTrajectory("Add 1 and 2.", (), [ShownTurn(text="I do not know.")]),
]
"""A harmless group: after a refusal, a question about it shows whether the judge refuses every question."""


class RulerJudge:
    """Compares the trajectories of groups, many groups at a time, within one event loop.

    The judge is asked again after an invalid answer, with another seed and another order of the trajectories.
    """

    def __init__(self, settings: RulerSettings, tokenizer: Tokenizer, *, num_workers: int = 1) -> None:
        """Open the cache; nothing is asked yet.

        Args:
            settings: The judge, its rubric and limits.
            tokenizer: Tokenizer that counts the tokens of questions.
            num_workers: Processes that share `max_concurrency`.

        Raises:
            ConfigError: If the cache cannot be opened, or the API key is not set.
        """
        self._settings = settings
        self._tokenizer = tokenizer
        form = response_format(settings.answer_format, "scores", GroupAnswer.model_json_schema())
        self._endpoint = JudgeEndpoint(settings, form, num_workers=num_workers)
        self._asking = ValidAnswers(self._endpoint, settings.invalid_retries, lambda: self._question(_CONTROL, 0))

    async def close(self) -> None:
        await self._endpoint.close()

    async def scores(self, group: Sequence[ComparedTrajectory]) -> list[float]:
        """[num_trajectories] scores in [0, 1] of the trajectories of one prompt.

        Raises:
            VerifierError: If the judge cannot be reached, keeps failing or refuses the question, if no answer is valid,
                or if the cache cannot be written.
            ConfigError: If the judge refuses every question.
        """
        for seed in range(self._settings.invalid_retries + 1):
            question = await run_off_loop(_size(group), self._question, group, seed)
            read = partial(_scores, question)
            found = await self._asking.ask_once(question, read, AskedForm(), seed, self._endpoint.temperature(seed))
            if found.value is not None:
                return found.value
            if found.is_refused:
                break
        how = "refuses the question" if found.is_refused else "gives no valid answer"
        raise VerifierError(f"judge {self._settings.model} {how} about a group: {found.cause}")

    def _question(self, group: Sequence[ComparedTrajectory], seed: int) -> GroupQuestion:
        return group_question(
            group[0].task,
            group[0].tools,
            [each.turns for each in group],
            rubric=self._settings.rubric or RUBRIC,
            seed=seed,
            max_tokens=self._settings.max_question_tokens,
            tokenizer=self._tokenizer,
        )


def _scores(question: GroupQuestion, _: ChatAnswer, text: str) -> list[float]:
    return scores_of_group(text, question)


def _size(group: Sequence[ComparedTrajectory]) -> int:
    """Characters of the texts of all turns."""
    return sum(size_of_turns(each.turns) for each in group)
