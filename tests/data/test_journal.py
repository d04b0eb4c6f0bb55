"""A journal after an interruption: its files end at the last commit, and their position says so."""

import errno
import os
import socket
from pathlib import Path

import pytest

from verl_pivot.data.journal import open_journal
from verl_pivot.errors import ConfigError


def test_a_file_that_was_cut_says_its_end_before_it_is_written_again(tmp_path: Path) -> None:
    with open_journal(tmp_path / "out", {}) as journal:
        file = journal.append_to("lines")
        file.write(b"kept\n")
        journal.commit({})
        file.write(b"lost with the process\n")

    for _ in range(2):  # the second time after a commit that wrote nothing
        with open_journal(tmp_path / "out", {}) as journal:
            assert journal.append_to("lines").tell() == 5
            journal.commit({})


def test_only_another_process_that_writes_the_output_is_told_as_such(tmp_path: Path) -> None:
    """A fork that the kernel refuses raises the same type of error as a lock that another process has."""
    out = tmp_path / "out"

    with open_journal(out, {}), pytest.raises(ConfigError) as locked, open_journal(out, {}):
        pass
    with pytest.raises(ConfigError) as refused, open_journal(out, {}):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    assert str(locked.value) == f"{out} is being written by another process; wait for it, or choose another --out"
    assert str(refused.value).startswith(f"{out} cannot be written: Resource temporarily unavailable; ")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "reset by peer"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        TimeoutError(),
        OSError("?"),
    ],
)
def test_a_connection_that_fails_in_a_job_is_not_told_as_a_file_that_cannot_be_written(
    tmp_path: Path, error: OSError
) -> None:
    with pytest.raises(type(error)) as raised, open_journal(tmp_path / "out", {}):
        raise error

    assert raised.value is error
