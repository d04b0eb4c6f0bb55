"""Verifier `code`: a program, run in the sandbox, is right if its results, compared outside, pass the row's tests."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from verl_pivot.all_at_once import all_at_once
from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.off_loop import run_off_loop
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.code_asserts import AssertCheck, parse_assert
from verl_pivot.verifiers.code_errors import RaiseCheck
from verl_pivot.verifiers.code_outputs import same_lines, same_words
from verl_pivot.verifiers.code_tests import asserts_of
from verl_pivot.verifiers.code_values import MAX_BYTES, Evaluated, read_values
from verl_pivot.verifiers.extraction import OUTPUT_LANGUAGES, extract_program
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed, size_of_result
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

_RUNNER = (Path(__file__).parent / "runners" / "call_expressions.py").read_text()
_PLAN, _VALUES = "plan.json", "values.json"
Check: TypeAlias = AssertCheck | RaiseCheck
_CHECKER_REFUSALS = (1, 2)
"""Exit codes by which a checker rejects an output: that of a Python program that raises, and those of testlib."""


class IoTest(Options):
    """One run of the program with its input and the output that it must print."""

    stdin: str = ""
    args: tuple[str, ...] = ()
    """Arguments of the command line."""
    stdout: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """The right output, or several outputs each of which is right."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every right output."""
        return (self.stdout,) if isinstance(self.stdout, str) else self.stdout


