"""Verifier `code`: a program is right if it passes the row's tests, run in the sandbox and compared outside it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.code_asserts import AssertCheck, parse_assert
from verl_pivot.verifiers.code_values import MAX_BYTES, Evaluated, read_values
from verl_pivot.verifiers.extraction import OUTPUT_LANGUAGES, extract_program
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

_RUNNER = (Path(__file__).parent / "runners" / "call_expressions.py").read_text()
_PLAN, _VALUES = "plan.json", "values.json"


class IoTest(Options):
    """One run of the program with its input and the output that it must print."""

    stdin: str = ""
    args: tuple[str, ...] = ()
    """Arguments of the command line."""
    stdout: str
    """Output of a right program; space at the ends of lines and empty lines at the end do not count."""


class CodeOptions(Options):
    """Options of the verifier `code`. A row gives either `tests` or `asserts`."""

    language: str = "python"
    """Language of the program, one that the sandbox has; see `verl-pivot sandbox serve --languages`."""
    tests: tuple[IoTest, ...] = ()
    asserts: tuple[str, ...] = ()
    """Asserts for a Python program, such as `assert f(2) == [4]`; code_asserts.py says what an assert may hold."""
    entry_point: str = ""
    """Name of the function or class that the asserts test; all arguments of its calls are taken for inputs."""
    argument: ToolArgument | None = None
    """Argument that holds the program, as "tool.argument"; None for the last code block of the text."""
    score: Literal["all", "pass_rate"] = "all"
    """all: 1 if every test passes, else 0. pass_rate: share of the tests that pass."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds for each test, for all asserts together, and for compiling."""
    memory_mib: Annotated[int, Field(ge=16, le=65536)] = 1024
    """Memory of the program, in MiB."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.tests) == bool(self.asserts):
            raise ValueError("give either tests or asserts")
        if self.tests and not any(test.stdout.strip() for test in self.tests):
            raise ValueError("no test expects any output, so that an empty program would pass")
        if self.asserts and self.language != "python":
            raise ValueError(f"asserts are for python, and the language is {self.language!r}; give tests")
        for text in self.asserts:
            parse_assert(text, self.entry_point)
        return self


@register("code", options=CodeOptions)
class CodeVerifier:
    """Runs the program in the sandbox, and compares its outputs and values outside.

    What a test expects never enters the sandbox, where the program could find it.
    """

    def __init__(self, options: CodeOptions) -> None:
        self._options = options

    @property
    def _checks(self) -> list[AssertCheck]:
        return [parse_assert(text, self._options.entry_point) for text in self._options.asserts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        code = extract_program(action, self._options.argument, ignored=OUTPUT_LANGUAGES)
        if isinstance(code, Verdict):
            return code
        try:
            outcomes = await (self._run_asserts(code) if self._options.asserts else self._run_tests(code))
        except SandboxRequestError as error:  # such as a language that no node has
            return broken_expert(str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        return self._verdict(outcomes)

    async def _run_tests(self, code: str) -> list[Verdict]:
        """Outcomes of the tests. The first test runs alone: most wrong programs fail it and need not run the others."""
        tests = self._options.tests
        programs = [self._program(code, stdin=test.stdin, args=test.args) for test in tests]
        outcomes = _outcomes(tests[:1], await execute(programs[:1]))
        if outcomes[0].score == 1.0 or self._options.score == "pass_rate":
            outcomes += _outcomes(tests[1:], await execute(programs[1:]))
        return outcomes

    async def _run_asserts(self, code: str) -> list[Verdict]:
        """Outcomes of the asserts, whose expressions one run of the program evaluates."""
        expressions = [each for check in self._checks for each in check.expressions]
        plan = {"code": code, "expressions": expressions, "max_bytes": MAX_BYTES}
        files = {_PLAN: json.dumps(plan).encode()}
        (result,) = await execute([self._program(_RUNNER, files=files, fetch=(_VALUES,))])
        if result.status is not Status.OK:
            return [_failed(result)] * len(self._checks)
        return await asyncio.to_thread(_checked_outcomes, self._checks, result)

    def _program(self, code: str, **fields: Any) -> Program:
        options = self._options
        limits = Limits(
            wall_seconds=options.wall_seconds,
            cpu_seconds=max(1, round(options.wall_seconds)),
            memory_bytes=options.memory_mib * MIB,
        )
        return Program(code=code, language=options.language, limits=limits, **fields)

    def _verdict(self, outcomes: Sequence[Verdict]) -> Verdict:
        num_tests = len(self._options.tests or self._options.asserts)
        num_passed = sum(outcome.score == 1.0 for outcome in outcomes)
        if num_passed == num_tests:
            return Verdict.accept()
        number, failed = next(each for each in enumerate(outcomes, 1) if each[1].score != 1.0)
        detail = f"test {number} of {num_tests}: {failed.detail}"
        if num_passed and self._options.score == "pass_rate":
            return graded(num_passed / num_tests, detail)
        return replace(failed, detail=detail)


def _outcomes(tests: Sequence[IoTest], results: Sequence[Result]) -> list[Verdict]:
    return [_outcome(test, result) for test, result in zip(tests, results, strict=True)]


def _outcome(test: IoTest, result: Result) -> Verdict:
    if result.status is not Status.OK:
        return _failed(result)
    if result.stdout_truncated:
        return refuse(Reason.OUTPUT_LIMIT, f"{result.stdout_bytes} bytes of output")
    if _lines(result.stdout) != _lines(test.stdout):
        return refuse(Reason.WRONG_OUTPUT, repr(result.stdout[:200]))
    return Verdict.accept()


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _failed(result: Result) -> Verdict:
    message = result.compile_output or result.stderr
    return refuse(REASONS[result.status], message.strip()[-300:])


def _checked_outcomes(checks: Sequence[AssertCheck], result: Result) -> list[Verdict]:
    """Outcomes of the asserts, from the values that the program's interpreter wrote."""
    values = read_values(result.files.get(_VALUES, b""), sum(len(check.expressions) for check in checks))
    if values is None:
        why = result.file_errors.get(_VALUES, "it wrote something else")
        return [refuse(Reason.WRONG_OUTPUT, f"no values of the tests: {why}")] * len(checks)
    coming = iter(values)
    return [_checked_outcome(check, [next(coming) for _ in check.expressions]) for check in checks]


def _checked_outcome(check: AssertCheck, values: Sequence[Evaluated]) -> Verdict:
    for expression, evaluated in zip(check.expressions, values, strict=True):
        if evaluated.problem is not None:
            return refuse(evaluated.problem, f"{expression}: {evaluated.detail}")
    if check.holds([evaluated.value for evaluated in values]):
        return Verdict.accept()
    return refuse(Reason.WRONG_OUTPUT, ", ".join(map(_shown, values)))


def _shown(evaluated: Evaluated) -> str:
    try:
        return repr(evaluated.value)[:300]
    except ValueError:
        return "a number of more than 4300 digits"
