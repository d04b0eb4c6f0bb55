"""`verl-pivot score`: stored samples of a profile are scored again, or one action is scored."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from tests.support.dumped_runs import read_index
from tests.support.factories import ANSWER, CALL, RESULT, SYSTEM, USER, make_trajectory
from tests.support.rollout_records import dump_line, make_record
from verl_pivot.cli import app
from verl_pivot.commands.tables import printable
from verl_pivot.data.actions import TRUNCATED
from verl_pivot.data.pivots import SCHEMA, PivotNumbers, pivot_rows
from verl_pivot.data.rollout_dumps import DumpedOutcome, DumpedTurn, encode_line, encode_transcript
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.engines.engine import Sampling
from verl_pivot.inspect.queries import RolloutPlace
from verl_pivot.inspect.texts import read_lines
from verl_pivot.inspect.verdict_marks import FILE_NAME, toggle_mark
from verl_pivot.profiling.early_stopping import EarlyStop
from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
from verl_pivot.profiling.published import published_profile_header
from verl_pivot.profiling.writer import open_profile
from verl_pivot.types import Sample, Trajectory, TurnProfile, Verdict

RIGHT = '<tool_call>{"name": "find_order", "arguments": {"order_id": 17}}</tool_call>'
AS_TEXT = '<tool_call>{"name": "find_order", "arguments": {"order_id": "17"}}</tool_call>'
ACCEPTED = Verdict.accept()
WRONG = Verdict.refuse("wrong_value", "find_order.order_id")
CUT_OFF = Verdict.refuse(TRUNCATED.reason, TRUNCATED.detail)
LENIENT = """
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.verifiers.registry import register

@register("lenient")
async def lenient(action: Message, turn: Turn) -> Verdict:
    if [call.name for call in action.tool_calls] == [call.name for call in turn.expert.tool_calls]:
        return Verdict.accept()
    return Verdict.refuse("other_tools")
"""


def write_trajectories(folder: Path, *trajectories: Trajectory, name: str = "trajectories.jsonl") -> Path:
    lines = [json.dumps(trajectory_as_dict(trajectory)) + "\n" for trajectory in trajectories or (make_trajectory(),)]
    (folder / name).write_text("".join(lines))
    return folder / name


def write_profile(
    trajectories: Path,
    samples: Sequence[tuple[str, Verdict]],
    *,
    trajectory_id: str = "shop-1",
    early_stop: EarlyStop | None = None,
) -> Path:
    """Write a profile whose only turn is the first one of a trajectory."""
    settings = ProfileSettings(
        model="policy", input_sha256=file_sha256(trajectories), num_samples=4, sampling=Sampling(),
        max_prompt_tokens=100, chat_template_kwargs={}, early_stop=early_stop,
    )  # fmt: skip
    path = trajectories.with_name("profile.jsonl")
    with open_profile(path, settings) as writer:
        stored = tuple(Sample(text=text, verdict=verdict, num_tokens=9) for text, verdict in samples)
        writer.append(TurnProfile(trajectory_id=trajectory_id, index=0, samples=stored, num_prompt_tokens=7))
    return path


def score(*arguments: str | Path, stdin: str | bytes = "") -> Result:
    """Run the command in this process, which is faster."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["score", *map(str, arguments)], input=stdin)


def refusal(*arguments: str | Path, stdin: str | bytes = "") -> str:
    done = score(*arguments, stdin=stdin)
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("error: ").strip()


