"""What `verl-pivot inspect` shows of profile, pivots and trajectories: decisions, answers over HTTP, and the page."""

import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.inspect.test_terminal import seen
from tests.support.browser import chromium, inspecting
from tests.support.factories import make_profile, make_trajectory
from tests.support.paths import ROOT
from tests.support.web_servers import running
from verl_pivot.cli import app
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import PROVENANCE, turns
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.inspect.candidate_files import CandidateFiles, CandidateKind, kind_of
from verl_pivot.inspect.candidate_lines import ListedTurn, turn_parts
from verl_pivot.inspect.candidate_server import CandidatePage
from verl_pivot.inspect.candidates import (
    CandidateTurn,
    ListedTrajectory,
    SelectionFound,
    pass_rate_bins,
    selection_verdict,
)
from verl_pivot.inspect.terminal_candidates import CandidateTerminal
from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
from verl_pivot.profiling.writer import open_profile
from verl_pivot.selection.decisions import SelectionRule
from verl_pivot.types import Message, Role, Sample, TurnProfile, Verdict

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCRIPT = "<script>window.pwned = 1</script><img src=x onerror='window.pwned=1'>\x1b[2J\u202e"
SETTINGS = ProfileSettings(
    model="tiny", input_sha256="", num_samples=2, sampling=Sampling(max_new_tokens=16), max_prompt_tokens=100,
    chat_template_kwargs={},
)  # fmt: skip


