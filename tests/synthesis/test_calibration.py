"""Calibration: a policy leaves the expert's way, thinks about it, and the expert's other turns get an outcome of 1."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.tallies import Tally
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.deviations import Deviation, by_loss, mean_outcome
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import SynthesisReport
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, WriterQuestion
from verl_pivot.tools.contract import tool
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Trajectory

TALLIES = "tests.support.tallies:"
THOUGHT = "That added nothing, so I tell the 2 now."
ANSWER = Message(role=Role.ASSISTANT, content="It is 6.")


def told(number: int) -> JsonObject:
    call: JsonObject = {"type": "function", "function": {"name": "tell", "arguments": json.dumps({"number": number})}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def wander(question: WriterQuestion, detour: int = 0, *, comes_back: bool = False) -> Any:
    """A policy that tells `detour` after the expert's 1, and then gives up; without tools, the writer of a thought."""
    if not question.tools:
        return f" {THOUGHT}\n"
    match [each["content"] for each in question.messages if each["role"] == "tool"]:
        case ["1"]:
            return told(detour)
        case [*_, "1"] if comes_back:
            return told(5)
        case [*_, "3"]:
            return told(3)
        case [*_, "6"]:
            return ANSWER.content
    return "I give up."


def comes_back(question: WriterQuestion) -> Any:
    """A policy that makes the same detour, and always solves the task."""
    return wander(question, comes_back=True)


def spoils(question: WriterQuestion) -> Any:
    """A policy that tells a 50, after which the expert's other turns do not lead to the goal."""
    return wander(question, 50)


def writes_half_a_character(question: WriterQuestion) -> Any:
    action = wander(question)
    if action == told(0):
        action["tool_calls"][0]["function"]["arguments"] = '{"number": 0, "why": "\\ud800"}'
    return action


def calls_nothing(question: WriterQuestion) -> Any:
    """A policy whose call on the detour cannot be read."""
    action = wander(question)
    if action == told(0):
        action["tool_calls"][0]["function"]["arguments"] = '{"number": NaN}'
    return action


def follows(question: WriterQuestion) -> Any:
    """A policy that makes the expert's turn after the 1, and gives up later."""
    results = [each for each in question.messages if each["role"] == "tool"]
    return told(2) if len(results) == 1 else "I give up."


def repeats(question: WriterQuestion) -> Any:
    """A policy that repeats the expert's first turn, word by word, and then gives up."""
    if not question.tools:
        return THOUGHT
    match [each["content"] for each in question.messages if each["role"] == "tool"]:
        case ["0"]:
            return {**told(0), "content": "Now 0."}
        case ["0", "0"]:
            return "I give up."
    return wander(question)


def strays(question: WriterQuestion) -> Any:
    """A policy that tells 50 after the result 1 and 0 after the result 3, and gives up after each."""
    if not question.tools:
        return THOUGHT
    match [each["content"] for each in question.messages if each["role"] == "tool"]:
        case ["1"]:
            return told(50)
        case ["1", "3"]:
            return told(0)
    return "I give up."


def is_silent(question: WriterQuestion) -> Any:
    """An answer without a token, as from a system that fails."""
    return ""


def betrays(question: WriterQuestion) -> Any:
    return wander(question) if question.tools else "I do as the Expert did."


def calls_in_thought(question: WriterQuestion) -> Any:
    return wander(question) if question.tools else told(2)


def says_nothing(question: WriterQuestion) -> Any:
    return wander(question) if question.tools else "  "


def speaks_for_others(question: WriterQuestion) -> Any:
    return wander(question) if question.tools else "Well.<|im_end|>\n<|im_start|>user\nThanks."


def dawdles(question: WriterQuestion) -> Any:
    """A policy that tells a 0 after the results 1 and 3, and then gives up; the first thought about it is withheld."""
    if question.tools:
        results = [each["content"] for each in question.messages if each["role"] == "tool"]
        return told(0) if results in (["1"], ["1", "3"]) else "I give up."
    if '"content": "3"' not in str(question.messages[0]["content"]):
        raise QuestionRefusedError("the answer is withheld")
    return THOUGHT


class BrittleTally(Tally):
    """Tally whose database fails at the first expert turn after the detour."""

    @tool
    def tell(self, number: int) -> int:
        """Tell a number."""
        if [*self.told, number] == [0, 1, 0, 2]:
            raise ConnectionError("no database")
        return super().tell(number)


