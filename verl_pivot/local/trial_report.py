"""Lines of a launch's log -> the few lines that a trial with `+local=cpu` prints."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from verl_pivot.local.console_log import LoggedStep, logged_steps

LOG_NAME = "launch.log"
"""Name of the full log, in the folder of the launch."""
STEP_LINES = 4
"""Number of steps at equal distances, the last one among them, that get a line; so does the first step."""
SILENT_SECONDS = 60.0
"""Seconds after the line of a step after which any step gets one."""
ON_THE_CLUSTER = (
    "On the cluster: the same command without +local=cpu, with trainer.nnodes and trainer.n_gpus_per_node of your "
    "machines, and trainer.save_freq."
)
_PHASES = (
    (re.compile(r"Started a local Ray instance"), "Ray runs"),
    (
        re.compile(r"train dataset size: (\d+), val dataset size: (\d+)"),
        "data: {0} rows for training, {1} for validation",
    ),
    (re.compile(r"actor and ref model engine initialized"), "actor and reference policy loaded"),
    (re.compile(r"all initialize finished, ready to fit"), "rollout engine and reward workers run"),
)
"""Texts that verl 0.9 logs, and what they mean. If another verl logs other texts, the report is shorter."""
_NEXT = (
    "starting Ray",
    "reading the data",
    "loading the policy",
    "starting the rollout engine",
    "sampling and training",
)
_NUM_STEPS = re.compile(r"Total training steps: (\d+)")
_DROPPED = {
    "pivot/undecided_rows": "undecided",
    "pivot/lone_rows": "alone in their group",
    "pivot/absent_rollouts": "without a token",
    "down_sampling/groups_too_few": "groups with too few usable rollouts",
    "down_sampling/groups_equal_rewards": "groups of equal rewards",
}
_CAUSE = re.compile(r"^verl-pivot: .*|^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b.*")
_MEMORY_FULL = re.compile(r"^ray\.exceptions\.OutOfMemoryError: .* was (\S+) used / (\S+) limit")
"""Ray's message that it ended processes to free memory; it is some sixty lines before the log's end."""
_DIED = "ActorDiedError: The actor died unexpectedly"
_LOST_WORKER = (
    " A worker ended, or its node was lost: its log in /tmp/ray/session_latest/logs says why. Once there are as many "
    "GPUs as before, start the same command again; with trainer.save_freq and trainer.resume_mode=auto it continues "
    "from its last checkpoint"
)
_KILLED = 128 + 9
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class TrialReport:
    """Reader of a log that grows, which finds the lines to print."""

    def __init__(self) -> None:
        self._num_phases = 0
        self._num_steps: int | None = None
        self._step_said = -math.inf
        """Seconds from the beginning of the launch to the last line of a step."""
        self._tail: list[str] = []
        self._memory: re.Match[str] | None = None
        self.moments: dict[str, float] = {}
        """{phase: seconds from the beginning of the launch to the end of the phase}, in the order of the phases."""

    @property
    def doing(self) -> str:
        """Phase that the launch is in."""
        return _NEXT[self._num_phases]

    def read(self, line: str, seconds: float) -> str | None:
        """Text to print after one line of the log; None if there is none.

        Args:
            line: The line.
            seconds: Seconds since the launch began.
        """
        line = _ESCAPES.sub("", line).rstrip()
        self._tail = [*self._tail[-39:], line]
        self._memory = _MEMORY_FULL.match(line) or self._memory
        if match := _NUM_STEPS.search(line):
            self._num_steps = int(match[1])
        said = self._phase(line, seconds) or self._step(line, seconds)
        return said and f"{seconds:5.0f} s  {said}"

    def read_new(self, log: BinaryIO, seconds: float) -> Iterator[str]:
        """Texts to print for the complete lines after the file's position, which then moves behind these lines.

        Args:
            log: The open log.
            seconds: Seconds since the launch began.
        """
        while (line := log.readline()).endswith(b"\n"):
            if said := self.read(line.decode(errors="replace"), seconds):
                yield said
        log.seek(-len(line), os.SEEK_CUR)

    def failure(self, exit_code: int = 1) -> str:
        """One line with the cause of a launch that failed: the last error that its log names.

        Args:
            exit_code: Exit code of the launch, 128 + the number of a signal that killed it.
        """
        if self._memory is not None:
            return (
                f"verl-pivot: the memory of the machine was full ({self._memory[1]} of {self._memory[2]}), so Ray "
                "ended processes of the launch: end other programs on it, or use fewer workers"
            )
        causes = [line for line in self._tail if _CAUSE.match(line)]
        if exit_code == _KILLED and not causes:
            return "verl-pivot: the launch was killed (SIGKILL), most likely since the memory was full"
        if not causes:
            return "verl-pivot: the launch failed; its log says why"
        own = [line for line in causes if line.startswith("verl-pivot: ")]
        if own:
            return own[-1]
        remedy = _LOST_WORKER if _DIED in causes[-1] else ""
        return f"verl-pivot: the launch failed: {causes[-1]}{remedy}"

    def _phase(self, line: str, seconds: float) -> str | None:
        for number in range(self._num_phases, len(_PHASES)):
            pattern, said = _PHASES[number]
            if match := pattern.search(line):
                self.moments[_NEXT[number]] = seconds
                self._num_phases = number + 1
                return said.format(*match.groups())
        return None

    def _step(self, line: str, seconds: float) -> str | None:
        return next((said for step in logged_steps(line) if (said := self._say(step, seconds))), None)

    def _say(self, step: LoggedStep, seconds: float) -> str | None:
        if not step.is_training:
            return f"validation {_validation(step)}" if step.number == 0 else None
        is_silent = seconds - self._step_said >= SILENT_SECONDS
        if self._num_steps is not None and not is_silent and not _is_shown(step.number, self._num_steps):
            return None
        self._step_said = seconds
        of = "" if self._num_steps is None else f" of {self._num_steps}"
        return f"step {step.number}{of}: {_training(step.metrics)}"


def _is_shown(step: int, num_steps: int) -> bool:
    shown = min(num_steps, STEP_LINES)
    return step in {-(-num_steps * part // shown) for part in range(1, shown + 1)}


def _validation(step: LoggedStep) -> str:
    rewards = {name: value for name, value in step.metrics.items() if name.startswith("val-core/")}
    said = ", ".join(f"{name.removeprefix('val-core/')} {value:.2f}" for name, value in list(rewards.items())[:2])
    return f"before training: {said}" if said else "before training"


def _training(metrics: Mapping[str, float]) -> str:
    parts = [f"mean reward {metrics['critic/score/mean']:.2f}"]
    if (seconds := metrics.get("timing_s/step")) is not None:
        generating = metrics.get("timing_s/gen")
        parts.append(f"{seconds:.1f} s" + ("" if generating is None else f", {generating:.1f} of them sampling"))
    parts.append(_dropped(metrics))
    refused = {name: share for name, share in metrics.items() if re.fullmatch(r"verifier/[^/]+/.+", name)}
    parts += [f"{share:.0%} {name.split('/')[-1]}" for name, share in _most_frequent(refused, 2)]
    return "; ".join(parts)


def _dropped(metrics: Mapping[str, float]) -> str:
    counts = [f"{int(metrics[name])} {word}" for name, word in _DROPPED.items() if metrics.get(name)]
    before, after = (metrics.get(f"down_sampling/{side}_sampling_trace_num") for side in ("before", "after"))
    if before and after and before > after:
        counts.append(f"{int(before - after)} of {int(before)} by resampling")
    return f"dropped {', '.join(counts)}" if counts else "nothing dropped"


def _most_frequent(shares: Mapping[str, float], num: int) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])[:num]
