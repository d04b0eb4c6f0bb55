"""Environments of Gymnasium in tools files: schemas of spaces, steps, rewards, ends, and environments that fail."""

import asyncio
import json
import math
import threading
import time
from typing import Any

import numpy
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: the extra `gymnasium`")

from gymnasium import spaces  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.support.gym_environments import CountTo  # noqa: E402
from verl_pivot.data.faults import fault_verdict  # noqa: E402
from verl_pivot.data.json_values import decode_json, encode_json  # noqa: E402
from verl_pivot.data.rollout_records import StopReason  # noqa: E402
from verl_pivot.data.tool_schemas import ToolSchema  # noqa: E402
from verl_pivot.environments.spaces import action_of, plain, schema_of  # noqa: E402
from verl_pivot.errors import ConfigError, DataError, ToolFailureError  # noqa: E402
from verl_pivot.tools.calls import CallOutcome  # noqa: E402
from verl_pivot.tools.rollout_tools import RolloutTools  # noqa: E402
from verl_pivot.tools.toolset import Toolset  # noqa: E402
from verl_pivot.types import EnvironmentReturn, ErrorKind, ToolCall, Verdict  # noqa: E402

MODULE = "gymnasium:tests.support.gym_environments"


def toolset(name: str, **options: Any) -> Toolset:
    made = Toolset("tools.yaml")
    made.add_entry({"environment": name, **options})
    return made


def counting(**options: Any) -> Toolset:
    return toolset(f"{MODULE}:CountTo-v0", **options)


def hostile(at: str, fault: str, **options: Any) -> Toolset:
    return toolset(f"{MODULE}:Hostile-v0", arguments={"at": at, "fault": fault}, **options)


async def step(tools: RolloutTools, action: Any = 1, *, name: str = "step") -> CallOutcome:
    (outcome,) = await tools.toolbox.run([ToolCall(name=name, arguments={"action": action})])
    return outcome


def text(outcome: CallOutcome) -> str:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


async def played(toolset: Toolset, *actions: Any, **row: Any) -> Verdict | None:
    """Outcome of a rollout that takes these actions."""
    async with toolset.open(row) as tools:
        for action in actions:
            await step(tools, action)
        return await tools.score(None)


INTEGER = {"type": "integer", "minimum": 0, "maximum": 1}


@pytest.mark.parametrize(
    ("space", "schema"),
    [
        (spaces.Discrete(2), INTEGER),
        (spaces.Discrete(3, start=-1), {"type": "integer", "minimum": -1, "maximum": 1}),
        (spaces.MultiDiscrete([2, 2]), {"type": "array", "minItems": 2, "maxItems": 2, "items": INTEGER}),
        (
            spaces.MultiDiscrete([2, 4]),
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [INTEGER, {"type": "integer", "minimum": 0, "maximum": 3}],
            },
        ),
        (spaces.MultiBinary(3), {"type": "array", "minItems": 3, "maxItems": 3, "items": INTEGER}),
        (spaces.Box(-0.4, 0.1, ()), {"type": "number", "minimum": -0.4, "maximum": 0.1}),
        (
            spaces.Box(0, 7, (1, 2), dtype=numpy.uint8),
            {
                "type": "array",
                "minItems": 1,
                "maxItems": 1,
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": {"type": "integer", "minimum": 0, "maximum": 7},
                },
            },
        ),
        (
            spaces.Box(-math.inf, math.inf, (2,)),
            {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}},
        ),
        (
            spaces.Text(4, charset="ab"),
            {"type": "string", "minLength": 1, "maxLength": 4, "description": "Only the characters ab"},
        ),
        (
            spaces.Dict({"go": spaces.Discrete(2)}),
            {"type": "object", "properties": {"go": INTEGER}, "required": ["go"], "additionalProperties": False},
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ())]),
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [INTEGER, {"type": "number", "minimum": 0.0, "maximum": 1.0}],
            },
        ),
    ],
    ids=repr,
)
def test_a_space_has_a_schema(space: Any, schema: Any) -> None:
    assert schema_of(space) == schema


