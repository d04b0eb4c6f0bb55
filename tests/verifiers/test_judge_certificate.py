"""Certificates: differences of two versions, places of quotations, and verdicts on programs and patches."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificates import certifying, has_words
from tests.support.factories import make_turn
from tests.support.fake_judge import FakeJudge, judging
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message, Role
from verl_pivot.verifiers.judge_certificate import CertificateOfPlaces, CertificateOfTests, problem_of
from verl_pivot.verifiers.judge_certificate_files import CodeComparison, Span, compared
from verl_pivot.verifiers.registry import get_verifier

OLD = "import math\n\ndef area(r):\n    return math.pi * r\n\nprint(area(2))\n"
NEW = "import math\n\ndef area(r):\n    return math.pi * r**2\n\nprint(area(2))\n"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "none")


def comparison(one: str = OLD, two: str = NEW, **tests: str) -> CodeComparison:
    return compared({"a.py": one}, {"a.py": two}, tests, passing_version=2)


def certificate(**premise: Any) -> CertificateOfPlaces:
    given = {"number": 1, "file": 1, "line": 4, "quotation": "return math.pi * r", "claim": "", **premise}
    other = {"number": 2, "file": 2, "line": 4, "quotation": "return math.pi * r**2", "claim": ""}
    trace = {"place": 1, "premises": [1, 2], "steps": "squares", "does_the_same": False}
    return CertificateOfPlaces.model_validate(
        {"premises": [given, other], "traces": [trace], "reason": "", "same": False}
    )


def test_a_file_of_both_versions_is_shown_once_and_places_name_the_lines_that_differ() -> None:
    found = compared(
        {"a": "1\n2\n3\n4\n", "b": "x\n", "c": "c\n"}, {"a": "1\n3\n4\n5\n", "b": "x\n"}, {"t": "go"}, passing_version=1
    )

    assert [(file.owner, file.path, file.lines) for file in found.files] == [
        ("version 1", "a", ["1", "2", "3", "4"]),
        ("version 2", "a", ["1", "3", "4", "5"]),
        ("both versions", "b", ["x"]),
        ("version 1", "c", ["c"]),
        ("a test", "t", ["go"]),
    ]
    assert found.places == (
        (Span(1, 2, 3), Span(2, 2, 2)),
        (Span(1, 5, 5), Span(2, 4, 5)),
        (Span(4, 1, 2),),
    )
    assert found.own_lines("version 1") == {(1, 2), (4, 1)}
    assert found.own_lines("version 2") == {(2, 4)}


@pytest.mark.parametrize(
    ("one", "two", "places"),
    [
        ("a\n", "a", ((Span(1, 1, 2), Span(2, 1, 2)),)),  # only the line end differs
        ("", "a\n", ((Span(1, 1, 1), Span(2, 1, 2)),)),
        ("a\nb\n", "b\na\n", ((Span(1, 1, 1), Span(2, 1, 2)), (Span(1, 2, 3), Span(2, 3, 3)))),
        ("a\n" * 300, "b\n" * 250, ((Span(1, 1, 301), Span(2, 1, 251)),)),  # too long to be aligned
        ("a\nx\n" * 30, "b\nx\n" * 30, ((Span(1, 1, 60), Span(2, 1, 60)),)),  # too many places of one file
    ],
)
def test_places_of_texts(one: str, two: str, places: tuple[tuple[Span, ...], ...]) -> None:
    assert comparison(one, two).places == places


lines = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12).map("\n".join)


@given(lines, lines)
def test_what_stands_outside_of_all_places_is_the_same_in_both_versions(one: str, two: str) -> None:
    found = comparison(one, two)
    if one == two:
        assert found.places == ()
        return
    rest = []
    for side in (0, 1):
        gone = {line for place in found.places for line in range(place[side].first, place[side].behind)}
        rest.append([line for number, line in enumerate(found.files[side].lines, 1) if number not in gone])
    assert rest[0] == rest[1]


@pytest.mark.parametrize(
    "premise",
    [
        {},
        {"line": 2},
        {"line": 6},
        {"quotation": "    return math.pi * r\n"},
        {"quotation": "math.pi"},
        {"line": 3, "quotation": "def area(r):\n  return math.pi"},
        {"line": 4, "quotation": "math.pi * r\n\nprint(area(2))"},
    ],
)
def test_a_quotation_holds_within_two_lines_and_without_indentation(premise: dict[str, Any]) -> None:
    assert problem_of(certificate(**premise), comparison()) is None


@pytest.mark.parametrize(
    "premise",
    [
        {"line": 1},
        {"line": 7},
        {"line": -4},
        {"line": 10**30},
        {"quotation": "return math.pi * r**2"},
        {"quotation": "4| return math.pi * r"},
        {"quotation": "def area(r):\n\nreturn math.pi"},
        {"quotation": "r"},
    ],
)
def test_a_quotation_that_is_not_there_does_not_hold(premise: dict[str, Any]) -> None:
    problem = problem_of(certificate(**premise), comparison())

    assert problem is not None
    assert problem.startswith("premise 1: file 1 does not have its quotation at line")


def test_a_place_is_traced_by_what_stands_there() -> None:
    problem = problem_of(certificate(line=1, quotation="import math"), comparison())
    assert problem == "it quotes no line that only version 1 has"

    far = "".join(f"line {number}\n" for number in range(9))
    found = comparison(f"x = 1\n{far}y = 1\n", f"x = 2\n{far}y = 2\n")
    premises = [
        {"number": 1, "file": 1, "line": 1, "quotation": "x = 1", "claim": ""},
        {"number": 2, "file": 2, "line": 1, "quotation": "x = 2", "claim": ""},
    ]
    traces = [{"place": place, "premises": [1, 2], "steps": "so", "does_the_same": True} for place in (1, 2)]
    answer = {"premises": premises, "traces": traces, "reason": "", "same": True}
    assert problem_of(CertificateOfPlaces.model_validate(answer), found) == "the trace of place 2 cites no line of it"


def test_lines_that_changed_places_need_no_quotation_of_their_own() -> None:
    premises = [{"number": 1, "file": 1, "line": 1, "quotation": "aa()", "claim": ""}]
    traces = [{"test": 1, "premises": [1], "steps": "so", "passes_in_version_1": False, "passes_in_version_2": True}]
    answer = {"premises": premises, "traces": traces, "reason": "", "same": False}
    found = comparison("aa()\nbb()\n", "bb()\naa()\n", test="go()")

    assert problem_of(CertificateOfTests.model_validate(answer), found) is None


RIGHT = "def area(r):\n    return 3 * r * r"
OTHER = "def area(r):\n    return 3 * r**2"
WRONG = "def area(r):\n    return 3 * r + r"
TESTS: JsonObject = {"assert 1": "assert area(1) == 3", "assert 2": "assert area(2) == 12"}


def program(code: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"Here it is.\n```python\n{code}\n```")


def options(judge: FakeJudge, **fields: Json) -> JsonObject:
    return {
        "base_url": judge.url, "model": "j", "api_key_variable": "JUDGE_KEY", "kind": "certificate", "max_retries": 0,
        "certificate": {"row": "code", "tests": TESTS}, **fields,
    }  # fmt: skip


def knowing(version: dict[str, list[str]], outside: str) -> bool:
    return any(has_words(right, "program")(version, outside) for right in (RIGHT, OTHER))


async def test_a_program_is_compared_by_its_tests() -> None:
    async with judging(certifying(knowing)) as judge:
        verifier = get_verifier("judge", options(judge))
        turn = make_turn(expert=program(RIGHT))
        verdicts = [await verifier(program(code), turn) for code in (RIGHT, OTHER, WRONG)]
        verdicts.append(await verifier(Message(role=Role.ASSISTANT, content="It is 3 r r."), turn))

    assert [(verdict.score, verdict.reason) for verdict in verdicts] == [
        (1.0, "accepted"),
        (1.0, "accepted"),
        (0.0, "wrong_value"),
        (0.0, "no_answer"),
    ]
    assert len(judge.requests) == 2 + 1  # two orders for the second program, one for the third
    assert {request["max_tokens"] for request in judge.requests} == {8192}


async def test_a_verdict_is_kept_and_an_undecided_one_is_not() -> None:
    async with judging(certifying(knowing)) as judge:
        judge.failures = [400] * 6
        verifier, turn = get_verifier("judge", options(judge)), make_turn(expert=program(RIGHT))
        verdicts = [await verifier(program(WRONG), turn) for _ in range(3)]

    assert [verdict.reason for verdict in verdicts] == ["judge_failed", "wrong_value", "wrong_value"]
    assert len(judge.requests) == 3 + 3 + 1


@needs_sandbox
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_certificate_stands_before_or_behind_execution(is_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before execution, the judge's acceptance saves a run; after it, the judge accepts what no sandbox decided."""
    use_service(monkeypatch)
    async with judging(certifying(knowing)) as judge:
        by_judge: JsonObject = {"name": "judge", "options": options(judge), "decides": "acceptance"}
        language = "python" if is_first else "cobol-that-no-node-has"
        runs = [{"stdin": "", "stdout": "3"}] if not is_first else []
        asserts: list[Json] = list(TESTS.values()) if is_first else []
        by_running: JsonObject = {
            "name": "code",
            "options": {"language": language, "asserts": asserts, "tests": runs},
        }
        parts: list[Json] = [by_judge, by_running] if is_first else [by_running, by_judge]
        verifier, turn = get_verifier("first_decided", {"verifiers": parts}), make_turn(expert=program(RIGHT))
        accepted = await verifier(program(OTHER), turn)
        refused = await verifier(program(WRONG), turn)

    assert (accepted.score, accepted.reason) == (1.0, "accepted")
    wanted = (0.0, "wrong_output") if is_first else (None, "nobody_decided")
    assert (refused.score, refused.reason) == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "certificate"}, "kind 'certificate' needs the key certificate"),
        ({"kind": "rubric", "certificate": {"row": "edit"}}, "no other kind takes it; got 'rubric'"),
        ({"certificate": {"row": "code"}}, "row 'code' needs tests, and takes no files"),
        ({"certificate": {"row": "edit", "argument": "a.b"}}, "row 'edit' takes no argument"),
        ({"certificate": {"row": "edit", "tests": {"t": " "}}}, "none of them empty; got 1"),
        ({"certificate": {"row": "edit"}, "criterion": "x"}, "kind 'certificate' takes no criterion"),
        ({"certificate": {"row": "edit", "file": {}}}, "unknown key; known: argument, files, row, tests"),
    ],
)
def test_options_that_do_nothing_or_contradict_are_refused(fields: JsonObject, message: str) -> None:
    base: JsonObject = {"base_url": "http://x/v1", "model": "j", "kind": "certificate"}
    with pytest.raises(ConfigError, match=message):
        get_verifier("judge", {**base, **fields})
