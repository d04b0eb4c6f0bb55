"""Decisions on candidates, rows of pivots.parquet, and `verl-pivot select` over files."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.support.factories import ANSWER, CALL, RESULT, SYSTEM, USER, make_profile, make_trajectory
from tests.support.tiny_model import write_tokenizer
from verl_pivot.cli import app
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.pivots import AGENT_NAME_IN_FILE, SCHEMA, PivotNumbers, pivot_rows, row_to_turn
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import Split, turns
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.profiling.profiles import ProfileSettings, TurnKinds, file_sha256, profile_as_dict, read_settings
from verl_pivot.profiling.summary import TurnOutcome
from verl_pivot.profiling.writer import open_profile
from verl_pivot.selection.candidates import CANDIDATES
from verl_pivot.selection.decisions import Decision, SelectionReport, SelectionRule, decide
from verl_pivot.selection.profile_table import profiles_of
from verl_pivot.selection.tables import create_tables
from verl_pivot.tools.replay import parse_recording
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory, TurnProfile, Verdict

ACCEPTED = Verdict(score=1.0, reason="accepted")
REFUSED = Verdict(score=0.0, reason="empty_message", detail="neither a call nor text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row of the table of candidates, and the turn's profile for the other table."""

    columns: JsonObject
    profile: TurnProfile | None


class Selection(NamedTuple):
    """Decision on each candidate, and the report."""

    decisions: tuple[Decision, ...]
    report: SelectionReport


def make_candidate(
    scores: tuple[float | None, ...] | None = (0.0, 1.0),
    *,
    name: str = "a",
    index: int = 0,
    fingerprint: str | None = None,
    num_prompt_tokens: int | None = 100,
    split: Split = "train",
    expert_verdict: Verdict | None = ACCEPTED,
) -> Candidate:
    return Candidate(
        columns={
            "trajectory_id": name,
            "turn_index": index,
            "fingerprint": sha256((fingerprint or f"{name}:{index}").encode()).digest(),  # type: ignore[dict-item]
            "split": split,
            "num_prompt_tokens": num_prompt_tokens,
            "expert_checked": expert_verdict is not None,
            "expert_score": expert_verdict and expert_verdict.score,
            "expert_reason": expert_verdict and expert_verdict.reason,
            "expert_detail": expert_verdict and expert_verdict.detail,
        },
        profile=None
        if scores is None
        else make_profile(scores, trajectory_id=name, index=index, num_prompt_tokens=num_prompt_tokens),
    )


def select(candidates: Sequence[Candidate], rule: SelectionRule) -> Selection:
    rows = [{**candidate.columns, "row": row} for row, candidate in enumerate(candidates)]
    lines = [encode_json(profile_as_dict(each.profile)).encode() for each in candidates if each.profile is not None]
    place = Place(file="profile.jsonl", unit="line", number=2)
    with duckdb.connect() as database:
        create_tables(database)
        made = pyarrow.Table.from_pylist(rows, schema=CANDIDATES)
        measured = profiles_of(tuple(RawRow(place=place, raw=line) for line in lines))
        database.execute("insert into candidates from made")
        database.execute("insert into profiles from measured")
        del made, measured
        report = decide(database, rule)
        found = database.execute("select decision from decisions order by row, turn_index").fetchall()
    return Selection(tuple(Decision(decision) for (decision,) in found), report)


