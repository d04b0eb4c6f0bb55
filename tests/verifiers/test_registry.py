"""verifiers.registry: shipped verifiers, verifiers of the user's own, and refused names and options."""

import gc
import pickle
import re
import weakref
from pathlib import Path

import pytest
from cachetools import LRUCache

from tests.support.factories import make_turn
from verl_pivot.errors import ConfigError
from verl_pivot.types import JsonObject, Message, Role, Turn, Verdict
from verl_pivot.verifiers import registry
from verl_pivot.verifiers.registry import get_verifier, load_verifier_modules, register

OWN = """
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers import registry
from verl_pivot.verifiers.registry import register

@register("always_undecided")
async def always_undecided(action, turn):
    return Verdict.undecided("no_judge")
"""


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"unknown verifier 'tool_cal'; known: .*tool_call.*--verifier-module"):
        get_verifier("tool_cal")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("code", {"asserts": ["assert f(1) == 1"]}),
        ("code", {"tests": [{"stdout": "1"}]}),
        ("edit", {"files": {"a": "b"}}),
        ("first_decided", {"verifiers": [{"name": "qa"}]}),
        ("judge", {"base_url": "http://127.0.0.1:9/v1", "model": "m"}),
        ("math", {}),
        ("qa", {}),
        ("search_query", {}),
        ("shell", {}),
        ("sql", {"scripts": ["CREATE TABLE a (b)"]}),
        ("terminus", {}),
        ("weighted", {"verifiers": [{"name": "qa"}, {"name": "shell"}]}),
    ],
)
async def test_every_shipped_verifier_survives_pickle_and_is_undecided_about_an_expert_of_another_kind(
    name: str, options: JsonObject
) -> None:
    """The row's expert makes a call of find_order."""
    copy = pickle.loads(pickle.dumps(get_verifier(name, options)))

    verdict = await copy(Message(role=Role.ASSISTANT, content="Hello."), make_turn())

    assert verdict.score in (None, 0.0)


async def test_the_verifier_of_tool_calls_survives_pickle() -> None:
    copy = pickle.loads(pickle.dumps(get_verifier("tool_call", {"mode": "name_only"})))

    turn = make_turn()
    assert (await copy(turn.expert, turn)).reason == "accepted"


def test_the_same_options_give_the_same_verifier() -> None:
    options = {"mode": "nemo_gym", "threshold": 0.3}

    assert get_verifier("tool_call", options) is get_verifier("tool_call", dict(reversed(options.items())))
    assert get_verifier("tool_call", options) is not get_verifier("tool_call")


def test_verifiers_of_many_large_rows_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_made", LRUCache(100_000, getsizeof=lambda kept: kept[0]))
    first = {"files": {"a.py": "x" * 20_000}}
    kept = weakref.ref(get_verifier("edit", first))

    assert get_verifier("edit", first) is kept()
    for number in range(5):
        get_verifier("edit", {"files": {f"{number}.py": "x" * 20_000}})
    gc.collect()

    assert kept() is None


def test_a_verifier_of_one_very_large_row_is_made_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MAX_CHARS_KEPT", 10_000)
    options = {"files": {"a.py": "x" * 20_000}}

    assert get_verifier("edit", options) is not get_verifier("edit", options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tool_call", {"mode": "fuzzy"}, "tool_call.mode: Input should be 'functional'"),
        (
            "tool_call",
            {"treshold": 0.1},
            "verifier tool_call.treshold: unknown key; known: accepted, dates",
        ),
        ("tool_call", {"threshold": 2}, "threshold: Input should be less than or equal to 1, got 2"),
        ("tool_call", {"free_text": ["note"]}, "must be 'tool.argument', got 'note'"),
        ("tool_call", {"unordered": [".stops"]}, "must be 'tool.argument', got '.stops'"),
        (
            "code",
            {"asserts": ["assert f(1) == 1"], "argument": "submit"},
            "code.argument: must be 'tool.argument', got 'submit'",
        ),
        ("shell", {"argument": "bash."}, "shell.argument: must be 'tool.argument', got 'bash.'"),
        (
            "sql",
            {"scripts": ["CREATE TABLE a (b)"], "argument": 3},
            "sql.argument: must be 'tool.argument', got 3",
        ),
    ],
)
def test_options_that_a_verifier_does_not_take_are_refused_with_their_place(
    name: str, options: JsonObject, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_verifier(name, options)


def test_a_verifier_without_options_refuses_any(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(OWN.replace("always_undecided", "plain"))
    load_verifier_modules([str(path)])

    with pytest.raises(ConfigError, match=r"verifier 'plain' takes no options, got \['mode'\]"):
        get_verifier("plain", {"mode": "strict"})


async def test_a_users_file_registers_its_verifier(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)

    load_verifier_modules([str(path), str(path)])

    turn = make_turn()
    assert await get_verifier("always_undecided")(turn.expert, turn) == Verdict(score=None, reason="no_judge")


def test_a_missing_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"verifier module 'no.such.module' cannot be imported"):
        load_verifier_modules(["no.such.module"])
    with pytest.raises(
        ConfigError, match=rf"'no_such_file.py' is not a file in {Path.cwd()}; give the path of a .py file"
    ):
        load_verifier_modules(["no_such_file.py"])


def test_two_verifiers_of_one_name_are_refused() -> None:
    @register("twice")
    async def one(action: Message, turn: Turn) -> Verdict:
        return Verdict(score=1.0, reason="one")

    with pytest.raises(ConfigError, match="verifier 'twice' is registered twice"):

        @register("twice")
        async def two(action: Message, turn: Turn) -> Verdict:
            return Verdict(score=1.0, reason="two")