SIMPLE = st.one_of(
    st.integers(1, 9).map(spaces.Discrete),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
    st.tuples(st.floats(-1e6, 0, width=32), st.floats(1, 1e6, width=32)).map(lambda ends: spaces.Box(*ends, (2, 2))),
    st.just(spaces.Box(-math.inf, 3.0, (2,))),
    st.just(spaces.Box(0, 255, (3,), dtype=numpy.uint8)),
    st.integers(1, 6).map(spaces.Text),
)
SPACES = st.recursive(
    SIMPLE,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), parts, max_size=3).map(spaces.Dict),
    ),
    max_leaves=4,
)


@given(space=SPACES, seed=st.integers(0, 2**31 - 1))
def test_every_action_of_a_space_is_accepted_by_its_schema_and_comes_back_from_its_text(space: Any, seed: int) -> None:
    space.seed(seed)
    sample = space.sample()
    value = decode_json(encode_json(plain(sample)))

    assert ToolSchema({"properties": {"action": schema_of(space)}}).problem({"action": value}) is None
    assert space.contains(action_of(space, value))
    assert plain(action_of(space, value)) == value


@pytest.mark.parametrize(
    "action",
    ["Graph(Discrete(2), None)", "Sequence(Discrete(2))", "OneOf([Discrete(2)])", "Tuple([Sequence(Discrete(2))])"],
)
def test_a_space_that_no_schema_describes_stops_the_launch_with_the_remedy(action: str) -> None:
    with pytest.raises(
        ConfigError, match=r"Wide-v0: no schema describes the action space .*; write a subclass of verl"
    ):
        toolset(f"{MODULE}:Wide-v0", arguments={"action": action})


