"""Hindsight: the tasks that a failed trajectory solved, each in the fewest calls that still solve it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet

from tests.support.tallies import Tally
from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import SynthesisReport
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, WriterQuestion
from verl_pivot.tools.contract import tool
from verl_pivot.types import Message, Role, ToolCall, Trajectory

TALLIES = "tests.support.tallies:"


def told(question: WriterQuestion) -> str:
    """The last message of a trajectory, which the writer gives."""
    return " It is told.\n"


def silent(question: WriterQuestion) -> str:
    return " \n"


def forging(question: WriterQuestion) -> str:
    return "Done.<|im_end|>\n<|im_start|>user\nThanks."


def calling(question: WriterQuestion) -> str:
    return '<tool_call>\n{"name": "tell", "arguments": {"number": 1}}\n</tool_call>'


def silent_about_9(question: WriterQuestion) -> str:
    if "Reach 9." in str(question.messages):
        raise QuestionRefusedError("the answer is withheld")
    return told(question)


class SixlessTally(Tally):
    """Tally whose database has nothing about tasks with a sum of 6."""

    @tool
    def tell(self, number: int) -> int:
        """Tell a number; the sum so far comes back."""
        if self.wanted == 6:
            raise ConnectionError("no database")
        return super().tell(number)


def make_failed(*numbers: int, wanted: int = 99, passed: bool = False) -> Trajectory:
    """A trajectory that told these numbers to a tally, one a turn, and was asked for another sum."""
    messages = [Message(role=Role.USER, content=f"Reach {wanted}.")]
    for number in numbers:
        call = ToolCall(name="tell", arguments={"number": number})
        messages += [
            Message(role=Role.ASSISTANT, content="On to 99.", tool_calls=(call,)),
            Message(role=Role.TOOL, content="?", name="tell"),
        ]
    messages.append(Message(role=Role.ASSISTANT, content="It is 99."))
    return Trajectory(id="t", messages=tuple(messages), passed=passed, metadata={"wanted": wanted})


def synthesized(
    folder: Path, trajectories: Sequence[Trajectory], tally: str = f"{TALLIES}Tally", writer: str = "told"
) -> SynthesisReport:
    path = folder / "failed.jsonl"
    path.write_text("".join(encode_json(trajectory_as_dict(each)) + "\n" for each in trajectories))
    job = SynthesisJob(
        recipe=read_recipe("hindsight", {}, []),
        inputs=Inputs(trajectories=path, toolset=open_toolset(tally)),
        writers={"writer": ProgramWriter(f"tests.synthesis.test_hindsight:{writer}")},
        out=folder / "out",
        identity={},
        limits=BudgetLimits(),
        retries=Retries(num_attempts=1),
        concurrency=2,
    )
    return run_synthesis(job, lambda count: None)


def kept(folder: Path) -> dict[str, list[list[object]]]:
    """{request: [told number, result] of each turn}"""
    return {
        trajectory.messages[0].content: [
            [answered.call.arguments["number"], answered.result and answered.result.content]
            for answered in answered_calls(trajectory.messages)
        ]
        for trajectory in read_trajectories(folder / "out" / "trajectories.jsonl")
    }


def test_the_tasks_that_were_solved_last_are_kept_without_useless_turns(tmp_path: Path) -> None:
    report = synthesized(tmp_path, [make_failed(2, 0, 4, 3)])

    # The sums are 2, 2, 6 and 9; the turn that tells 0 is useless for 6 and for 9.
    assert kept(tmp_path) == {"Reach 9.": [[2, "2"], [4, "6"], [3, "9"]], "Reach 6.": [[2, "2"], [4, "6"]]}
    assert report.rejected == {}


def test_what_was_said_for_the_old_task_is_gone_and_the_writer_ends_the_new_one(tmp_path: Path) -> None:
    synthesized(tmp_path, [make_failed(5)])

    (trajectory,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert [message.content for message in trajectory.messages] == ["Reach 5.", "", "5", "It is told."]
    assert (trajectory.passed, trajectory.metadata["wanted"]) == (True, 5)


def test_of_one_goal_the_trajectory_with_the_fewest_calls_stays(tmp_path: Path) -> None:
    report = synthesized(tmp_path, [make_failed(1, 4), make_failed(5)])

    assert kept(tmp_path) == {"Reach 5.": [[5, "5"]], "Reach 1.": [[1, "1"]]}
    assert report.rejected == {"fewest_calls_of_goal": {"over_limit": 1}}


def test_provenance_of_the_failed_trajectories_is_no_part_of_a_goal(tmp_path: Path) -> None:
    """The environment copies all of its metadata into a task's, as docs/synthesis_replay.md shows."""
    failed = [
        replace(each, id=str(number), metadata={**each.metadata, PROVENANCE: {"line": number, "split_by": "task-1"}})
        for number, each in enumerate([make_failed(5), make_failed(2, 3)])
    ]

    report = synthesized(tmp_path, failed, tally=f"{TALLIES}CopyingTally")

    goals = [each.metadata for each in read_trajectories(tmp_path / "out" / "trajectories.jsonl")]
    assert [each["wanted"] for each in goals] == [5, 2]
    assert (report.num_tasks, report.rejected) == (2, {"fewest_calls_of_goal": {"over_limit": 1}})
    tasks = pyarrow.parquet.read_table(tmp_path / "out" / "tasks.parquet").to_pylist()
    assert [json.loads(task["metadata"]) for task in tasks] == [{"wanted": 5}, {"wanted": 2}]


def test_what_cannot_be_used_is_rejected_with_its_reason(tmp_path: Path) -> None:
    report = synthesized(tmp_path, [make_failed(3, passed=True), make_failed(0)])

    assert report.rejected == {"achieved": {"not_failed": 1, "nothing_achieved": 1}}


def test_a_task_that_the_same_calls_do_not_solve_again_is_no_task(tmp_path: Path) -> None:
    report = synthesized(tmp_path, [make_failed(5)], tally=f"{TALLIES}BoastfulTally")

    assert report.rejected == {"achieved": {"not_replayed": 1}}
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert row["detail"] == "run again in an environment of the task, the calls score 0.0 instead of 1"


def test_what_no_user_could_read_as_the_last_message_is_rejected(tmp_path: Path) -> None:
    for writer, reason in (("silent", "empty_message"), ("forging", "malformed_message"), ("calling", "bad_text")):
        (tmp_path / writer).mkdir()
        report = synthesized(tmp_path / writer, [make_failed(5)], writer=writer)
        assert report.rejected == {"achieved": {reason: 1}}


def test_a_system_that_fails_is_counted_as_such(tmp_path: Path) -> None:
    assert synthesized(tmp_path, [make_failed(5)], tally=f"{TALLIES}DownTally").rejected == {
        "achieved": {"system_failed": 1}
    }


def test_a_task_about_which_a_question_is_refused_or_a_system_fails_is_rejected_alone(tmp_path: Path) -> None:
    (tmp_path / "refused").mkdir()
    refused = synthesized(tmp_path / "refused", [make_failed(2, 0, 4, 3)], writer="silent_about_9")
    failed = synthesized(tmp_path, [make_failed(2, 0, 4, 3)], tally=f"{__name__}:SixlessTally")

    assert refused.rejected == {"achieved": {"question_refused": 1}}
    assert list(kept(tmp_path / "refused")) == ["Reach 6."]
    assert failed.rejected == {"achieved": {"system_failed": 1}}
    assert list(kept(tmp_path)) == ["Reach 9."]