def hostile(profile: TurnProfile) -> TurnProfile:
    verdict = Verdict(score=0.0, reason="wrong_value", detail=f"detail {SCRIPT}")
    return replace(
        profile, samples=(Sample(text=f"text {SCRIPT}", verdict=verdict, num_tokens=3), *profile.samples[1:])
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with three trajectories of two turns, their profile, and the pivots and reports that `select` writes."""
    folder = tmp_path_factory.mktemp("candidates")
    synthetic = {PROVENANCE: {"split_by": "task-9", "synthesis": {"recipe": "magnet", "seed": 7}}}
    found = [
        make_trajectory(id="shop-0", passed=True),
        make_trajectory(id="shop-1", passed=False, metadata=synthetic),
        make_trajectory(id=f"shop-2{SCRIPT}", passed=None),
    ]
    trajectories = folder / "trajectories.jsonl"
    trajectories.write_text("".join(json.dumps(trajectory_as_dict(each)) + "\n" for each in found))
    scores = [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.0, 1.0), (None, None), (0.0, 0.0)]
    profiles = [
        make_profile(pair, trajectory_id=found[at // 2].id, index=at % 2, num_prompt_tokens=50 + at)
        for at, pair in enumerate(scores)
    ]
    profiles[3] = hostile(profiles[3])
    with open_profile(folder / "profile.jsonl", replace(SETTINGS, input_sha256=file_sha256(trajectories))) as writer:
        for profile in profiles:
            writer.append(profile)
    command = [
        "select", str(trajectories), "--profile", str(folder / "profile.jsonl"), "--out",
        str(folder / "pivots.parquet"), "--max-prompt-tokens", "52", "--validation-share", "0", "--workers", "1",
        "--no-check-verifier",
    ]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return folder


def names(folder: Path, *files: str) -> list[Path]:
    return [folder / name for name in files]


ALL = ("pivots.parquet", "profile.jsonl", "trajectories.jsonl")


@asynccontextmanager
async def asking(*paths: Path) -> Any:
    page = CandidatePage(CandidateFiles(paths), token="t", host="127.0.0.1")
    async with running(page.app()) as url, aiohttp.ClientSession(headers={"X-Inspect-Token": "t"}) as client:

        async def ask(path: str, **query: str) -> Any:
            async with client.get(f"{url}/api/{path}", params=query) as answer:
                return await answer.json()

        yield ask


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("trajectories.jsonl", CandidateKind.TRAJECTORIES),
        ("profile.jsonl", CandidateKind.PROFILE),
        ("pivots.parquet", CandidateKind.PIVOTS),
        ("pivots.report.json", None),
        ("", None),
        ("missing.jsonl", None),
    ],
)
def test_a_file_is_known_by_its_first_line(folder: Path, name: str, kind: CandidateKind | None) -> None:
    assert kind_of(folder / name) is kind


async def test_all_files_together_give_outcomes_pass_rates_and_what_was_selected(folder: Path) -> None:
    async with asking(*names(folder, *ALL)) as ask:
        about = await ask("files")
        assert about["outcomes"] == {
            "always right": 1, "always wrong": 2, "mixed": 2, "undecided": 1, "overlong": 0
        }  # fmt: skip
        assert about["bins"] == [2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1]
        assert (about["num_trajectories"], about["num_turns"], about["num_kept"]) == (3, 6, 1)
        listed = (await ask("trajectories"))["trajectories"]
        assert [(each["passed"], each["num_turns"]) for each in listed] == [(True, 2), (False, 2), (None, 2)]
        assert [turn["is_kept"] for each in listed for turn in each["turns"]] == [False, True, *[False] * 4]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, 3),
        ({"outcome": "mixed"}, 2),
        ({"outcome": "undecided"}, 1),
        ({"decision": "kept"}, 1),
        ({"decision": "kept", "outcome": "always right"}, 0),
        ({"decision": "dropped"}, 0),
        ({"bin": "11"}, 1),
        ({"id": "shop-1"}, 1),
        ({"first": "2"}, 3),
    ],
)
async def test_trajectories_with_such_a_turn_are_listed(folder: Path, query: dict[str, str], expected: int) -> None:
    async with asking(*names(folder, *ALL)) as ask:
        assert (await ask("trajectories", **query))["num_found"] == expected


async def test_an_opened_turn_has_state_tools_expert_samples_and_provenance(folder: Path) -> None:
    async with asking(*names(folder, *ALL)) as ask:
        opened = await ask("turn", trajectory_id="shop-1", turn_index="1")
        assert [message["role"] for message in opened["state"]] == ["system", "user", "assistant", "tool"]
        assert opened["expert"]["content"] == "It is on its way."
        assert opened["tools"][0]["function"]["name"] == "find_order"
        assert [(each["score"], each["reason"]) for each in opened["samples"]] == [
            (0.0, "wrong_value"),
            (1.0, "made_up"),
        ]
        assert opened["provenance"]["synthesis"]["recipe"] == "magnet"
        assert opened["verdict"] == {
            "decision": "not kept", "reason": "overlong: its prompt has 53 tokens, more than 52"
        }  # fmt: skip


async def test_pivots_alone_show_the_turns_that_were_kept(folder: Path) -> None:
    async with asking(folder / "pivots.parquet") as ask:
        opened = await ask("turn", trajectory_id="shop-0", turn_index="1")
        assert opened["expert"]["content"] == "It is on its way."
        assert opened["samples"] == []
        assert opened["verdict"] == {"decision": "kept", "reason": "in the split train"}


async def test_a_profile_alone_shows_samples_without_states(folder: Path) -> None:
    async with asking(folder / "profile.jsonl") as ask:
        opened = await ask("turn", trajectory_id="shop-0", turn_index="0")
        assert (opened["state"], len(opened["samples"])) == (None, 2)
        assert opened["verdict"] == {"decision": "unknown", "reason": "give the file of pivots too"}


async def test_trajectories_alone_have_all_their_turns_not_measured(folder: Path) -> None:
    async with asking(folder / "trajectories.jsonl") as ask:
        assert (await ask("files"))["num_turns"] == 6
        listed = (await ask("trajectories"))["trajectories"]
        assert [[turn["index"] for turn in each["turns"]] for each in listed] == [[0, 1]] * 3
        opened = await ask("turn", trajectory_id="shop-0", turn_index="1")
        assert (opened["expert"]["content"], opened["candidate"]["outcome"]) == ("It is on its way.", None)


@pytest.mark.parametrize(("expert_turns", "indices"), [("all", [1, 2]), ("last", [2]), ((0, 1), [1])])
def test_the_turns_of_a_trajectory_are_the_candidates_of_profile(
    tmp_path: Path, expert_turns: Any, indices: list[int]
) -> None:
    usual = make_trajectory()
    opening = Message(role=Role.ASSISTANT, content="Hello.")
    trajectory = replace(usual, messages=(opening, *usual.messages), expert_turns=expert_turns)
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps(trajectory_as_dict(trajectory)) + "\n")

    (listed,) = CandidateFiles([path]).trajectories.values()
    assert [*listed.turns] == [turn.index for turn in turns(trajectory)] == indices


async def test_a_turn_may_be_kept_in_a_split_that_was_not_given() -> None:
    folder = ROOT / "tests" / "data" / "previous_version"
    async with asking(*names(folder, *ALL)) as ask:
        for row in pyarrow.parquet.read_table(folder / "pivots.validation.parquet").to_pylist():
            opened = await ask("turn", trajectory_id=row["trajectory_id"], turn_index=str(row["turn_index"]))
            assert opened["verdict"] == {
                "decision": "not kept", "reason": "one of: kept in a split that was not given (2 turns)"
            }  # fmt: skip
    async with asking(*names(folder, *ALL, "pivots.validation.parquet")) as ask:
        assert (await ask("files"))["num_kept"] == 12


async def test_a_turn_that_no_file_has_is_a_sentence(folder: Path) -> None:
    async with asking(*names(folder, *ALL)) as ask:
        assert await ask("turn", trajectory_id="other", turn_index="0") == {
            "detail": "the files contain no turn other:0"
        }  # fmt: skip
        refused = "a parameter of the address is unknown, missing or invalid"
        assert refused in (await ask("turn", trajectory_id="other", turn_index="x"))["detail"]
        assert refused in (await ask("trajectories", colour="red"))["detail"]


async def test_reasons_of_filter_stand_beside_the_trajectories(folder: Path, tmp_path: Path) -> None:
    dropped = tmp_path / "kept.jsonl.dropped.jsonl"
    reason = {"id": "shop-1", "row": 2, "filter": "correctness", "reason": "wrong_outcome", "detail": "passed is false"}
    dropped.write_text(json.dumps(reason) + "\n")
    async with asking(dropped, folder / "trajectories.jsonl") as ask:
        found = await ask("trajectories", decision="dropped")
        assert [each["id"] for each in found["trajectories"]] == ["shop-1"]
        assert found["trajectories"][0]["dropped"]["reason"] == "wrong_outcome"


MIXED = CandidateTurn(index=0, outcome="mixed", pass_rate=0.5, reward_mean=0.5, num_prompt_tokens=10)


@pytest.mark.parametrize(
    ("changes", "rule", "counts", "reason"),
    [
        ({}, {"lambda_diff": 0.5}, {}, "too easy: its mean reward 0.5 is not below lambda_diff 0.5"),
        ({}, {"lambda_diff": 0.6}, {"over_cap": 3, "duplicate": 0}, "one of: over cap (3 turns)"),
        ({}, {"lambda_diff": 0.6}, {}, "the files do not say why"),
        ({"outcome": "always right"}, {}, {}, "always right"),
        ({"outcome": "always wrong"}, {}, {}, "always wrong"),
        ({"outcome": "always wrong"}, {"keep": "unsolved"}, {"duplicate": 1}, "one of: duplicate (1 turns)"),
        ({"outcome": "always right"}, {"keep": "all"}, {"duplicate": 1}, "one of: duplicate (1 turns)"),
        ({"outcome": None}, {}, {}, "no given file has a profile of this turn"),
    ],
)
def test_a_turn_that_was_not_kept_has_the_reason_that_the_files_tell(
    changes: dict[str, Any], rule: dict[str, Any], counts: dict[str, int], reason: str
) -> None:
    shown = SelectionRule(**rule)
    found = SelectionFound(rule=shown, num_by_decision=counts)
    assert selection_verdict(replace(MIXED, **changes), found).reason == reason


def test_pass_rates_of_tenths_are_counted_in_the_bin_that_they_end() -> None:
    rates = [0.0, 0.01, 0.1, 0.3, 0.31, 0.7, 0.99, 1.0, None]
    rated = {at: CandidateTurn(index=at, pass_rate=rate) for at, rate in enumerate(rates)}
    assert pass_rate_bins([ListedTrajectory("t", turns=rated)]) == [1, 2, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "line 4 is not a trajectory"),
        (b'{"id": 3, "messages": []}', "line 4 is not a trajectory"),
        (b"\xff\xfe", "line 4 is not a trajectory"),
        (b'{"id": "x", "messages": [], "m": ' + b"[" * 100_000, "line 4 is not a trajectory"),
    ],
)
def test_a_broken_line_is_named(folder: Path, tmp_path: Path, line: bytes, sentence: str) -> None:
    broken = tmp_path / "trajectories.jsonl"
    broken.write_bytes((folder / "trajectories.jsonl").read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=sentence):
        CandidateFiles([broken])


def test_a_parquet_of_something_else_and_two_files_of_a_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes(b"PAR1 no parquet")
    with pytest.raises(DataError, match=r"holds no pivots .*wait until `verl-pivot select` has written it"):
        CandidateFiles([other])
    pyarrow.parquet.write_table(pyarrow.table({"trajectory_id": ["a"]}), other)
    with pytest.raises(DataError, match=r"holds no pivots .*lacks num_prompt_tokens, pass_rate"):
        CandidateFiles([other])
    with pytest.raises(ConfigError, match="give at most one file of each kind"):
        CandidateFiles([folder / "profile.jsonl", folder / "profile.jsonl"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["profile.jsonl", "--terminal"], "--terminal needs a terminal: leave"),
        (["profile.jsonl", "."], "give them separately"),
        (["profile.jsonl", "pivot.parquet"], "pivot.parquet; check the name"),
        ([".", "--terminal", "--port", "1"], "--host and --port do nothing with --terminal"),
    ],
)
def test_what_does_not_go_together_is_refused(folder: Path, arguments: list[str], sentence: str) -> None:
    paths = [each if each.startswith("-") or each == "1" else str(folder / each) for each in arguments]
    result = CliRunner().invoke(app, ["inspect", *paths])
    assert result.exit_code == 1
    assert sentence in " ".join(result.output.split())


def test_a_hostile_split_is_text_in_the_list_of_the_terminal() -> None:
    listed = ListedTurn(ListedTrajectory(id="shop-1"), CandidateTurn(index=0, split="\x1b[2J"))

    assert turn_parts(listed, 80)[-1] == ("no profile, selected, ⟨U+001B⟩[2J", "")


async def test_keys_go_through_the_turns_in_the_terminal_and_hostile_texts_are_text(folder: Path) -> None:
    async with CandidateTerminal(CandidateFiles(names(folder, *ALL))).run_test(size=(100, 40)) as pilot:
        text = await seen(pilot, "3 trajectories, 6 turns")
        assert " ◐ shop-0 " in text
        assert "turn 1    mixed, pass rate 0.5, selected, train" in text
        await seen(pilot, "Turn 1 of shop-0", "j", "enter")
        await seen(pilot, "Turn 0 of shop-1", "n")
        await seen(pilot, "kept: overlong: its prompt has 53 tokens, more than 52", "j")
        text = await seen(pilot, "Sample 1 of 2, 3 tokens", "end")
        assert "text <script>window.pwned = 1</script>" in text
        assert "⟨U+001B⟩[2J⟨U+202E⟩" in text
        assert "Provenance {" in text
        await seen(pilot, "3 trajectories, 6 turns", "escape")
        await seen(pilot, "1 of 3 trajectories, 2 turns; id=shop-1", "slash", *"shop-1", "enter")
        await seen(pilot, "2 of 3 trajectories, 4 turns; outcome=mixed", "escape", "f", *"outcome=mixed", "enter")
        await seen(pilot, "the filter cannot be used", "f", *" colour=red", "enter")
        await seen(pilot, "No trajectory passes the filter", "escape", "slash", *"none", "enter")
        await seen(pilot, "next and previous trajectory", "enter", "question_mark")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as browser:
        yield browser


@pytest.mark.heavy
def test_keys_go_through_the_turns_and_no_text_runs(folder: Path, browser: "Browser") -> None:
    with inspecting(*names(folder, *ALL)) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(60_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda entry: problems.append(entry.text) if entry.type == "error" else None)
        page.goto(address)
        page.wait_for_selector(".strip a")
        assert page.locator(".bar text").all_text_contents()[:2] == ["2", "0"]
        assert page.locator(".strip").all_inner_texts() == ["●\n◐", "○\n◐", "?\n○"]
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector(".sample")
        assert page.locator("h1").inner_text() == "Turn 1 of shop-0"
        page.keyboard.press("n")
        page.wait_for_selector("h1:text-is('Turn 0 of shop-1')")
        page.keyboard.press("j")
        page.wait_for_selector("h1:text-is('Turn 1 of shop-1')")
        text = page.locator("main").inner_text()
        assert "text <script>window.pwned = 1</script>" in text
        assert "⟨U+001B⟩[2J⟨U+202E⟩" in text
        assert "Provenance of a synthetic row" in text
        page.keyboard.press("Escape")
        page.wait_for_selector(".distribution")
        page.select_option("[name=outcome]", "undecided")
        page.wait_for_selector(".trajectory:only-child")
        page.go_back()
        page.wait_for_selector(".trajectory:nth-child(3)")
        assert page.evaluate("window.pwned") is None
        page.close()
    assert problems == []
