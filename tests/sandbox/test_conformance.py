"""A program forked from a zygote behaves as `python main.py` does, byte for byte.

The reference is the bwrap_exec backend, which executes the interpreter on the file, under the same limits.
"""

import functools

import pytest

from tests.support.conformance_programs import PROGRAMS
from tests.support.sandbox_services import IS_ROOT, Kind, service
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result

pytestmark = pytest.mark.heavy

LIMITS = Limits(wall_seconds=10.0, memory_bytes=512 * MIB, output_bytes=MIB)
STDIN = "first\nsecond\n"


@functools.cache
def results(kind: Kind) -> dict[str, Result]:
    """{name: Result} of every program on one kind of service."""
    programs = [Program(code=code, stdin=STDIN, args=("an", "argument"), limits=LIMITS) for code in PROGRAMS.values()]
    return dict(zip(PROGRAMS, service(kind).run_many(programs), strict=True))


def outcome(result: Result) -> tuple[object, ...]:
    """Status, exit code, signal and output of a program."""
    return result.status, result.exit_code, result.signal, result.stdout, result.stderr


FRAMES = (
    "the program's first frame lies on those of its zygote: a trace of all frames shows them, and they count in depth"
)
DIFFERENCES = {
    "faulthandler": FRAMES,
    "recursion": FRAMES,
    "depth_of_recursion": FRAMES,
    "stack": FRAMES,
    "atexit_in_c": FRAMES,
    "atexit_exits": FRAMES,
}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in DIFFERENCES])
def test_a_program_does_what_it_does_under_plain_python(name: str) -> None:
    expected, result = results(Kind.BWRAP_EXEC)[name], results(Kind.ZYGOTE)[name]

    assert result.stdout == expected.stdout
    assert result.stderr == expected.stderr
    assert (result.status, result.exit_code, result.signal) == (expected.status, expected.exit_code, expected.signal)


@pytest.mark.skipif(not IS_ROOT, reason="only root gives programs groups and user ids of their own")
def test_with_a_group_and_a_user_id_of_its_own_a_program_does_the_same() -> None:
    expected, found = results(Kind.BWRAP_EXEC), results(Kind.BY_ROOT)

    different = [
        name for name in PROGRAMS if name not in DIFFERENCES and outcome(expected[name]) != outcome(found[name])
    ]

    assert different == []


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_known_differences_are_in_the_text_alone(name: str) -> None:
    expected, result = results(Kind.BWRAP_EXEC)[name], results(Kind.ZYGOTE)[name]

    assert (result.status, result.exit_code, result.signal) == (expected.status, expected.exit_code, expected.signal)
    assert (result.stdout, result.stderr) != (expected.stdout, expected.stderr), "gone: take it off the list"


def test_there_are_enough_programs_and_most_do_something() -> None:
    assert len(PROGRAMS) > 200
    assert sum(result.status == "ok" for result in results(Kind.BWRAP_EXEC).values()) > 150
