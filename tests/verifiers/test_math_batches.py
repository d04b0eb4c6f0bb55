"""verifiers.math_batches: many pairs of formulas in one program; a slow pair does not hold up the others for long."""

import asyncio

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.errors import SandboxError
from verl_pivot.verifiers import math_batches
from verl_pivot.verifiers.math_batches import FormulaPair, PairResult, gather_pairs

pytestmark = [needs_sandbox, pytest.mark.heavy]


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def compare(*pairs: FormulaPair) -> list[PairResult]:
    async with gather_pairs() as gathering:
        return await asyncio.gather(*(gathering.ask(None, pair) for pair in pairs))


def runner_that_does(statement: str) -> str:
    """The comparing program, where comparing two formulas in a child process does something else."""
    broken = math_batches._RUNNER.replace("\ndef is_same(", f"\ndef is_same(*_):\n    {statement}\n\ndef unused(")
    return broken.replace("\n    compare(", '\n    read("1") or compare(')


async def test_each_of_many_pairs_gets_its_own_answer() -> None:
    pairs = [
        FormulaPair(f"{number}", f"{number % 3} + {number - number % 3 + number % 2}", 6, 5.0) for number in range(150)
    ]

    answers = await compare(*pairs)

    assert [result["same"] for result in answers] == [number % 2 == 0 for number in range(150)]


async def test_a_pair_that_takes_long_is_ended_and_the_others_are_answered() -> None:
    tower = FormulaPair("42", "9^{9^{9^{9}}}", 6, 1.5)

    *others, last = await compare(*[FormulaPair("42", "6 \\cdot 7", 6, 5.0)] * 10, tower)

    assert [result["same"] for result in others] == [True] * 10
    assert last == {"ended": "time_limit"}


async def test_pairs_whose_common_program_fails_are_compared_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In practice pairs may take too much memory together; here the program has too little time to load."""
    monkeypatch.setattr(math_batches, "_LOAD_SECONDS", 0.01)
    monkeypatch.setattr(math_batches, "_SHARED_SECONDS", 0.01)

    answers = await compare(FormulaPair("42", "6 \\cdot 7", 6, 8.0), FormulaPair("42", "41", 6, 8.0))

    assert [result["same"] for result in answers] == [True, False]


async def test_a_missing_library_is_an_error_of_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_batches, "_RUNNER", "import no_such_library")

    with pytest.raises(SandboxError, match=r"math-verify cannot be run: error: [\s\S]*no_such_library"):
        await compare(FormulaPair("42", "41", 6, 8.0))


async def test_an_error_of_the_comparing_program_is_no_verdict_on_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_batches, "_RUNNER", runner_that_does("return no_such_name"))

    for pairs in [[FormulaPair("42", "42.0", 6, 8.0)], [FormulaPair("42", "42.0", 6, 8.0)] * 2]:
        with pytest.raises(SandboxError, match=r"two formulas cannot be compared: [\s\S]*no_such_name"):
            await compare(*pairs)


@pytest.mark.parametrize("error", ["MemoryError", "RecursionError"])
async def test_a_formula_that_is_too_large_is_a_fault_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr(math_batches, "_RUNNER", runner_that_does(f"raise {error}"))

    assert await compare(FormulaPair("42", "42.0", 6, 8.0)) == [{"ended": "runtime_error"}]