@pytest.mark.parametrize(
    ("candidate", "decision"),
    [
        (make_candidate((0.0, 1.0)), Decision.KEPT),
        (make_candidate((0.0, 1.0, None)), Decision.KEPT),
        (make_candidate((None, None)), Decision.UNDECIDED),
        (make_candidate(expert_verdict=REFUSED), Decision.EXPERT_REFUSED),
        (make_candidate(expert_verdict=Verdict(score=None, reason="sandbox_down")), Decision.UNDECIDED),
        (make_candidate(expert_verdict=None), Decision.KEPT),
        (make_candidate(num_prompt_tokens=4097), Decision.OVERLONG),
        (make_candidate(num_prompt_tokens=4096), Decision.KEPT),
        (make_candidate(()), Decision.OVERLONG),
        (make_candidate((1.0, 1.0)), Decision.ALWAYS_RIGHT),
        (make_candidate((0.0, 0.0)), Decision.ALWAYS_WRONG),
        (make_candidate((0.1, 0.1, 0.1)), Decision.ALWAYS_WRONG),  # their variance is 2e-34 in floating point
        (make_candidate((0.0, 1.0, 1.0, 1.0)), Decision.TOO_EASY),
        (make_candidate((0.0, 0.0, 1.0, 1.0, 1.0)), Decision.TOO_EASY),
    ],
)
def test_each_candidate_gets_the_decision_for_its_profile_and_expert(candidate: Candidate, decision: Decision) -> None:
    assert select([candidate], SelectionRule(lambda_diff=0.6)).decisions == (decision,)


def test_a_candidate_is_counted_by_the_first_filter_that_drops_it() -> None:
    long, broken = {"num_prompt_tokens": 9999}, {"expert_verdict": REFUSED}
    candidates = [
        make_candidate((None,), name="a", **long, **broken),
        make_candidate((1.0,), name="b", **long, **broken),
        make_candidate((1.0,), name="c", fingerprint="same", **long),
        make_candidate((0.0, 1.0), name="d", fingerprint="same", **long),
        make_candidate((1.0,), name="e"),
    ]

    selection = select(candidates, SelectionRule())

    assert selection.decisions == (
        Decision.UNDECIDED,
        Decision.EXPERT_REFUSED,
        Decision.OVERLONG,
        Decision.DUPLICATE,
        Decision.ALWAYS_RIGHT,
    )


def test_a_copy_of_an_undecided_candidate_is_no_duplicate() -> None:
    copies = [make_candidate((None,), fingerprint="same"), make_candidate(index=1, fingerprint="same")]

    assert select(copies, SelectionRule()).decisions == (Decision.UNDECIDED, Decision.KEPT)


def test_the_cap_keeps_turns_of_highest_variance_and_of_equal_ones_the_first() -> None:
    candidates = [
        make_candidate((0.0, 0.0, 0.0, 1.0), index=0),
        make_candidate((0.0, 0.0, 1.0, 1.0), index=1),
        make_candidate((1.0, 1.0, 1.0, 0.0), index=2),
        make_candidate((0.0, 0.0, 0.0, 1.0), name="other"),
    ]

    selection = select(candidates, SelectionRule(max_per_trajectory=2))

    assert selection.decisions == (Decision.KEPT, Decision.KEPT, Decision.OVER_CAP, Decision.KEPT)


def test_three_right_samples_of_ten_have_the_variance_of_seven_in_any_order() -> None:
    right = [(1.0,) * 3 + (0.0,) * 7, (0.0,) * 3 + (1.0,) * 7, (0.0,) * 7 + (1.0,) * 3, (1.0,) * 7 + (0.0,) * 3]
    candidates = [make_candidate(scores, index=index) for index, scores in enumerate(right)]

    selection = select(candidates, SelectionRule(max_per_trajectory=1))

    assert {make_profile(scores).reward_var for scores in right} == {0.21}
    assert selection.decisions == (Decision.KEPT, *[Decision.OVER_CAP] * 3)


def test_the_order_of_samples_changes_no_decision() -> None:
    rule = SelectionRule(lambda_diff=0.2)

    for scores in permutations((0.1, 0.2, 0.3)):
        assert select([make_candidate(scores)], rule).decisions == (Decision.KEPT,)


