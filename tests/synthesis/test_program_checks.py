"""Checks by programs: filters of single trajectories, and calls that are run again in a fresh environment."""

from dataclasses import replace

import pytest

from tests.support.workshops import done, workshop
from verl_pivot.errors import ConfigError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.program_checks import FilterCheckOptions, ReplayOptions, filter_check, replay
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.types import Message, Role, ToolCall, Trajectory

SHOP = "tests.support.counting_shop:Shop"


def priced(result: str) -> Draft:
    """A draft that buys two packs after a call whose result is JSON."""
    draft = bought((2, "1 left"))
    assert draft.trajectory is not None
    request, *messages = draft.trajectory.messages
    asked = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="prices", arguments={}),))
    given = Message(role=Role.TOOL, content=result, name="prices")
    return replace(draft, trajectory=replace(draft.trajectory, messages=(request, asked, given, *messages)))


def bought(*orders: tuple[int, str], last: str = "Done.") -> Draft:
    """A draft with one call for each (amount, recorded result)."""
    messages = [Message(role=Role.USER, content="Leave one pack.")]
    for amount, result in orders:
        messages.append(
            Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="order", arguments={"amount": amount}),))
        )
        messages.append(Message(role=Role.TOOL, content=result, name="order"))
    if last:
        messages.append(Message(role=Role.ASSISTANT, content=last))
    return Draft(id="d", trajectory=Trajectory(id="d", messages=tuple(messages)))


def replayed(draft: Draft, *, same_results: bool = True, tools: str = SHOP) -> tuple[float | None, str]:
    own = workshop(inputs=Inputs(toolset=open_toolset(tools)))
    verdict = done(replay(ReplayOptions(same_results=same_results))(draft, own))
    return verdict.score, verdict.reason


def test_a_trajectory_passes_if_its_calls_do_the_same_and_solve_the_task() -> None:
    assert replayed(bought((1, "2 left"), (1, "1 left"))) == (1.0, "accepted")
    assert replayed(bought((1, "2 left"))) == (0.0, "wrong_stock")
    assert replayed(bought((2, "1 left"), last="")) == (0.0, "wrong_stock")


def test_another_result_than_the_recorded_one_does_not_pass() -> None:
    forged = bought((2, "2 left"))

    assert replayed(forged) == (0.0, "other_result")
    assert replayed(forged, same_results=False) == (1.0, "accepted")


def test_the_same_json_written_otherwise_is_the_same_result() -> None:
    assert replayed(priced('{"green":4, "black":3}')) == (1.0, "accepted")
    assert replayed(priced('{"green":4, "black":3.5}')) == (0.0, "other_result")


def test_a_result_may_be_another_text_of_the_same_json() -> None:
    call = ToolCall(name="tell", arguments={"number": 3})
    messages = (
        Message(role=Role.USER, content="Reach 3."),
        Message(role=Role.ASSISTANT, tool_calls=(call,)),
        Message(role=Role.TOOL, content=" 3.0", name="tell"),
    )

    draft = Draft(id="d", trajectory=Trajectory(id="d", messages=messages))
    assert replayed(draft, tools="tests.support.tallies:Tally") == (1.0, "scored")


def test_a_system_that_fails_while_tools_are_closed_leaves_the_replay_undecided() -> None:
    call = ToolCall(name="tell", arguments={"number": 3})
    messages = (Message(role=Role.USER, content="Reach 3."), Message(role=Role.ASSISTANT, tool_calls=(call,)))

    draft = Draft(id="d", trajectory=Trajectory(id="d", messages=messages))
    assert replayed(draft, tools="tests.support.tallies:StuckTally") == (None, "system_failed")


def test_a_draft_without_a_trajectory_stays_undecided() -> None:
    assert replayed(Draft(id="d")) == (None, "no_trajectory")


def test_a_replay_needs_tools() -> None:
    with pytest.raises(
        ConfigError, match="step step runs calls again: give a tools file or an environment with --tools"
    ):
        done(replay(ReplayOptions())(bought(), workshop()))


def test_a_filter_checks_a_trajectory_at_once() -> None:
    check = filter_check(FilterCheckOptions(name="coherence", options={"last_turn": "text"}))

    assert done(check(bought((2, "1 left")), workshop())).score == 1.0
    assert done(check(bought((2, "1 left"), last=""), workshop())).reason == "ends_in_call"
