"""Numbers of a plan: expected pivots, lengths and GPU hours; and its commands, which shells and Hydra read back."""

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import ANSWER, CALL, FIND_ORDER, RESULT, SYSTEM, USER, make_trajectory, make_turn
from verl_pivot.errors import StateRefusedError
from verl_pivot.planning.estimates import (
    ProfileSize,
    TrainingSize,
    given_speed,
    profile_hours,
    tabulated_speed,
    tensor_parallel_size,
    training_hours,
)
from verl_pivot.planning.expectation import ExpectedCount, expect_pivots
from verl_pivot.planning.lengths import MeasuredTurns, choose_lengths
from verl_pivot.planning.measuring import measure_turns
from verl_pivot.planning.plan_commands import PlanRequest, launch_words, shape_of, typed
from verl_pivot.planning.problems import find_problems, unknown_arguments
from verl_pivot.planning.survey import named_arguments, survey
from verl_pivot.planning.trial import Trial, TrialSamples
from verl_pivot.profiling.summary import TrajectoryCluster
from verl_pivot.selection.decisions import Decision, SelectionReport
from verl_pivot.types import JsonObject, Message, Turn
from verl_pivot.validation import ToolArgument
from verl_pivot.verifiers.registry import parsed_options

KEPT = Trial(
    report=SelectionReport(
        num_candidates=1,
        num_by_decision=Counter({Decision.KEPT: 1}),
        num_by_outcome=Counter(),
        num_train=1,
        num_validation=0,
        num_refused_experts={},
        refused_expert_examples={},
    ),
    clusters=(TrajectoryCluster(1.0, 1),),
    samples=TrialSamples(num_samples=0, num_tokens=0, num_truncated=0, reasons=Counter(), mean_prompt_tokens=0.0),
)
"""A trial of one turn, which is a pivot."""


def expected(*clusters: tuple[int, int], num_trajectories: int, num_turns: int) -> ExpectedCount:
    found = [TrajectoryCluster(float(pivots), turns) for pivots, turns in clusters]
    return expect_pivots(found, num_trajectories=num_trajectories, num_turns=num_turns)


def test_when_every_trajectory_was_profiled_the_number_is_known() -> None:
    assert expected((1, 4), (2, 4), num_trajectories=2, num_turns=8) == (3, 3, 3)


def test_the_interval_is_wilsons_where_turns_are_as_good_as_independent() -> None:
    """5 of 10 measured turns, each of another trajectory, are pivots: Wilson's interval for 5 of 10 draws."""
    clusters = [(number % 2, 1) for number in range(10)]

    assert expected(*clusters, num_trajectories=100, num_turns=100) == (50, 24, 76)


def test_turns_that_are_alike_within_their_trajectory_widen_the_interval() -> None:
    apart = expected(*[(5, 10)] * 10, num_trajectories=1000, num_turns=10_000)
    alike = expected(*[(0, 10), (10, 10)] * 5, num_trajectories=1000, num_turns=10_000)

    assert apart.expected == alike.expected == 5000
    assert alike.high - alike.low > 2 * (apart.high - apart.low)


def test_without_a_pivot_in_the_trial_some_are_possible() -> None:
    assert expected(*[(0, 10)] * 50, num_trajectories=1000, num_turns=10_000) == (0, 0, 680)


@given(
    st.lists(st.integers(1, 20).flatmap(lambda turns: st.tuples(st.integers(0, turns), st.just(turns))), min_size=1),
    st.integers(0, 100),
)
def test_the_interval_holds_the_estimate_and_what_was_seen(clusters: list[tuple[int, int]], num_others: int) -> None:
    num_seen, num_pivots = (sum(pair[side] for pair in clusters) for side in (1, 0))
    num_turns = num_seen + 3 * num_others

    found = expected(*clusters, num_trajectories=len(clusters) + num_others, num_turns=num_turns)

    assert num_pivots <= found.low <= found.expected <= found.high <= num_turns - (num_seen - num_pivots)


def measured(*prompts: int, experts: tuple[int, ...] = (10,)) -> MeasuredTurns:
    return MeasuredTurns(prompts=prompts, experts=experts, longest_prompts=(max(prompts),))


def test_lengths_let_everything_through_if_the_longest_is_not_far_away() -> None:
    lengths = choose_lengths(measured(900, 1000, 1400, experts=(100, 300)), context_tokens=None)

    assert (lengths.max_prompt_tokens, lengths.max_new_tokens) == (1536, 640)
    assert (lengths.prompt_share, lengths.expert_share) == (1.0, 1.0)


def test_one_prompt_far_longer_than_the_others_does_not_set_the_limit() -> None:
    lengths = choose_lengths(measured(*[1000] * 199, 9000), context_tokens=None)

    assert (lengths.max_prompt_tokens, lengths.prompt_share) == (1024, 0.995)


def test_lengths_stay_within_the_context_of_the_model() -> None:
    lengths = choose_lengths(measured(100, 900), context_tokens=512)

    assert (lengths.max_prompt_tokens, lengths.max_new_tokens, lengths.prompt_share) == (256, 256, 0.5)
    assert lengths.fill_context
    assert not lengths.exceed_context


