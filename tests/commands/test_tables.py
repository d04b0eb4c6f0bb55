"""How wide the tables are that commands, examples and benchmarks print."""

import pytest

from verl_pivot.commands.tables import table_console


def test_a_table_in_a_pipe_is_wider_than_80_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    assert table_console().width == 160


def test_a_width_that_the_user_sets_holds_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")

    assert table_console().width == 72
