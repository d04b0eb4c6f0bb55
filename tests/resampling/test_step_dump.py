"""resampling.step_dump: the file of a step is whole or absent, whatever ends the run."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from verl_pivot.data.rollout_dumps import (
    DumpedOutcome,
    DumpedTurn,
    RecordedTexts,
    encode_prompt,
    encode_transcript,
    read_rollouts,
)
from verl_pivot.errors import ConfigError
from verl_pivot.resampling.step_dump import DumpLine, StepDump


def lines(*uids: str) -> list[DumpLine]:
    return [DumpLine(DumpedOutcome(uid=uid, step=1, score=1.0, is_kept=True), b'{"turns":[]}') for uid in uids]


def uids(folder: Path, step: int = 1) -> list[str]:
    return [json.loads(line)["uid"] for line in (folder / f"{step}.jsonl").read_text().splitlines()]


def test_the_file_of_a_step_appears_after_its_last_batch(tmp_path: Path) -> None:
    dump = StepDump(tmp_path / "deep" / "pivot", batches_per_step=2)
    folder = tmp_path / "deep" / "pivot"

    dump.add(1, lines("b_0_0", "a_0_0"))
    dump.end_batch()
    dump.add(1, lines("c_0_0"))
    assert [path.name for path in folder.glob("*.jsonl")] == []
    dump.end_batch()
    dump.finish()

    assert uids(folder) == ["a_0_0", "b_0_0", "c_0_0"]
    assert [path.name for path in folder.iterdir()] == ["1.jsonl"]


def test_rows_of_a_rollout_are_in_the_order_of_their_numbers_as_verl_sorts_them(tmp_path: Path) -> None:
    dump = StepDump(tmp_path)
    dump.add(1, lines("a_10_0", *(f"a_2_{part}" for part in (11, 2, 10, 0, 1)), "a_0_0"))
    dump.finish()

    assert uids(tmp_path) == ["a_0_0", "a_2_0", "a_2_1", "a_2_2", "a_2_10", "a_2_11", "a_10_0"]


def test_later_batches_of_a_step_that_is_there_are_appended(tmp_path: Path) -> None:
    dump = StepDump(tmp_path)
    for uid in ("a_0_0", "b_0_0", "c_0_0"):
        dump.add(1, lines(uid))
        dump.finish()

    assert uids(tmp_path) == ["a_0_0", "b_0_0", "c_0_0"]


def prompted(uid: str, prompt: str, *, is_kept: bool = True) -> DumpLine:
    turn = DumpedTurn(text=uid, num_tokens=1, ended=True)
    outcome = DumpedOutcome(uid=uid, step=1, score=1.0, is_kept=is_kept)
    return DumpLine(outcome, encode_transcript({}, None, [turn]), encode_prompt([{"role": "user", "content": prompt}]))


def written(folder: Path, lines: list[DumpLine], recorded: RecordedTexts) -> list[tuple[str, bool, str | None]]:
    """(uid, whether it has texts, content of the prompt) of each line."""
    dump = StepDump(folder, recorded=recorded)
    dump.add(1, lines)
    dump.finish()
    return [
        (each.uid, each.has_texts, None if each.prompt is None else each.prompt[0]["content"])
        for each in read_rollouts(folder / "1.jsonl")
    ]


def test_a_prompt_is_written_once_for_a_group_unless_it_differs(tmp_path: Path) -> None:
    lines = [prompted("b_0_0", "2"), prompted("a_0_0", "2"), prompted("a_1_0", "2"), prompted("a_2_0", "3")]

    assert written(tmp_path, lines, RecordedTexts.ALL) == [
        ("a_0_0", True, "2"), ("a_1_0", True, None), ("a_2_0", True, "3"), ("b_0_0", True, "2"),
    ]  # fmt: skip


def test_rollouts_that_the_update_did_not_see_are_written_without_texts_on_demand(tmp_path: Path) -> None:
    lines = [prompted("a_0_0", "2", is_kept=False), prompted("a_1_0", "2"), prompted("a_2_0", "2", is_kept=False)]

    assert written(tmp_path, lines, RecordedTexts.KEPT) == [
        ("a_0_0", False, None), ("a_1_0", True, "2"), ("a_2_0", False, None),
    ]  # fmt: skip


def test_a_resumed_run_replaces_a_step(tmp_path: Path) -> None:
    for uid in ("a_0_0", "b_0_0"):
        dump = StepDump(tmp_path)
        dump.add(1, lines(uid))
        dump.end_batch()
        dump.add(2, lines(uid))
        dump.finish()

    assert (uids(tmp_path, 1), uids(tmp_path, 2)) == (["b_0_0"], ["b_0_0"])


def test_a_killed_run_leaves_no_part_of_a_step_under_its_name(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tests.resampling.test_step_dump import lines
from verl_pivot.resampling.step_dump import StepDump
dump = StepDump(Path({str(tmp_path)!r}), batches_per_step=2)
for step in (1, 2):
    for part in ("a", "b"):
        dump.add(step, lines(part + "_0_0"))
        if (step, part) == (2, "b"):
            dump._writing[-1].result()
            os.kill(os.getpid(), signal.SIGKILL)
        dump.end_batch()
"""
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": "."}, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["1.jsonl"]
    dump = StepDump(tmp_path)
    dump.add(2, lines("c_0_0"))
    dump.finish()
    assert uids(tmp_path, 2) == ["c_0_0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl"]