def make_expert(*numbers: int, begins: Sequence[Message] = (), answer: Message | None = ANSWER) -> Trajectory:
    """An expert's trajectory that tells these numbers to a tally, one a turn, which adds them up."""
    messages = [*begins, Message(role=Role.USER, content="Reach 6.")]
    for number, value in enumerate(numbers):
        call = ToolCall(name="tell", arguments={"number": value}, id=f"call_{number}_0")
        result = str(sum(numbers[: number + 1]))
        messages += [
            Message(role=Role.ASSISTANT, content=f"Now {value}.", tool_calls=(call,)),
            Message(role=Role.TOOL, content=result, name="tell", tool_call_id=call.id),
        ]
    messages += [] if answer is None else [answer]
    return Trajectory(id="e", messages=tuple(messages), passed=True, metadata={"wanted": 6})


EXPERT = make_expert(1, 2, 3)


def synthesized(
    folder: Path,
    trajectory: Trajectory = EXPERT,
    policy: str = "wander",
    tally: str = TALLIES + "Tally",
    **changes: Json,
) -> SynthesisReport:
    path = folder / "experts.jsonl"
    path.write_text(encode_json(trajectory_as_dict(trajectory)) + "\n")
    options = {f"calibrated.{name}": value for name, value in {"num": 2, **changes}.items()}
    job = SynthesisJob(
        recipe=read_recipe("calibration", options),
        inputs=Inputs(trajectories=path, toolset=open_toolset(tally)),
        writers={"writer": ProgramWriter(f"tests.synthesis.test_calibration:{policy}")},
        out=folder / "out",
        identity={},
        limits=BudgetLimits(),
        retries=Retries(num_attempts=1),
        concurrency=2,
    )
    return run_synthesis(job, lambda count: None)


def shown(trajectory: Trajectory) -> list[list[object]]:
    """[num_messages] text of each message, with the number that it tells."""
    return [
        [message.content, *(call.arguments["number"] for call in message.tool_calls)] for message in trajectory.messages
    ]


def rejected(folder: Path) -> JsonObject:
    (row,) = [json.loads(line) for line in (folder / "out" / "rejected.jsonl").read_text().splitlines()]
    return {key: row[key] for key in ("step", "reason", "detail")}


def test_the_policy_leaves_the_way_thinks_about_it_and_goes_on_as_the_expert(tmp_path: Path) -> None:
    report = synthesized(tmp_path)

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert shown(trajectory) == [
        ["Reach 6."],
        ["Now 1.", 1],
        ["1"],
        ["", 0],
        ["1"],
        [f"{THOUGHT}\n\nNow 2.", 2],
        ["3"],
        ["Now 3.", 3],
        ["6"],
        ["It is 6."],
    ]
    assert trajectory.passed is True
    assert [turn.index for turn in turns(trajectory)] == [0, 2, 3, 4]
    assert len({call.id for message in trajectory.messages for call in message.tool_calls}) == 4
    provenance = trajectory.metadata["verl_pivot"]
    assert isinstance(provenance, dict)
    assert provenance["split_by"] == "e"
    values = provenance["synthesis"]["values"]  # type: ignore[index,call-overload]
    assert values == {"values_before": {"1": 0.0, "2": 1.0, "3": 1.0}, "turn": 1, "value_before": 0.0, "value": 0.0}
    # Two continuations of each state: 2 turns after the 1, 2 after the 2, 1 after the 3, 1 after the detour; a thought.
    assert report.asked["calibrated"]["num_calls"] == 2 * (2 + 2 + 1 + 1) + 1


def test_a_thought_can_stand_apart_from_the_text(tmp_path: Path) -> None:
    synthesized(tmp_path, thought_in="reasoning")

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert [(each.content, each.reasoning) for each in trajectory.messages if each.role is Role.ASSISTANT] == [
        ("Now 1.", None),
        ("", None),
        ("Now 2.", THOUGHT),
        ("Now 3.", None),
        ("It is 6.", None),
    ]


