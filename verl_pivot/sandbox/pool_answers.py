"""Answers of foreign pools: failures of a pool itself, and outputs that are cut to our limits."""

from typing import TypedDict


class PoolFailure(Exception):
    """A pool could not run a program, or its answer cannot be used; another attempt may succeed."""


class CutOutput(TypedDict):
    """Fields of a Result about its output."""

    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool


def cut_output(stdout: str | None, stderr: str | None, *, keep_bytes: int, pool_keeps: int | None = None) -> CutOutput:
    """Outputs of a program, cut to `keep_bytes` each.

    Args:
        stdout: Text of stdout from the pool; None for none.
        stderr: Text of stderr from the pool; None for none.
        keep_bytes: Most bytes that are kept of each.
        pool_keeps: Characters to which the pool cuts each text without saying so: a text of that length counts as cut.
    """
    out, out_bytes, out_cut = _cut(stdout or "", keep_bytes, pool_keeps)
    err, err_bytes, err_cut = _cut(stderr or "", keep_bytes, pool_keeps)
    return {
        "stdout": out,
        "stderr": err,
        "stdout_bytes": out_bytes,
        "stderr_bytes": err_bytes,
        "stdout_truncated": out_cut,
        "stderr_truncated": err_cut,
    }


def _cut(text: str, keep_bytes: int, pool_keeps: int | None) -> tuple[str, int, bool]:
    data = text.encode("utf-8", "surrogatepass")
    is_cut = len(data) > keep_bytes or (pool_keeps is not None and len(text) >= pool_keeps)
    return data[:keep_bytes].decode("utf-8", "ignore"), len(data), is_cut
