"""tools.replay_check and `verl-pivot tools check-replay`, on tallies that go wrong in one way each."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.factories import ANSWER, USER, make_trajectory
from tests.support.tallies import OPENED
from verl_pivot.cli import app
from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.errors import ToolFailureError, UserCodeError
from verl_pivot.playing.running import open_toolset
from verl_pivot.tools.calls import failure_text
from verl_pivot.tools.contract import AchievedTask
from verl_pivot.tools.replay_check import ReplayDifference, replay_difference
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory

HERE = "tests.support.tallies"


def make_tally_trajectory(*results: tuple[int, str]) -> Trajectory:
    """Calls of `tell`, each with its recorded result."""
    messages = [USER]
    for number, (told, result) in enumerate(results):
        call = ToolCall(name="tell", arguments={"number": told}, id=f"c{number}")
        messages += [
            Message(role=Role.ASSISTANT, tool_calls=(call,)),
            Message(role=Role.TOOL, content=result, tool_call_id=f"c{number}"),
        ]
    return make_trajectory(messages=[*messages, Message(role=Role.ASSISTANT, content="Told.")], tools=())


TOLD = make_tally_trajectory((1, "1"), (2, "3"))
UNREAD = make_trajectory(messages=[message for message in TOLD.messages if message.role is not Role.TOOL], tools=())
"""The same calls without recorded results."""


def toolset_of(name: str) -> Toolset:
    return open_toolset(f"{HERE}:{name}")


async def check(name: str, trajectory: Trajectory = TOLD) -> ReplayDifference | None:
    toolset = toolset_of(name)
    row = {"metadata": encode_json(trajectory.metadata)}
    return await replay_difference(lambda: toolset.open(row), answered_calls(trajectory.messages))


@pytest.mark.parametrize("name", ["Tally", "ForkingTally"])
async def test_an_environment_that_depends_on_its_calls_alone_replays(name: str) -> None:
    assert await check(name) is None


async def test_a_result_may_be_another_text_of_the_same_json() -> None:
    assert await check("Tally", make_tally_trajectory((1, " 1"), (2, "3.0"))) is None


async def test_calls_keep_their_places_in_their_turn_of_which_some_are_too_many() -> None:
    calls = tuple(ToolCall(name="tell", arguments={"number": 1}, id=f"c{number}") for number in range(17))
    results = [*map(str, range(1, 17)), failure_text("only the first 16 calls of a turn are run")]
    answers = [
        Message(role=Role.TOOL, content=result, tool_call_id=call.id)
        for call, result in zip(calls, results, strict=True)
    ]
    turn = Message(role=Role.ASSISTANT, tool_calls=calls)

    assert await check("Tally", make_trajectory(messages=[USER, turn, *answers, ANSWER], tools=())) is None


@pytest.mark.parametrize(
    ("name", "trajectory", "call", "what", "where"),
    [
        ("Tally", make_tally_trajectory((1, "1"), (2, "4")), 1, "result", "in the recording"),
        ("NumberedTally", UNREAD, 0, "result", "in a second run"),
        ("SecretTally", TOLD, -1, "state", "in a second run"),
        ("MoodyTally", TOLD, -1, "progress", "in a second run"),
        ("LuckyTally", TOLD, 2, "score", "in a second run"),
        ("SharingTally", TOLD, 0, "state_before", "on copies of `fork`"),
        ("ForgetfulTally", TOLD, 1, "result", "on copies of `fork`"),
    ],
)
async def test_the_first_difference_is_named(
    name: str, trajectory: Trajectory, call: int, what: str, where: str
) -> None:
    found = await check(name, trajectory)

    assert found is not None
    assert (found.call, found.what, found.where) == (call, what, where)


async def test_a_difference_shows_both_values() -> None:
    found = await check("Tally", make_tally_trajectory((1, "1"), (2, "4")))

    assert str(found) == 'result is "3" at first, and "4" in the recording'


@pytest.mark.parametrize(("name", "error"), [("BrokenTally", UserCodeError), ("DownTally", ToolFailureError)])
async def test_what_fails_is_no_difference(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="tell"):
        await check(name)


async def test_progress_and_achieved_tasks_are_those_of_the_state() -> None:
    async with toolset_of("Tally").open({}) as tools:
        before = tools.progress()
        await tools.toolbox.run([ToolCall(name="tell", arguments={"number": 5})])

        assert (before, tools.progress()) == (-3.0, -2.0)
        assert tools.achieved() == [AchievedTask(metadata={"wanted": 5}, request="Reach 5.")]


async def test_what_an_environment_must_not_say_of_its_state_is_an_error_of_its_code() -> None:
    async with toolset_of("LostTally").open({}) as tools:
        with pytest.raises(UserCodeError, match=r"LostTally\.progress returned nan; return a finite number or None"):
            tools.progress()
        with pytest.raises(UserCodeError, match=r"LostTally\.achieved raised AttributeError"):
            tools.achieved()


async def test_a_copy_of_the_tools_goes_its_own_way() -> None:
    one, two = ToolCall(name="tell", arguments={"number": 1}), ToolCall(name="tell", arguments={"number": 2})
    async with toolset_of("ForkingTally").open({}) as tools:
        await tools.toolbox.run([one])
        copy = tools.fork()
        assert copy is not None
        async with copy:
            await copy.toolbox.run([two])
            assert (tools.states(), copy.states()) == ([[0, 1]], [[0, 1, 2]])
            assert copy.toolbox.max_calls_per_turn == tools.toolbox.max_calls_per_turn


async def test_a_copy_is_closed_where_the_next_environment_cannot_be_copied(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(f"- environment: {HERE}:ForkingTally\n- environment: {HERE}:StuckCounter\n")
    OPENED.clear()

    async with open_toolset(str(file)).open({}) as tools:
        copy = tools.fork()
        assert copy is not None
        with pytest.raises(UserCodeError, match=r"environment StuckCounter\.fork raised OSError: no memory"):
            async with copy:
                pass
        assert [tally.num_closed for tally in OPENED] == [0, 1]


@pytest.mark.parametrize(
    "entries", ["- environment: {here}:Tally\n", "- environment: {here}:ForkingTally\n- {function}"]
)
async def test_tools_that_cannot_be_copied_as_a_whole_are_not_copied(tmp_path: Path, entries: str) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(entries.format(here=HERE, function="{function: tests.support.tool_functions:add}"))

    async with open_toolset(str(file)).open({}) as tools:
        assert tools.fork() is None


def write(folder: Path, *trajectories: Trajectory) -> str:
    path = folder / "trajectories.jsonl"
    path.write_text("".join(encode_json(trajectory_as_dict(each)) + "\n" for each in trajectories))
    return str(path)


def check_replay(name: str, path: str) -> Result:
    return CliRunner().invoke(app, ["tools", "check-replay", f"{HERE}:{name}", path])


def test_the_command_counts_what_replays(tmp_path: Path) -> None:
    result = check_replay("Tally", write(tmp_path, TOLD, UNREAD))

    assert (result.exit_code, result.stdout) == (0, "2 trajectories with 4 calls: all replay exactly.\n")


def test_the_command_names_the_trajectory_and_the_call(tmp_path: Path) -> None:
    wrong = make_tally_trajectory((1, "1"), (2, "4"))

    result = check_replay("Tally", write(tmp_path, TOLD, wrong))

    assert result.exit_code == 1
    assert result.stdout == 'shop-1: call 1 (tell): result is "3" at first, and "4" in the recording\n'
    assert "1 of 2 trajectories do not replay." in result.output


@pytest.mark.parametrize(
    ("name", "trajectories", "message"),
    [
        (
            "Tally",
            [make_trajectory(messages=(USER, ANSWER), tools=())],
            "has no call to run",
        ),
        ("DownTally", [TOLD], "trajectory shop-1: environment DownTally.tell raised ConnectionError: no database"),
    ],
)
def test_the_command_says_what_it_cannot_run(
    tmp_path: Path, name: str, trajectories: list[Trajectory], message: str
) -> None:
    result = check_replay(name, write(tmp_path, *trajectories))

    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
