"""Pairs of formulas -> whether they are equal; one program compares many, since math-verify is slow to load."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from verl_pivot.errors import SandboxError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.sandbox.execution import Limits, Program, Status
from verl_pivot.verifiers.gathering import Gathering
from verl_pivot.verifiers.sandboxed import execute
from verl_pivot.verifiers.verdicts import Reason

_RUNNER = (Path(__file__).parent / "runners" / "compare_math.py").read_text()
_PLAN, _VERDICTS = "plan.json", "verdicts.json"
MAX_PAIRS = 64
"""Most pairs in one program."""
_SHARED_SECONDS = 0.5
"""CPU seconds for one pair among others; a pair that takes longer is compared again alone, with its full time limit."""
_FAULT = "error"
"""How a pair ended where the program itself raised an error."""
_LOAD_SECONDS = 20.0
"""Seconds that math-verify may take to load."""

PairResult: TypeAlias = dict[str, Any]
"""{"has_expert", "has_answer", "same"} or {"ended": reason}; see runners/compare_math.py."""


class FormulaPair(NamedTuple):
    """Two formulas in LaTeX to compare."""

    expert: str
    answer: str
    digits: int
    """Number of significant digits to which floating-point numbers are compared."""
    seconds: float
    """CPU seconds that comparing them may take."""


def batch_program(pairs: Sequence[FormulaPair]) -> Program:
    """Program that compares the pairs."""
    seconds = _LOAD_SECONDS + sum(pair.seconds for pair in pairs)
    return Program(
        code=_RUNNER,
        files={_PLAN: json.dumps([pair._asdict() for pair in pairs]).encode()},
        fetch=(_VERDICTS,),
        limits=Limits(wall_seconds=min(seconds, 600.0), cpu_seconds=min(round(seconds) + 1, 600)),
    )


async def _compare(key: None, pairs: Sequence[FormulaPair]) -> list[PairResult | None]:
    """Results of the pairs, in order; None for a pair that is to be compared alone.

    The program bounds time and memory of each pair, so that no pair can end it. Time is CPU time, so that a busy
    machine delays a pair but does not shorten its time.

    Raises:
        SandboxError: If the program fails with a single pair, as where math-verify is not installed or the program
            itself raises an error, which is no fault of the answer.
    """
    is_alone = len(pairs) == 1
    bounded = pairs if is_alone else [pair._replace(seconds=min(pair.seconds, _SHARED_SECONDS)) for pair in pairs]
    (result,) = await execute([batch_program(bounded)])
    if result.status is Status.OK and _VERDICTS in result.files:
        results: list[PairResult] = json.loads(result.files[_VERDICTS])
        if is_alone and results[0].get("ended") == _FAULT:
            raise SandboxError(f"two formulas cannot be compared: {result.stderr.strip()[-300:]}")
        return [
            None if _is_open(found, pair, given) else found
            for found, pair, given in zip(results, pairs, bounded, strict=True)
        ]
    if not is_alone:
        return [None] * len(pairs)
    if result.status is Status.MEMORY_LIMIT:
        return [{"ended": Reason.MEMORY_LIMIT}]
    raise SandboxError(f"math-verify cannot be run: {result.status}: {result.stderr.strip()[-300:]}")


def _is_open(found: PairResult, pair: FormulaPair, given: FormulaPair) -> bool:
    """Whether a pair is to be compared again alone: it had not its full time, or the program has a fault."""
    ended = found.get("ended")
    return ended == _FAULT or (ended == "time_limit" and pair.seconds > given.seconds)


def gather_pairs() -> Gathering[None, FormulaPair, PairResult]:
    """Gathers the pairs of one event loop; many of them are compared by one program."""
    return Gathering(_compare, MAX_PAIRS)


math_batches = LoopLocal(gather_pairs)
