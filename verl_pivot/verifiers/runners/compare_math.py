"""Runs in the sandbox: compares pairs of formulas, each in a process of its own with limits on time and memory.

Formulas are read as LaTeX alone, by a grammar, and nothing in them is executed.
plan.json: [{"expert", "answer", "digits", "seconds"}]
verdicts.json: [{"has_expert", "has_answer", "same"} | {"ended"}], in the same order.
"""

import json
import os
import resource
import select
import signal
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 768 * 1024**2


def read(text: str) -> list[Any]:
    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    formulas: list[Any] = parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)
    return formulas


def compare(pair: dict[str, Any]) -> dict[str, bool]:
    expert, answer = read(pair["expert"]), read(pair["answer"])
    same = bool(expert) and bool(answer) and verify(expert, answer, float_rounding=pair["digits"], timeout_seconds=None)
    return {"has_expert": bool(expert), "has_answer": bool(answer), "same": same}


def compare_in_child(pair: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a child process, or how that process ended."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        os.write(write_end, json.dumps(compare(pair)).encode())
        os._exit(0)
    os.close(write_end)
    is_ready = bool(select.select([read_end], [], [], pair["seconds"])[0])
    output = os.read(read_end, 4096) if is_ready else b""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end)
    if output:
        verdict: dict[str, Any] = json.loads(output)
        return verdict
    return {"ended": "runtime_error" if is_ready else "time_limit"}


def main() -> None:
    with open("plan.json", encoding="utf-8") as file:
        pairs = json.load(file)
    compare({"expert": r"\frac{1}{2} + x", "answer": "x + 0.5", "digits": 6})  # loads what the child processes share
    verdicts = [compare_in_child(pair) for pair in pairs]
    with open("verdicts.json", "w", encoding="utf-8") as out:
        json.dump(verdicts, out)


main()
