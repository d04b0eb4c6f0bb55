"""verifiers.registry: names of one's own, and clear refusals."""

import pickle
from pathlib import Path

import pytest

from tests.factories import make_turn
from verl_pivot.errors import ConfigError
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier, load_verifier_modules, register

OWN = """
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import register

@register("always_undecided")
async def always_undecided(action, turn):
    return Verdict(score=None, reason="no_judge")
"""


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"unknown verifier 'tool_cal'; known: \[.*'tool_call'.*--verifier-module"):
        get_verifier("tool_cal")


def test_the_builtin_verifier_survives_pickle() -> None:
    assert pickle.loads(pickle.dumps(get_verifier("tool_call"))) is get_verifier("tool_call")


async def test_a_file_of_ones_own_registers_its_verifier(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)

    load_verifier_modules([str(path), str(path)])

    turn = make_turn()
    assert await get_verifier("always_undecided")(turn.expert, turn) == Verdict(score=None, reason="no_judge")


def test_a_missing_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"verifier module 'no.such.module' cannot be imported"):
        load_verifier_modules(["no.such.module"])
    with pytest.raises(ConfigError, match=r"'no_such_file.py' is no file"):
        load_verifier_modules(["no_such_file.py"])


def test_two_verifiers_of_one_name_are_refused() -> None:
    @register("twice")
    async def one(action: Message, turn: Turn) -> Verdict:
        return Verdict(score=1.0, reason="one")

    with pytest.raises(ConfigError, match="verifier 'twice' is registered twice"):

        @register("twice")
        async def two(action: Message, turn: Turn) -> Verdict:
            return Verdict(score=1.0, reason="two")