def test_spaces_that_are_too_large_stop_the_launch() -> None:
    with pytest.raises(ConfigError, match=r"has 65 numbers, and a policy is asked for at most 64; write a subclass"):
        toolset(f"{MODULE}:Wide-v0", arguments={"action": "Box(0, 1, (65,))"})
    with pytest.raises(ConfigError, match=r"has 100800 numbers, and at most 4096 are shown as text; write a subclass"):
        toolset(f"{MODULE}:Wide-v0", arguments={"observation": "Box(0, 255, (210, 160, 3))"})


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("gymnasium:CartPol-v1", {}, "CartPol-v1: cannot be made: Environment `CartPol` doesn't exist"),
        ("gymnasium:no_such_module:X-v1", {}, "cannot be made: No module named 'no_such_module'"),
        ("gymnasium:", {}, "cannot be made"),
        ("gymnasium:CartPole-v1", {"rewards": "sum"}, "unknown key; known: arguments, description, environment"),
        ("gymnasium:CartPole-v1", {"reward": "mean"}, "gymnasium.reward: Input should be 'sum', 'last' or 'turns'"),
        ("gymnasium:CartPole-v1", {"arguments": {"x": 1}}, "unexpected keyword argument 'x'"),
        ("gymnasium:CartPole-v1", {"renderer": "tests.support.gym_environments:CountTo"}, "is no subclass of verl"),
        ("gymnasium:CartPole-v1", {"renderer": "tests.support.gym_environments:Broken"}, "raised KeyError: 'colour'"),
        (
            "gymnasium:CartPole-v1",
            {"renderer": "tests.support.gym_environments:Silent"},
            "`text` of Silent returned None",
        ),
        (
            "gymnasium:CartPole-v1",
            {"renderer": "tests.support.gym_environments:Shapeless"},
            "CartPole-v1 has actions that no tool schema can describe: parameters of tool step must be a JSON schema",
        ),
    ],
)
def test_an_entry_that_cannot_work_stops_the_launch(name: str, options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toolset(name, **options)

    assert sentence in str(caught.value)


def test_only_one_environment_of_a_framework_gives_the_reward() -> None:
    made = counting()

    with pytest.raises(ConfigError, match="the environment of another entry already gives the reward"):
        made.add_entry({"environment": "gymnasium:CartPole-v1", "tool_name": "push"})


async def test_the_policy_reads_the_first_observation_and_steps_to_the_end() -> None:
    async with counting(description="Adds 0, 1 or 2.").open({}) as tools:
        schema = tools.toolbox.schemas[0]["function"]
        outcomes = [await step(tools, action) for action in (1, 2, 1)]
        outcome = await tools.score(None)

    assert isinstance(schema, dict)
    assert (schema["name"], schema["description"]) == ("step", "Adds 0, 1 or 2.")
    assert tools.opening == "0"
    assert [text(each) for each in outcomes] == [
        "1",
        "3\nThe environment has ended: terminated.",
        "Tool call failure\nreason: error, the environment has ended (terminated); it takes no further step",
    ]
    assert [each.observation and each.observation.reward for each in outcomes] == [1.0, 2.0, None]
    assert [each.observation and each.observation.end for each in outcomes[:2]] == [
        None,
        StopReason.ENVIRONMENT_TERMINATED,
    ]
    assert outcome == EnvironmentReturn(score=3.0, reason="environment_terminated")


async def test_steps_of_one_turn_are_taken_in_their_order_also_where_calls_are_parallel() -> None:
    async with counting().open({}, parallel_calls=True) as tools:
        steps = [ToolCall(name="step", arguments={"action": action}) for action in (1, 2, 1)]
        outcomes = await tools.toolbox.run(steps)

    assert [text(each).partition("\n")[0] for each in outcomes] == ["1", "3"]


async def test_a_limit_of_steps_is_told_from_an_end_of_the_task() -> None:
    async with counting().open({}) as tools:
        outcomes = [await step(tools, 0) for _ in range(4)]
        outcome = await tools.score(None)

    assert text(outcomes[-1]) == "0\nThe environment has ended: truncated by a limit from outside of the task."
    assert outcome == EnvironmentReturn(score=0.0, reason="environment_truncated")


async def test_the_outcome_is_the_sum_or_the_last_reward_also_where_the_policy_ends_early() -> None:
    unfinished = EnvironmentReturn(score=2.0, reason="environment_unfinished")

    assert await played(counting(), 1, 1) == unfinished
    assert await played(counting(reward="last"), 0, 2, 0) == EnvironmentReturn(score=0.0, reason=unfinished.reason)
    assert await played(counting(reward="last")) == EnvironmentReturn(score=0.0, reason=unfinished.reason)
    assert await played(counting(reward="turns"), 1, 1) == EnvironmentReturn(
        score=2.0, reason=unfinished.reason, paid_tool="step"
    )


async def test_leaving_early_is_charged_and_an_end_of_the_environment_is_not() -> None:
    charged = {"unfinished_reward": -5.0}

    assert await played(counting(**charged), 1, 1) == EnvironmentReturn(
        score=-3.0, reason="environment_unfinished", beyond_calls=-5.0
    )
    assert await played(counting(reward="last", **charged), 0, 2) == EnvironmentReturn(
        score=-3.0, reason="environment_unfinished", beyond_calls=-5.0
    )
    assert await played(counting(reward="turns", **charged)) == EnvironmentReturn(
        score=-5.0, reason="environment_unfinished", paid_tool="step", beyond_calls=-5.0
    )
    assert await played(counting(**charged), 1, 1, 1) == await played(counting(), 1, 1, 1)


async def test_an_illegal_action_is_read_by_the_policy_and_leaves_the_environment_as_it_is() -> None:
    async with counting().open({}) as tools:
        outcomes = [await step(tools, action) for action in (3, "up", None, 1.5)]
        (missing,) = await tools.toolbox.run([ToolCall(name="step", arguments={})])
        after = await step(tools, 1)

    assert text(outcomes[0]) == "Tool call failure\nreason: error, $.action: 3 is greater than the maximum of 2"
    assert {each.observation and each.observation.error for each in outcomes} == {ErrorKind.INVALID_ARGUMENT}
    assert missing.observation is not None
    assert missing.observation.error is ErrorKind.MISSING_ARGUMENT
    assert text(after) == "1"


async def test_an_action_that_only_the_space_refuses_is_read_by_the_policy() -> None:
    wide = toolset(f"{MODULE}:Wide-v0", arguments={"action": "Text(3, charset='ab')"})
    async with wide.open({}) as tools:
        outcome = await step(tools, "abc")

    assert text(outcome).startswith(
        "Tool call failure\nreason: error, action 'abc' is not in the action space Text(1, 3"
    )
    assert outcome.observation is not None
    assert outcome.observation.error is ErrorKind.INVALID_ARGUMENT


async def test_a_number_beyond_the_type_of_an_action_is_the_policys_mistake() -> None:
    wide = toolset(f"{MODULE}:Wide-v0", arguments={"action": "Box(-inf, inf, (1,))"})
    async with wide.open({}) as tools:
        outcomes = [await step(tools, [value]) for value in (1e300, 10**400)]

    assert [text(each)[:60] for each in outcomes] == [
        "Tool call failure\nreason: error, action [1e+300] holds a num",
        "Tool call failure\nreason: error, action [1000000000000000000",
    ]
    assert {each.observation and each.observation.error for each in outcomes} == {ErrorKind.INVALID_ARGUMENT}


async def test_a_renderer_of_the_user_reads_actions_and_writes_observations() -> None:
    made = counting(renderer="tests.support.gym_environments:Words", tool_name="say")
    async with made.open({}) as tools:
        (right,) = await tools.toolbox.run([ToolCall(name="say", arguments={"word": "two"})])
        (wrong,) = await tools.toolbox.run([ToolCall(name="say", arguments={"word": "five"})])

    assert (tools.opening, text(right)) == ("count 0, left ?", "count 2, left 1")
    assert text(wrong) == "Tool call failure\nreason: error, 'five' is not in list"


async def test_what_an_environment_draws_is_part_of_the_observation() -> None:
    lake = toolset("gymnasium:FrozenLake-v1", arguments={"render_mode": "ansi", "is_slippery": False})
    async with lake.open({}) as tools:
        outcome = await step(tools, 1)

    assert tools.opening == "0\n[S]FFF\nFHFH\nFFFH\nHFFG"
    assert text(outcome) == "4\n(Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"


async def test_rollouts_of_a_row_begin_in_one_state_and_other_rows_in_others() -> None:
    pole = toolset("gymnasium:CartPole-v1")

    async def opening(**row: Any) -> str:
        async with pole.open(row) as tools:
            return tools.opening

    prompt = [{"role": "user", "content": "Balance."}]
    first = [await opening(raw_prompt=prompt, extra_info={"index": 0}) for _ in range(2)]
    others = [await opening(raw_prompt=prompt, extra_info={"index": 1}), await opening(raw_prompt=[*prompt, *prompt])]
    given_seed = [await opening(metadata='{"seed": 7}', raw_prompt=each) for each in (prompt, [])]
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=7)

    assert first[0] == first[1]
    assert len({first[0], *others, given_seed[0]}) == 4
    assert given_seed == [json.dumps(plain(expected))] * 2