def test_given_lengths_stay_as_they_are() -> None:
    lengths = choose_lengths(measured(100, 900), context_tokens=512, max_prompt_tokens=600, max_new_tokens=7)

    assert (lengths.max_prompt_tokens, lengths.max_new_tokens, lengths.exceed_context) == (600, 7, True)


def test_profile_hours_are_tokens_over_speed() -> None:
    size = ProfileSize(num_turns=1000, num_samples=8, tokens_per_sample=45, prompt_tokens_per_turn=10**9)

    estimate = profile_hours(size, given_speed(200, num_gpus=2, source="as given"))

    assert estimate.gpu_hours == pytest.approx(1000 * 8 * 45 / 200 * 2 / 3600)
    assert estimate.assumption == "1,000 turns left x 8 samples x 45 tokens as in the trial = 360,000 tokens"


def test_training_hours_are_rollouts_and_updates() -> None:
    size = TrainingSize(num_steps=10, batch_size=64, group_size=16, prompt_tokens=2000, tokens_per_sample=100)

    estimate = training_hours(size, tabulated_speed(8.0), 8.0)

    rollouts = 10 * 64 * 16 * 100 / (45_000 / 8) + 10 * 64 * 2000 / (0.4 * 989e12 / 16e9)
    updates = 10 * 64 * 16 * 2100 * 12 * 8e9 / (0.35 * 989e12)
    assert estimate.gpu_hours == pytest.approx((rollouts + updates) / 3600)


def test_without_the_models_size_hours_are_not_guessed() -> None:
    size = ProfileSize(num_turns=1, num_samples=8, tokens_per_sample=1, prompt_tokens_per_turn=1)

    assert profile_hours(size, None).gpu_hours is None
    assert profile_hours(size, None).assumption.endswith("is not known: give --tokens-per-second")
    training = TrainingSize(num_steps=1, batch_size=1, group_size=1, prompt_tokens=1, tokens_per_sample=1)
    given = training_hours(training, given_speed(100.0, 1, "as given"), None)
    assert given.gpu_hours is None
    assert given.assumption.endswith("; no estimate, since the number of the model's parameters is not known")


@pytest.mark.parametrize(
    ("billions", "num_gpus", "size"), [(8, 8, 1), (32, 8, 2), (72, 8, 4), (72, 1, 1), (72, 3, 2), (None, 8, 1)]
)
def test_weights_are_split_over_as_few_gpus_as_hold_them(billions: float | None, num_gpus: int, size: int) -> None:
    assert tensor_parallel_size(billions, num_gpus) == size


def test_a_training_of_few_pivots_has_a_batch_that_they_fill() -> None:
    sizes = [shape_of(pivots, num_epochs=2, num_gpus=1, tensor_parallel_size=1) for pivots in (1000, 64, 63, 1, 0)]

    assert [(size.batch_size, size.num_steps) for size in sizes] == [(64, 30), (64, 2), (32, 2), (1, 2), (1, 0)]


def test_a_training_has_a_batch_whose_rollouts_its_gpus_share_equally() -> None:
    sizes = [shape_of(100, num_epochs=1, num_gpus=gpus, tensor_parallel_size=1) for gpus in (3, 5, 6, 7, 8, 12, 24)]

    assert [size.batch_size for size in sizes] == [48, 40, 48, 56, 64, 48, 48]


def request(folder: str = "plan", *, model: str = "policy", **kwargs: JsonObject) -> PlanRequest:
    return PlanRequest(
        files=(Path("runs.jsonl"),), folder=Path(folder), model=model, is_imported=False,
        allow_no_tools=False, import_words=(),
        engine_words=(), verifier_modules=("my shop.py", "lib.shop"), num_samples=8, seed=0, num_gpus=1, num_epochs=1,
        chat_template_kwargs=kwargs.get("chat_template_kwargs", {}), tensor_parallel_size=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["plan", "/a/b-c_d.e", "with space", "it's", "a=b,c", "[x]", "{x}", "true", "1e5", "12", "null", "über", "a\\'b",
     "(x)", "~/plan", "a:b", "$HOME", "#x", "Qwen/Qwen3-8B", ""],
)  # fmt: skip
def test_shells_and_hydra_read_back_every_path(text: str) -> None:
    shape = shape_of(64, num_epochs=1, num_gpus=1, tensor_parallel_size=1)
    lengths = choose_lengths(measured(10), context_tokens=None)

    words = shlex.split(typed(launch_words(request(model=text), lengths, shape)))

    overrides = OverridesParser.create().parse_overrides([word.removeprefix("+") for word in words[4:]])
    values = {override.key_or_group: override.value() for override in overrides}
    assert values["actor_rollout_ref.model.path"] == text
    assert values["pivot.verifier_modules"] == ["my shop.py", "lib.shop"]


