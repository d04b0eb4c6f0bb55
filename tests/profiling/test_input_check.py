"""What a profile refuses before it starts a server, and which turns it measures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.profiling.test_profiles import make_settings
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.engines.model_check import check_model
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, DataError, StateRefusedError
from verl_pivot.profiling.input_check import count_turns, refuse_overlong
from verl_pivot.profiling.job import ProfileJob, TurnCounts
from verl_pivot.profiling.line_index import LineIndex
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory, Turn

TOOL: JsonObject = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
SHOP = Trajectory(
    id="shop-1",
    messages=(
        Message(role=Role.USER, content="Where is it?"),
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="find", arguments={}),)),
        Message(role=Role.TOOL, content="sent"),
        Message(role=Role.ASSISTANT, content="It is on its way."),
    ),
    tools=(TOOL,),
)


def make_job(folder: Path, *trajectories: Trajectory, **settings: object) -> ProfileJob:
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(trajectory_as_dict(each)) + "\n" for each in trajectories))
    return ProfileJob(
        trajectories=path, out=folder / "p.jsonl", limit=None, settings=make_settings(**settings), retries=Retries(),
        seed=0, concurrency=1, endpoints=(), openai=None, server_flags=(), on_ray=None, allow_no_tools=False,
    )  # fmt: skip


def test_turns_that_are_messages_are_counted_where_any_text_is_accepted(tmp_path: Path) -> None:
    strict = replace(SHOP, id="shop-2", verifier_options={"mode": "strict"})

    counts = count_turns(make_job(tmp_path, SHOP, strict), LineIndex([]))

    assert counts == TurnCounts(num_turns=4, num_left=4, num_messages=1)


def test_calls_alone_are_measured_where_that_is_wanted(tmp_path: Path) -> None:
    job = make_job(tmp_path, SHOP, turns="calls")

    assert [turn.id for turn in job.turns()] == ["shop-1:0"]
    assert count_turns(job, LineIndex([])) == TurnCounts(num_turns=1, num_left=1, num_messages=0)


def test_calls_without_schemas_are_refused_unless_they_are_wanted(tmp_path: Path) -> None:
    job = make_job(tmp_path, replace(SHOP, tools=()))

    with pytest.raises(ConfigError, match=r"1 trajectories, such as 'shop-1', call tools but have no schemas.*--tools"):
        count_turns(job, LineIndex([]))
    assert count_turns(replace(job, allow_no_tools=True), LineIndex([])).num_turns == 2


def test_trajectories_of_one_id_with_the_same_turn_are_refused_with_the_number_of_such_ids(tmp_path: Path) -> None:
    job = make_job(tmp_path, SHOP, replace(SHOP, id="shop-2"), replace(SHOP, id="shop-2"), SHOP)

    with pytest.raises(DataError) as error:
        count_turns(job, LineIndex([]))

    assert str(error.value) == (
        f"in {tmp_path / 't.jsonl'}, 2 ids, such as 'shop-2', belong to several trajectories with the same turns, as "
        "where the outputs of two imports were joined; import all rows together, with one `verl-pivot import`"
    )


def test_trajectories_of_one_id_may_hold_different_turns(tmp_path: Path) -> None:
    job = make_job(tmp_path, replace(SHOP, expert_turns=(0,)), replace(SHOP, expert_turns=(1,)))

    assert count_turns(job, LineIndex([])).num_turns == 2


def test_a_file_without_a_call_has_nothing_to_profile_among_calls(tmp_path: Path) -> None:
    talk = replace(SHOP, messages=(SHOP.messages[0], SHOP.messages[3]))

    with pytest.raises(DataError, match="all turns are messages without calls, which --turns calls leaves out"):
        count_turns(make_job(tmp_path, talk, turns="calls"), LineIndex([]))


def test_prompts_that_are_all_too_long_are_refused_with_the_length_that_keeps_19_of_20(tmp_path: Path) -> None:
    job = make_job(tmp_path, *(replace(SHOP, id=f"shop-{number}") for number in range(10)))
    lengths = iter(range(101, 121))

    with pytest.raises(
        ConfigError, match="all 20 prompts are longer than --max-prompt-tokens 100; 119 would keep 95 %"
    ):
        refuse_overlong(job.turns(), lambda turn: next(lengths), 100)


def test_a_template_that_refuses_every_state_is_said_and_one_that_takes_a_state_is_not(tmp_path: Path) -> None:
    job = make_job(tmp_path, SHOP)

    def refuse_first(turn: Turn) -> int:
        if turn.index == 0:
            raise StateRefusedError(f"turn {turn.id} is refused")
        return 100

    def refuse(turn: Turn) -> int:
        raise StateRefusedError(f"turn {turn.id} is refused")

    refuse_overlong(job.turns(), refuse_first, 100)
    with pytest.raises(ConfigError, match="all 1 prompts are longer than --max-prompt-tokens 99"):
        refuse_overlong(job.turns(), refuse_first, 99)
    with pytest.raises(StateRefusedError, match="turn shop-1:0 is refused"):
        refuse_overlong(job.turns(), refuse, 100)


def test_prompts_are_counted_up_to_the_first_that_fits(tmp_path: Path) -> None:
    job, counted = make_job(tmp_path, SHOP, replace(SHOP, id="shop-2")), []

    def num_tokens(turn: object) -> int:
        counted.append(turn)
        return 101 if len(counted) == 1 else 100

    refuse_overlong(job.turns(), num_tokens, 100)

    assert len(counted) == 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./missing", "--model './missing' does not exist"),
        ("/no/such/folder", "--model '/no/such/folder' does not exist"),
        ("~/policy", "--model '~/policy' does not exist"),
        ("outputs/run/policy", "--model 'outputs/run/policy' does not exist"),
        ("not a name", "--model 'not a name' is neither a folder here nor available on the Hugging Face hub"),
        ("tests", "--model 'tests' has no config.json"),
        ("README.md", "--model 'README.md' does not exist"),
    ],
)
def test_a_model_that_is_not_there_is_told_at_once(model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        check_model(model)