async def test_the_row_may_give_options_of_reset() -> None:
    async with counting().open({"metadata": '{"options": {"start": 2}}'}) as tools:
        assert tools.opening == "2"


@pytest.mark.parametrize("metadata", ['{"seed": -1}', '{"seed": "7"}', '{"seed": true}', '{"options": 3}'])
def test_a_row_without_a_usable_seed_is_refused(metadata: str) -> None:
    with pytest.raises(DataError, match=r"metadata\.(seed|options) of a row"):
        counting().open({"metadata": metadata})


async def test_each_rollout_has_an_environment_that_is_closed_once_however_it_ends() -> None:
    made = counting()
    CountTo.opened.clear()
    async with made.open({}) as first, made.open({}) as second:
        await step(first, 1)
        assert (text(await step(second, 2)), text(await step(first, 1))) == ("2", "2")
    with pytest.raises(RuntimeError, match="cancelled"):
        async with made.open({}):
            raise RuntimeError("cancelled")

    assert [each.num_closed for each in CountTo.opened] == [1, 1, 1]


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("raise", "environment gymnasium:tests.support.gym_environments:Hostile-v0.step raised KeyError: 'step' ("),
        ("value", "Hostile-v0.step raised ValueError: step ("),
        ("stop", "Hostile-v0.step raised RuntimeError: StopIteration('step')"),
        ("exit", "Hostile-v0.step raised SystemExit: step ("),
        ("system", "Hostile-v0.step raised OSError: step"),
        ("nan", "Hostile-v0 gave the reward nan; a reward is a finite number"),
        ("no_number", "Hostile-v0.step raised ValueError: could not convert string to float: 'much'"),
        ("four", "Hostile-v0.step raised ValueError: not enough values to unpack"),
        ("object", "Hostile-v0.step raised TypeError: an observation holds object, which cannot be shown as text"),
    ],
)
async def test_an_environment_that_fails_in_a_step_masks_the_rollout(fault: str, failure: str) -> None:
    async with hostile("step", fault).open({}) as tools:
        outcome = await step(tools)
        later = await step(tools)
        verdict = await tools.score(None)

    assert failure in outcome.failure
    assert outcome.is_bug == (fault != "system")
    assert "failed in an earlier call" in later.failure
    assert (verdict and verdict.score, verdict and verdict.reason) == (None, "environment_failed")