def test_keep_all_switches_only_the_filters_on_rewards_off() -> None:
    candidates = [
        make_candidate((1.0, 1.0), name="a"),
        make_candidate((0.0, 0.0), name="b"),
        make_candidate(None, name="c"),
        make_candidate((None,), name="d"),
        make_candidate(name="e", fingerprint="a:0"),
        make_candidate(name="f", num_prompt_tokens=5000),
        make_candidate(name="g", expert_verdict=REFUSED),
    ]

    assert select(candidates, SelectionRule(keep="all")).decisions == (
        *(Decision.KEPT,) * 3,
        Decision.UNDECIDED,
        Decision.DUPLICATE,
        Decision.OVERLONG,
        Decision.EXPERT_REFUSED,
    )


def test_the_report_counts_every_candidate_once() -> None:
    candidates = [
        make_candidate((0.0, 1.0), index=0),
        make_candidate((0.0, 1.0), index=1, split="validation"),
        make_candidate((1.0,), index=2),
        make_candidate((0.0,), index=3, expert_verdict=REFUSED),
        make_candidate((None,), index=4),
    ]

    report = select(candidates, SelectionRule()).report

    assert report.num_candidates == sum(report.num_by_decision.values()) == sum(report.num_by_outcome.values()) == 5
    assert (report.num_train, report.num_validation) == (1, 1)
    assert report.num_by_outcome == {
        TurnOutcome.ALWAYS_RIGHT: 1,
        TurnOutcome.ALWAYS_WRONG: 1,
        TurnOutcome.MIXED: 2,
        TurnOutcome.UNDECIDED: 1,
        TurnOutcome.OVERLONG: 0,
    }
    assert report.num_refused_experts == {"empty_message": 1}
    assert report.refused_expert_examples == {"empty_message": "turn a:3: neither a call nor text"}


SCORES = st.lists(st.none() | st.sampled_from([0.0, 0.25, 1.0]), max_size=6).map(tuple)