def test_arguments_of_the_chat_template_reach_the_launch() -> None:
    shape = shape_of(64, num_epochs=1, num_gpus=1, tensor_parallel_size=1)
    asked = request(chat_template_kwargs={"enable_thinking": False, "style": "a b"})

    words = launch_words(asked, choose_lengths(measured(10), context_tokens=None), shape)

    assert "+data.apply_chat_template_kwargs.enable_thinking=false" in words
    assert "+data.apply_chat_template_kwargs.style='a b'" in words


def test_a_survey_counts_messages_and_missing_schemas() -> None:
    trajectories = [
        make_trajectory(id="a", messages=(SYSTEM, USER, CALL, RESULT, ANSWER)),
        make_trajectory(id="b", messages=(SYSTEM, USER, CALL, RESULT, ANSWER), tools=()),
        make_trajectory(id="b", messages=(USER, ANSWER), tools=()),
    ]

    found = survey(trajectories, lambda number: None)

    assert (found.num_trajectories, found.num_rows, found.num_turns) == (2, 3, 5)
    assert (found.num_message_turns, found.num_without_schemas) == (3, 1)
    assert found.verifiers == Counter({("tool_call", "{}"): 3})
    assert found.arguments == {ToolArgument(tool="find_order", argument="order_id")}
    assert FIND_ORDER


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [("tool_call", {}, (USER, ANSWER))],
            ["Every turn is a message: no expert calls a tool. tool_call accepts any"],
        ),
        (
            [("tool_call", {}, (USER, CALL, RESULT, ANSWER))],
            ["1 of 2 turns are messages, for which tool_call accepts any"],
        ),
        ([("tool_call", {}, (USER, CALL))], []),
        ([("qa", {"answers": ["on its way"]}, (USER, ANSWER))], []),
        ([("tool_call", {"mode": "strict"}, (USER, ANSWER))], []),
        (
            [("qa", {"answers": ["on its way"]}, (USER, ANSWER)), ("tool_call", {}, (USER, ANSWER))],
            ["1 of 2 turns are messages, for which tool_call accepts any"],
        ),
    ],
)
def test_a_plan_warns_of_messages_that_are_paid_whatever_they_say(
    rows: list[tuple[str, JsonObject, tuple[Message, ...]]], said: list[str]
) -> None:
    found = survey(
        [
            replace(make_trajectory(id=str(number), messages=messages, verifier=name), verifier_options=options)
            for number, (name, options, messages) in enumerate(rows)
        ],
        lambda number: None,
    )

    problems = find_problems(found, choose_lengths(measured(10), context_tokens=None), KEPT, named=[], rejected={})

    assert [problem.text[: len(each)] for problem, each in zip(problems, said, strict=True)] == said


def test_an_argument_within_an_object_is_known_where_its_object_is() -> None:
    found = survey([make_trajectory(messages=(SYSTEM, USER, CALL, RESULT, ANSWER))], lambda number: None)
    names = ("find_order.order_id", "find_order.order_id.year", "find_order.order_id2", "find.order_id")

    unknown = unknown_arguments(found, [ToolArgument.parse(name) for name in names])

    assert unknown == ["find.order_id", "find_order.order_id2"]


def test_arguments_that_options_name_are_found_in_sets_and_single_values() -> None:
    options = parsed_options("tool_call", {"free_text": ["refund.reason"], "unordered": ["refund.items"]})

    assert sorted(map(str, named_arguments(options))) == ["refund.items", "refund.reason"]
    assert list(map(str, named_arguments(parsed_options("shell", {"argument": "bash.cmd"})))) == ["bash.cmd"]


class Letters:
    """A tokenizer of one token per letter, whose template adds nothing."""

    def prompt_ids(self, turn: Turn) -> list[int]:
        return [0] * sum(len(message.content) for message in turn.state)

    def num_tokens(self, text: str) -> int:
        return len(text)


class StrictLetters(Letters):
    """The same with a template that refuses every state of the trajectory b."""

    def prompt_ids(self, turn: Turn) -> list[int]:
        if turn.trajectory_id == "b":
            raise StateRefusedError(f"turn {turn.id} is refused")
        return super().prompt_ids(turn)


def test_turns_whose_states_the_template_refuses_are_not_measured() -> None:
    turns = [make_turn(trajectory_id=name, state=(USER,), expert=ANSWER) for name in "ab"]

    found = measure_turns(turns, StrictLetters(), lambda number: None)

    assert (found.prompts, found.experts, found.longest_prompts) == ((18,), (17,), (18,))
    with pytest.raises(StateRefusedError, match="turn b:0 is refused"):
        measure_turns(turns[1:], StrictLetters(), lambda number: None)


def test_measured_turns_are_prompts_actions_and_each_trajectorys_longest_prompt() -> None:
    turns = [
        make_turn(trajectory_id="a", state=(USER,)),
        make_turn(trajectory_id="a", index=1, state=(USER, CALL, RESULT), expert=ANSWER),
        make_turn(trajectory_id="b", state=(USER,), expert=ANSWER),
    ]

    found = measure_turns(turns, Letters(), lambda number: None)

    assert found.prompts == (18, 36, 18)
    assert found.longest_prompts == (36, 18)
    assert found.experts == (78, 17, 17)