def test_what_a_process_handed_over_is_written_before_it_ends(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.resampling.test_step_dump import lines
from verl_pivot.resampling.step_dump import StepDump
dump = StepDump(Path({str(tmp_path)!r}))
dump.add(1, lines(*(f"{{number}}_0_0" for number in range(10_000))))
dump.end_batch()
"""
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": "."}, check=True)

    assert len(uids(tmp_path)) == 10_000


def test_a_file_in_the_folders_place_is_refused_at_once_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "dumps").write_text("")

    with pytest.raises(
        ConfigError, match=r"the dump of rollouts in .*dumps/pivot cannot be written: .*Not a directory"
    ):
        StepDump(tmp_path / "dumps" / "pivot")


def test_a_full_disk_stops_the_run_at_the_next_step_and_leaves_no_torn_file(tmp_path: Path) -> None:
    """/dev/full fails as a full disk does."""
    (tmp_path / "1.jsonl.unfinished").symlink_to("/dev/full")
    dump = StepDump(tmp_path)

    with pytest.raises(ConfigError, match=r"No space left on device; make room there or choose another folder with"):
        fill_two_steps(dump)
    assert list(tmp_path.glob("1.jsonl*")) == []


def fails(call: Callable[[], None], dump: StepDump) -> None:
    """Make a call that may report a failed write, and wait for the dump's thread."""
    with suppress(ConfigError):
        call()
    dump._thread.submit(lambda: None).result()


def test_a_full_disk_leaves_the_published_file_of_a_step_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_a_part(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    dump = StepDump(tmp_path)
    dump.add(1, lines("a_0_0"))
    dump.finish()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", copy_a_part)
        dump.add(1, lines("b_0_0"))
        with pytest.raises(ConfigError, match="No space left on device"):
            dump.finish()
    dump._thread.submit(lambda: None).result()
    dump.add(1, lines("c_0_0"))
    dump.finish()

    assert uids(tmp_path) == ["a_0_0"]
    assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]


def test_a_step_of_which_a_part_could_not_be_written_is_not_published_but_the_next_one_is(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl.unfinished").symlink_to("/dev/full")
    dump = StepDump(tmp_path, batches_per_step=2)

    fails(lambda: dump.add(1, lines("a_0_0")), dump)
    fails(dump.end_batch, dump)
    fails(lambda: dump.add(1, lines("b_0_0")), dump)
    fails(dump.end_batch, dump)
    fails(dump.finish, dump)
    assert list(tmp_path.iterdir()) == []

    dump.add(2, lines("c_0_0"))
    dump.finish()
    assert uids(tmp_path, 2) == ["c_0_0"]


def fill_two_steps(dump: StepDump) -> None:
    """Write a step, wait for its thread, and begin the next one; any of these calls may report a failed write."""
    dump.add(1, lines("a_0_0"))
    dump.end_batch()
    dump._thread.submit(lambda: None).result()
    dump.add(2, lines("a_0_0"))