@settings(deadline=None, max_examples=40)
@given(st.lists(SCORES, max_size=12), st.floats(0.01, 1.0), st.none() | st.integers(1, 3))
def test_kept_turns_are_those_of_the_papers_rule(
    scores: list[tuple[float | None, ...]], lambda_diff: float, cap: int | None
) -> None:
    candidates = [make_candidate(each, name=f"t{i % 3}", index=i) for i, each in enumerate(scores)]

    selection = select(candidates, SelectionRule(lambda_diff=lambda_diff, max_per_trajectory=cap))

    pivots = [c for c in candidates if c.profile and c.profile.reward_var > 0 and c.profile.reward_mean < lambda_diff]
    kept = [c for c, decision in zip(candidates, selection.decisions, strict=True) if decision is Decision.KEPT]
    if cap is None:
        assert kept == pivots
    else:
        for name in ("t0", "t1", "t2"):
            kept_of_one = [c for c in kept if c.columns["trajectory_id"] == name]
            assert len(kept_of_one) == min(cap, sum(c.columns["trajectory_id"] == name for c in pivots))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"lambda_diff": 0.0}, r"--lambda-diff must lie in \(0, 1\], got 0.0"),
        ({"lambda_diff": 1.1}, "got 1.1"),
        ({"max_per_trajectory": 0}, "--max-per-trajectory must be at least 1, got 0"),
        ({"max_prompt_tokens": -1}, "--max-prompt-tokens must be 1 or more"),
    ],
)
def test_a_rule_with_values_out_of_range_is_refused(setting: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SelectionRule(**setting)  # type: ignore[arg-type]


# Rows of pivots.parquet


def test_a_row_holds_the_turn_and_its_numbers() -> None:
    trajectory = replace(make_trajectory(metadata={"seed": 3}, verifier="shop"), verifier_options={"mode": "strict"})
    numbers = PivotNumbers("train", 0.25, 0.5, 0.125**0.5, 0.125, 100)

    (row,) = pivot_rows(trajectory, {1: numbers})

    assert sorted(row) == sorted(SCHEMA.names)
    assert row["prompt"] == encode_json([message.as_dict() for message in trajectory.messages[:4]])
    assert row["expert"] == encode_json(trajectory.messages[4].as_dict())
    assert {name: row[name] for name in SCHEMA.names if name not in ("prompt", "tools", "expert")} == {
        "data_source": "verl_pivot/shop",
        "verifier": "shop",
        "verifier_options": '{"mode": "strict"}',
        "metadata": '{"seed": 3}',
        "recording": None,
        "trajectory_id": "shop-1",
        "turn_index": 1,
        "pass_rate": 0.25,
        "reward_mean": 0.5,
        "reward_std": 0.125**0.5,
        "reward_var": 0.125,
        "num_prompt_tokens": 100,
        "agent_name": AGENT_NAME_IN_FILE,
        "split": "train",
        "ability": "agent",
        "sampling": None,
    }


def test_a_recording_begins_with_what_the_tools_answered_from_the_turn_on() -> None:
    later = ToolCall(id="call_1", name="find_order", arguments={"order_id": 18})
    trajectory = make_trajectory(
        messages=(
            SYSTEM, USER, CALL, RESULT, Message(role=Role.ASSISTANT, tool_calls=(later,)),
            Message(role=Role.TOOL, content="lost", tool_call_id="call_1", name="find_order"), ANSWER,
        )
    )  # fmt: skip

    rows = list(pivot_rows(trajectory, {1: PivotNumbers("train"), 2: PivotNumbers("train")}, with_recording=True))

    first, second = ([(call.call.arguments, call.result) for call in parse_recording(str(row["recording"]))]
                     for row in rows)  # fmt: skip
    sent, lost = ({"order_id": 17}, '{"status": "sent"}'), ({"order_id": 18}, "lost")
    assert first == [lost, sent]
    assert second == [sent, lost]


@given(st.text(), st.text(), st.dictionaries(st.text(), st.none() | st.text() | st.integers()))
def test_row_to_turn_is_the_inverse_of_pivot_rows(content: str, thinking: str, metadata: dict[str, str]) -> None:
    user = Message(role=Role.USER, content=content)
    expert = Message(role=Role.ASSISTANT, content=content, reasoning=thinking)
    trajectory = make_trajectory(messages=(SYSTEM, user, CALL, RESULT, expert), metadata=dict(metadata))

    rows = pivot_rows(trajectory, {0: PivotNumbers("train"), 1: PivotNumbers("validation")})

    assert tuple(map(row_to_turn, rows)) == turns(trajectory)


def test_a_row_without_the_columns_of_a_pivot_is_refused() -> None:
    with pytest.raises(DataError, match=r"without trajectory_id, .* is not a pivot; write the file with"):
        row_to_turn({"prompt": "[]"})
    (row,) = pivot_rows(make_trajectory(messages=(SYSTEM, USER, CALL)), {0: PivotNumbers("train")})
    ends_with_answer = json.dumps([USER.as_dict(), ANSWER.as_dict()])
    for changed in ({"prompt": ends_with_answer}, {"turn_index": "first"}, {"expert": json.dumps(USER.as_dict())}):
        with pytest.raises(DataError, match=r"^a row is not a pivot: .*; write the file with `verl-pivot select`$"):
            row_to_turn({**row, **changed})


# The command `verl-pivot select`


def test_select_writes_both_splits_the_report_and_the_picture(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=40)
    mostly_right = (0.0, 1.0, 1.0, 1.0)
    scores = {"shop-0:0": (1.0, 1.0), "shop-0:1": (0.0, 0.0), "shop-1:0": (None, None), "shop-1:1": mostly_right}
    profile = write_profile(trajectories, scores)

    result = run_select(trajectories, "--profile", profile, "--lambda-diff", 0.7, "--validation-share", 0.25)

    assert result.exit_code == 0, result.output
    train, validation = (read_pivots(tmp_path / name) for name in ("pivots.parquet", "pivots.validation.parquet"))
    report = json.loads((tmp_path / "pivots.report.json").read_text())
    assert {row["trajectory_id"] for row in train} & {row["trajectory_id"] for row in validation} == set()
    assert len(train) + len(validation) == 76 == report["num_train"] + report["num_validation"]
    assert (len(train), len(validation)) == (report["num_train"], report["num_validation"])
    assert {row["split"] for row in validation} == {"validation"}
    assert report["num_by_decision"] == {
        "undecided": 1,
        "expert_refused": 0,
        "duplicate": 0,
        "overlong": 0,
        "always_right": 1,
        "always_wrong": 1,
        "too_easy": 1,
        "over_cap": 0,
        "kept": 76,
    }
    assert report["num_by_outcome"] == {
        "always right": 1, "always wrong": 1, "mixed": 77, "undecided": 1, "overlong": 0,
    }  # fmt: skip
    assert (tmp_path / "pivots.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert "always right" in result.output


def test_the_written_rows_are_the_turns_of_the_trajectories(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=700)  # more than one row group

    run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 0)

    expected = [turn for trajectory in shop_trajectories(700) for turn in turns(trajectory)]
    assert [row_to_turn(row) for row in read_pivots(tmp_path / "pivots.parquet")] == expected
    assert pyarrow.parquet.read_schema(tmp_path / "pivots.parquet").equals(SCHEMA)
    assert read_pivots(tmp_path / "pivots.validation.parquet") == []
    assert not (tmp_path / "pivots.png").exists()


def test_a_selection_without_a_profile_leaves_no_picture_of_an_earlier_one(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2)
    (tmp_path / "pivots.png").write_bytes(b"pass rates of an earlier profile")

    run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 0)

    assert not (tmp_path / "pivots.png").exists()


