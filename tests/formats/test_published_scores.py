import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.support.factories import ANSWER, USER, make_trajectory, make_turn
from verl_pivot.cli import app
from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import DataError
from verl_pivot.exports.nemo_gym_rows import ReferenceScores, turn_to_nemo_gym
from verl_pivot.formats.published_scores import published_scores
from verl_pivot.formats.row_import import ImportOptions, ParsedRow, parse_row
from verl_pivot.profiling.profiles import (
    ProfileSettings,
    PublishedSettings,
    file_sha256,
    iter_profiles,
    parse_profile,
    profile_as_dict,
    profiled_sha256,
    read_settings,
)
from verl_pivot.profiling.published import (
    published_profile_header,
    published_profile_line,
    published_profile_path,
)
from verl_pivot.profiling.writer import open_profile
from verl_pivot.types import JsonObject

COUNTED: JsonObject = {"pass_rate": 0.25, "pass_rate_total": 4, "pass_rate_passed": 1}
INFO: JsonObject = {"rewards": [1, 0, 0.5, 1], "reward_mean": 0.625, "reward_std": 0.41, "reward_var": 0.17}


# Rows


@pytest.mark.parametrize(
    ("row", "scores"),
    [
        ({}, ()),
        (COUNTED, (1.0, 0.0, 0.0, 0.0)),
        ({"pass_rate": 0.25}, ()),
        ({"pass_rate": None, "pass_rate_total": 0, "pass_rate_passed": 0}, ()),
        ({"pass_rate": 0.33, "pass_rate_total": 3, "pass_rate_passed": 1}, (1.0, 0.0, 0.0)),
        ({"qwen_235b_info": INFO}, (1.0, 0.0, 0.5, 1.0)),
        ({"qwen_235b_info": INFO, **COUNTED}, (1.0, 0.0, 0.5, 1.0)),  # scores of two models may differ
        ({"meta_info": {"turn": 1, "step": 2}, "qwen_235b_info": {"rewards": []}, **COUNTED}, (1.0, 0.0, 0.0, 0.0)),
    ],
)
def test_scores_come_from_the_rewards_else_from_the_counts(row: JsonObject, scores: tuple[float, ...]) -> None:
    assert published_scores(row) == scores


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({**COUNTED, "pass_rate_passed": 5}, "pass_rate_passed is 5, more than pass_rate_total, 4"),
        ({**COUNTED, "pass_rate": 0.5}, "pass_rate is 0.5, but the mean of the row's samples is 0.25"),
        ({**COUNTED, "pass_rate_total": 4.5}, "pass_rate_total must be a whole number from 0 to 10000, got 4.5"),
        ({**COUNTED, "pass_rate_passed": -1}, "got -1"),
        ({**COUNTED, "pass_rate_passed": True}, "pass_rate_passed must be a number, got true or false"),
        ({**COUNTED, "pass_rate_total": 10**400}, "pass_rate_total is too large a number"),
        ({"a_info": {"rewards": [1, 2]}}, r"a reward in a_info must lie in \[0, 1\], got 2"),
        ({"a_info": {"rewards": [1, None]}}, "a reward in a_info must be a number, got null"),
        ({"a_info": {"rewards": "1, 0"}}, "a_info.rewards must be a JSON list, got text"),
        ({"a_info": {**INFO, "reward_mean": 0.5}}, "a_info.reward_mean is 0.5, but the mean .* is 0.625"),
        (
            {"a_info": INFO, "b_info": INFO},
            "a_info, b_info hold rewards of different models; keep one",
        ),
    ],
)
def test_columns_that_contradict_each_other_are_refused(row: JsonObject, text: str) -> None:
    with pytest.raises(BadRowError, match=text):
        published_scores(row)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=16).map(tuple))
def test_the_import_reads_the_scores_that_the_export_writes(scores: tuple[float, ...]) -> None:
    row = turn_to_nemo_gym(make_turn(), reference=ReferenceScores(scores=scores))

    assert parse(row).scores == scores


