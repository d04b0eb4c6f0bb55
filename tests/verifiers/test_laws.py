"""Every verifier that runs no program gives any action a verdict, and never refuses the expert's own action."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

PATH = "/repo/a.py"
VERIFIERS: list[tuple[str, JsonObject]] = [
    *(("tool_call", {"mode": mode}) for mode in ("functional", "strict", "name_only")),
    ("qa", {}),
    ("qa", {"place": "all", "metric": "f1"}),
    ("shell", {}),
    ("shell", {"argument": "bash.command"}),
    ("shell", {"mode": "similarity"}),
    ("terminus", {}),
    ("terminus", {"mode": "similarity"}),
    ("edit", {"files": {PATH: "a = 1\nb = 2\n"}}),
    ("edit", {"mode": "levels", "level": 2, "is_continuous": False}),
    ("search_query", {}),
    ("search_query", {"argument": "search.query"}),
    ("process_score", {"turn": "ls -la", "form": "released"}),
    ("process_score", {"turn": "ls -la", "form": "released", "label": 0.75}),
    ("process_score", {"turn": "a", "form": "released", "label": 0.75, "other": {"turn": "b", "label": 0.0}}),
    ("process_score", {"turn": "ls -la", "principles": [{"name": "query", "text": "It is right."}]}),
]

texts = st.text(max_size=40) | st.sampled_from(
    [
        *("```bash\nls -la\n```", "<answer>Paris</answer>", "<search>old town</search>", "```\n```", "ls", PATH),
        *("<final_score>3,4</final_score>", "<final_score>0,4</final_score>"),
        "<final_score>3,4</final_score><final_score>0,4</final_score>",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["command", "path", "old_str", "new_str", "query", "view_range", "order_id"])
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["bash", "search", "find_order", "str_replace_editor"]),
    arguments=st.dictionaries(names, values, max_size=4),
)
actions = st.builds(
    Message, role=st.just(Role.ASSISTANT), content=texts, tool_calls=st.lists(calls, max_size=2).map(tuple)
)


def judge(name: str, options: JsonObject, action: Message, turn: Turn) -> Verdict:
    return asyncio.run(get_verifier(name, options)(action, turn))  # type: ignore[arg-type]  a coroutine


@pytest.mark.parametrize(("name", "options"), VERIFIERS)
@settings(deadline=None)
@given(action=actions, expert=actions)
def test_every_action_gets_a_verdict(name: str, options: JsonObject, action: Message, expert: Message) -> None:
    verdict = judge(name, options, action, make_turn(expert=expert))

    assert verdict.score is None or 0.0 <= verdict.score <= 1.0


LONG = "9" * 5_000
"""Whole number with more digits than Python reads."""
TEXTS_OF_LONG_NUMBERS = [
    LONG,
    f"1e{LONG}",
    f"<answer>{LONG}</answer>",
    f"<search>{LONG}</search>",
    f"```bash\nhead -{LONG} a; sed -n {LONG}p a; echo ${{x:{LONG}}} {{1..{LONG}}}\n```",
    f'{{"commands": [{{"keystrokes": "ls\\n", "duration": {LONG}}}]}}',
    f"@@ -{LONG} +1 @@\n-a = 1\n+a = 2",
]


@pytest.mark.parametrize(("name", "options"), VERIFIERS)
@pytest.mark.parametrize("text", TEXTS_OF_LONG_NUMBERS)
def test_a_number_that_python_does_not_read_gets_a_verdict(name: str, options: JsonObject, text: str) -> None:
    said = Message(role=Role.ASSISTANT, content=text)
    written: JsonObject = dict.fromkeys(("command", "path", "old_str", "new_str", "query", "insert_line"), text)
    called = Message(
        role=Role.ASSISTANT, content="", tool_calls=(ToolCall(name="str_replace_editor", arguments=written),)
    )

    for action in (said, called):
        for expert in (said, called, Message(role=Role.ASSISTANT, content="ls")):
            judge(name, options, action, make_turn(expert=expert))


@pytest.mark.parametrize(("name", "options"), VERIFIERS)
@settings(deadline=None)
@given(expert=actions)
def test_an_expert_is_accepted_or_undecided(name: str, options: JsonObject, expert: Message) -> None:
    verdict = judge(name, options, expert, make_turn(expert=expert))

    assert verdict.score in (None, 1.0), verdict