def test_the_same_seed_gives_the_same_files_and_another_one_does_not(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=40)

    def ids(seed: int) -> list[object]:
        run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--seed", seed)
        return [row["trajectory_id"] for row in read_pivots(tmp_path / "pivots.parquet")]

    assert ids(0) == ids(0)
    assert ids(0) != ids(1)


def test_prompts_are_counted_by_the_models_tokenizer(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "model")
    trajectories = write_trajectories(tmp_path, num=2)

    run_select(trajectories, "--keep", "all", "--model", model, "--validation-share", 0)
    lengths = [row["num_prompt_tokens"] for row in read_pivots(tmp_path / "pivots.parquet")]
    refused = run_select(
        trajectories, "--keep", "all", "--model", model, "--validation-share", 0, "--max-prompt-tokens", lengths[0]
    )

    assert lengths[0] == lengths[2] < lengths[1] == lengths[3]
    assert "overlong" in refused.output
    assert [row["num_prompt_tokens"] for row in read_pivots(tmp_path / "pivots.parquet")] == [lengths[0]] * 2


def test_an_expert_that_its_verifier_refuses_is_dropped_with_the_reason(tmp_path: Path) -> None:
    module = tmp_path / "picky.py"
    module.write_text(
        "from verl_pivot.types import Message, Turn, Verdict\n"
        "from verl_pivot.verifiers.registry import register\n\n\n"
        '@register("picky")\n'
        "async def picky(action: Message, turn: Turn) -> Verdict:\n"
        '    return Verdict(score=float(not action.tool_calls), reason="no_calls_please", detail="a call")\n'
    )
    trajectories = write_trajectories(tmp_path, num=3, verifier="picky")
    options = ("--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 0, "--verifier-module", module)

    checked = run_select(trajectories, *options)
    num_checked = len(read_pivots(tmp_path / "pivots.parquet"))
    run_select(trajectories, *options, "--no-check-verifier")

    assert "no_calls_please" in checked.output
    assert (num_checked, len(read_pivots(tmp_path / "pivots.parquet"))) == (3, 6)


def test_an_empty_selection_quotes_what_the_verifier_says_of_the_first_expert(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2, verifier="qa")

    result = run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 0)

    assert result.exit_code == 1
    assert "no pivot is left" in result.stderr
    assert "; the verifier's verdict on the expert at turn shop-0:" in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "run `verl-pivot profile` and give its file with --profile, or take every turn with --keep all"),
        (("--keep", "all"), "give --model, the policy whose tokenizer counts them, or --max-prompt-tokens 0"),
        (("--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 1), "--validation-share must lie in"),
        (("--keep", "all", "--max-prompt-tokens", 0, "--verifier-module", "nowhere"), "'nowhere' cannot be imported"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_remedy(
    tmp_path: Path, options: tuple[object, ...], text: str
) -> None:
    result = run_select(write_trajectories(tmp_path, num=2), *options)

    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr.startswith("error: ")
    assert text in result.stderr
    assert not (tmp_path / "pivots.parquet").exists()


def test_a_profile_that_lacks_turns_is_refused_with_their_number(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2)
    profile = write_profile(trajectories, {}, skip={"shop-1:0", "shop-1:1"})

    for keep in ("pivots", "all"):
        result = run_select(trajectories, "--profile", profile, "--keep", keep)

        assert result.exit_code == 1
        assert (
            "the profile lacks 2 of 4 turns; run the same `verl-pivot profile` command again, without --limit and "
            "--draw: it profiles the missing turns"
        ) in result.stderr


@pytest.mark.parametrize("is_profiled", [True, False])
def test_trajectories_of_one_id_with_the_same_turn_are_refused(tmp_path: Path, is_profiled: bool) -> None:
    first, second, third = shop_trajectories(3)
    path = tmp_path / "trajectories.jsonl"
    joined = [first, second, replace(third, id=second.id)]
    path.write_text("".join(encode_json(trajectory_as_dict(each)) + "\n" for each in joined))
    profile = ["--profile", write_profile(path, {})] if is_profiled else ["--keep", "all", "--max-prompt-tokens", 0]

    result = run_select(path, *profile)

    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert f"in {path}, 1 ids, such as 'shop-1', belong to several trajectories with the same turns" in said


def test_of_a_profile_of_calls_only_calls_are_candidates_and_the_launch_has_its_lengths(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=3)
    profile = write_profile(trajectories, {}, skip={f"shop-{i}:1" for i in range(3)}, turn_kinds="calls")

    result = run_select(trajectories, "--profile", profile, "--validation-share", "0")

    assert result.exit_code == 0, result.stderr
    assert [row["turn_index"] for row in read_pivots(tmp_path / "pivots.parquet")] == [0, 0, 0]
    assert result.stdout.splitlines()[-1] == (
        f"Next: python -m verl.trainer.main_ppo +method=pivotrl data.train_files={tmp_path}/pivots.parquet "
        "data.train_batch_size=2 data.max_prompt_length=4096 data.max_response_length=2048 "
        "actor_rollout_ref.model.path=tiny actor_rollout_ref.actor.use_dynamic_bsz=true "
        "actor_rollout_ref.rollout.name=sglang"
    )


def test_rows_say_how_their_profile_was_sampled_and_without_a_profile_they_say_nothing(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=4)
    profile = write_profile(trajectories, {})

    run_select(trajectories, "--profile", profile, "--validation-share", "0.5")
    rows = [row for name in ("pivots", "pivots.validation") for row in read_pivots(tmp_path / f"{name}.parquet")]
    run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--validation-share", "0")

    assert len(rows) > 1
    assert {row["sampling"] for row in rows} == {read_settings(profile).sampling_record().encoded()}
    assert {row["sampling"] for row in read_pivots(tmp_path / "pivots.parquet")} == {None}


def test_a_profile_of_other_trajectories_is_refused(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2)
    profile = write_profile(trajectories, {})
    trajectories.write_text(trajectories.read_text().replace("order 1?", "order one?"))

    result = run_select(trajectories, "--profile", profile)

    assert result.exit_code == 1
    assert "was not measured on the present content of" in result.stderr


def test_a_line_that_only_python_can_read_is_named(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2)
    profile = write_profile(trajectories, {})
    profile.write_text(profile.read_text().replace('"text": ""', r'"text": "\ud800"', 1))

    result = run_select(trajectories, "--profile", profile)

    assert result.exit_code == 1
    assert f"error: {profile}, line 2 was not written by `verl-pivot profile`: " in result.stderr


def test_an_empty_selection_is_an_error_with_counts_and_leaves_existing_files_alone(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=2)
    always = dict.fromkeys(["shop-0:0", "shop-0:1", "shop-1:0"], (1.0, 1.0)) | {"shop-1:1": (0.0, 0.0)}
    (tmp_path / "pivots.parquet").write_text("from before")

    result = run_select(trajectories, "--profile", write_profile(trajectories, always))

    assert result.exit_code == 1
    assert "no pivot is left of 4 candidates (3 always_right, 1 always_wrong)" in result.stderr
    assert (tmp_path / "pivots.parquet").read_text() == "from before"


@pytest.mark.heavy
def test_the_command_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=3)
    select_all = ["select", trajectories, "--out", tmp_path / "pivots.parquet", "--keep", "all"]
    command = [sys.executable, "-m", "verl_pivot.cli", *map(str, select_all), "--max-prompt-tokens", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    done, failed = (
        subprocess.run([*command, *more], capture_output=True, text=True, env=environment, check=False)
        for more in (["--validation-share", "0"], ["--validation-share", "2"])
    )

    assert done.returncode == 0, done.stderr
    assert len(read_pivots(tmp_path / "pivots.parquet")) + len(read_pivots(tmp_path / "pivots.validation.parquet")) == 6
    assert (failed.returncode, failed.stderr) == (1, "error: --validation-share must lie in [0, 1), got 2.0\n")


def shop_trajectories(num: int, verifier: str = "tool_call") -> list[Trajectory]:
    users = (replace(USER, content=f"Where is order {i}?") for i in range(num))
    messages = make_trajectory().messages
    return [
        make_trajectory(id=f"shop-{i}", messages=(messages[0], user, *messages[2:]), verifier=verifier)
        for i, user in enumerate(users)
    ]


def write_trajectories(folder: Path, *, num: int, verifier: str = "tool_call") -> Path:
    path = folder / "trajectories.jsonl"
    lines = [json.dumps(trajectory_as_dict(trajectory)) for trajectory in shop_trajectories(num, verifier)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_profile(
    trajectories: Path,
    scores: dict[str, tuple[float | None, ...]],
    *,
    skip: Collection[str] = (),
    turn_kinds: TurnKinds = "all",
) -> Path:
    """Write a profile of every turn in the file, with `scores` by turn id, or else one right and one wrong sample."""
    path = trajectories.with_name("profile.jsonl")
    settings = ProfileSettings(
        model="tiny",
        input_sha256=file_sha256(trajectories),
        num_samples=2,
        sampling=Sampling(),
        max_prompt_tokens=4096,
        chat_template_kwargs={},
        turns=turn_kinds,
    )
    with open_profile(path, settings) as writer:
        for turn in (turn for trajectory in shop_trajectories(num_lines(trajectories)) for turn in turns(trajectory)):
            if turn.id not in skip:
                writer.append(make_turn_profile(turn.trajectory_id, turn.index, scores.get(turn.id, (0.0, 1.0))))
    return path


def make_turn_profile(trajectory_id: str, index: int, scores: tuple[float | None, ...]) -> TurnProfile:
    return make_profile(scores, trajectory_id=trajectory_id, index=index)


def num_lines(path: Path) -> int:
    return path.read_text().count("\n")


def read_pivots(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def run_select(trajectories: Path, *options: object) -> Result:
    out = trajectories.with_name("pivots.parquet")
    return CliRunner().invoke(app, ["select", str(trajectories), "--out", str(out), *map(str, options)])


def test_an_empty_validation_split_that_was_asked_for_is_refused_with_the_remedy(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path, num=3)

    result = run_select(trajectories, "--keep", "all", "--max-prompt-tokens", 0, "--validation-share", 1e-9)

    assert result.exit_code == 1
    assert "none is left for validation; raise --validation-share, or set it to 0" in result.stderr
    assert not (tmp_path / "pivots.parquet").exists()