# The profile


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=16).map(tuple))
def test_published_scores_are_a_profile_of_the_last_turn(scores: tuple[float, ...]) -> None:
    line = published_profile_line(make_trajectory(), scores)

    profile = parse_profile(json.loads(line))
    assert (profile.trajectory_id, profile.index, profile.num_prompt_tokens) == ("shop-1", 1, None)
    assert profile.scores == scores
    assert json.dumps(profile_as_dict(profile)) == line


def test_the_header_has_the_same_length_for_every_digest() -> None:
    assert len(published_profile_header("0" * 64)) == len(published_profile_header("a1" * 32))


def test_a_published_profile_is_read_like_a_measured_one_but_has_no_settings(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path)
    path = write_published(trajectories, [(0.0, 1.0), (1.0, 1.0)])

    assert path == tmp_path / "trajectories.published-profile.jsonl"
    assert profiled_sha256(path) == file_sha256(trajectories)
    assert [profile.scores for profile in iter_profiles(path)] == [(0.0, 1.0), (1.0, 1.0)]
    with pytest.raises(DataError, match="holds scores that were published with the trajectories"):
        read_settings(path)


def test_profiling_does_not_continue_a_published_profile(tmp_path: Path) -> None:
    path = write_published(write_trajectories(tmp_path), [(0.0, 1.0), (1.0, 1.0)])
    before = path.read_text()
    settings = ProfileSettings(
        model="tiny",
        input_sha256="0" * 64,
        num_samples=2,
        sampling=Sampling(),
        max_prompt_tokens=4096,
        chat_template_kwargs={},
    )

    with (
        pytest.raises(DataError, match="cannot continue; choose another --out"),
        open_profile(path, settings),
    ):
        raise AssertionError("opened")

    assert path.read_text() == before
    with pytest.raises(BadRowError, match="settings of published scores need input_sha256"):
        PublishedSettings.parse({"published": True})


def test_select_filters_by_published_scores(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path)
    write_published(trajectories, [(0.0, 1.0), (1.0, 1.0)])

    result = select(trajectories, "--max-prompt-tokens", 0)

    assert result.exit_code == 0, result.output
    rows = pyarrow.parquet.read_table(tmp_path / "pivots.parquet").to_pylist()
    assert [(row["trajectory_id"], row["pass_rate"], row["num_prompt_tokens"]) for row in rows] == [("t-0", 0.5, None)]


def test_a_published_profile_of_other_trajectories_is_refused(tmp_path: Path) -> None:
    trajectories = write_trajectories(tmp_path)
    write_published(trajectories, [(0.0, 1.0), (1.0, 1.0)])
    trajectories.write_text(trajectories.read_text().replace("order 17", "order 18"))

    assert "was not measured on the present content of" in select(trajectories, "--max-prompt-tokens", 0).stderr


def parse(row: JsonObject) -> ParsedRow:
    place = Place(file="runs/file.jsonl", unit="line", number=1)
    return parse_row(RawRow(place=place, raw=json.dumps(row).encode()), ImportOptions())


def write_trajectories(folder: Path) -> Path:
    path = folder / "trajectories.jsonl"
    trajectories = [make_trajectory(id=f"t-{i}", messages=messages_of(i)) for i in range(2)]
    path.write_text("".join(json.dumps(trajectory_as_dict(trajectory)) + "\n" for trajectory in trajectories))
    return path


def messages_of(number: int) -> Sequence[Any]:
    return (USER, ANSWER) if number == 0 else (make_trajectory().messages[0], USER, ANSWER)


def write_published(trajectories: Path, scores: Sequence[tuple[float, ...]]) -> Path:
    path = published_profile_path(trajectories)
    lines = [
        published_profile_line(make_trajectory(id=f"t-{i}", messages=messages_of(i)), each)
        for i, each in enumerate(scores)
    ]
    path.write_text("\n".join([published_profile_header(file_sha256(trajectories)), *lines, ""]))
    return path


def select(trajectories: Path, *options: object) -> Result:
    out, profile = trajectories.with_name("pivots.parquet"), published_profile_path(trajectories)
    command = ["select", trajectories, "--profile", profile, "--out", out, "--validation-share", 0, *options]
    return CliRunner().invoke(app, [str(part) for part in command])
