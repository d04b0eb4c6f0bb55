"""What import and profile refuse at once, since a later stage would refuse it: verifiers, modules, schemas, models."""

import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result
from typer.testing import CliRunner

from verl_pivot.cli import app
from verl_pivot.engines.engine import Sampling
from verl_pivot.profiling.profiles import ProfileSettings, file_sha256
from verl_pivot.profiling.writer import open_profile
from verl_pivot.types import JsonObject

CALL: JsonObject = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
MESSAGES: list[JsonObject] = [
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "sent"},
    {"role": "assistant", "content": "It is on its way."},
]
TOOL: JsonObject = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})


def write(path: Path, **columns: object) -> Path:
    path.write_text(json.dumps({"id": "shop-1", "messages": MESSAGES, "tools": [TOOL], **columns}) + "\n")
    return path


def imported(folder: Path, **columns: object) -> Path:
    out = folder / "t.jsonl"
    assert run("import", write(folder / "in.jsonl", **columns), "--out", out).exit_code == 0
    return out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--verifier", "nobody"), "unknown verifier 'nobody'; known: "),
        (("--verifier-options", '{"mode": "exact"}'), "verifier tool_call.mode: Input should be 'functional'"),
        (("--verifier-options", '{"judge": {}}'), "verifier tool_call.judge: unknown key; known: accepted, dates"),
        (
            ("--verifier-options", '{"message_judge": {"model": "m"}}'),
            "verifier judge.base_url: Field required",
        ),
        (("--verifier-module", "missing.py"), "verifier module 'missing.py' is not a file"),
        (("--verifier-module", "no_such_module"), "verifier module 'no_such_module' cannot be imported"),
    ],
)
def test_a_verifier_that_training_would_refuse_is_refused_by_the_import(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = run("import", write(tmp_path / "in.jsonl"), "--out", tmp_path / "t.jsonl", *options)

    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "t.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero, {path}, line 2"),
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "SystemExit: 3, {path}, line 1"),
    ],
)
def test_a_verifier_module_that_breaks_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    module = tmp_path / "mine.py"
    module.write_text(text)

    result = run("import", write(tmp_path / "in.jsonl"), "--out", tmp_path / "t.jsonl", "--verifier-module", module)

    assert result.exit_code == 1
    assert f"verifier module '{module}' fails when it is imported: {message.format(path=module)}" in result.stderr


def test_a_row_that_names_an_unknown_verifier_is_rejected_with_its_place(tmp_path: Path) -> None:
    result = run("import", write(tmp_path / "in.jsonl", verifier="nobody"), "--out", tmp_path / "t.jsonl")

    assert result.exit_code == 1
    assert "1 for bad_verifier" in result.stderr
    assert "in.jsonl, line 1: unknown verifier 'nobody'; known: " in result.stderr


