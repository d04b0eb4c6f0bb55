"""code-judge's `POST /run/long-batch`: Program -> a batch of one submission, and its answer -> Result.

Source: https://github.com/0xWJ/code-judge, which rStar2-Agent (arXiv:2508.20722) trains with.
"""

from typing import Literal

import msgspec

from verl_pivot.errors import SandboxRequestError, UnsupportedLanguageError
from verl_pivot.sandbox.execution import Program, Result, Status, Timing
from verl_pivot.sandbox.pool_answers import PoolFailure, cut_output

PATH = "/run/long-batch"
LANGUAGES = ("python", "cpp")


class _Submission(msgspec.Struct, kw_only=True):
    type: str
    solution: str
    input: str


class _JudgeBody(msgspec.Struct, kw_only=True):
    submissions: list[_Submission]
    type: Literal["batch"] = "batch"


class _SubmissionResult(msgspec.Struct, kw_only=True):
    success: bool
    cost: float
    """Seconds."""
    run_success: bool | None = None
    """Whether the exit code was 0; None from older servers without this field, where `success` says it."""
    reason: str = ""
    stdout: str | None = None
    stderr: str | None = None


class _JudgeAnswer(msgspec.Struct, kw_only=True):
    results: list[_SubmissionResult]


_decode_answer = msgspec.json.Decoder(_JudgeAnswer).decode


def submission_body(program: Program) -> _JudgeBody:
    """Request for a program; the server applies its own limits, not those of the program.

    Raises:
        SandboxRequestError: If the program has more than code and input, or another language than Python or C++.
    """
    if program.language not in LANGUAGES:
        raise UnsupportedLanguageError(
            f"code-judge does not support language {program.language!r}: use {' or '.join(LANGUAGES)}"
        )
    if program.files or program.fetch or program.args or program.environment or program.folder:
        raise SandboxRequestError(
            "code-judge gives a program only standard input: it supports no files, arguments, environment variables or "
            "folder, and returns no files; use a service of `verl-pivot sandbox serve`, or a SandboxFusion pool"
        )
    submission = _Submission(type=program.language, solution=program.code, input=program.stdin)
    return _JudgeBody(submissions=[submission])


def read_submission_answer(program: Program, text: bytes, *, max_characters: int) -> Result:
    """Result of a program; code-judge tells only whether the exit code was 0.

    Args:
        program: The program of the request.
        text: The answer.
        max_characters: Characters to which the server cuts each output.

    Raises:
        PoolFailure: If the server could not run the program, or the text is no answer of the protocol.
    """
    try:
        results = _decode_answer(text).results
    except (ValueError, RecursionError) as error:
        raise PoolFailure(f"the answer is not valid for code-judge's {PATH}: {error}") from error
    if len(results) != 1:
        raise PoolFailure(f"the answer has {len(results)} results for one submission")
    (result,) = results
    succeeded = result.success if result.run_success is None else result.run_success
    match result.reason:
        case "worker_timeout":
            status = Status.TIMEOUT
        case "":
            status = Status.OK if succeeded else Status.ERROR
        case _:  # queue_timeout, internal_error, and whatever later servers add
            raise PoolFailure(f"code-judge could not run the program: {result.reason}")
    return Result(
        status=status,
        exit_code=0 if status is Status.OK else None,
        **cut_output(result.stdout, result.stderr, keep_bytes=program.limits.output_bytes, pool_keeps=max_characters),
        timing=Timing(wall_seconds=result.cost),
        tier="code-judge",
    )