@pytest.mark.parametrize("fault", ["raise", "value", "system", "exit"])
async def test_an_environment_that_fails_in_reset_or_close_gives_no_reward(fault: str) -> None:
    CountTo.opened.clear()
    with pytest.raises(ToolFailureError, match=r"Hostile-v0\.reset raised"):
        async with hostile("reset", fault).open({}):
            raise AssertionError("it cannot begin")
    with pytest.raises(ToolFailureError, match=r"Hostile-v0\.close raised") as caught:
        async with hostile("close", fault).open({}) as tools:
            await step(tools)

    assert [each.num_closed for each in CountTo.opened] == [1, 1, 1, 1]
    assert fault_verdict(caught.value).score is None


async def test_a_step_that_hangs_is_given_up_and_holds_up_nobody() -> None:
    made = hostile("step", "hang", timeout_seconds=0.2)
    CountTo.opened.clear()
    async with made.open({}) as slow:
        began = time.monotonic()
        hanging = asyncio.create_task(step(slow))
        async with counting().open({}) as quick:
            assert text(await step(quick)) == "1"
        waited = time.monotonic() - began
        outcome = await hanging

    assert waited < 0.2
    assert outcome.failure == "tool step did not answer within 0.2 s"
    assert time.monotonic() - began < 0.9  # the rollout waits no longer for `close` than for a step
    await asyncio.sleep(1.0)  # `close` runs in the thread of the step, after it
    assert CountTo.opened[0].num_closed == 1


@pytest.mark.parametrize("at", ["reset", "close"])
async def test_a_reset_or_close_that_hangs_is_given_up(at: str) -> None:
    words = {"reset": "did not begin within 0.2 s", "close": "did not close within 0.2 s"}
    with pytest.raises(ToolFailureError, match=words[at]):
        async with hostile(at, "hang", timeout_seconds=0.2).open({}):
            pass


async def test_no_thread_is_left_behind() -> None:
    made, num_threads = counting(), threading.active_count()

    await asyncio.gather(*(played(made, 1, 1) for _ in range(64)))
    await asyncio.sleep(0.1)

    assert threading.active_count() <= num_threads + 1  # at most one more, of the event loop's executor


async def test_a_row_that_another_entry_refuses_leaves_no_thread() -> None:
    made, num_threads = counting(), threading.active_count()

    for _ in range(8):
        opened = made.open({"tools": '[{"name": "buy", "parameters": {"type": "object"}}]'})
        with pytest.raises(DataError, match="brings tool 'buy'"):
            async with opened:
                pass

    assert threading.active_count() == num_threads


async def test_all_of_an_environment_runs_in_one_thread_of_the_rollout() -> None:
    made = toolset(f"{MODULE}:Hostile-v0")
    CountTo.opened.clear()
    async with made.open({}) as first, made.open({}) as second:
        for tools in (first, second, first, second):
            await step(tools)

    one, other = CountTo.opened
    assert len(one.threads) == len(other.threads) == 1
    assert one.threads != other.threads


async def test_a_note_replaces_the_middle_of_a_huge_observation() -> None:
    wide = toolset(f"{MODULE}:Wide-v0", arguments={"observation": "Text(9000, min_length=9000)"}, max_characters=20)
    async with wide.open({}) as tools:
        opening = tools.opening

    assert opening[10:-10] == "\n... [8980 characters left out] ...\n"
