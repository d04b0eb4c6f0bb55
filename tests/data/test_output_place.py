"""Outputs: a link stays and leads to the new file; folders, pipes and devices are never replaced."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_pivot.data.files import replacing
from verl_pivot.data.journal import open_journal
from verl_pivot.errors import ConfigError

OTHER_DISK = Path("/dev/shm")


def write(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("new")


def write_by_journal(path: Path) -> None:
    with open_journal(path, {}) as journal:
        journal.append_to("lines").write(b"new")
        journal.finish({"lines": path})


@pytest.mark.parametrize("writing", [write, write_by_journal])
def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path: Path, writing: Callable[[Path], None]) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to("folder/target")

    for _ in range(2):  # first the link leads to nothing
        writing(link)
        assert (link.is_symlink(), target.read_text()) == (True, "new")
        target.write_text("older")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "link", "target"]


@pytest.mark.skipif(
    not OTHER_DISK.is_dir() or OTHER_DISK.stat().st_dev == Path("/tmp").stat().st_dev, reason="there is one disk"
)
def test_a_journal_moves_its_file_to_another_disk(tmp_path: Path) -> None:
    target = OTHER_DISK / f"verl-pivot-test-{os.getpid()}"
    (tmp_path / "link").symlink_to(target)
    try:
        write_by_journal(tmp_path / "link")
        assert target.read_text() == "new"
    finally:
        target.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_journal_moves_its_file_to_another_mount_of_the_same_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker mounts two folders of a disk; their files have one device number, but rename(2) refuses."""
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "target").write_text("older")
    (tmp_path / "link").symlink_to("mount/target")
    replace = Path.replace

    def replace_within_a_mount(self: Path, target: Path) -> Path:
        if self.parent != target.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self), None, str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_within_a_mount)

    write_by_journal(tmp_path / "link")

    assert (tmp_path / "link").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "mount", "target"]


@pytest.mark.parametrize("writing", [write, write_by_journal])
def test_a_pipe_or_a_folder_is_refused_and_stays(tmp_path: Path, writing: Callable[[Path], None]) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("pipe")

    for path, what in ((pipe, "a device or pipe"), (folder, "a folder"), (link, "a device or pipe")):
        with pytest.raises(ConfigError) as refused:
            writing(path)
        assert str(refused.value) == f"{path} is {what}, which no file replaces: give --out the name of a file"
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]
