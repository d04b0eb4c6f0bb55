"""Effects of a command and of the expert's, each run in its own sandbox -> whether they are the same.

The effect is the output, the exit code and the files, in the folder that a setup script makes and in altered copies.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.off_loop import run_off_loop
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.types import Verdict
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed, size_of_result
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

_RUNNER = (Path(__file__).parent / "runners" / "run_command.py").read_text()
_PLAN, _EFFECTS = "plan.json", "effects.json"
_OUTPUT_BYTES = MIB
_MAX_CACHED_COMMANDS = 1024
_NO_TOOL = (126, 127)
_ENDS = (Reason.TIME_LIMIT, Reason.OUTPUT_LIMIT, Reason.RUNTIME_ERROR)
_SETUP_SECONDS = 10.0

Effect: TypeAlias = dict[str, Any]
"""{"exit_code", "printed", "files", "changes", "complaint"} or {"ended": reason}; see runners/run_command.py."""


class ShellEffects(NamedTuple):
    """A folder in which commands are compared."""

    setup: str
    """Bash script that makes the folder."""
    num_perturbed: int
    """Number of altered copies of the folder."""
    wall_seconds: float
    """Time limit: average seconds for the command per folder, and CPU seconds of each of its processes."""

    async def compare(self, command: str, expert: str) -> Verdict:
        """Verdict on a command; the expert's runs once for all samples of a row, and a command equal to it does not."""
        try:
            effects = await _expert_effects.get((self, expert), lambda: self._run_expert(expert))
            if isinstance(effects, Verdict):
                return effects
            if command.strip() == expert.strip():
                return Verdict.accept()
            (result,) = await execute([self._program(command, num_runs=1)])
        except SandboxRequestError as error:  # this command is too large: the expert's could be sent
            return refuse(Reason.TOO_LONG, str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        return await run_off_loop(size_of_result(result), _compare, result, effects)

    async def _run_expert(self, expert: str) -> "_ExpertEffects | Verdict":
        """Effects of the expert's command, or the verdict that there is nothing to compare with.

        The command runs twice, since one that prints the time or a random number has another effect in each run.
        """
        try:
            (result,) = await execute([self._program(expert, num_runs=2)])
        except SandboxRequestError as error:  # such as a setup that is too large to send
            return broken_expert(str(error))
        runs = _read(result)
        if runs is None:
            return broken_expert(f"the expert's command failed: {result.status}: {result.stderr.strip()[-300:]}")
        if problem := _problem(runs):
            return broken_expert(problem)
        first = runs[0]
        return tuple(each if "ended" not in each and _ends_alike(each, first[0]) else None for each in first)

    def _program(self, command: str, *, num_runs: int) -> Program:
        cpu_seconds = max(1, round(self.wall_seconds))
        plan = {
            "setup": self.setup,
            "command": command,
            "num_perturbed": self.num_perturbed,
            "num_runs": num_runs,
            "cpu_seconds": cpu_seconds,
            "max_output_bytes": _OUTPUT_BYTES,
        }
        seconds = (self.num_perturbed + 1) * num_runs * self.wall_seconds + _SETUP_SECONDS
        return Program(
            code=_RUNNER,
            files={_PLAN: json.dumps(plan).encode()},
            fetch=(_EFFECTS,),
            limits=Limits(wall_seconds=min(seconds, 600.0), cpu_seconds=cpu_seconds),
        )


_ExpertEffects: TypeAlias = tuple[Effect | None, ...]
"""[num_perturbed + 1] effects of the expert's command; None for an altered folder in which it fails."""
_expert_effects: AskedOnce[tuple[ShellEffects, str], _ExpertEffects | Verdict] = AskedOnce(_MAX_CACHED_COMMANDS)


def _read(result: Result) -> list[list[Effect]] | None:
    """[num_runs][num_perturbed + 1] effects; None if the program was stopped, or its command kept it from writing."""
    if result.status is not Status.OK:
        return None
    try:
        runs = json.loads(result.files.get(_EFFECTS, b""))
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(runs, list) and all(isinstance(run, list) for run in runs)
    return runs if is_whole and all(isinstance(each, dict) for run in runs for each in run) else None


def _problem(runs: list[list[Effect]]) -> str:
    """Reason why no command can be compared with the expert's effects; empty if one can."""
    first = runs[0][0]
    if "ended" in first:
        return f"the expert's command was stopped: {first['ended']}"
    complaint = first["complaint"].strip()[-300:]
    if first["exit_code"] in _NO_TOOL or ": command not found" in first["complaint"]:
        return f"the expert's command needs a tool that the sandbox does not have: {complaint}"
    if not first["changes"] and not first["printed"]:
        return f"the expert's command prints nothing and changes nothing: {complaint}"
    if any(_compared(one) != _compared(other) for one, other in zip(*runs, strict=True)):
        return "the expert's command has another effect when it is run again"
    return ""


def _compared(effect: Effect) -> tuple[Any, ...]:
    return (effect.get("ended"), effect.get("exit_code"), effect.get("printed"), effect.get("files"))


def _ends_alike(effect: Effect, first: Effect) -> bool:
    return bool(effect["exit_code"]) == bool(first["exit_code"])


def _compare(result: Result, expert: _ExpertEffects) -> Verdict:
    if result.status is not Status.OK:
        return refuse(REASONS[result.status], result.stderr[-300:])
    runs = _read(result)
    if runs is None or len(runs) != 1 or len(runs[0]) != len(expert):
        why = "; ".join(result.file_errors.values()) or f"the output file {_EFFECTS} has another format"
        return refuse(Reason.OUTPUT_LIMIT, why)
    for number, (effect, expert_effect) in enumerate(zip(runs[0], expert, strict=True)):
        if expert_effect is None or _compared(effect) == _compared(expert_effect):
            continue
        if "ended" in effect:
            reason = effect["ended"] if effect["ended"] in _ENDS else Reason.WRONG_OUTPUT
            return refuse(Reason(reason), f"folder {number}")
        shown = f"exit code {effect.get('exit_code')}, {str(effect.get('printed'))[:300]!r}"
        return refuse(Reason.WRONG_OUTPUT, f"folder {number}: {shown}")
    return Verdict.accept()
