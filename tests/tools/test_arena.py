"""The environment of arenas: its reward, what counts as solved, and what gains a policy nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arena_writer import make_tool
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.configuration import configs_dir
from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import UserCodeError
from verl_pivot.tools.arena import arena_reward
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import ErrorKind, Json, JsonObject, ToolCall

ARENA_FILE = str(configs_dir() / "tools" / "arena.yaml")


def test_the_reward_is_the_harmonic_mean_of_precision_and_recall() -> None:
    """ASTRA, equations 30 and 31: p = solved / calls, r = solved / asked, 2 p r / (p + r)."""
    assert arena_reward(3, 3, 3) == 1.0
    assert arena_reward(2, 2, 4) == pytest.approx(2 / 3)  # p = 1, r = 1/2
    assert arena_reward(2, 4, 4) == 0.5  # p = r = 1/2
    assert arena_reward(1, 10, 5) == pytest.approx(2 / 15)  # p = 1/10, r = 1/5
    assert arena_reward(0, 7, 3) == arena_reward(0, 0, 3) == 0.0


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_reward_lies_in_0_to_1_and_each_useless_call_lowers_it(solved: int, useless: int, unsolved: int) -> None:
    reward = arena_reward(solved, solved + useless, solved + unsolved)

    assert reward == pytest.approx(2 * solved / (2 * solved + useless + unsolved))
    assert 0.0 < arena_reward(solved, solved + useless + 1, solved + unsolved) < reward <= 1.0


def opened(*tools: JsonObject) -> RolloutTools:
    listed: list[Json] = [{key: value for key, value in tool.items() if key != "arguments"} for tool in tools]
    row = {"metadata": encode_json({"arena": listed})} if listed else {"metadata": "{}"}
    return load_toolset(ARENA_FILE).open(row)


def test_a_row_without_an_arena_is_refused_with_the_command_that_makes_one() -> None:
    with pytest.raises(UserCodeError, match="has no 'arena'; `verl-pivot synthesize arenas` writes it"):
        opened()


def test_an_arena_that_breaks_its_format_is_refused() -> None:
    broken: list[list[Json]] = [[], [make_tool("city_of", "KL1234")]]  # no tools, or a tool without an answer
    for arena in broken:
        with pytest.raises(UserCodeError, match="environment Arena"):
            load_toolset(ARENA_FILE).open({"metadata": encode_json({"arena": arena})})


def test_the_policy_reads_schemas_and_neither_code_nor_answers() -> None:
    tool = make_tool("city_of", "KL1234", answer="Oslo")

    (schema,) = opened(tool).toolbox.schemas

    function = {key: tool[key] for key in ("name", "description", "parameters")}
    assert schema == {"type": "function", "function": function}


@needs_sandbox
async def test_an_answer_counts_once_and_calls_that_fail_or_miss_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)
    code = "def grow(number):\n    return 'x' * number if number < 9 else chr(0xd7ff + number)\n"
    grow = make_tool(
        "city_of", "", name="grow", code=code, answer="xx",
        parameters={"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    )  # fmt: skip
    city = make_tool("city_of", "KL1234", answer="Oslo")
    calls: list[tuple[str, JsonObject]] = [
        ("grow", {"number": 2}), ("grow", {"number": 2}), ("grow", {"number": 3}), ("grow", {"number": 9}),
             ("city_of", {"flight": "x"}), ("other", {}), ("grow", {"number": "2"})]  # fmt: skip

    async with opened(grow, city) as tools:
        outcomes = await tools.toolbox.run([ToolCall(name=name, arguments=given) for name, given in calls])
        verdict, progress = await tools.score(None), tools.progress()

    kinds = [None if each.observation is None else each.observation.error for each in outcomes]
    assert kinds == [
        None, None, None, ErrorKind.EXECUTION_ERROR, ErrorKind.REFUSED, ErrorKind.UNKNOWN_TOOL,
        ErrorKind.INVALID_ARGUMENT,
    ]  # fmt: skip
    # Five calls reached a tool: 2 * 1/5 * 1/2 / (1/5 + 1/2) = 2/7.
    assert verdict is not None
    assert verdict.score == pytest.approx(2 / 7)
    assert verdict.detail == "1 of 2 questions solved in 5 calls"
    assert progress == 0.5
