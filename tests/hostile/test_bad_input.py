"""Broken files: each broken row is reported with its place and reason, and no file that existed before is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from verl_pivot.cli import app
from verl_pivot.data.json_values import decode_json, encode_json
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject

CALL = {"id": "c", "type": "function", "function": {"name": "find_order", "arguments": '{"order_id": 17}'}}
MESSAGES: list[JsonObject] = [
    {"role": "user", "content": "Where is order 17?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "sent"},
    {"role": "assistant", "content": "It is on its way."},
]
GOOD: JsonObject = {"id": "good", "messages": list(MESSAGES), "passed": True}


def arguments(value: Json) -> list[JsonObject]:
    call = {**CALL, "function": {"name": "find_order", "arguments": value}}
    return [MESSAGES[0], {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (json.dumps({**GOOD, "id": "bad"})[:-40].encode(), "not_json", "not JSON"),
        (b'{"id": "bad", "messages": ["\xff"]}', "not_json", "can't decode byte 0xff"),
        (b'{"id": "bad", "reward": NaN}', "not_json", "NaN is not a JSON value"),
        (b"[" * 100_000, "not_json", "nested too deeply"),
        (b'{"reward": ' + b"9" * 5000 + b"}", "not_json", "not JSON: Exceeds the limit"),
        (b"[1, 2]", "not_an_object", "a row must be a JSON object, got a list"),
        (b"{}", "unknown_format", "a row with no keys is of no known format; name its format with --format"),
        (b'{"id": "bad", "messages": "[{]"}', "not_json", "messages: not JSON"),
        (b'{"id": "bad", "messages": {"role": "user"}}', "not_a_list", "messages must be a JSON list"),
        (b'{"id": "bad", "messages": []}', "no_messages", "the list of messages is empty"),
        (b'{"id": ["bad"], "messages": [{"role": "user", "content": ""}]}', "bad_id", "id must be text"),
        (
            json.dumps({"messages": [*MESSAGES, {"role": "critic", "content": "no"}]}).encode(),
            "unknown_role",
            "role 'critic'",
        ),
        (json.dumps({"messages": MESSAGES[:1]}).encode(), "no_assistant_turn", "got 1 messages without one"),
        (
            json.dumps({"messages": MESSAGES[::2] + MESSAGES[3:]}).encode(),
            "tool_result_without_call",
            "message 1 is a result of c",
        ),
        (json.dumps({"messages": [*MESSAGES, MESSAGES[3]]}).encode(), "consecutive_assistant", "messages 3 and 4"),
        (json.dumps({"messages": arguments('{"order_id": ')}).encode(), "bad_arguments", "of find_order: not JSON"),
        (json.dumps({"messages": arguments("17")}).encode(), "bad_arguments", "must be a JSON object, got a number"),
        (json.dumps({"messages": arguments('{"order_id": NaN}')}).encode(), "bad_arguments", "NaN is not a JSON"),
        (json.dumps({"messages": arguments('{"order_id": 1e999}')}).encode(), "not_json", "no JSON form"),
        (json.dumps({"messages": arguments({"order_id": "\ud800"})}).encode(), "not_json", "no JSON form"),
        (json.dumps({**GOOD, "tools": [{"name": "f", "parameters": 3}]}).encode(), "bad_tools", "of tool f"),
        (json.dumps(GOOD).encode(), "duplicate_id", "turn good:0 (trajectory:turn) is in"),
    ],
)
def test_a_broken_line_is_rejected_with_place_and_reason_and_the_others_are_kept(
    tmp_path: Path, line: bytes, reason: str, detail: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + line + b"\n" + json.dumps({**GOOD, "id": "last"}).encode())

    result = run_import(path)

    assert result.exit_code == 0, result.output
    assert [json.loads(kept)["id"] for kept in (tmp_path / "out.jsonl").read_text().splitlines()] == ["good", "last"]
    (rejected,) = map(json.loads, (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines())
    assert (rejected["file"], rejected["line"], rejected["reason"]) == (str(path), 3, reason)
    assert detail in rejected["detail"]
    assert rejected["raw"] == line.decode(errors="backslashreplace")
    assert f"rejected: {reason}" in result.output


def test_structs_that_parquet_merged_are_refused_with_the_remedy(tmp_path: Path) -> None:
    other = {"function": {"name": "refund", "arguments": {"amount": 9.5}}}
    rows = [
        {"id": "a", "messages": [MESSAGES[0], {"role": "assistant", "tool_calls": [native_call({"order_id": 17})]}]},
        {"id": "b", "messages": [MESSAGES[0], {"role": "assistant", "tool_calls": [other]}]},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")

    result = run_import(tmp_path / "in.parquet")

    assert result.exit_code == 1
    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [(line["row"], line["reason"]) for line in rejected] == [(i, "mangled_by_parquet") for i in (1, 2)]
    assert "find_order.amount is null in a struct column" in rejected[0]["detail"]
    assert "store this column as JSON strings" in rejected[0]["detail"]


def test_tools_that_parquet_merged_are_refused_with_the_remedy(tmp_path: Path) -> None:
    tools = [
        {"name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}}
        for name, argument in (("find_order", "order_id"), ("refund", "amount"))
    ]
    rows = [{"id": tool["name"], "messages": json.dumps(MESSAGES), "tools": [tool]} for tool in tools]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")

    assert run_import(tmp_path / "in.parquet").exit_code == 1
    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in rejected] == ["mangled_by_parquet"] * 2
    assert "find_order.properties.amount is null in the schema of tool find_order" in rejected[0]["detail"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("in.jsonl", b"", "is empty"),
        ("in.jsonl", b"\n \n", "is empty"),
        ("in.parquet", b"", "cannot be read"),
        ("in.parquet", b"PAR1 not really PAR1", "cannot be read"),
        ("in.jsonl", None, "there is no file"),
        ("in.jsonl", b"{}", "no usable trajectory: 0 of 1 rows have a failed outcome"),
    ],
)
def test_a_file_without_a_usable_row_is_an_error_and_what_was_there_stays(
    tmp_path: Path, name: str, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.jsonl").write_text("from before")

    result = run_import(tmp_path / name)

    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert result.stderr.startswith("error: ")
    assert text in result.stderr.replace("\n", " ")
    assert (tmp_path / "out.jsonl").read_text() == "from before"


def test_only_failed_trajectories_are_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({**GOOD, "passed": False}))

    result = run_import(tmp_path / "in.jsonl")

    assert result.exit_code == 1
    assert "1 of 1 rows have a failed outcome (--outcome all keeps them)" in result.stderr


def test_an_import_without_rejected_rows_leaves_no_list_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n{\n")
    run_import(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n")

    run_import(tmp_path / "in.jsonl")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(GOOD))

    result = run_import(path)

    assert result.exit_code == 1
    assert "is one of the inputs; choose another name" in result.stderr
    assert path.read_text() == json.dumps(GOOD)


def test_schemas_in_a_file_that_holds_none_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))
    (tmp_path / "tools.json").write_text('{"find_order": ')

    result = run_import(tmp_path / "in.jsonl", "--tools", str(tmp_path / "tools.json"))

    assert result.exit_code == 1
    assert "tools.json is not a JSON list of tool schemas: tools: not JSON" in result.stderr


def test_a_trajectories_file_that_was_edited_badly_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, "id": "b"}))
    run_import(tmp_path / "in.jsonl")
    with (tmp_path / "out.jsonl").open("a") as file:
        file.write('{"id": "c"')

    result = CliRunner().invoke(
        app, ["select", str(tmp_path / "out.jsonl"), "--out", str(tmp_path / "p.parquet"), "--keep", "all",
              "--max-prompt-tokens", "0"],
    )  # fmt: skip

    assert result.exit_code == 1
    assert "out.jsonl, line 3 is not a trajectory (the row: not JSON" in result.stderr
    assert not (tmp_path / "p.parquet").exists()


def test_a_disk_that_fills_up_leaves_the_old_import_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    rows = [{**GOOD, "id": f"row-{i}"} for i in range(200)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "out.jsonl").write_text("from before")

    done = on_a_small_disk("import", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--allow-no-tools", kib=64)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'out.jsonl'} cannot be written: File too large; free some space")
    assert "run the same command again to go on" in done.stderr
    assert (tmp_path / "out.jsonl").read_text() == "from before"
    assert run_import(tmp_path / "in.jsonl").exit_code == 0
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids == [row["id"] for row in rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.heavy
@pytest.mark.parametrize("num_rows", [40, 1100], ids=["when it is closed", "in the middle"])
def test_a_disk_that_fills_up_leaves_the_old_pivots_and_no_half_of_new_ones(tmp_path: Path, num_rows: int) -> None:
    noise = ({"role": "user", "content": os.urandom(1000).hex()} for _ in range(num_rows))
    rows = [{"id": number, "messages": [message, MESSAGES[3]]} for number, message in enumerate(noise)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run_import(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").unlink()
    (tmp_path / "pivots.parquet").write_text("from before")

    paths = (tmp_path / "out.jsonl", "--out", tmp_path / "pivots.parquet")
    done = on_a_small_disk("select", *paths, "--keep", "all", "--max-prompt-tokens", "0")

    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"error: {tmp_path / 'pivots.parquet'} cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "pivots.parquet").read_text() == "from before"
    names = ["out.jsonl", "pivots.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "pivots.parquet.unfinished"]
    again = CliRunner().invoke(
        app, ["select", *map(str, paths), "--keep", "all", "--max-prompt-tokens", "0", "--validation-share", "0.5"]
    )
    assert again.exit_code == 0, again.output
    rows = [pyarrow.parquet.read_table(tmp_path / f"pivots{name}.parquet").num_rows for name in ("", ".validation")]
    assert sum(rows) == num_rows
    assert "pivots.parquet.unfinished" not in [path.name for path in tmp_path.iterdir()]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))

    result = CliRunner().invoke(app, ["import", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "in.jsonl" / "x")])

    assert result.exit_code == 1
    assert f"cannot be written: {tmp_path / 'in.jsonl'} is a file, not a folder" in result.stderr


@pytest.mark.parametrize("value", [float("nan"), {"a": object()}, "\udfff", {1: {2: b"x"}}])
def test_what_json_cannot_hold_is_never_written(value: Json) -> None:
    with pytest.raises(DataError):
        encode_json(value)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")

    assert run_import(tmp_path / "in.jsonl").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_text_in_utf_16_is_not_taken_for_json() -> None:
    with pytest.raises(DataError, match="not JSON"):
        decode_json('{"a": 1}'.encode("utf-16"))


def native_call(values: JsonObject) -> JsonObject:
    return {"function": {"name": "find_order", "arguments": values}}


def run_import(path: Path, *options: str) -> Result:
    return CliRunner().invoke(
        app, ["import", str(path), "--out", str(path.with_name("out.jsonl")), "--allow-no-tools", *options]
    )


def on_a_small_disk(*command: object, kib: int = 16) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own whose files cannot grow beyond `kib` KiB."""
    limited = f"ulimit -f {kib} && exec {sys.executable} -m verl_pivot.cli " + " ".join(map(str, command))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(["bash", "-c", limited], capture_output=True, text=True, env=environment, check=False)
