"""Agreement of a judge with execution on pairs of patches, with and without certificates: see --help."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from examples.certificates.pairs import PatchPair, patch_pairs
from examples.scripted_judge import served
from verl_pivot.statistics import wilson_interval
from verl_pivot.types import JsonObject, Message, Role, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

_KEY = "VERL_PIVOT_CERTIFICATES_KEY"
_SECONDS = 10.0
_STATE = (Message(role=Role.USER, content="Write the function that passes the tests."),)


class Agreement(NamedTuple):
    """How the verdicts of one form agree with execution."""

    form: str
    num_pairs: int
    num_decided: int
    num_right: int
    num_wrongly_accepted: int
    num_wrongly_refused: int

    def line(self) -> str:
        low, high = wilson_interval(self.num_right / self.num_decided, self.num_decided)
        return (
            f"{self.form:>20}: {self.num_right} of {self.num_decided} decided agree "
            f"({self.num_right / self.num_decided:.3f} [{low:.3f}, {high:.3f}]), wrongly accepted "
            f"{self.num_wrongly_accepted}, wrongly refused {self.num_wrongly_refused}, undecided "
            f"{self.num_pairs - self.num_decided}"
        )


def main(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("outputs/certificates"),
    base_url: Annotated[str, typer.Option(help="Judge's endpoint; without it, the scripted judge.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint.")] = "scripted",
    answer_format: Annotated[str, typer.Option(help="json_schema, json_object or text.")] = "json_schema",
    sloppy: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of blind answers of the scripted judge.")
    ] = 0.4,
    hidden: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of these without a visible defect.")] = 0.3,
    seed: Annotated[int, typer.Option(help="Decides the order of the pairs and the scripted judge's answers.")] = 0,
) -> None:
    """Ask a judge about pairs of programs whose sameness is known by execution, with and without certificates.

    The endpoint's API key is read from the environment variable VERL_PIVOT_CERTIFICATES_KEY.

    Example: python -m examples.certificates --base-url http://localhost:30000/v1 --model critic
    """
    os.environ.setdefault(_KEY, "none")
    out.mkdir(parents=True, exist_ok=True)
    pairs = patch_pairs(seed)
    outcomes = outcomes_of(pairs)
    habits = {"outcomes": outcomes, "sloppy": sloppy, "hidden": hidden, "seed": seed}
    settings = out / "judge.json"
    settings.write_text(json.dumps(habits))
    module = "examples.certificates.judge"
    scripted = served("scripted", module, str(settings), log=out / "judge.log")
    with nullcontext(base_url) if base_url else scripted as url:
        options: JsonObject = {
            "base_url": url, "model": model, "api_key_variable": _KEY, "answer_format": answer_format,
        }  # fmt: skip
        found = asyncio.run(_agreements(pairs, outcomes, options))
    num_same = sum(_is_same(pair, outcomes) for pair in pairs)
    typer.echo(f"{len(pairs)} pairs, {num_same} of them the same by execution")
    for each in found:
        typer.echo(each.line())
    (out / "agreement.json").write_text(json.dumps([each._asdict() for each in found], indent=1))


def _program(code: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"```python\n{code}```")


def outcomes_of(pairs: Sequence[PatchPair]) -> dict[str, list[bool]]:
    """{program without its last newline: [num_tests] whether it passes}; each program runs in its own process."""
    tests = {code: pair.tests for pair in pairs for code in (pair.expert, pair.patch)}
    return {code.removesuffix("\n"): _passed(code, each) for code, each in tests.items()}


def _passed(code: str, tests: Sequence[str]) -> list[bool]:
    """[num_tests] whether a program passes each test; a program that does not end in time passes none.

    The programs are those of `pairs.py`, which no model wrote: they run without a sandbox.
    """
    checks = [f"try:\n    {test}\n    print(1)\nexcept Exception:\n    print(0)" for test in tests]
    command = [sys.executable, "-I", "-c", "\n".join([code, *checks])]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except subprocess.TimeoutExpired:
        return [False] * len(tests)
    return [line == "1" for line in printed.split()]


def _is_same(pair: PatchPair, outcomes: dict[str, list[bool]]) -> bool:
    return outcomes[pair.patch.removesuffix("\n")] == outcomes[pair.expert.removesuffix("\n")]


async def _agreements(
    pairs: Sequence[PatchPair], outcomes: dict[str, list[bool]], options: JsonObject
) -> list[Agreement]:
    found = []
    for form in ("without the form", "with certificates"):
        verdicts = await asyncio.gather(*(_verdict(pair, options, form) for pair in pairs))
        decided = [(each.score == 1.0, _is_same(pair, outcomes)) for each, pair in zip(verdicts, pairs, strict=True)
                   if each.score is not None]  # fmt: skip
        found.append(
            Agreement(
                form,
                len(pairs),
                len(decided),
                sum(accepted == same for accepted, same in decided),
                sum(accepted and not same for accepted, same in decided),
                sum(same and not accepted for accepted, same in decided),
            )
        )
    return found


async def _verdict(pair: PatchPair, options: JsonObject, form: str) -> Verdict:
    tests = {f"test {number}": test for number, test in enumerate(pair.tests, 1)}
    given = "\n".join(pair.tests)
    criterion = f"Same means that each of these tests has one outcome with both programs:\n{given}"
    asked: JsonObject = {"criterion": criterion}
    if form == "with certificates":
        asked = {"kind": "certificate", "certificate": {"row": "code", "tests": {**tests}}}
    expert = _program(pair.expert)
    turn = Turn(trajectory_id="p", index=0, state=_STATE, expert=expert)
    return await get_verifier("judge", {**options, **asked})(_program(pair.patch), turn)


def start() -> None:
    """Run the command."""
    typer.run(main)
