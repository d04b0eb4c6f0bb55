"""Editor calls that try to be paid without the expert's change; docs/verifiers.md shows the table."""

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifiers.md"
PATH = "/repo/app/total.py"
BEFORE = '''def total(numbers):
    """Sum of all."""
    result = 0
    for number in numbers:
        result += number
    return result - 1


def mean(numbers):
    return total(numbers) / len(numbers)
'''
FILES: JsonObject = {PATH: BEFORE, "/repo/README.md": "# Total\n"}


def edit(**arguments: Json) -> JsonObject:
    return {"command": "str_replace", "path": PATH, **arguments}


EXPERT = edit(old_str="    return result - 1\n", new_str="    return result\n")

ATTACKS: dict[str, tuple[JsonObject, str]] = {
    "changes nothing": (edit(old_str="return result - 1", new_str="return result - 1"), "wrong_output"),
    "adds a comment": (edit(old_str="result - 1", new_str="result - 1  # fixed: return result"), "wrong_output"),
    "changes another operator": (edit(old_str="return result - 1", new_str="return result + 1"), "wrong_output"),
    "changes the other function": (
        edit(old_str="return total(numbers) /", new_str="return 1 + total(numbers) /"),
        "wrong_output",
    ),
    "makes the change and another": (
        edit(
            old_str="    return result - 1\n\n\ndef mean(numbers):",
            new_str="    return result\n\n\ndef median(numbers):",
        ),
        "wrong_output",
    ),
    "deletes the function": (edit(old_str=BEFORE.partition("\n\n\n")[0], new_str=""), "wrong_output"),
    "breaks the syntax": (edit(old_str="return result - 1", new_str="return result ("), "wrong_output"),
    "names text that is not there": (edit(old_str="return results", new_str="return result"), "runtime_error"),
    "names text that is there twice": (edit(old_str="numbers):", new_str="values):"), "runtime_error"),
    "names no text": (edit(old_str="", new_str="return result"), "runtime_error"),
    "edits another file": (edit(path="/repo/README.md", old_str="Total", new_str="Sum"), "wrong_value"),
    "edits a file that is not there": (edit(path="/repo/total.py", old_str="- 1", new_str=""), "wrong_value"),
    "creates the file anew": (
        {"command": "create", "path": PATH, "file_text": BEFORE.replace(" - 1", "")},
        "runtime_error",
    ),
    "creates a file beside it": ({"command": "create", "path": PATH + "c", "file_text": "x"}, "wrong_value"),
    "inserts the right line before the wrong one's function": (
        {"command": "insert", "path": PATH, "insert_line": 0, "new_str": "    return result"},
        "wrong_output",
    ),
    "inserts beyond the end": (
        {"command": "insert", "path": PATH, "insert_line": 99, "new_str": "    return result"},
        "runtime_error",
    ),
    "only looks": ({"command": "view", "path": PATH}, "wrong_value"),
    "takes back": ({"command": "undo_edit", "path": PATH}, "wrong_value"),
    "gives an argument that no editor has": ({**EXPERT, "force": True}, "wrong_type"),
    "leaves out the new text's opposite": ({"command": "str_replace", "path": PATH, "new_str": "x"}, "wrong_type"),
    "gives a number for text": (edit(old_str=1, new_str=2), "wrong_type"),
    "hides a letter that looks alike": (edit(old_str="return result - 1", new_str="return rеsult"), "wrong_output"),  # noqa: RUF001
    "writes a book": (edit(old_str="- 1", new_str="\n#" + "x" * 1_100_000), "too_long"),
}
SAME = [
    EXPERT,
    edit(old_str=" - 1", new_str=""),
    edit(old_str="return result - 1", new_str="return (result)"),
    edit(old_str="return result - 1", new_str="# the sum itself\n    return result"),
]


def call(arguments: JsonObject, name: str = "str_replace_editor") -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name=name, arguments=arguments),))


async def judge(action: Message, expert: JsonObject = EXPERT, **options: Json) -> Verdict:
    verifier = get_verifier("edit", {"files": FILES, **options})
    return await verifier(action, make_turn(expert=call(expert)))


@pytest.mark.parametrize(("arguments", "reason"), ATTACKS.values(), ids=ATTACKS)
async def test_no_edit_is_paid_that_leaves_another_file(arguments: JsonObject, reason: str) -> None:
    verdict = await judge(call(arguments))

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize("arguments", SAME)
async def test_another_way_to_the_same_program_is_paid(arguments: JsonObject) -> None:
    verdict = await judge(call(arguments))

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


async def test_where_the_expert_changes_a_comment_only_its_letters_count() -> None:
    expert = edit(old_str='"""Sum of all."""', new_str='"""Sum of all."""  # of numbers')

    assert (await judge(call(expert), expert)).score == 1.0
    assert (await judge(call(edit(old_str="result = 0", new_str="result = 0  # zero")), expert)).score == 0.0


async def test_texts_of_other_languages_are_compared_by_their_letters() -> None:
    expert: JsonObject = {"command": "insert", "path": "/repo/README.md", "insert_line": 1, "new_str": "Sums."}
    replaced: JsonObject = {
        "command": "str_replace",
        "path": "/repo/README.md",
        "old_str": "Total\n",
        "new_str": "Total\nSums.\n",
    }

    assert (await judge(call(replaced), expert)).score == 1.0
    assert (await judge(call({**expert, "new_str": "sums."}), expert)).reason == "wrong_output"


@pytest.mark.parametrize(
    ("expert", "detail"),
    [
        (edit(old_str="no such text", new_str="x"), "cannot be applied: old_str is there 0 times"),
        (edit(path="/elsewhere.py", old_str="a", new_str="b"), "there is no file /elsewhere.py"),
        (edit(old_str="result = 0", new_str="result = 0"), "changes nothing"),
    ],
)
async def test_an_expert_whose_edit_cannot_be_compared_is_undecided(expert: JsonObject, detail: str) -> None:
    verdict = await judge(call(expert), expert)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert detail in verdict.detail


async def test_what_changes_no_file_must_be_the_same_call() -> None:
    look: JsonObject = {"command": "view", "path": PATH, "view_range": [1, 5]}

    assert (await judge(call(look), look)).score == 1.0
    assert (await judge(call({**look, "view_range": [1, 50]}), look)).score == 0.0
    assert (await judge(call(look, name="bash"), look)).reason == "wrong_tool"
    assert (await judge(Message(role=Role.ASSISTANT, content="done"), look)).reason == "message_instead_of_call"


@pytest.mark.parametrize(
    ("arguments", "level", "score"),
    [
        ({"command": "view", "path": "/elsewhere"}, 0, 1.0),
        ({"command": "view", "path": "/elsewhere"}, 1, 0.0),
        (edit(path="/other/app/total.py", old_str="a", new_str="b"), 1, 1.0),
        (edit(old_str="a", new_str="b"), 2, 0.0),
        (edit(old_str="    return result - 1\n", new_str="    return results\n"), 2, 1.0),
        (EXPERT, 2, 1.0),
    ],
)
async def test_the_published_levels_look_at_no_file(arguments: JsonObject, level: int, score: float) -> None:
    assert (await judge(call(arguments), mode="levels", level=level)).score == score


async def test_the_continuous_level_pays_by_similarity_and_takes_off_for_length() -> None:
    verdict = await judge(call(EXPERT), mode="levels", level=2, is_continuous=True)

    num_chars = len("    return result - 1\n") + len("    return result\n")
    assert verdict.score == pytest.approx(1.0 - 0.1 * num_chars / 500)


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
