"""inspect.report and its page: numbers of each run, comparisons of runs, hostile texts, and the size of the file."""

import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.browser import chromium
from tests.support.dumped_runs import make_line, write_run
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.engines.engine import Sampling
from verl_pivot.errors import DataError
from verl_pivot.inspect.guarded_page import STATIC
from verl_pivot.inspect.html_text import as_html, bounded_html
from verl_pivot.inspect.profile_pivots import read_pivots
from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.report import make_report, open_chosen
from verl_pivot.inspect.report_counts import MAX_VALUES
from verl_pivot.inspect.report_drawing import Point, draw, short_number, thinned
from verl_pivot.inspect.report_numbers import TrainingReport
from verl_pivot.inspect.report_page import FIRST_METRICS, report_page
from verl_pivot.profiling.profiles import KIND, VERSION, ProfileSettings, file_sha256, profile_as_dict
from verl_pivot.runs.run import RunPart, TrainingRun
from verl_pivot.types import ErrorKind, JsonObject, Message, Role, Sample, Trajectory, TurnProfile, Verdict

HOSTILE = "</div></style><script>x=1</script><img src=//evil.example onerror=x>\"'\x1b[2J\x00\u202egnp\u200b\ud800"
SHOWN = (
    "&lt;/div&gt;&lt;/style&gt;&lt;script&gt;x=1&lt;/script&gt;&lt;img src=//evil.example onerror=x&gt;&quot;&#x27;"
    "⟨U+001B⟩[2J⟨U+0000⟩⟨U+202E⟩gnp⟨U+200B⟩⟨U+D800⟩"
)


def report_of(*folders: Path, num_rollouts: int = 3) -> TrainingReport:
    return make_report(RunIndex([TrainingRun(folder) for folder in folders]), num_rollouts=num_rollouts)


def page_of(*folders: Path, num_rollouts: int = 3) -> str:
    index = RunIndex([TrainingRun(folder) for folder in folders])
    return report_page(make_report(index, num_rollouts=num_rollouts), lambda chosen: open_chosen(index, chosen))


def write_scores(folder: Path, scores: Mapping[str, Sequence[float | None]], step: int = 1) -> Path:
    """Write a run with one step, in which the rollouts of each prompt have these scores."""
    lines = [
        make_line(f"{prompt}_{number}_0", score, prompt_id=prompt, step=step)
        for prompt, of_prompt in scores.items()
        for number, score in enumerate(of_prompt)
    ]
    return write_run(folder, {step: lines})


