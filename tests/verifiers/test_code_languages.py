"""verifiers.code in each language that comes with the sandbox."""

import shutil

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Json, Message, Role, Verdict
from verl_pivot.verifiers.registry import get_verifier

TESTS: Json = [
    {"stdin": "1 2\n", "stdout": "3\n"},
    {"stdin": "-5 4\n", "stdout": "-1"},
    {"stdin": "7 0", "stdout": "7"},
]

# language -> (the tool that it needs, a right program, a program that fails the second test)
PROGRAMS = {
    "python": ("python3", "print(sum(map(int, input().split())))", "print(abs(sum(map(int, input().split()))))"),
    "bash": ("bash", "read a b; echo $((a + b))", "read a b; s=$((a + b)); echo ${s#-}"),
    "javascript": (
        "node",
        "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number); console.log(a + b)",
        "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number); console.log(Math.abs(a + b))",
    ),
    "c": (
        "gcc",
        '#include <stdio.h>\nint main(){int a,b;scanf("%d %d",&a,&b);printf("%d\\n",a+b);return 0;}',
        '#include <stdio.h>\n#include <stdlib.h>\nint main(){int a,b;scanf("%d %d",&a,&b);printf("%d",abs(a+b));}',
    ),
    "cpp": (
        "g++",
        "#include <iostream>\nint main(){int a,b;std::cin>>a>>b;std::cout<<a+b<<std::endl;}",
        "#include <iostream>\n#include <cstdlib>\nint main(){int a,b;std::cin>>a>>b;std::cout<<std::abs(a+b);}",
    ),
}

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def judge(code: str, **options: Json) -> Verdict:
    action = Message(role=Role.ASSISTANT, content=f"```\n{code}\n```")
    return await get_verifier("code", options)(action, make_turn(expert=action))


@pytest.mark.parametrize("language", PROGRAMS)
async def test_a_program_is_judged_by_its_tests(language: str) -> None:
    tool, right, wrong = PROGRAMS[language]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")

    accepted = await judge(right, language=language, tests=TESTS)
    refused = await judge(wrong, language=language, tests=TESTS)
    graded = await judge(wrong, language=language, tests=TESTS, score="pass_rate")

    assert (accepted.score, accepted.reason) == (1.0, "accepted"), accepted.detail
    assert (refused.score, refused.reason) == (0.0, "wrong_output")
    assert (graded.score, graded.reason) == (pytest.approx(2 / 3), "partial")
    assert refused.detail.startswith("test 2 of 3")


async def test_a_program_that_does_not_compile_is_refused_with_the_compilers_message() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")

    verdict = await judge("int main( {", language="c", tests=TESTS)

    assert (verdict.score, verdict.reason) == (0.0, "compile_error")
    assert "expected" in verdict.detail


async def test_a_language_that_no_node_knows_is_undecided() -> None:
    verdict = await judge("PROGRAM A", language="cobol", tests=TESTS)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert "cobol" in verdict.detail


async def test_bytes_that_are_no_text_are_wrong_output() -> None:
    verdict = await judge("import os\nos.write(1, bytes(range(128, 256)))", tests=TESTS)

    assert (verdict.score, verdict.reason) == (0.0, "wrong_output")


@pytest.mark.parametrize(
    "options",
    [{"tests": TESTS}, {"asserts": ["assert total('1 2') == 3"]}, {"asserts": ["assert total('1 2') == 3"] * 2}],
    ids=["tests", "an assert", "asserts"],
)
async def test_a_byte_order_mark_before_a_program_is_none_of_it(options: dict[str, Json]) -> None:
    code = "\ufeffdef total(line):\n    return sum(map(int, line.split()))\n\nimport sys\n"
    reads = "if not sys.stdin.isatty() and (line := sys.stdin.readline()):\n    print(total(line))"

    assert (await judge(code + reads, **options)).score == 1.0