def test_calls_without_schemas_are_rejected_unless_they_are_wanted(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", tools=None), tmp_path / "t.jsonl"

    refused, kept = run("import", source, "--out", out), run("import", source, "--out", out, "--allow-no-tools")

    assert (refused.exit_code, kept.exit_code) == (1, 0)
    assert "1 for no_tools" in refused.stderr
    assert "give --tools FILE, or keep such rows with --allow-no-tools" in refused.stderr
    assert f"Next: verl-pivot profile {out} --out {tmp_path}/profile.jsonl --allow-no-tools" in kept.stdout


def test_the_import_says_what_turns_that_are_messages_are_paid(tmp_path: Path) -> None:
    judge = {"message_judge": {"base_url": "http://localhost:1/v1", "model": "m"}}
    source, out = write(tmp_path / "in.jsonl"), tmp_path / "t.jsonl"

    by_default = run("import", source, "--out", out).stdout
    judged = run("import", source, "--out", out, "--verifier-options", json.dumps(judge)).stdout

    assert "1 of 2 turns are messages: any text is accepted; judge them" in by_default
    assert "--turns calls" in by_default
    assert "are messages" not in judged


def test_an_input_that_is_not_there_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl")
    (tmp_path / "runs").mkdir()

    for missing, said in (
        (
            "none.jsonl",
            f"error: there is no file none.jsonl in {tmp_path}; name files of JSON lines, JSON or parquet\n",
        ),
        ("/none.jsonl", "error: there is no file /none.jsonl; name files of JSON lines, JSON or parquet\n"),
        ("runs", "error: runs is a folder; name the files in it, such as runs/*.jsonl\n"),
    ):
        result = run("import", "in.jsonl", missing, "--out", "t.jsonl")
        assert (result.exit_code, result.stderr) == (1, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "runs"]


@pytest.mark.parametrize(
    ("command", "name", "better"),
    [
        (("import", "x.jsonl"), "t.parquet", "t.jsonl"),
        (("import", "x.jsonl"), "t.jsonl.gz", "t.jsonl"),
        (("filter", "t.jsonl"), "f.parquet", "f.jsonl"),
        (("profile", "t.jsonl", "--model", "m"), "p.zst", "p.jsonl"),
        (("play", "tools.yaml"), "played.parquet", "played.jsonl"),
        (("select", "t.jsonl"), "pivots.jsonl", "pivots.parquet"),
        (("export", "t.jsonl", "--to", "verl"), "e.jsonl", "e.parquet"),
        (("export", "t.jsonl", "--to", "jsonl"), "e.parquet", "e.jsonl"),
        (("export", "t.jsonl", "--to", "nemo-gym"), "e.jsonl.gz", "e.jsonl"),
        (("workflows", "induce", "1.jsonl"), "w.jsonl.gz", "w.jsonl"),
        (("hard-set", "problems.parquet", "--rollouts", "r.jsonl"), "hard", "hard.parquet"),
    ],
)
def test_an_output_whose_name_would_be_read_as_another_kind_of_file_is_refused(
    tmp_path: Path, command: tuple[str, ...], name: str, better: str
) -> None:
    result = run(*command, "--out", tmp_path / name)

    assert result.exit_code == 1, result.output
    assert f"give {tmp_path / better}" in result.stderr or f"such as {tmp_path / better}" in result.stderr
    assert not any(tmp_path.iterdir())


PROFILE = ("profile", "t.jsonl", "--model", "m", "--out", "p.jsonl")
SYNTHESIZE = ("synthesize", "rejection", "--tasks", "t.jsonl", "--out", "s")
SERVER = ("--endpoint", "http://a")


@pytest.mark.parametrize(
    ("words", "void", "remedy"),
    [
        ((*PROFILE, "--address", "a:1"), "--address", "give --ray, too"),
        ((*PROFILE, "--gpus-per-server", "2", *SERVER), "--gpus-per-server", "give --ray, too"),
        ((*SYNTHESIZE, "--address", "a:1"), "--address", "give --ray, too"),
        (
            (*SYNTHESIZE, "--address", "a:1", "--workers-per-node", "2"),
            "--address and --workers-per-node",
            "give --ray, too",
        ),
        ((*PROFILE, "--ray", "--gpus-per-server", "2", *SERVER), "--gpus-per-server", "leave it out"),
        ((*PROFILE, "--ray", "--workers-per-node", "2"), "--workers-per-node", "or name servers with --endpoint"),
    ],
)
def test_an_option_of_a_cluster_that_would_do_nothing_is_refused(
    words: tuple[str, ...], void: str, remedy: str
) -> None:
    result = run(*words)

    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"error: {void} would do nothing: "), result.stderr
    assert remedy in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "process label 1.jsonl ./1.jsonl --rows r.parquet --out t.parquet",
        "workflows induce 1.jsonl ./1.jsonl --out w.jsonl",
    ],
)
def test_a_dump_that_is_given_twice_is_refused(command: str) -> None:
    said = "error: a dump is given twice: each must be another file, since its rollouts would count twice\n"

    assert run(*command.split()).stderr == said