def with_module(folder: Path, code: str, name: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(code)
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Profile of four samples: a right call, the same with a number as a text, a call that was cut off, a message."""
    samples = [(RIGHT, ACCEPTED), (AS_TEXT, ACCEPTED), (RIGHT, CUT_OFF), ("Sent.", WRONG)]
    return write_profile(write_trajectories(tmp_path), samples)


def test_scoring_with_the_rows_verifier_finds_a_wrong_stored_verdict(profile: Path) -> None:
    """`tool_call` refuses a number that is written as a text, so that the stored verdict of sample 1 is wrong."""
    report = json.loads(score(profile, "--json").stdout)

    assert (report["num_turns"], report["num_samples"], report["num_changed"]) == (1, 4, 1)
    (changed,) = report["changed"]
    assert (changed["turn"], changed["sample"], changed["text"]) == ("shop-1:0", 1, AS_TEXT)
    assert changed["before"] == {"score": 1.0, "reason": "accepted", "detail": ""}
    assert (changed["after"]["score"], changed["after"]["reason"]) == (0.0, "wrong_type")
    assert report["reasons_before"] == {"accepted": 2, "truncated": 1, "wrong_value": 1}
    assert report["reasons_after"] == {
        "accepted": 1, "wrong_type": 1, "truncated": 1, "message_instead_of_call": 1
    }  # fmt: skip
    assert (report["now_mixed"], report["no_longer_mixed"], report["refused_experts"]) == ([], [], {})


def test_another_verifier_changes_verdicts_and_the_turn_is_no_longer_mixed(tmp_path: Path) -> None:
    profile = write_profile(write_trajectories(tmp_path), [(RIGHT, ACCEPTED), (AS_TEXT, WRONG), (AS_TEXT, WRONG)])
    module = with_module(tmp_path, LENIENT, "lenient")

    done = score(profile, "--verifier", "lenient", "--verifier-module", module)

    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "Changed verdicts, 2 of 2" in shown
    assert "│ shop-1:0 │ 1,2 │ 0 wrong_value -> 1 accepted │" in shown
    assert "│ accepted │ 1 │ 3 │ +2 │" in shown
    assert "│ wrong_value │ 2 │ 0 │ -2 │" in shown
    assert "│ turns mixed │ 1 │ 0 │ -1 │" in shown
    assert "2 of 3 verdicts change." in shown
    assert "0 turns become mixed, so that they can be pivots; 1 are no longer mixed (shop-1:0)." in shown
    assert "The expert's own action gets full score at 1 of 1 turns." in shown


def test_only_as_many_changed_verdicts_are_listed_as_asked_for_and_all_are_counted(tmp_path: Path) -> None:
    profile = write_profile(write_trajectories(tmp_path), [(RIGHT, WRONG), (AS_TEXT, ACCEPTED), ("Sent.", ACCEPTED)])

    shown = score(profile, "--show", "2").stdout

    assert "Changed verdicts, 2 of 3" in shown
    assert "wrong_type" in shown.partition("reason of the verdict")[0]
    assert "Sent." not in shown
    assert "3 of 3 verdicts change." in shown
    assert "Changed verdicts" not in score(profile, "--show", "0").stdout
    assert len(json.loads(score(profile, "--show", "0", "--json").stdout)["changed"]) == 3


def test_a_sample_that_was_cut_off_stays_so_under_any_verifier(profile: Path, tmp_path: Path) -> None:
    module = with_module(tmp_path, LENIENT.replace("lenient", "lenient_too"), "lenient_too")

    report = json.loads(score(profile, "--verifier", "lenient_too", "--verifier-module", module, "--json").stdout)

    assert report["reasons_after"] == {"accepted": 2, "other_tools": 1, "truncated": 1}


def test_trajectories_alone_show_whether_the_verifier_accepts_the_experts(tmp_path: Path) -> None:
    said = score(write_trajectories(tmp_path), "--verifier", "qa").stdout

    assert said.splitlines()[:3] == [
        "2 turns, none with samples: only the experts' own actions were scored.",
        "The expert's own action gets full score at 0 of 2 turns.",
        "  broken_gold: 2, such as turn shop-1:0: the expert makes a call",
    ]


def test_for_a_profile_with_early_stopping_a_note_explains_what_is_missing(tmp_path: Path) -> None:
    plan = EarlyStop(filter="pivots", stages=(2, 4))
    profile = write_profile(write_trajectories(tmp_path), [(RIGHT, ACCEPTED), ("Sent.", WRONG)], early_stop=plan)

    assert "with the new ones some turns might have got more samples" in score(profile).stdout


def test_one_turn_shows_every_sample(profile: Path) -> None:
    shown = " ".join(score(profile, "--turn", "shop-1:0").stdout.split())

    assert "Turn shop-1:0, verifier tool_call" in shown
    assert "│ expert │ │ 1 accepted │ │ find_order({'order_id': 17}) │" in shown
    assert "│ 2 │ 0 truncated │ 0 truncated │" in shown


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (RIGHT, ["score   1", "reason  accepted"]),
        ("It is on its way.", ["score   0", "reason  message_instead_of_call"]),
        ("<tool_call>{</tool_call>", ["score   0", "reason  malformed_call"]),
        ("[1, 2]", ["score   0", "reason  message_instead_of_call"]),
        (json.dumps(CALL.as_dict()), ["score   1", "reason  accepted"]),
        ('{"tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}', ["score   0", "reason  wrong_tool"]),
    ],
)
def test_one_action_is_scored_from_stdin_as_text_or_as_a_message(profile: Path, action: str, said: list[str]) -> None:
    done = score(profile, "--turn", "shop-1:0", "--action", "-", stdin=action + "\n")

    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:3] == ["Turn shop-1:0, verifier tool_call", *said]
    assert score(profile, "--turn", "shop-1:0", "--action", action).stdout == done.stdout


def test_an_action_can_be_scored_without_a_profile(tmp_path: Path) -> None:
    done = score(write_trajectories(tmp_path), "--turn", "shop-1:0", "--action", RIGHT, "--json")

    assert json.loads(done.stdout) == {
        "turn": "shop-1:0", "verifier": "tool_call", "score": 1.0, "reason": "accepted", "detail": ""
    }  # fmt: skip


def write_rollouts(path: Path, *rollouts: tuple[str, bool, float | None, str], trajectory_id: str = "shop-1") -> Path:
    """Write a dump with a rollout of the first turn for each (text, ended, score, reason), scored by tool_call."""
    lines = [
        encode_line(
            DumpedOutcome(uid=f"g_{number}_0", step=1, score=score, verifier="tool_call", reason=reason, is_kept=True),
            encode_transcript(
                {"trajectory_id": trajectory_id, "turn_index": 0},
                make_record(),
                [DumpedTurn(text=text, num_tokens=9, ended=ended)],
            ),
        )
        for number, (text, ended, score, reason) in enumerate(rollouts)
    ]
    path.write_bytes(b"".join(lines))
    return path


def test_rollouts_of_training_are_scored_again_from_their_dump(tmp_path: Path) -> None:
    dump = write_rollouts(
        tmp_path / "1.jsonl",
        (RIGHT, True, 1.0, "accepted"),
        (AS_TEXT, True, 1.0, "accepted"),
        (RIGHT, False, 0.0, "truncated"),
    )

    report = json.loads(score(dump, "--trajectories", write_trajectories(tmp_path), "--json").stdout)

    assert (report["num_turns"], report["num_samples"], report["num_changed"]) == (1, 3, 1)
    assert [(each["turn"], each["sample"], each["after"]["reason"]) for each in report["changed"]] == [
        ("shop-1:0", 1, "wrong_type")
    ]
    assert report["reasons_after"] == {"accepted": 1, "wrong_type": 1, "truncated": 1}


def test_verdicts_that_were_marked_as_wrong_are_a_test_set(tmp_path: Path) -> None:
    lines = [(RIGHT, True, 1.0, "accepted"), ("Sent.", True, 0.0, "wrong"), (RIGHT, True, 1.0, "accepted")]
    index = read_index(write_rollouts(tmp_path / "1.jsonl", *lines))
    for line in (1, 2):
        found = index.find(RolloutPlace(0, "1.jsonl", line))
        toggle_mark(tmp_path / FILE_NAME, found, read_lines(index.row_place(found)), [])

    report = json.loads(score(tmp_path / FILE_NAME, "--trajectories", write_trajectories(tmp_path), "--json").stdout)

    changed = [(each["before"]["score"], each["after"]["score"]) for each in report["changed"]]
    assert (report["num_samples"], changed) == (2, [(0.0, 1.0), (1.0, 0.0)])


def test_actions_that_are_in_no_dump_are_told(tmp_path: Path) -> None:
    dump = write_rollouts(tmp_path / "1.jsonl", (RIGHT, True, 1.0, "accepted"), ("Sent.", True, 0.0, "wrong"))
    first, second = dump.read_text().splitlines()
    textless = [json.loads(line) for line in (first, second)]
    for fields in textless:
        del fields["turns"][0]["text"]
    dump.write_text(f"{first}\n{json.dumps(textless[1])}\n")

    done = score(dump, "--trajectories", write_trajectories(tmp_path))

    assert "0 of 1 verdicts change." in done.stdout
    assert "1 rollouts are left out: pivot.record left out their texts." in done.stdout
    dump.write_text("".join(f"{json.dumps(fields)}\n" for fields in textless))
    assert refusal(dump, "--trajectories", tmp_path / "trajectories.jsonl") == (
        f"{dump} holds no texts of actions, as pivot.record left them out; train with pivot.record=all to score "
        "them again"
    )


def test_a_dump_finds_its_states_in_the_pivots_that_were_trained_on(tmp_path: Path) -> None:
    dump = write_rollouts(tmp_path / "1.jsonl", (RIGHT, True, 1.0, "accepted"), ("Sent.", True, 0.0, "wrong"))
    rows = list(pivot_rows(make_trajectory(), {0: PivotNumbers(split="train")}))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "pivots.parquet")

    done = score(dump, "--trajectories", tmp_path / "pivots.parquet")

    assert done.exit_code == 0, done.output
    assert "0 of 2 verdicts change." in done.stdout
    assert "full score at 1 of 1 turns" in score(tmp_path / "pivots.parquet").stdout


def test_rollouts_that_no_verifier_scored_are_left_out_and_counted(tmp_path: Path) -> None:
    dump = write_rollouts(tmp_path / "1.jsonl", (RIGHT, True, 1.0, "accepted"))
    with_tools = dump_line("h_0_0")
    masked = dump.read_text().replace('"tool_call"', '"outcome"').replace("g_0_0", "g_1_0")
    dump.write_text(dump.read_text() + with_tools + masked)

    done = score(dump, "--trajectories", write_trajectories(tmp_path))

    assert "0 of 1 verdicts change." in done.stdout
    assert "2 rollouts are left out: no verifier scored them." in done.stdout
    dump.write_text(with_tools)
    assert refusal(dump, "--trajectories", tmp_path / "trajectories.jsonl") == (
        f"{dump} holds no rollout of a pivot that a verifier scored: rollouts with tools are scored by their "
        "environment or by verl's reward function"
    )


def test_a_dump_without_its_states_is_refused(tmp_path: Path) -> None:
    dump = write_rollouts(tmp_path / "1.jsonl", (RIGHT, True, 1.0, "accepted"))
    others = write_trajectories(tmp_path, make_trajectory(id="other"))

    assert refusal(dump) == (
        f"{dump} is a dump of rollouts, which does not hold their prompts; give the pivots.parquet of the training "
        "as --trajectories"
    )
    assert refusal(dump, "--trajectories", others) == (
        f"1 of 1 pivots of {dump} are not in {others}, such as turn shop-1:0; give the training file as --trajectories"
    )
    dump.write_text(dump.read_text().replace('"score":1.0', '"score":7.0'))
    assert "rollout g_0_0: a verdict's score must lie in [0, 1]" in refusal(dump, "--trajectories", others)


def test_ids_with_colons_and_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = make_trajectory(id="a:b [red]:1", messages=(SYSTEM, USER, CALL, RESULT, ANSWER))
    profile = write_profile(write_trajectories(tmp_path, odd), [("[/bold]", ACCEPTED)], trajectory_id=odd.id)

    assert "a:b [red]:1:0" in score(profile).stdout
    assert "[/bold]" in score(profile, "--turn", "a:b [red]:1:0").stdout


def test_text_of_a_model_never_acts_on_the_terminal_and_never_breaks_the_table(tmp_path: Path) -> None:
    hostile = "\x1b]0;title\x07 \x1b[2J \u202e end"
    profile = write_profile(write_trajectories(tmp_path), [(hostile, Verdict.accept(reason="\x1b[2J"))])

    for shown in (score(profile), score(profile, "--turn", "shop-1:0")):
        assert shown.exit_code == 0, shown.output
        assert not {"\x1b", "\x07", "\u202e"} & set(shown.stdout)
        assert "end" in shown.stdout
    assert printable("a\ud800\x1b\n") == "a\\ud800\\x1b\n"
    assert json.loads(score(profile, "--json").stdout)["changed"][0]["text"] == hostile


def test_the_trajectories_are_found_beside_the_profile_under_any_name(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").rename(tmp_path / "shop.jsonl")
    write_trajectories(tmp_path, make_trajectory(id="other"))

    assert json.loads(score(profile, "--json").stdout)["num_samples"] == 4


def test_missing_or_different_trajectories_are_refused(profile: Path, tmp_path: Path) -> None:
    others = write_trajectories(tmp_path, make_trajectory(id="other"))

    assert refusal(profile) == (
        f"no .jsonl file in the folder of {profile} is the file that the profile was measured on; give that file as "
        "--trajectories"
    )
    assert refusal(profile, "--trajectories", others).startswith(
        f"{profile} was not measured on the present content of {others}"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [][0]", "raised IndexError: list index out of range at turn shop-1:0 ("),
        ("return 1.0", "returned 1.0 at turn shop-1:0; return Verdict.accept(),"),
        ("return None", "returned None at turn shop-1:0; return Verdict.accept(),"),
        ("import json; json.loads('{')", "raised JSONDecodeError: Expecting property name"),
        ("return Verdict(score=2.0, reason='great')", "raised ValueError: a verdict's score must lie in [0, 1]"),
    ],
)
def test_an_exception_in_a_verifier_is_reported_with_its_place(
    profile: Path, tmp_path: Path, body: str, said: str
) -> None:
    name = f"broken_{abs(hash(body))}"
    code = LENIENT.split("    if ")[0].replace("lenient", name) + f"    {body}\n"
    module = with_module(tmp_path, code, name)

    message = refusal(profile, "--verifier", name, "--verifier-module", module)

    assert message.startswith(f"verifier '{name}' {said}")
    assert "raised" not in message or f"({module}, line 7, in {name})" in message


def test_a_verifier_that_is_not_async_is_refused(profile: Path, tmp_path: Path) -> None:
    code = LENIENT.replace("async def lenient", "def lenient").replace("lenient", "not_async")
    module = with_module(tmp_path, code, "not_async")

    message = refusal(profile, "--verifier", "not_async", "--verifier-module", module)

    assert message == "verifier 'not_async' is not async; define it with `async def`"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--verifier-options", "{}x"], "--verifier-options: not JSON"),
        (
            ["--verifier-options", '{"mode": "bfcl"}'],
            "--verifier-options was given without --verifier; name the verifier, too",
        ),
        (["--verifier", "tool_cal"], "unknown verifier 'tool_cal'; known: "),
        (["--verifier", "tool_call", "--verifier-options", '{"rule": 1}'], "verifier tool_call.rule: unknown key"),
        (["--action", "-"], "--action was given without --turn; name the turn at which it is scored"),
        (["--turn", "shop-1:7"], "there is no turn 'shop-1:7' in "),
        (["--turn", "shop-1:0", "--action", " "], "--action is empty; give a text, such as"),
        (["--turn", "shop-1:0", "--action", '{"role": "user", "content": "Hi"}'], "--action must be a message of the"),
        (["--turn", "shop-1:0", "--action", '{"content": 1}'], "--action is not a message: content must be text"),
    ],
)
def test_wrong_or_contradictory_options_are_refused_in_one_sentence(
    profile: Path, arguments: list[str], said: str
) -> None:
    assert refusal(profile, *arguments).startswith(said)


def test_files_without_actions_are_refused_with_the_remedy(tmp_path: Path) -> None:
    published = tmp_path / "published.jsonl"
    published.write_text(published_profile_header("0" * 64) + "\n")
    (tmp_path / "notes.txt").write_text("Hello\n")

    assert "holds published scores without actions" in refusal(published)
    assert refusal(tmp_path / "none.jsonl").endswith(
        "none.jsonl cannot be read: No such file or directory; give the profile.jsonl of `verl-pivot profile`, or a "
        "trajectories.jsonl"
    )
    assert "line 1 is not a trajectory" in refusal(tmp_path / "notes.txt")
    (tmp_path / "12.jsonl").write_text('{"input": "Hi", "output": "Hello", "uid": "a_0_0", "score": 1.0}\n')
    assert refusal(tmp_path / "12.jsonl") == (
        f"{tmp_path}/12.jsonl is verl's own dump, without the turns of its rows; give {tmp_path}/pivot/12.jsonl"
    )
    assert "cannot be read: Is a directory" in refusal(tmp_path)


def test_an_action_that_is_not_utf8_is_refused(profile: Path) -> None:
    assert refusal(profile, "--turn", "shop-1:0", "--action", "-", stdin=b"\xff\xfe").startswith(
        "--action - is not UTF-8"
    )


def test_the_selection_tells_a_verifier_that_breaks_with_the_same_sentence(tmp_path: Path) -> None:
    code = LENIENT.split("    if ")[0].replace("lenient", "breaks_in_select") + "    return turn.metadata['seed']\n"
    module = with_module(tmp_path, code, "breaks_in_select")
    row = replace(make_trajectory(), verifier="breaks_in_select")
    files = (str(write_trajectories(tmp_path, row)), "--out", str(tmp_path / "pivots.parquet"))
    options = ("--keep", "all", "--max-prompt-tokens", "0", "--validation-share", "0", "--workers", "1")

    done = CliRunner().invoke(app, ["select", *files, *options, "--verifier-module", str(module)])

    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: verifier 'breaks_in_select' raised KeyError: 'seed' at turn shop-1:0 ({module}, line 7, in "
        "breaks_in_select)"
    )
