"""Filters that compare trajectories, and `verl-pivot filter` over a file."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.support.factories import ANSWER, CALL, RESULT, SYSTEM, USER, make_profile, make_trajectory
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.data.trajectories import read_trajectories, trajectory_as_dict
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import DataError
from verl_pivot.profiling.early_stopping import EarlyStop
from verl_pivot.profiling.profiles import ProfileSettings, file_sha256, read_profiles, read_settings
from verl_pivot.profiling.writer import open_profile
from verl_pivot.quality.contract import DatasetFilter, Ruling
from verl_pivot.quality.difficulty import Difficulty, largest_mix
from verl_pivot.quality.filtering import FilterOutcome, filter_trajectories
from verl_pivot.quality.near_duplicates import bands_for
from verl_pivot.quality.profile_totals import ProfileTotals, read_totals, totals_of
from verl_pivot.quality.registry import make_filter
from verl_pivot.quality.rules import FilterRules, read_rules, shipped_rules
from verl_pivot.types import Json, Message, Role, ToolCall, Trajectory, TurnProfile

DOCS = ROOT / "docs" / "quality.md"
WORDS = [f"word{number}" for number in range(200)]
SETTINGS = ProfileSettings(
    model="tiny",
    input_sha256="",
    num_samples=2,
    sampling=Sampling(max_new_tokens=8),
    max_prompt_tokens=4096,
    chat_template_kwargs={},
)


def decide(
    name: str, trajectories: Sequence[Trajectory], profile: ProfileTotals | None = None, **options: Json
) -> Ruling:
    made = make_filter(name, options)
    assert isinstance(made, DatasetFilter)
    features = [made.feature(trajectory) for trajectory in trajectories]
    return made.decide([trajectory.id for trajectory in trajectories], features, profile)


def reasons(ruling: Ruling) -> dict[int, str]:
    return {position: finding.reason for position, finding in sorted(ruling.dropped.items())}


def trajectory_of_words(name: str, words: Sequence[str]) -> Trajectory:
    user = Message(role=Role.USER, content=" ".join(words))
    return make_trajectory(id=name, messages=[SYSTEM, user, CALL, RESULT, ANSWER])


def trajectory_of_calls(name: str, tools: str) -> Trajectory:
    """Trajectory with one call for each letter of `tools`; the letter is the name of the called tool."""
    messages = [USER]
    for number, letter in enumerate(tools):
        call = ToolCall(id=f"c{number}", name=letter, arguments={})
        messages.append(Message(role=Role.ASSISTANT, tool_calls=(call,)))
        messages.append(Message(role=Role.TOOL, content="ok", tool_call_id=f"c{number}", name=letter))
    return make_trajectory(id=name, messages=[*messages, ANSWER])


def trajectory_of_turns(name: str, num_turns: int) -> Trajectory:
    return make_trajectory(id=name, messages=[USER, ANSWER] * num_turns)


def test_the_first_of_near_duplicates_stays_and_the_others_name_it() -> None:
    changed = [*WORDS[:199], "other"]
    trajectories = [
        trajectory_of_words("a", WORDS),
        trajectory_of_words("b", WORDS[::-1]),
        trajectory_of_words("c", changed),
        trajectory_of_words("d", WORDS),
    ]

    ruling = decide("near_duplicates", trajectories)

    assert reasons(ruling) == {2: "near_duplicate", 3: "near_duplicate"}
    assert ruling.dropped[2].detail.startswith("repeats a (0.9")
    assert ruling.dropped[3].detail == "repeats a (1.00)"
    assert reasons(decide("near_duplicates", trajectories, threshold=0.99)) == {3: "near_duplicate"}


def test_the_shortest_of_near_duplicates_stays_with_keep_shortest() -> None:
    trajectories = [
        trajectory_of_words("a", WORDS),
        trajectory_of_words("b", WORDS[:190]),
        trajectory_of_words("c", WORDS[:190]),
    ]

    ruling = decide("near_duplicates", trajectories, keep="shortest")

    assert {at: finding.detail[:9] for at, finding in ruling.dropped.items()} == {0: "repeats b", 2: "repeats b"}


def test_a_shared_system_prompt_does_not_make_trajectories_duplicates() -> None:
    prompt = Message(role=Role.SYSTEM, content=" ".join(WORDS))
    one, other = (
        make_trajectory(id=name, messages=[prompt, Message(role=Role.USER, content=name * 9), ANSWER]) for name in "ab"
    )

    assert reasons(decide("near_duplicates", [one, other])) == {}
    assert reasons(decide("near_duplicates", [one, replace(one, id="b")])) == {1: "near_duplicate"}


def test_near_duplicates_can_compare_the_users_words_alone() -> None:
    same_question = [
        make_trajectory(id=name, messages=[USER, Message(role=Role.ASSISTANT, content=name * 9)]) for name in "ab"
    ]

    assert reasons(decide("near_duplicates", same_question)) == {}
    assert reasons(decide("near_duplicates", same_question, text="user")) == {1: "near_duplicate"}


def test_trajectories_without_the_words_that_are_compared_are_no_duplicates() -> None:
    trajectories = [make_trajectory(id=name, messages=[SYSTEM, CALL, RESULT, ANSWER]) for name in "abc"]

    assert decide("near_duplicates", trajectories, text="user").dropped == {}
    assert reasons(decide("near_duplicates", trajectories)) == {1: "near_duplicate", 2: "near_duplicate"}


@settings(deadline=None)
@given(st.floats(0.01, 1.0), st.integers(16, 256))
def test_bands_do_not_overlap_and_find_nearly_all_pairs_at_the_threshold(threshold: float, columns: int) -> None:
    bands = bands_for(threshold, columns)

    width = bands[0][1]
    assert bands == [(start, start + width) for start in range(0, len(bands) * width, width)]
    assert bands[-1][1] <= columns
    assert width == 1 or 1 - (1 - threshold**width) ** len(bands) >= 0.95


def test_a_threshold_of_one_makes_one_band_of_all_hashes() -> None:
    assert bands_for(1.0, 64) == [(0, 64)]
    assert [len(bands_for(0.8, columns)) for columns in (64, 128)] == [10, 18]


def test_a_large_cluster_is_cut_to_its_limit_and_the_clusters_are_reported() -> None:
    trajectories = [trajectory_of_calls(name, "abc") for name in "123"] + [
        trajectory_of_calls("4", "aabbc"),
        trajectory_of_calls("5", "ba"),
        trajectory_of_turns("6", 1),
    ]

    ruling = decide("diversity", trajectories, max_per_cluster=2)

    assert Counter(reasons(ruling).values()) == {"crowded_cluster": 2}
    assert set(ruling.dropped) < {0, 1, 2, 3}
    assert next(iter(ruling.dropped.values())).detail == "one of a cluster of 4, 2 of them are kept: a, b, c"
    assert ruling.facts == {
        "num_clusters": 3,
        "num_clusters_by_size": {"1": 2, "4": 1},
        "largest": [
            {"actions": ["a", "b", "c"], "size": 4, "kept": 2},
            {"actions": ["b", "a"], "size": 1, "kept": 1},
            {"actions": [], "size": 1, "kept": 1},
        ],
    }


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, {"3": 1, "1": 3}),
        ({"merge_repeats": False}, {"2": 1, "1": 4}),
        ({"min_similarity": 0.8}, {"3": 1, "2": 1, "1": 1}),
        ({"min_similarity": 0.4}, {"4": 1, "2": 1}),
    ],
)
def test_equal_sequences_of_tools_share_a_cluster_and_similar_ones_by_option(
    options: dict[str, Json], sizes: dict[str, int]
) -> None:
    # One edit in five letters is a similarity of 0.8.
    sequences = ["abcde", "abcde", "abcdee", "vwxyz", "vwxya", "abz"]

    ruling = decide("diversity", [trajectory_of_calls(name, name) for name in sequences], **options)

    assert ruling.dropped == {}
    assert ruling.facts["num_clusters_by_size"] == sizes


def test_max_share_counts_all_trajectories_and_leaves_at_least_one_of_a_cluster() -> None:
    trajectories = [trajectory_of_calls(str(number), "a" if number < 8 else "b") for number in range(10)]

    assert len(decide("diversity", trajectories, max_share=0.3).dropped) == 5
    assert len(decide("diversity", trajectories, max_share=0.01).dropped) == 8
    hundred = [trajectory_of_calls(f"{tool}{number}", tool) for tool in "abcd" for number in range(25)]
    more = [trajectory_of_calls(f"a{number}", "a") for number in range(25, 29)]
    # 29 of 100 are 29 %, although 0.29 * 100 is less than 29 in floating point.
    assert decide("diversity", [*hundred[:-4], *more], max_share=0.29).dropped == {}


def test_which_trajectories_stay_depends_on_the_seed_and_not_on_the_order_of_the_file() -> None:
    trajectories = [trajectory_of_calls(f"t{number}", "a") for number in range(20)]

    def kept(rows: Sequence[Trajectory], seed: int) -> set[str]:
        dropped = decide("diversity", rows, max_per_cluster=5, seed=seed).dropped
        return {row.id for at, row in enumerate(rows) if at not in dropped}

    assert kept(trajectories, 0) == kept(trajectories[::-1], 0)
    assert kept(trajectories, 0) != kept(trajectories, 1)


def test_difficulty_keeps_the_most_trajectories_that_have_the_shares() -> None:
    trajectories = [trajectory_of_turns(f"{turns}-{number}", turns) for turns in (1, 6, 20) for number in range(20)]

    ruling = decide("difficulty", trajectories)

    assert ruling.facts == {
        "measure": "num_turns",
        "before": {"easy": 20, "medium": 20, "hard": 20},
        "after": {"easy": 12, "medium": 20, "hard": 8},
        "target_shares": {"easy": 0.3, "medium": 0.5, "hard": 0.2},
    }
    assert len(ruling.dropped) == 20
    assert ruling.dropped[min(ruling.dropped)].detail == "easy: 12 of 20 fit the shares"
    assert decide("difficulty", trajectories, drop=False).dropped == {}


@settings(deadline=None)
@given(st.tuples(*[st.integers(0, 60)] * 3), st.tuples(*[st.integers(0, 10)] * 2))
def test_a_mix_is_within_one_of_its_shares_and_as_large_as_possible(
    counts: tuple[int, ...], cuts: tuple[int, int]
) -> None:
    low, high = sorted(cuts)
    shares = dict(zip(Difficulty, (Fraction(part, 10) for part in (low, high - low, 10 - high)), strict=True))
    available = dict(zip(Difficulty, counts, strict=True))

    sizes = largest_mix(available, shares)

    total = sum(sizes.values())
    assert all(0 <= sizes[member] <= available[member] for member in Difficulty)
    assert all(abs(sizes[member] - shares[member] * total) < 1 for member in Difficulty)
    assert any(share * (total + 1) > available[member] for member, share in shares.items())


def profile_of(scores: dict[str, Sequence[Sequence[float | None]]]) -> ProfileTotals:
    return totals_of(
        make_profile(turn, trajectory_id=name, index=index)
        for name, turns in scores.items()
        for index, turn in enumerate(turns)
    )


def test_difficulty_is_measured_by_the_mean_reward_if_there_is_a_profile() -> None:
    profile = profile_of(
        {"easy": [(1.0, 1.0), (0.5, 0.5)], "medium": [(1.0, 0.0)], "hard": [(0.2, 0.2)], "none": [(None,), ()]}
    )
    trajectories = [make_trajectory(id=name) for name in profile]

    ruling = decide("difficulty", trajectories, profile, drop=False)
    assert ruling.facts["before"] == {"easy": 1, "medium": 1, "hard": 1}
    # The pass rate counts full scores alone, so a score of 0.5 is a failure.
    ruling = decide("difficulty", trajectories, profile, drop=False, measure="pass_rate")
    assert ruling.facts["before"] == {"easy": 0, "medium": 2, "hard": 1}
    with pytest.raises(DataError, match="no trajectory is easy"):
        decide("difficulty", trajectories, profile, measure="pass_rate")
    even: Json = {"easy": 0.5, "medium": 0.0, "hard": 0.5}
    assert reasons(decide("difficulty", trajectories, profile, shares=even)) == {1: "over_share", 3: "undecided"}


@pytest.mark.parametrize(
    ("turns", "min_samples", "dropped"),
    [
        ([(1.0, 1.0), (1.0, 1.0)], 2, True),
        ([(1.0, 1.0), (1.0,)], 2, False),
        ([(1.0, 1.0), (1.0,)], 1, True),
        ([(1.0, 1.0), (1.0, 0.0)], 1, False),
        ([(1.0, None)], 1, False),
        ([(1.0,), ()], 1, False),
    ],
)
def test_solved_drops_what_all_samples_of_every_turn_got_right(
    turns: Sequence[Sequence[float | None]], min_samples: int, dropped: bool
) -> None:
    ruling = decide("solved", [make_trajectory(id="a")], profile_of({"a": turns}), min_samples=min_samples)

    assert reasons(ruling) == ({0: "always_right"} if dropped else {})


@pytest.mark.parametrize("num_right", range(11))
@pytest.mark.parametrize("num_turns", [1, 3, 6, 7])
def test_the_means_of_equal_turns_are_those_of_one_of_them(num_right: int, num_turns: int) -> None:
    scores = (1.0,) * num_right + (0.0,) * (10 - num_right)

    totals = profile_of({"a": [scores] * num_turns})["a"]

    assert (totals.reward_mean, totals.pass_rate) == (num_right / 10, num_right / 10)


def test_a_profile_that_lacks_a_trajectory_is_refused() -> None:
    with pytest.raises(DataError, match="lacks 1 of 2 trajectories, or turns of them, b among them"):
        decide("solved", [make_trajectory(id="a"), make_trajectory(id="b")], profile_of({"a": [(1.0,)]}))


# The command `verl-pivot filter` over a file.

RULES = """
- correctness
- near_duplicates: {text: user}
- efficiency: {max_calls: 0}
- diversity: {max_per_cluster: 3}
"""
NO_TOOL = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="call_0", name="refund", arguments={}),))
KINDS: dict[str, Sequence[Message]] = {
    "wrong": [USER, NO_TOOL, RESULT, ANSWER],
    "same": [USER, ANSWER],
    "calls": [Message(role=Role.USER, content="Another question."), CALL, RESULT, ANSWER],
}


def write(folder: Path, trajectories: Sequence[Trajectory], rules: str = RULES) -> tuple[Path, FilterRules]:
    path = folder / "trajectories.jsonl"
    path.write_text("".join(json.dumps(trajectory_as_dict(one)) + "\n" for one in trajectories))
    (folder / "rules.yaml").write_text(rules)
    return path, read_rules(folder / "rules.yaml")


def trajectories_of(kinds: Sequence[str]) -> list[Trajectory]:
    """Trajectories of these KINDS; those of kind "other" are sound and differ from each other."""
    return [
        make_trajectory(
            id=f"{kind}-{number}",
            messages=KINDS.get(kind, [Message(role=Role.USER, content=f"Question {number}?"), ANSWER]),
        )
        for number, kind in enumerate(kinds)
    ]


def filters_that_dropped(outcome: FilterOutcome) -> dict[str, str]:
    return {outcome.ids[at]: outcome.steps[outcome.dropped_by[at]].label for at in outcome.findings}


def test_each_trajectory_is_counted_by_the_first_filter_that_drops_it(tmp_path: Path) -> None:
    path, rules = write(tmp_path, trajectories_of(["wrong", "same", "same", "calls", "calls", *["other"] * 4]))

    outcome = filter_trajectories(path, rules)

    by = filters_that_dropped(outcome)
    assert {name: label for name, label in by.items() if label != "diversity"} == {
        "wrong-0": "correctness",
        "same-2": "near_duplicates",
        "calls-3": "efficiency",
        "calls-4": "near_duplicates",
    }
    assert [step.num_dropped for step in outcome.steps] == [1, 2, 1, 2]
    assert outcome.num_kept == 3


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(["wrong", "same", "calls", "other"]), min_size=1, max_size=12))
def test_kept_and_dropped_add_up_to_all_trajectories(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    path, rules = write(tmp_path_factory.mktemp("counts"), trajectories_of(kinds))

    outcome = filter_trajectories(path, rules)

    assert len(outcome.ids) == len(kinds) == outcome.num_kept + sum(step.num_dropped for step in outcome.steps)
    assert all(step.num_dropped == sum(step.num_by_reason.values()) for step in outcome.steps)
    assert [by >= 0 for by in outcome.dropped_by] == [at in outcome.findings for at in range(len(kinds))]


@settings(deadline=None, max_examples=25)
@given(st.permutations(["wrong", "same", "calls", "other", "wrong", "calls"]))
def test_a_filter_that_judges_alone_does_not_depend_on_the_order_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    path, rules = write(
        tmp_path_factory.mktemp("order"), trajectories_of(kinds), "- correctness\n- efficiency: {max_calls: 0}\n"
    )

    by = {name.split("-")[0]: label for name, label in filters_that_dropped(filter_trajectories(path, rules)).items()}

    assert by == {"wrong": "correctness", "calls": "efficiency"}


def run_filter(folder: Path, *options: str, rules: str | None = RULES) -> Result:
    if rules is not None:
        (folder / "rules.yaml").write_text(rules)
    command = ["filter", str(folder / "trajectories.jsonl"), "--out", str(folder / "out.jsonl"), "--workers", "1"]
    return CliRunner().invoke(app, [*command, "--rules", str(folder / "rules.yaml"), *options])


def read_outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out.jsonl*"))}


def test_kept_lines_are_unchanged_and_a_second_run_drops_nothing_more(tmp_path: Path) -> None:
    path, _ = write(tmp_path, trajectories_of(["wrong", "same", "calls", "other"]))
    lines = path.read_bytes().splitlines()

    assert run_filter(tmp_path, rules="- correctness\n- coherence\n").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes().splitlines() == lines[1:]

    (tmp_path / "out.jsonl").rename(path)
    assert run_filter(tmp_path, rules="- correctness\n- coherence\n").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes().splitlines() == lines[1:]


def test_the_command_writes_the_reason_for_each_dropped_trajectory(tmp_path: Path) -> None:
    write(tmp_path, trajectories_of(["wrong", "same", "same", "other"]))

    result = run_filter(tmp_path)

    assert result.exit_code == 0, result.output
    assert list(read_outputs(tmp_path)) == [
        "out.jsonl",
        "out.jsonl.dropped.jsonl",
        "out.jsonl.png",
        "out.jsonl.report.json",
    ]
    assert [one.id for one in read_trajectories(tmp_path / "out.jsonl")] == ["same-1", "other-3"]
    dropped = [json.loads(line) for line in (tmp_path / "out.jsonl.dropped.jsonl").read_text().splitlines()]
    assert dropped == [
        {
            "id": "wrong-0",
            "row": 1,
            "filter": "correctness",
            "reason": "unknown_tool",
            "detail": "turn 0, refund: no tool has this name",
        },
        {
            "id": "same-2",
            "row": 3,
            "filter": "near_duplicates",
            "reason": "near_duplicate",
            "detail": "repeats same-1 (1.00)",
        },
    ]
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert (report["num_trajectories"], report["num_kept"]) == (4, 2)
    assert [step["num_dropped"] for step in report["filters"]] == [1, 1, 0, 0]
    assert report["filters"][0]["num_by_reason"] == {"unknown_tool": 1}


@pytest.mark.heavy
def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    # Long enough for more than one chunk of rows.
    long = Message(role=Role.USER, content=" ".join(WORDS * 40))
    trajectories = [*trajectories_of(["wrong", "same", "calls", "same", "other"] * 30)]
    write(tmp_path, [replace(one, messages=(*one.messages, long)) for one in trajectories])

    assert run_filter(tmp_path).exit_code == 0
    one = read_outputs(tmp_path)
    assert run_filter(tmp_path, "--workers", "2").exit_code == 0

    assert read_outputs(tmp_path) == one


def test_the_shipped_rules_are_valid_and_drop_nothing_sound(tmp_path: Path) -> None:
    write(tmp_path, trajectories_of(["calls", "other"]))
    command = ["filter", str(tmp_path / "trajectories.jsonl"), "--out", str(tmp_path / "out.jsonl"), "--workers", "1"]

    result = CliRunner().invoke(app, command)

    assert result.exit_code == 0, result.output
    assert [one.id for one in read_trajectories(tmp_path / "out.jsonl")] == ["calls-0", "other-1"]
    assert shipped_rules().is_file()


def test_nothing_left_is_an_error_that_names_the_filter_that_dropped_most(tmp_path: Path) -> None:
    write(tmp_path, trajectories_of(["wrong", "calls", "calls"]))

    result = run_filter(tmp_path, rules="- correctness\n- efficiency: {max_calls: 0}\n")

    assert result.exit_code == 1
    said = "no trajectory is left of 3: efficiency dropped 2, the most of all filters, of which 2 for too_many_calls ("
    assert f"{said}calls-1" in " ".join(result.output.split())
    assert list(read_outputs(tmp_path)) == ["out.jsonl.dropped.jsonl", "out.jsonl.png", "out.jsonl.report.json"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("- beauty: {}", "rules.yaml, rule 1: unknown filter 'beauty'"),
        (
            "- correctness\n- coherence: {colour: red}",
            "rules.yaml, rule 2: filter coherence.colour: unknown key; ",
        ),
        ("- near_duplicates: {threshold: 2}", "near_duplicates.threshold: Input should be less than or equal to 1"),
        ("- difficulty: {shares: {easy: 0.5}}", "must add up to 1, their sum is 1.2"),
        ("- efficiency: {max_calls: many}", "efficiency.max_calls: Input should be a valid integer, got 'many'"),
        ("- correctness: {error_pattern: '('}", "correctness.error_pattern: '(' is no regular expression"),
        ("- correctness: {}\n  coherence: {}", "rule 1: one name with its options is needed"),
        ("- correctness: 3", "the options of correctness must be names with values, got a number"),
        ("- leakage: {files: [2024-05-03]}", "an option of leakage is no plain value"),
        ("correctness: {}", "must be a list of filters"),
        ("", "must be a list of filters"),
        ("- [", "rules cannot be read from"),
        ("- solved", "filter solved needs a profile: give"),
    ],
)
def test_a_mistake_in_the_rules_is_named(tmp_path: Path, rules: str, message: str) -> None:
    write(tmp_path, trajectories_of(["other"]))

    result = run_filter(tmp_path, rules=rules)

    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert read_outputs(tmp_path) == {}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path, workers: str) -> None:
    path, _ = write(tmp_path, trajectories_of(["other"]))
    path.write_text(path.read_text() + '{"id": 3}\n')

    result = run_filter(tmp_path, "--workers", workers)

    assert result.exit_code == 1
    assert "trajectories.jsonl, line 2 is not a trajectory (a trajectory needs id " in " ".join(result.output.split())


def test_the_filter_of_the_documentation_is_loaded_in_every_process(tmp_path: Path) -> None:
    module = tmp_path / "min_turns.py"
    module.write_text(DOCS.read_text().split("```python\n")[1].split("```")[0])
    write(tmp_path, [trajectory_of_turns("short", 1), trajectory_of_turns("long", 3)])

    result = run_filter(tmp_path, "--workers", "2", "--filter-module", str(module), rules="- min_turns: {at_least: 2}")

    assert result.exit_code == 0, result.output
    assert [one.id for one in read_trajectories(tmp_path / "out.jsonl")] == ["long"]
    assert "no_such_module" in run_filter(tmp_path, "--filter-module", "no_such_module").output


def test_a_filter_may_be_used_twice(tmp_path: Path) -> None:
    path, rules = write(
        tmp_path, trajectories_of(["calls", "other"]), "- efficiency: {max_calls: 5}\n- efficiency: {max_calls: 0}"
    )

    assert filters_that_dropped(filter_trajectories(path, rules)) == {"calls-0": "efficiency 2"}


def write_profile(path: Path, trajectories: Path, turns: Sequence[TurnProfile]) -> None:
    with open_profile(path, replace(SETTINGS, input_sha256=file_sha256(trajectories))) as writer:
        for turn in turns:
            writer.append(turn)


def test_the_profile_of_the_kept_trajectories_is_written_for_select(tmp_path: Path) -> None:
    trajectories, _ = write(tmp_path, trajectories_of(["same", "other"]))
    profile = tmp_path / "profile.jsonl"
    turns = [make_profile((1.0, 1.0), trajectory_id="same-0"), make_profile((0.0, 1.0), trajectory_id="other-1")]
    write_profile(profile, trajectories, turns)

    result = run_filter(tmp_path, "--profile", str(profile), rules="- solved\n")

    assert result.exit_code == 0, result.output
    kept = tmp_path / "out.jsonl.profile.jsonl"
    assert read_settings(kept) == replace(SETTINGS, input_sha256=file_sha256(tmp_path / "out.jsonl"))
    assert list(read_profiles(kept).values()) == turns[1:]


def test_a_trajectory_is_not_solved_as_long_as_one_of_its_turns_is_not_profiled(tmp_path: Path) -> None:
    trajectories, _ = write(tmp_path, [make_trajectory(id="a"), make_trajectory(id="b")])
    turns = [
        make_profile((1.0, 1.0), trajectory_id=name, index=index) for name, index in (("a", 1), ("b", 0), ("b", 1))
    ]
    write_profile(tmp_path / "profile.jsonl", trajectories, turns)

    result = run_filter(tmp_path, "--profile", str(tmp_path / "profile.jsonl"), rules="- solved\n")

    assert result.exit_code == 1
    assert "the profile lacks 1 of 2 trajectories, or turns of them, a among them" in result.output


def test_a_profile_of_calls_is_whole_without_the_turns_that_are_messages(tmp_path: Path) -> None:
    trajectories, _ = write(tmp_path, [make_trajectory(id="a"), make_trajectory(id="b", messages=[USER, ANSWER])])
    profile = tmp_path / "profile.jsonl"
    with open_profile(profile, replace(SETTINGS, turns="calls", input_sha256=file_sha256(trajectories))) as writer:
        writer.append(make_profile((1.0, 1.0), trajectory_id="a"))

    totals = read_totals(profile, trajectories)

    assert {name: found.num_turns for name, found in totals.items()} == {"a": 1, "b": 0}
    assert reasons(decide("solved", list(read_trajectories(trajectories)), totals)) == {0: "always_right"}


def test_samples_that_early_stopping_saved_count_for_no_trajectory(tmp_path: Path) -> None:
    trajectories, _ = write(tmp_path, [make_trajectory(id="a", messages=[USER, ANSWER])])
    plan = EarlyStop(filter="pivots", stages=(2, 4), lambda_diff=0.5)
    profile = tmp_path / "profile.jsonl"
    with open_profile(profile, replace(SETTINGS, early_stop=plan, input_sha256=file_sha256(trajectories))) as writer:
        writer.append(make_profile((1.0, 1.0), trajectory_id="a"))  # two of four, and the mean cannot fall below 0.5

    totals = read_totals(profile, trajectories)["a"]

    assert (totals.num_turns, totals.num_solved_turns) == (1, 0)


def test_the_mean_reward_of_a_profile_that_stopped_early_is_its_unbiased_estimate() -> None:
    plan = EarlyStop(filter="unsolved", stages=(2, 4))

    totals = totals_of([make_profile((1.0, 1.0, 0.0, 0.0))], plan)["shop-1"]

    # Only a turn whose first two samples are right gets four.
    assert (totals.reward_mean, totals.pass_rate) == (1.0, 1.0)


def test_a_profile_of_another_file_is_refused(tmp_path: Path) -> None:
    trajectories, _ = write(tmp_path, trajectories_of(["same", "other"]))
    write_profile(tmp_path / "profile.jsonl", trajectories, [])
    write(tmp_path, trajectories_of(["other"]))

    result = run_filter(tmp_path, "--profile", str(tmp_path / "profile.jsonl"), rules="- solved\n")

    assert result.exit_code == 1
    assert "was not measured on the present content of" in " ".join(result.output.split())


def test_the_input_cannot_be_the_output(tmp_path: Path) -> None:
    path, _ = write(tmp_path, trajectories_of(["other"]))

    result = CliRunner().invoke(app, ["filter", str(path), "--out", str(path)])

    assert result.exit_code == 1
    assert "is one of the inputs" in " ".join(result.output.split())
