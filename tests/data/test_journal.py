"""A journal after an interruption: its files end at the last commit, and their position says so."""

from pathlib import Path

from verl_pivot.data.journal import open_journal


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