PLAY = ("play", "tools.yaml")
BENCH = ("process", "bench", "t.parquet", "--base-url", "http://a", "--model", "m")
LABEL = ("process", "label", "1.jsonl", "--rows", "r.parquet", "--out", "t.parquet")
ROWS = ("environment-rows", "--out", "r.parquet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (*PLAY, "--openai", "http://a", "--rows", "r.jsonl", "--metadata", "{"),
            "--metadata does nothing with --rows",
        ),
        ((*PLAY, "--human", "--prompt", "Hi", "--num", "2"), "--num does nothing without --rows"),
        (
            (*PLAY, "--human", "--prompt", "Hi", "--model", "m", "--temperature", "1", "--concurrency", "2"),
            "--model and --temperature and --concurrency do nothing with --human, who answers instead of a model",
        ),
        ((*ROWS, "miniwob:click-button", "--python", "p"), "--python does nothing with miniwob"),
        ((*ROWS, "miniwob:click-button", "--arguments", "{}"), "--arguments does nothing with miniwob"),
        ((*ROWS, "verifiers:wordle", "--first-seed", "0"), "--first-seed does nothing with verifiers"),
        (
            ("score", "p.jsonl", "--turn", "t:1", "--limit", "1", "--show", "2"),
            "--limit and --show do nothing with --turn, which scores one turn",
        ),
        (
            (*BENCH, "--form", "released", "--max-added-principles", "2"),
            "--max-added-principles does nothing with --form released, in which the judge answers in lines",
        ),
        (
            (*LABEL, "--form", "released", "--answer-format", "text"),
            "--answer-format does nothing with --form released, in which the judge answers in lines",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    result = run(*words)

    them = "them" if " do " in said else "it"
    assert (result.exit_code, result.stderr) == (1, f"error: {said}: leave {them} out\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (*PROFILE, "--stages", "2,8", "--lambda-diff", "0.5"),
            "--stages and --lambda-diff would do nothing: without --early-stop every turn gets all samples; give "
            "--early-stop, too",
        ),
        (
            (*PROFILE, "--early-stop", "unsolved", "--lambda-diff", "0.5"),
            "--lambda-diff would do nothing: --early-stop unsolved looks at no mean; leave it out",
        ),
        (
            (*PROFILE, *SERVER, "--server-flags", "--tp-size 8"),
            "--server-flags would do nothing: the servers of --endpoint or --openai run already, and none is started; "
            "leave it out",
        ),
        (
            (*PROFILE, "--server-flags", "--x 'y"),
            '--server-flags "--x \'y" cannot be read (No closing quotation): check its quotes',
        ),
        (
            ("plan", "t.jsonl", "--model", "m", "--openai", "http://a", "--server-flags", "--tp-size 8"),
            "--server-flags would do nothing: the servers of --endpoint or --openai run already, and none is started; "
            "leave it out",
        ),
    ],
)
def test_an_option_of_sampling_that_would_do_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    result = run(*words)

    assert (result.exit_code, result.stderr) == (1, f"error: {said}\n")


def test_a_selection_refuses_a_mean_and_a_tokenizer_that_it_would_not_use(tmp_path: Path) -> None:
    trajectories, profile = imported(tmp_path), tmp_path / "profile.jsonl"
    settings = ProfileSettings(
        model="policy",
        input_sha256=file_sha256(trajectories),
        num_samples=4,
        sampling=Sampling(),
        max_prompt_tokens=100,
        chat_template_kwargs={},
    )
    with open_profile(profile, settings):
        pass
    select = ("select", trajectories, "--out", tmp_path / "p.parquet")

    for keep in ("all", "unsolved"):
        assert run(*select, "--keep", keep, "--profile", profile, "--lambda-diff", "0.5").stderr == (
            f"error: --lambda-diff would do nothing: --keep {keep} looks at no mean; leave it out\n"
        )
    assert run(*select, "--profile", profile, "--model", "m").stderr == (
        f"error: --model does nothing with --profile {profile}, which has counted the prompts: leave it out\n"
    )


@pytest.mark.parametrize(
    "command", ["import pipe --out t.jsonl", "filter pipe --out f.jsonl", "qa-rows pipe --out q.parquet"]
)
def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    result = run(*command.split())

    assert (result.exit_code, result.stderr) == (
        1,
        "error: pipe is a pipe or a device, but files are read more than once: write it to a file first\n",
    )


def test_the_row_that_an_export_or_a_score_cannot_read_is_named(tmp_path: Path) -> None:
    broken, rows = tmp_path / "broken.jsonl", tmp_path / "rows.parquet"
    broken.write_text("{broken\n")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), rows)

    exported = run("export", broken, "--to", "verl", "--out", tmp_path / "e.parquet").stderr
    scored = run("score", rows).stderr

    assert exported.startswith(f"error: {broken}, line 1 cannot be exported (the row: not JSON"), exported
    assert scored == (
        f"error: {rows}, row 1 is no pivot (a row without trajectory_id, turn_index, prompt, expert, tools, verifier, "
        "verifier_options, metadata is not a pivot; write the file with `verl-pivot select`); give the pivots.parquet "
        "of `verl-pivot select`\n"
    )
