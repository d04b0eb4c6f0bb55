"""Rejection sampling: the estimated pass rate is unbiased, and the rollouts with the fewest calls stay."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from tests.support.tallies import BrokenTally, LeakyTally, StuckTally, SuperstitiousTally, Tally
from tests.support.workshops import FunctionWriter, done, workshop
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import UserCodeError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.rejection import FewestCallsOptions, RepeatedRollouts, TaskRollouts, fewest_calls, pass_rate
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory


@pytest.mark.parametrize(("num", "stop_at"), [(2, 2), (6, 2), (7, 3), (5, 5), (4, None)])
@pytest.mark.parametrize("chance", [Fraction(1, 5), Fraction(2, 3), Fraction(1)])
def test_the_pass_rate_is_unbiased_also_where_a_success_ends_the_draws(
    num: int, stop_at: int | None, chance: Fraction
) -> None:
    """The mean is over all 2^num sequences of outcomes, each cut after success number `stop_at`."""
    mean = Fraction(0)
    for outcomes in product((True, False), repeat=num):
        weight = chance ** sum(outcomes) * (1 - chance) ** (num - sum(outcomes))
        ends = [at for at in range(1, num + 1) if sum(outcomes[:at]) == stop_at and outcomes[at - 1]]
        played = outcomes[: ends[0]] if ends else outcomes
        rate = pass_rate(sum(played), len(played), stop_at)
        assert rate is not None
        mean += weight * Fraction(rate).limit_denominator(100)

    assert mean == chance


def test_no_rollout_has_no_pass_rate() -> None:
    assert pass_rate(0, 0, 2) is None


def test_stopping_needs_two_successes_and_as_many_rollouts() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        RepeatedRollouts(stop_at=1)
    with pytest.raises(ValueError, match="stop_at must not exceed num, which is 8, got 9"):
        RepeatedRollouts(stop_at=9)


def solved(name: str, *calls: str) -> Draft:
    """A draft whose trajectory makes calls of tools with these names."""
    messages = [Message(role=Role.USER, content="Go.")]
    for call in calls:
        messages.append(Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=call, arguments={}),)))
        messages.append(Message(role=Role.TOOL, content="done", name=call))
    return Draft(id=name, trajectory=Trajectory(id=name, messages=tuple(messages)))


def chosen(drafts: list[Draft], max_per_task: int) -> dict[str, str | None]:
    """{id: reason of the rejection, None for those that stay}"""
    step = fewest_calls(FewestCallsOptions(max_per_task=max_per_task))
    left = asyncio.run(step(drafts, None))  # type: ignore[arg-type]  # it asks nothing
    return {draft.id: draft.finding and draft.finding.reason for draft in left}


def test_the_fewest_calls_stay_and_equal_actions_stay_once() -> None:
    drafts = [solved("a", "x", "y", "z"), solved("b", "x", "y"), solved("c", "x"), solved("d", "x"), solved("e", "y")]

    assert chosen(drafts, 3) == {"c": None, "d": "same_actions", "e": None, "b": None, "a": "over_limit"}


def test_ids_of_calls_are_no_difference() -> None:
    assert chosen([solved("a", "x"), solved("b", "x")], 2) == {"a": None, "b": "same_actions"}


BROKEN = '<tool_call>\n{"name": "tell",\n</tool_call>'


def tell(number: int) -> str:
    return f'<tool_call>\n{{"name": "tell", "arguments": {{"number": {number}}}}}\n</tool_call>'


class Policy(FunctionWriter):
    """A policy whose texts that end in "..." were cut off at their limit."""

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        answer = await super().answer(question)
        return replace(answer, finish_reason="length") if answer.text.endswith("...") else answer


def rollouts(*written: Sequence[str], tally: type[Tally] = Tally, wanted: int = 3) -> list[Draft]:
    """The drafts of rollouts in which the policy writes these texts, turn by turn; after them it says "Done."."""

    async def made() -> Sequence[Draft]:
        return await TaskRollouts(RepeatedRollouts(num=len(written)))(Draft(id="tasks-1", task=task), work)

    task: JsonObject = {
        "prompt": [{"role": "user", "content": f"Reach {wanted}."}],
        "metadata": f'{{"wanted": {wanted}}}',
    }
    texts: dict[int, str] = {}
    policy = Policy(lambda question: texts.get(question.seed, "Done."))
    toolset = open_toolset(f"{tally.__module__}:{tally.__name__}")
    work = replace(workshop(inputs=Inputs(toolset=toolset)), writers={"writer": policy})
    for number, turns in enumerate(written):
        texts |= {work.seed(number, 1 + 2 * at, 0): text for at, text in enumerate(turns)}
    return list(done(made()))


def reasons(drafts: Sequence[Draft]) -> list[str | None]:
    return [draft.finding and draft.finding.reason for draft in drafts]


def test_a_rollout_in_which_the_users_code_fails_takes_no_other_rollout_of_its_task_with_it() -> None:
    drafts = rollouts([tell(3)], [tell(2)], [tell(13)], [tell(1), tell(2)], tally=SuperstitiousTally)

    assert reasons(drafts) == [None, "not_solved", "user_code_failed", None]
    assert {draft.values["pass_rate"] for draft in drafts} == {2 / 3}
    assert {draft.values["num_rollouts"] for draft in drafts} == {3}


@pytest.mark.parametrize(("tally", "reason"), [(StuckTally, "system_failure"), (LeakyTally, "user_code_failed")])
def test_a_failure_while_tools_are_closed_masks_its_rollout_alone(tally: type[Tally], reason: str) -> None:
    drafts = rollouts([tell(3)], [tell(2)], tally=tally)

    assert reasons(drafts) == [reason, "not_solved"]
    assert {draft.values["num_rollouts"] for draft in drafts} == {1}
    assert drafts[0].finding is not None
    assert drafts[0].finding.detail.startswith(f"environment {tally.__name__}.close raised ")


def expert_turns(drafts: Sequence[Draft]) -> list[object]:
    return [draft.trajectory and draft.trajectory.expert_turns for draft in drafts]


def test_turns_that_cannot_be_read_or_were_cut_off_are_none_of_the_experts() -> None:
    drafts = rollouts([BROKEN, tell(3)], [tell(3)], [tell(3), "It is 3, and that is ..."])

    assert reasons(drafts) == [None, None, None]
    assert expert_turns(drafts) == [(1, 2), "all", (0,)]
    assert chosen(drafts, 1) == {"tasks-1/1": None, "tasks-1/0": "same_actions", "tasks-1/2": "same_actions"}


def test_a_rollout_without_any_turn_of_an_expert_is_rejected() -> None:
    drafts = rollouts(["It is ..."], [tell(0)], wanted=0)

    assert reasons(drafts) == ["no_action", None]


def test_code_that_works_in_no_rollout_of_a_task_is_named() -> None:
    with pytest.raises(UserCodeError, match=r"^task tasks-1: environment BrokenTally\.tell raised KeyError: 'number'"):
        rollouts([tell(3)], [tell(1)], tally=BrokenTally)