def test_turns_of_the_prompt_and_earlier_detours_keep_their_places(tmp_path: Path) -> None:
    greeting = Message(role=Role.ASSISTANT, content="Hello.")
    expert = replace(make_expert(1, 2, 3, begins=[greeting]), expert_turns=(1, 2, 3))
    synthesized(tmp_path, expert)

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert shown(trajectory)[:4] == [["Hello."], ["Reach 6."], ["Now 1.", 1], ["1"]]
    assert trajectory.expert_turns == (1, 3, 4)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("comes_back", "no_deviation"),
        ("follows", "no_deviation"),
        ("calls_nothing", "no_deviation"),
        ("spoils", "not_recovered"),
        ("writes_half_a_character", "not_recovered"),
        ("is_silent", "undecided"),
        ("betrays", "thought_tells"),
        ("calls_in_thought", "bad_thought"),
        ("says_nothing", "empty_message"),
        ("speaks_for_others", "malformed_message"),
    ],
)
def test_what_a_policy_or_a_writer_does_wrong_is_a_reason(tmp_path: Path, policy: str, reason: str) -> None:
    assert synthesized(tmp_path, policy=policy).rejected == {"calibrated": {reason: 1}}


def test_a_thought_that_the_endpoint_withholds_takes_no_other_trajectory_with_it(tmp_path: Path) -> None:
    report = synthesized(tmp_path, policy="dawdles")

    assert report.rejected == {"calibrated": {"question_refused": 1}}
    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert [turn.index for turn in turns(trajectory)] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("expert", "reason"),
    [
        (replace(EXPERT, passed=False), "not_passed"),
        (replace(EXPERT, messages=(*EXPERT.messages, Message(role=Role.USER, content="Thanks."))), "several_requests"),
        (make_expert(6, answer=None), "too_few_turns"),
        (replace(EXPERT, expert_turns="last"), "too_few_turns"),
        (make_expert(1, 0, 0, 0, 0, 0, 0, 0, 5), "too_many_turns"),
        (make_expert(1, 2, 3, answer=None), "expert_fails"),
        (make_expert(1, 2, 3, answer=Message(role=Role.ASSISTANT, content="<|im_end|>")), "expert_fails"),
        (replace(EXPERT, verifier_options={"no": "option"}), "no_deviation"),
    ],
)
def test_a_trajectory_that_cannot_be_used_is_rejected_with_its_reason(
    tmp_path: Path, expert: Trajectory, reason: str
) -> None:
    assert synthesized(tmp_path, expert).rejected == {"calibrated": {reason: 1}}


def test_a_trajectory_that_nothing_ends_is_said_to_be_one(tmp_path: Path) -> None:
    synthesized(tmp_path, make_expert(1, 2, 3, answer=None))

    assert "the conversation does not end after the last given turn" in str(rejected(tmp_path)["detail"])


@pytest.mark.parametrize(("tally", "reason"), [("NumberedTally", "other_result"), ("DownTally", "system_failed")])
def test_an_environment_that_does_not_replay_costs_no_question(tmp_path: Path, tally: str, reason: str) -> None:
    report = synthesized(tmp_path, tally=TALLIES + tally)

    assert report.rejected == {"replay": {reason: 1}}
    assert report.asked == {}


def test_a_turn_that_nothing_makes_good_takes_no_place_of_another(tmp_path: Path) -> None:
    report = synthesized(tmp_path, policy="strays", max_per_trajectory=1)

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert trajectory.expert_turns == (0, 1, 3, 4)
    assert report.rejected == {"calibrated": {"not_recovered": 1}}
    assert str(rejected(tmp_path)["detail"]).startswith("the outcome is 0.0, ")


def test_what_the_policy_repeats_on_its_detour_is_no_reason_to_reject_it(tmp_path: Path) -> None:
    synthesized(tmp_path, make_expert(0, 1, 2, 3), policy="repeats")

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert [message[1] for message in shown(trajectory) if len(message) > 1] == [0, 0, 1, 2, 3]


def test_a_system_that_fails_on_the_way_back_is_counted_as_such(tmp_path: Path) -> None:
    report = synthesized(tmp_path, tally="tests.synthesis.test_calibration:BrittleTally")

    assert report.rejected == {"calibrated": {"system_failed": 1}}


def deviation(turn: int, before: float, value: float) -> Deviation:
    return Deviation(turn, ANSWER, before, value)


def test_the_greatest_loss_comes_first_and_a_gain_is_none() -> None:
    found = [deviation(1, 0.5, 0.5), deviation(2, 0.25, 0.5), deviation(3, 1.0, 0.25), deviation(4, 0.75, 0.75)]

    assert [each.turn for each in by_loss(found)] == [3, 1, 4]


def test_outcomes_that_nobody_can_tell_are_no_part_of_a_value() -> None:
    assert mean_outcome([1.0, None, 0.0, 0.0, None, 1.0]) == 0.5
    assert mean_outcome([None]) is None
