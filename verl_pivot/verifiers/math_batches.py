"""Pairs of formulas -> whether they are equal; one program compares many, since math-verify is slow to load."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from verl_pivot.errors import SandboxError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.sandbox.execution import Limits, Program, Status
from verl_pivot.verifiers.sandboxed import execute
from verl_pivot.verifiers.verdicts import Reason

_RUNNER = (Path(__file__).parent / "runners" / "compare_math.py").read_text()
_PLAN, _VERDICTS = "plan.json", "verdicts.json"
_LINGER_SECONDS = 0.005
"""Seconds for which pairs are gathered before their program starts."""
MAX_PAIRS = 64
"""Most pairs in one program."""
_SHARED_SECONDS = 0.5
"""CPU seconds for a pair among others; a pair that takes longer is compared alone, with all of its own time."""
_LOAD_SECONDS = 20.0
"""Seconds that math-verify may take to load."""

_TOGETHER = "together"
"""End of each pair of a program that failed, since it is not known which pair made it fail."""

PairResult: TypeAlias = dict[str, Any]
"""{"has_expert", "has_answer", "same"} or {"ended": reason}; see runners/compare_math.py."""


class FormulaPair(NamedTuple):
    """Two formulas in LaTeX to compare."""

    expert: str
    answer: str
    digits: int
    """Digits of floating-point numbers that are compared."""
    seconds: float
    """CPU seconds that comparing them may take."""


class _WaitingPair(NamedTuple):
    pair: FormulaPair
    result: "asyncio.Future[PairResult]"


class MathBatches:
    """Gathers the pairs of one event loop for some milliseconds and compares them in one program."""

    def __init__(self) -> None:
        self._waiting: list[_WaitingPair] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "MathBatches":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def compare(self, pair: FormulaPair) -> PairResult:
        """Compare one pair, together with pairs that come at the same time.

        Raises:
            SandboxError: If the sandbox could not run the comparison.
        """
        waiting = _WaitingPair(pair, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._compare_soon())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        result = await waiting.result
        is_late = result.get("ended") == "time_limit" and pair.seconds > _SHARED_SECONDS
        if is_late or result.get("ended") == _TOGETHER:
            (result,) = await _run([pair])
        return result

    async def _compare_soon(self) -> None:
        await asyncio.sleep(_LINGER_SECONDS)
        waiting, self._waiting = self._waiting, []
        starts = range(0, len(waiting), MAX_PAIRS)
        await asyncio.gather(*(_compare_batch(waiting[start : start + MAX_PAIRS]) for start in starts))


async def _compare_batch(batch: Sequence[_WaitingPair]) -> None:
    pairs = [each.pair._replace(seconds=min(each.pair.seconds, _SHARED_SECONDS)) for each in batch]
    try:
        results = await _run(pairs)
    except SandboxError as error:
        for each in batch:
            if not each.result.done():  # its caller may have been cancelled
                each.result.set_exception(error)
        return
    for each, result in zip(batch, results, strict=True):
        if not each.result.done():
            each.result.set_result(result)


def batch_program(pairs: Sequence[FormulaPair]) -> Program:
    """Program that compares the pairs."""
    seconds = _LOAD_SECONDS + sum(pair.seconds for pair in pairs)
    return Program(
        code=_RUNNER,
        files={_PLAN: json.dumps([pair._asdict() for pair in pairs]).encode()},
        fetch=(_VERDICTS,),
        limits=Limits(wall_seconds=min(seconds, 600.0), cpu_seconds=min(round(seconds) + 1, 600)),
    )


async def _run(pairs: Sequence[FormulaPair]) -> list[PairResult]:
    """Results of the pairs, in order. The program bounds time and memory of each pair, so that no pair can end it.

    Time is CPU time, which a busy machine gives later and not less.

    Raises:
        SandboxError: If the program fails with a single pair, as where math-verify is not installed. If it fails with
            several pairs, each of their results says so.
    """
    (result,) = await execute([batch_program(pairs)])
    if result.status is Status.OK and _VERDICTS in result.files:
        results: list[PairResult] = json.loads(result.files[_VERDICTS])
        return results
    if len(pairs) > 1:
        return [{"ended": _TOGETHER}] * len(pairs)
    if result.status is Status.MEMORY_LIMIT:
        return [{"ended": Reason.MEMORY_LIMIT}]
    raise SandboxError(f"math-verify cannot be run: {result.status}: {result.stderr.strip()[-300:]}")


math_batches = LoopLocal(MathBatches)