class _Page(HTMLParser):
    """Elements, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# ---- numbers


def test_each_part_of_a_run_is_summed_without_what_says_nothing_about_the_policy(tmp_path: Path) -> None:
    lines = [
        make_line("a_0_0", 1.0, prompt_id="a", turn_tokens=(10,)),
        make_line("a_1_0", 0.0, prompt_id="a", turn_tokens=(20,), is_kept=False, left_out="resampled"),
        make_line("b_0_0", None, prompt_id="b", turn_tokens=(30,), is_kept=False, left_out="undecided"),
        make_line("c_0_0", 0.0, prompt_id="c", turn_tokens=(40,), stop_reason=StopReason.TOOL_FAILURE),
    ]
    (run,) = report_of(write_run(tmp_path / "run", {1: lines})).runs

    (part,) = run.parts
    assert (part.part, part.num_rollouts, part.num_prompts) == (RunPart.TRAINING, 4, 3)
    assert (part.num_undecided, part.num_masked, part.num_kept) == (1, 1, 2)
    assert (part.mean_score, part.mean_tokens, part.scores) == (0.5, 25.0, {1: 0.5})


def test_outcomes_are_counted_by_step_and_each_kind_of_error_once_for_each_rollout(tmp_path: Path) -> None:
    calls = [
        CallRecord(turn=0, name="add", arguments={}, status=CallStatus.TOOL_ERROR, error_kind=kind)
        for kind in (ErrorKind.REFUSED, ErrorKind.REFUSED, ErrorKind.UNKNOWN_TOOL)
    ]
    folder = write_run(
        tmp_path,
        {
            1: [make_line("a_0_0", 0.0, calls=tuple(calls)), make_line("a_1_0", 1.0)],
            2: [make_line("b_0_0", 0.0, step=2, calls=(calls[0],), stop_reason=StopReason.MAX_TURNS)],
        },
    )
    counts = {each.what: each.counts for each in report_of(folder).outcomes}

    assert counts == {
        "reason": {"wrong_value": {1: 1, 2: 1}, "accepted": {1: 1}},
        "end": {"answered": {1: 2}, "max_turns": {2: 1}},
        "error kind": {"refused": {1: 1, 2: 1}, "unknown_tool": {1: 1}},
    }


def test_rare_reasons_are_counted_together(tmp_path: Path) -> None:
    lines = [make_line(f"{number}_0_0", 0.0, reason=f"reason-{number:02}") for number in range(MAX_VALUES + 5)]
    lines += [make_line("z_0_0", 0.0, reason="reason-16")]
    (reasons,) = (each for each in report_of(write_run(tmp_path, {1: lines})).outcomes if each.what == "reason")

    assert list(reasons.counts) == ["reason-16", *(f"reason-{number:02}" for number in range(MAX_VALUES - 1))]
    assert (reasons.counts["reason-16"], reasons.others) == ({1: 2}, {1: 5})


def test_the_worst_and_the_best_are_of_different_prompts_and_late(tmp_path: Path) -> None:
    early = [make_line("a_0_0", 0.0, prompt_id="a"), make_line("b_0_0", 0.0, prompt_id="b")]
    late = [
        make_line("a_0_0", 0.0, prompt_id="a", step=2),
        make_line("a_1_0", 0.0, prompt_id="a", step=2),
        make_line("c_0_0", 1.0, prompt_id="c", step=2),
        make_line("d_0_0", 0.5, prompt_id="d", step=2),
        make_line("e_0_0", None, prompt_id="e", step=2),
    ]
    report = report_of(write_run(tmp_path, {1: early, 2: late}), num_rollouts=2)

    found = [(each.is_best, each.prompt_id, each.step, each.line) for each in report.rollouts]
    assert found == [(False, "a", 2, 1), (False, "b", 1, 2), (True, "c", 2, 3), (True, "d", 2, 4)]


def test_where_all_rollouts_score_the_same_none_is_called_the_best(tmp_path: Path) -> None:
    folder = write_scores(tmp_path, {"a": [0.0], "b": [0.0]})

    assert [each.is_best for each in report_of(folder).rollouts] == [False, False]
    assert "No rollout scores more than 0, so no best rollouts are shown." in page_of(folder)


def test_versions_are_those_that_the_files_name(tmp_path: Path) -> None:
    folder = write_scores(tmp_path, {"a": [0.0]})
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "hydra.yaml").write_text("hydra:\n  runtime:\n    version: 1.3.2\n")
    model = folder / "global_step_5" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"transformers_version": "5.9.0"}')

    (run,) = report_of(folder).runs
    assert (run.versions, run.checkpoints) == ({"hydra-core": "1.3.2", "transformers": "5.9.0"}, [5])


def test_values_of_secrets_are_not_in_a_report(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        write_scores(folder, {"a": [0.0]})
        (folder / ".hydra").mkdir()
        settings = {
            "judge": {"api_key": f"sk-1{folder.name}", "password": None, "prompt_key": "prompt", "max_tokens": 5},
            "headers": [{"x-api-key": "sk-3", "Authorization": "Bearer sk-4", "Accept": "text"}],
            "tools": [{"url": "http://shop", "auth_token": f'sk-2"{folder.name}'}],
            "env_vars": {"VERL_PIVOT_SANDBOX_TOKEN": "sk-5", "GITHUB_TOKEN": "sk-6", "TOKENIZERS_PARALLELISM": "true"},
            "urls": ["http://any:sk-7@node1:8650/run_code", "http://node1/@me", "me@example.org"],
            "runtime": [{"GITLAB_TOKEN": "sk-8"}],
        }
        (folder / ".hydra" / "config.yaml").write_text(json.dumps(settings))
    report = report_of(*folders)

    assert report.runs[0].settings == {
        "judge.api_key": '"(not shown)"',
        "judge.password": "null",
        "judge.prompt_key": '"prompt"',
        "judge.max_tokens": "5",
        "headers": '[{"x-api-key": "(not shown)", "Authorization": "(not shown)", "Accept": "text"}]',
        "tools": '[{"url": "http://shop", "auth_token": "(not shown)"}]',
        "env_vars.VERL_PIVOT_SANDBOX_TOKEN": '"(not shown)"',
        "env_vars.GITHUB_TOKEN": '"(not shown)"',
        "env_vars.TOKENIZERS_PARALLELISM": '"true"',
        "urls": '["http://(not shown)@node1:8650/run_code", "http://node1/@me", "me@example.org"]',
        "runtime": '[{"GITLAB_TOKEN": "(not shown)"}]',
    }
    assert set(report.differing_settings) == {"judge.api_key", "tools"}
    assert "sk-" not in report.as_json() + page_of(*folders)


# ---- several runs


def test_a_difference_is_told_on_the_prompts_that_both_have(tmp_path: Path) -> None:
    first = write_scores(tmp_path / "first", {"a": [0.0, 0.0], "b": [0.0, 1.0], "only": [1.0]})
    second = write_scores(tmp_path / "second", {"a": [1.0, 0.0], "b": [1.0, None], "other": [0.0]})
    (found,) = report_of(first, second).differences

    assert (found.run, found.part, found.steps) == (1, RunPart.TRAINING, [1])
    assert (found.num_shared, found.num_paired, found.num_higher, found.num_lower) == (2, 2, 2, 0)
    assert (found.first_mean, found.mean, found.difference) == (0.25, 0.75, 0.5)
    assert (found.low, found.high) == (None, None)
    assert "<td>too few prompts</td>" in page_of(first, second)


def test_an_interval_is_told_from_ten_prompts_on(tmp_path: Path) -> None:
    first = write_scores(tmp_path / "first", {f"p{number}": [0.0] for number in range(10)})
    second = write_scores(tmp_path / "second", {f"p{number}": [0.5] for number in range(10)})
    (found,) = report_of(first, second).differences

    assert (found.difference, found.low, found.high) == (0.5, 0.5, 0.5)  # all prompts gain the same, so all draws do


def test_validation_is_compared_in_the_last_step_that_both_have(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, late in zip(folders, (0.0, 1.0), strict=True):
        for step, score in {1: 0.5, 2: late}.items():
            write_scores(folder, {"a": [score]}, step=step)
        (folder / "rollouts").rename(folder / "validation")
    write_scores(folders[0], {"a": [1.0]}, step=9)
    report = report_of(*folders)

    assert [(each.part, each.steps, each.difference) for each in report.differences] == [(RunPart.VALIDATION, [2], 1.0)]
    assert [part.num_kept for part in report.runs[0].parts] == [1, None]


def test_only_steps_that_both_runs_have_are_compared(tmp_path: Path) -> None:
    first = write_scores(tmp_path / "first", {"a": [0.0]})
    write_scores(first, {"a": [1.0]}, step=2)
    (found,) = report_of(first, write_scores(tmp_path / "second", {"a": [1.0]}, step=2)).differences

    assert (found.steps, found.first_mean, found.mean) == ([2], 1.0, 1.0)


def test_prompts_beyond_the_most_are_not_compared_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_pivot.inspect.prompt_changes.MAX_PAIRED", 2)
    first = write_scores(tmp_path / "first", {"a": [0.0], "b": [0.0], "c": [0.0]})
    second = write_scores(tmp_path / "second", {"a": [1.0], "b": [0.0], "c": [1.0]})
    (found,) = report_of(first, second).differences

    assert (found.num_shared, found.num_paired, found.num_higher, found.difference) == (3, 2, 1, 0.5)
    assert "<p>second and first share 3 prompts; 2 of them are compared.</p>" in page_of(first, second)


def test_a_mistake_in_a_query_of_ours_is_not_told_as_too_many_rollouts(tmp_path: Path) -> None:
    index = RunIndex([TrainingRun(write_scores(tmp_path, {"a": [0.0]}))])

    with pytest.raises(duckdb.BinderException, match="no_column"):
        index.count("SELECT no_column FROM rollouts")


def test_runs_that_share_no_prompts_say_so(tmp_path: Path) -> None:
    first, second = write_scores(tmp_path / "one", {"a": [0.0]}), write_scores(tmp_path / "two", {"b": [0.0]})
    third = write_scores(tmp_path / "three", {"a": [0.0]}, step=7)
    fourth = tmp_path / "four"
    fourth.mkdir()
    (fourth / "metrics.jsonl").write_text('{"step": 1, "actor/lr": 0.5}\n')

    assert "two and one share no prompts with a score in training." in page_of(first, second)
    assert "three and one have no step of training in common, so no prompts are compared." in page_of(first, third)
    assert "The runs have no part (training or validation) in common" in page_of(first, fourth)


def test_dumps_that_name_no_prompts_are_said_to(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        (folder / "rollouts").mkdir(parents=True)
        (folder / "rollouts" / "1.jsonl").write_text('{"uid": "a_0_0", "input": "2+3", "output": "5", "score": 1.0}\n')

    assert "share no prompts with a score in training: verl's own dumps do not name" in page_of(*folders)


# ---- pivots


def write_profile(folder: Path, sampled: Mapping[str, Sequence[float | None]]) -> Path:
    """Write trajectories of one turn each and, beside them, a profile whose samples have these scores."""
    written = [
        Trajectory(
            id=name,
            messages=(
                Message(role=Role.USER, content=f"Order of {name}"),
                Message(role=Role.ASSISTANT, content=f"Answer of {name}"),
            ),
            verifier="tool_call",
        )
        for name in sampled
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trajectories.jsonl").write_text("".join(json.dumps(trajectory_as_dict(each)) + "\n" for each in written))
    measured = ProfileSettings(
        model="policy", num_samples=4, sampling=Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1),
        max_prompt_tokens=64, chat_template_kwargs={}, input_sha256=file_sha256(folder / "trajectories.jsonl"),
    )  # fmt: skip
    lines: list[JsonObject] = [{"kind": KIND, "version": VERSION, "settings": measured.as_dict()}]
    for name, scores in sampled.items():
        samples = tuple(
            Sample(text=f"{HOSTILE} {score}", num_tokens=3, verdict=Verdict(score=score, reason="r", detail=HOSTILE))
            for score in scores
        )
        lines.append(profile_as_dict(TurnProfile(trajectory_id=name, index=0, samples=samples, num_prompt_tokens=9)))
    (folder / "profile.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "profile.jsonl"


def test_pivots_that_training_saw_come_first_and_hard_ones_before_others(tmp_path: Path) -> None:
    profile = write_profile(
        tmp_path, {"right": [1, 1], "wrong": [0, 0], "unseen": [0, 0, 0, 1], "easy": [1, 1, 1, 0], "hard": [0, 1, 0, 0]}
    )
    steps = {
        step: [
            make_line(f"{name}_0_0", score, trajectory_id=name, turn_index=0, step=step) for name in ("easy", "hard")
        ]
        for step, score in {1: 0.0, 9: 1.0}.items()
    }
    index = RunIndex([TrainingRun(write_run(tmp_path / "run", steps))])
    report = make_report(index, num_rollouts=1)
    found = read_pivots(index, profile, None, 3)

    assert found.reported.outcomes == {
        "always right": 1, "always wrong": 1, "mixed": 3, "undecided": 0, "overlong": 0,
    }  # fmt: skip
    assert [(each.turn, each.mean_score, each.scores) for each in found.reported.pivots] == [
        ("hard:0", 0.25, [{1: 0.0, 9: 1.0}]),
        ("easy:0", 0.75, [{1: 0.0, 9: 1.0}]),
        ("unseen:0", 0.25, [{}]),
    ]
    text = report_page(structs.replace(report, profile=found.reported), str, found.turns)
    assert ">Turn hard:0, tool_call</h4><p>mean score 0.25 of 4 samples</p>" in text
    assert "run: 0 in step 1, 1 in step 9</p>" in text
    assert "Order of hard" in text
    assert "Answer of hard" in text
    shown = SHOWN.replace("⟨U+D800⟩", "\\ud800")  # as a profile writes it
    assert text.count(f"{shown} 0") == 3  # equal samples are one row
    assert "<script" not in text


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    index = RunIndex([TrainingRun(write_scores(tmp_path / "run", {"a": [0.0]}))])
    write_profile(tmp_path, {"a": [0, 1]})

    with pytest.raises(DataError, match="is not a profile of version 1"):
        read_pivots(index, tmp_path / "trajectories.jsonl", None, 3)


# ---- the page


def test_hostile_texts_are_text_and_no_request_is_in_the_page(tmp_path: Path) -> None:
    call = CallRecord(turn=0, name=HOSTILE, arguments={HOSTILE: HOSTILE}, status=CallStatus.OK)
    line = make_line(
        "h_0_0", 0.0, [HOSTILE], observations=[[HOSTILE]], calls=(call,), reason=HOSTILE, detail=HOSTILE,
        data_source=HOSTILE, prompt_id=HOSTILE[:200],
    )  # fmt: skip
    folders = [tmp_path / "<b>one\u202e", tmp_path / "&two"]
    for folder in folders:
        metrics = [{"step": 1, f"val-core/{HOSTILE}": 1.0}, {"step": 2, f"val-core/{HOSTILE}": 0.5}]
        write_run(folder, {1: [line, make_line("g_0_0", 1.0)]}, metrics)
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(json.dumps({HOSTILE[:-1]: HOSTILE[:-1], "folder": folder.name}))
        (folder / "rollouts" / "1.jsonl").write_text(json.dumps({"uid": "h_0_0", "input": HOSTILE}) + "\n")

    text = page_of(*folders)
    page = _Page(text)

    assert page.tags == {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4", "p", "div", "span", "article"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "details", "summary"),
        *("svg", "line", "text", "polyline", "footer"),
    }
    assert set(page.attributes) == {
        *("lang", "charset", "http-equiv", "content", "name", "class", "scope", "dir", "role", "aria-label"),
        *("viewbox", "points", "x", "y", "x1", "x2", "y1", "y2", "text-anchor"),
    }
    assert text.count(SHOWN) == 2 * 4  # text, observation, prompt and explanation in both runs; other texts are cut
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\ud800-\udfff]", text) is None
    assert "url(" not in text
    assert "&lt;b&gt;one⟨U+202E⟩, &amp;two" in text


def test_the_page_is_smaller_than_3_mb_whatever_the_runs_hold(tmp_path: Path) -> None:
    """Twelve runs, each with ten best and ten worst rollouts, full of characters that take twelve bytes each."""
    sign = "\x1b" * 300
    turns = [sign] * 8
    lines = [
        make_line(f"{number}_0_0", float(number > 9), turns, prompt_id=f"p{number}", reason=f"{number}{sign}",
                  observations=[[sign] * 4] * 8, detail=sign)
        for number in range(20)
    ]  # fmt: skip
    names = [*FIRST_METRICS, *(f"val-core/{number}{sign}" for number in range(9)), *(f"{n}{sign}" for n in range(40))]
    metrics = [
        {"step": step, **{name: (step * 37 % 101) / 7 for name in names if "*" not in name}} for step in range(200)
    ]
    settings = json.dumps({f"{number}{sign}": sign for number in range(300)})
    folders = [tmp_path / f"run-{number}" for number in range(12)]
    for at, folder in enumerate(folders):
        write_run(folder, {1: lines}, metrics if at < 2 else metrics[:20])
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(settings.replace("\\u001b", "x", 1 + at))

    text = page_of(*folders, num_rollouts=10)

    assert len(text.encode()) < 3_000_000
    assert text.count("<article") == 240
    assert " rows are left out]" in text
    assert " characters are left out]" in text


def test_a_long_rollout_is_cut_in_turns_and_calls_and_says_so(tmp_path: Path) -> None:
    calls = tuple(CallRecord(turn=0, name="add", arguments={}, status=CallStatus.OK) for _ in range(10))
    line = make_line("a_0_0", 0.0, [f"turn number {number}" for number in range(1000)], calls=calls,
                     observations=[["read"] * 10] + [[]] * 999)  # fmt: skip
    text = page_of(write_run(tmp_path, {1: [line]}))

    shown = [int(each) for each in re.findall(r"turn number (\d+)", text)]
    assert shown == [*range(9), *range(996, 1000)]
    assert "[987 turns are left out]" in text
    assert "[7 calls are left out]" in text
    assert "[7 texts that the policy read are left out]" in text


def test_a_dump_that_is_gone_leaves_a_sentence_in_place_of_the_rollout(tmp_path: Path) -> None:
    folder = write_scores(tmp_path, {"a": [0.0]})
    index = RunIndex([TrainingRun(folder)])
    report = make_report(index, num_rollouts=1)
    (folder / "rollouts" / "pivot" / "1.jsonl").unlink()

    text = report_page(report, lambda chosen: open_chosen(index, chosen))

    assert "1.jsonl cannot be read: No such file or directory" in text


def test_lines_that_are_no_rollouts_are_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {1: [b"no json\n", make_line("a_0_0", 1.0)]}, [{"step": 1, "actor/lr": float("nan")}])

    (problem,) = report_of(folder).problems
    assert problem.endswith(
        "1 lines are not rollouts and are left out; the first one is line 1 (Expecting value: line 1 column 1 (char 0))"
    )
    assert as_html(problem) in page_of(folder)


def test_a_run_whose_files_hold_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no settings, metrics or rollouts to report"):
        report_of(write_run(tmp_path, {1: []}))


def test_rollouts_that_take_too_long_to_count_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "verl_pivot.inspect.report_counts.IS_DECIDED", "(SELECT count(*) FROM range(1000000000000)) > 0"
    )
    monkeypatch.setattr("verl_pivot.inspect.rollout_table.MAX_SECONDS", 0.3)

    with pytest.raises(DataError, match=r"too many rollouts to count within 0\.3 s and 2GB of memory: give fewer runs"):
        report_of(write_scores(tmp_path, {"a": [0.0]}))


@pytest.mark.heavy
def test_a_browser_shows_it_in_light_and_dark_and_asks_for_nothing(tmp_path: Path) -> None:
    metrics = [{"step": 1, "actor/lr": 1.0}, {"step": 2, "actor/lr": 0.5}]
    folder = write_run(tmp_path / "run", {1: [make_line("a_0_0", 0.0, [HOSTILE])]}, metrics)
    out = tmp_path / "report.html"
    out.write_text(page_of(folder))
    backgrounds, asked, said = [], [], []
    with chromium() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: said.append(message.text))
            page.goto(out.as_uri())
            backgrounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
            page.emulate_media(media="print")
            backgrounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
            assert page.evaluate("document.body.scrollWidth <= innerWidth")

    assert backgrounds == ["rgb(255, 255, 255)", "rgb(255, 255, 255)", "rgb(22, 24, 29)", "rgb(255, 255, 255)"]
    assert asked == [out.as_uri()] * 2
    assert said == []  # the console would name what the page's policy forbids, such as a changed style


# ---- pieces


def test_the_characters_that_become_signs_are_those_of_the_page_of_inspect() -> None:
    script = (STATIC / "dom.js").read_text()
    (members,) = re.findall(r"const HIDDEN =\s*/\[(.*)\]/gu;", script)
    hidden = re.compile("[" + re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:0>8}", members) + "]")

    every = "".join(map(chr, range(0x110000)))
    signs = "".join(f"⟨U+{ord(each):04X}⟩" for each in hidden.findall(every))
    assert "".join(re.findall("⟨U[^⟩]*⟩", as_html(every))) == signs


def test_the_metrics_that_come_first_are_those_of_the_page_of_inspect() -> None:
    (names,) = re.findall(r"const FIRST = \[(.*?)\];", (STATIC / "run.js").read_text(), re.DOTALL)

    assert tuple(re.findall(r'"([^"]+)"', names)) == FIRST_METRICS


@given(st.text(st.characters(codec=None) | st.sampled_from('\x1b"&a'), max_size=200), st.integers(3, 120))
def test_a_bounded_text_has_its_beginning_and_its_end_and_no_more_bytes(text: str, max_bytes: int) -> None:
    written = bounded_html(text, max_bytes)
    if written == as_html(text):
        assert len(written.encode()) <= max_bytes
        return
    head, note, tail = re.split(r'(<span class="cut">.*</span>)', written)

    assert len((head + tail).encode()) <= max_bytes
    num_cut = int(re.sub(r"\D", "", note))
    for at in range(len(text) - num_cut + 1):
        if (as_html(text[:at]), as_html(text[at + num_cut :])) == (head, tail):
            return
    pytest.fail(f"{written!r} is not {text!r} without its middle")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 50))
def test_thinned_points_keep_the_extremes_and_their_order(values: list[float], max_points: int) -> None:
    points = [Point(step, value) for step, value in enumerate(values)]
    kept = thinned(points, max_points)

    assert len(kept) <= max_points or kept == points
    assert kept == sorted(kept)
    assert {min(values), max(values)} <= {point.value for point in kept}


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (1234567, "1,234,567"), (0.123456, "0.1235"), (0.00000512, "5.12e-06"), (2e300, "2e+300")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short_number(value) == text


def test_a_drawing_puts_the_least_and_the_greatest_value_at_its_edges() -> None:
    drawing = draw("loss", [[Point(1, 0.0), Point(3, 1.0)], [Point(2, 0.5)]])

    assert '<polyline class="run-0" points="46.0,130.0 332.0,8.0"/>' in drawing
    assert '<circle class="run-1" cx="189.0" cy="69.0" r="2.5"/>' in drawing
    assert 'aria-label="loss, steps 1 to 3, least 0, greatest 1"' in drawing


def numbers_in(value: Any) -> list[float]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, float) else [each for item in values for each in numbers_in(item)]


def test_the_numbers_as_json_are_finite_and_ascii(tmp_path: Path) -> None:
    lines = [make_line("a_0_0", 1e308, prompt_id="a", reason=HOSTILE), make_line("b_0_0", 1e308, prompt_id="b")]
    text = report_of(write_run(tmp_path, {1: lines}, [{"step": 1, "x": 1e299, "y": float("inf")}])).as_json()

    assert text.isascii()
    assert json.loads(text)["runs"][0]["metrics"] == {"x": [[1, 1e299]]}
    assert all(abs(each) < 2e308 for each in numbers_in(json.loads(text)))