class CodeOptions(Options):
    """Options of the verifier `code`. A row gives one of `tests`, `asserts` and `test_file`."""

    language: str = "python"
    """Language of the program. The sandbox must have it; see `verl-pivot sandbox serve --languages`."""
    tests: tuple[IoTest, ...] = ()
    """Inputs, each with its right output."""
    asserts: tuple[str, ...] = ()
    """Asserts for a Python program, such as `assert f(2) == [4]`; code_asserts.py says what an assert may hold."""
    test_file: str = ""
    """Text of a Python file of tests, from which the asserts are read. It may hold HumanEval's `check(candidate)`,
    pytest functions, also with `parametrize` and fixtures, or unittest methods, also with `setUp`."""
    entry_point: str = ""
    """Name of the function or class under test. All arguments of its calls count as inputs, not as expected values."""
    output: Literal["lines", "words"] = "lines"
    """
    lines: the lines must be equal; space at the end of a line and empty lines at the end of the output do not count.
    words: the words must be equal, in upper or lower case. Numbers may be written differently; those that are not whole
    may differ by 1e-9 (relative).
    """
    checker: str = ""
    """Python program that decides whether an output is right, for tests with many right outputs. It runs in its own
    sandbox with the files input.txt, output.txt and expected.txt. Exit code 0 means right, 1 or 2 means wrong."""
    argument: ToolArgument | None = None
    """Argument that holds the program, as "tool.argument"; None for the last code block of the text."""
    score: Literal["all", "pass_rate"] = "all"
    """all: 1 if every test passes, else 0. pass_rate: share of the tests that pass."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Time limit in seconds for each test, or for all asserts together; a compiler has the limit of its language."""
    memory_mib: Annotated[int, Field(ge=16, le=65536)] = 1024
    """Memory limit of the program, in MiB."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [bool(self.tests), bool(self.asserts), bool(self.test_file)].count(True) != 1:
            raise ValueError("give exactly one of tests, asserts and test_file")
        if self.tests and not any(output.strip() for test in self.tests for output in test.outputs):
            raise ValueError("no test expects any output, so an empty program would pass; give one with output")
        if self.checker and not self.tests:
            raise ValueError("checker works only with tests; leave it out, or give tests")
        if not self.tests and self.language != "python":
            raise ValueError(f"asserts and test_file need language 'python', got {self.language!r}; give tests instead")
        try:
            checks = [parse_assert(text, self.entry_point) for text in self.all_asserts]
        except RecursionError as error:
            raise ValueError(
                "the tests are nested too deeply, or chain too many calls or operators; split them into shorter asserts"
            ) from error
        if checks and all(isinstance(check, RaiseCheck) for check in checks):
            raise ValueError("every test expects an error, so a program that only raises would pass; also test a value")
        return self

    @property
    def all_asserts(self) -> tuple[str, ...]:
        """`asserts`, or the asserts in `test_file`."""
        return asserts_of(self.test_file, self.entry_point) if self.test_file else self.asserts


@register("code", options=CodeOptions)
class CodeVerifier:
    """Runs the program in the sandbox, and compares its outputs and values outside.

    Expected values never enter the sandbox, where the program could find them.
    """

    def __init__(self, options: CodeOptions) -> None:
        self._options = options

    @property
    def _checks(self) -> list[Check]:
        return [parse_assert(text, self._options.entry_point) for text in self._options.all_asserts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        code = extract_program(action, self._options.argument, ignored=OUTPUT_LANGUAGES)
        if isinstance(code, Verdict):
            return code
        try:
            outcomes = await (self._run_tests(code) if self._options.tests else self._run_asserts(code))
        except SandboxRequestError as error:  # such as a language that no node has
            return broken_expert(str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        return self._verdict(outcomes)

    async def _run_tests(self, code: str) -> list[Verdict]:
        """Outcomes of the tests. The first test runs alone: most wrong programs fail it and need not run the others."""
        tests = self._options.tests
        programs = [self._program(code, stdin=test.stdin, args=test.args) for test in tests]
        outcomes = await self._outcomes(tests[:1], await execute(programs[:1]))
        if outcomes[0].score == 1.0 or self._options.score == "pass_rate":
            outcomes += await self._outcomes(tests[1:], await execute(programs[1:]))
        return outcomes

    async def _outcomes(self, tests: Sequence[IoTest], results: Sequence[Result]) -> list[Verdict]:
        pairs = zip(tests, results, strict=True)
        if self._options.checker:
            return await all_at_once(self._checked(test, result) for test, result in pairs)
        return [_outcome(test, result, by_words=self._options.output == "words") for test, result in pairs]

    async def _checked(self, test: IoTest, result: Result) -> Verdict:
        """Verdict of the checker on an output; undecided if the checker also fails on the expected output."""
        if (failed := _failure(result)) is not None:
            return failed
        (checked,) = await execute([self._checker(test, result.stdout)])
        if checked.exit_code == 0:
            return Verdict.accept()
        if checked.exit_code in _CHECKER_REFUSALS:
            return refuse(Reason.WRONG_OUTPUT, f"{result.stdout[:200]!r}: {checked.stderr.strip()[-200:]}")
        (control,) = await execute([self._checker(test, test.outputs[0])])
        if control.exit_code == 0:
            reason = REASONS.get(checked.status, Reason.WRONG_OUTPUT)
            return refuse(reason, f"the checker failed on this output: {checked.status}")
        return broken_expert(f"the checker failed on right output: {control.status}: {control.stderr.strip()[-300:]}")

    def _checker(self, test: IoTest, output: str) -> Program:
        files = {"input.txt": test.stdin, "output.txt": output, "expected.txt": test.outputs[0]}
        content = {name: text.encode("utf-8", "replace") for name, text in files.items()}
        return Program(code=self._options.checker, files=content, limits=self._limits)

    async def _run_asserts(self, code: str) -> list[Verdict]:
        """Outcomes of the asserts; one run of the program evaluates the expressions of all of them."""
        (result,) = await execute([self._assert_program(code)])
        if result.status is not Status.OK:
            return [_failed(result)] * len(self._checks)
        return await run_off_loop(size_of_result(result), _checked_outcomes, self._checks, result)

    def _assert_program(self, code: str) -> Program:
        checks = [{"setup": check.setup, "expressions": check.expressions} for check in self._checks]
        plan = {"code": code, "checks": checks, "max_bytes": MAX_BYTES}
        return self._program(_RUNNER, files={_PLAN: json.dumps(plan).encode()}, fetch=(_VALUES,))

    @property
    def _limits(self) -> Limits:
        seconds = self._options.wall_seconds
        memory_bytes = self._options.memory_mib * MIB
        return Limits(wall_seconds=seconds, cpu_seconds=max(1, round(seconds)), memory_bytes=memory_bytes)

    def _program(self, code: str, **fields: Any) -> Program:
        return Program(code=code, language=self._options.language, limits=self._limits, **fields)

    def _verdict(self, outcomes: Sequence[Verdict]) -> Verdict:
        num_tests = len(self._options.tests or self._options.all_asserts)
        if broken := [outcome for outcome in outcomes if outcome.score is None]:
            return broken[0]
        num_passed = sum(outcome.score == 1.0 for outcome in outcomes)
        if num_passed == num_tests:
            return Verdict.accept()
        number, failed = next(each for each in enumerate(outcomes, 1) if each[1].score != 1.0)
        detail = f"test {number} of {num_tests}: {failed.detail}"
        if num_passed and self._options.score == "pass_rate":
            return graded(num_passed / num_tests, detail)
        return replace(failed, detail=detail)


def _outcome(test: IoTest, result: Result, *, by_words: bool) -> Verdict:
    if (failed := _failure(result)) is not None:
        return failed
    same = same_words if by_words else same_lines
    if any(same(result.stdout, output) for output in test.outputs):
        return Verdict.accept()
    return refuse(Reason.WRONG_OUTPUT, repr(result.stdout[:200]))


def _failure(result: Result) -> Verdict | None:
    """Refusal if the program failed or printed too much; None if its output is complete."""
    if result.status is not Status.OK:
        return _failed(result)
    if result.stdout_truncated:
        return refuse(Reason.OUTPUT_LIMIT, f"{result.stdout_bytes} bytes of output")
    return None


def _failed(result: Result) -> Verdict:
    message = result.compile_output or result.stderr
    return refuse(REASONS[result.status], message.strip()[-300:])


def _checked_outcomes(checks: Sequence[Check], result: Result) -> list[Verdict]:
    """Outcomes of the asserts, from the values that the program's interpreter wrote."""
    values = read_values(result.files.get(_VALUES, b""), sum(len(check.expressions) for check in checks))
    if values is None:
        why = result.file_errors.get(_VALUES, "the program's output file has another format")
        return [refuse(Reason.WRONG_OUTPUT, f"the values of the asserts cannot be read: {why}")] * len(checks)
    coming = iter(values)
    return [_checked_outcome(check, [next(coming) for _ in check.expressions]) for check in checks]


def _checked_outcome(check: Check, values: Sequence[Evaluated]) -> Verdict:
    if isinstance(check, RaiseCheck):
        problem = check.problem(values[0])
        detail = f"expected {check.kinds[0]}, got {_shown(values[0])}"
        return Verdict.accept() if problem is None else refuse(problem, detail)
    for expression, evaluated in zip(check.expressions, values, strict=True):
        if evaluated.problem is not None:
            return refuse(evaluated.problem, f"{expression}: {evaluated.detail}")
    if check.holds([evaluated.value for evaluated in values]):
        return Verdict.accept()
    return refuse(Reason.WRONG_OUTPUT, ", ".join(map(_shown, values)))


def _shown(evaluated: Evaluated) -> str:
    if evaluated.problem is not None:
        return evaluated.detail
    try:
        return repr(evaluated.value)[:300]
    except ValueError:
        return "a number of more than 4300 digits"
