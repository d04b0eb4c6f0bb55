"""The background of a lane: programs that compute for long take turns on its core, and so delay no others.

Low priority alone does not hold back a fork bomb: a thousand processes have a thousand small shares. Therefore one
program of the background computes at a time, and all processes of the others are stopped. The next turn goes to the
program with the least CPU time so far (least attained service), so that a program that needs only a little more ends
soon. A program that has had much CPU time runs only at the start of its turn while the foreground is in use. Time in
which a program is stopped does not count against its wall limit.
"""

import signal
import time

from verl_pivot.sandbox.lane.event_loop import EventLoop, Timer
from verl_pivot.sandbox.lane.procfs import UsageSample, are_asleep, cpu_seconds_of, lower_priority, signal_groups
from verl_pivot.sandbox.lane.runs import Run

_TURN_SECONDS = 0.1
_SHORT_TURN_SECONDS = 0.03
"""Length of a turn for programs with less CPU time than _MUCH_CPU_SECONDS."""
_GUARANTEED_SECONDS = 0.02
"""Seconds at the start of each turn in which the program runs even while the foreground is in use."""
_MUCH_CPU_SECONDS = 0.25
"""CPU time above which a program stands back: it is stopped while the foreground is in use."""


class Background:
    """Stops and continues programs, by their control groups or else by their process groups; at most one runs."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._latest_turns: dict[Run, float] = {}
        """Start of each program's latest turn; 0 if it had none yet."""
        self._current: Run | None = None
        """The program whose turn it is."""
        self._is_running = False
        """Whether the current program runs; it may have to stand back for the foreground."""
        self._guaranteed_until = 0.0
        """Time until which the current program runs even while the foreground is in use."""
        self._cpu_seconds_at_start = 0.0
        """CPU time of the current program when its turn began."""
        self._is_foreground_empty = True
        self._timer = Timer(lambda: None)

    def is_stopped(self, run: Run) -> bool:
        return run in self._latest_turns and not (run is self._current and self._is_running)

    def add(self, run: Run) -> None:
        """Take in a program that has used its share of the foreground; harmless to repeat."""
        if run not in self._latest_turns:
            lower_priority(run.groups)
            self._stop(run)
            self._latest_turns[run] = 0.0
            if self._current is None or run.attained_seconds < self._current.attained_seconds:
                self._begin_turn()

    def stop_again(self, run: Run, sample: UsageSample) -> None:
        """Stop those processes of a stopped program that run nevertheless: they are new, or continued each other."""
        if sample.is_stopped:
            run.may_be_forking = False
        elif not run.set_frozen(is_frozen=True):
            run.may_be_forking = True
            run.groups, run.pids = run.groups | sample.groups, sample.pids
            signal_groups(run.groups, signal.SIGSTOP)

    def continue_again(self, run: Run, sample: UsageSample) -> None:
        """Continue the processes of a running program that a stop has reached after it was over.

        A process that is forking when its group is stopped hands the SIGSTOP on to its child. If the group continues
        before the fork is done, the child stops nevertheless: SIGCONT takes back only what living processes have.
        """
        if run.may_be_forking:
            if sample.has_stopped:
                signal_groups(sample.groups, signal.SIGCONT)
            run.may_be_forking = not sample.is_asleep

    def remove(self, run: Run) -> None:
        """Forget a program that has ended, or that sleeps and may go on; harmless if it was never added."""
        if run in self._latest_turns:
            if self.is_stopped(run):
                self._continue(run)
            del self._latest_turns[run]
            if run is self._current:
                self._current, self._is_running = None, False
                self._begin_turn()

    def note_foreground(self, *, is_empty: bool) -> None:
        """Note whether the foreground is in use; while it is, a program with much CPU time stands back."""
        if is_empty != self._is_foreground_empty:
            self._is_foreground_empty = is_empty
            self._update_current()

    def _begin_turn(self) -> None:
        self._timer.cancel()
        if not self._latest_turns:
            return
        now = time.monotonic()
        chosen = min(self._latest_turns, key=lambda run: (run.attained_seconds, self._latest_turns[run]))
        if chosen is not self._current and self._current is not None and self._is_running:
            self._stop(self._current)
            self._is_running = False
        self._current = chosen
        self._latest_turns[chosen] = now
        self._cpu_seconds_at_start = chosen.cpu_seconds
        self._guaranteed_until = now + _GUARANTEED_SECONDS
        self._update_current()
        self._loop.after(_GUARANTEED_SECONDS, self._update_current)
        turn = _TURN_SECONDS if chosen.attained_seconds > _MUCH_CPU_SECONDS else _SHORT_TURN_SECONDS
        self._timer = self._loop.after(turn, self._end_turn)

    def _end_turn(self) -> None:
        """Begin the next turn; a program that used no CPU time in its turn and sleeps leaves the background."""
        current = self._current
        if current is not None and self._is_running:
            cpu_seconds = cpu_seconds_of(current.pids)
            if current.has_threads and cpu_seconds <= self._cpu_seconds_at_start:
                current.unused_seconds += _SHORT_TURN_SECONDS
                if not current.is_crowd and are_asleep(current.pids):
                    self.remove(current)
                    return
            current.cpu_seconds = max(current.cpu_seconds, cpu_seconds)
        self._begin_turn()

    def _update_current(self) -> None:
        """Stop or continue the current program, by its CPU time and the state of the foreground."""
        if self._current is None:
            return
        has_much_cpu = self._current.attained_seconds > _MUCH_CPU_SECONDS
        stands_back = has_much_cpu and not self._is_foreground_empty and time.monotonic() >= self._guaranteed_until
        if stands_back and self._is_running:
            self._stop(self._current)
        elif not stands_back and not self._is_running:
            self._continue(self._current)
        self._is_running = not stands_back

    def _stop(self, run: Run) -> None:
        run.pause()
        if not run.set_frozen(is_frozen=True):
            run.may_be_forking = True
            signal_groups(run.groups, signal.SIGSTOP)

    def _continue(self, run: Run) -> None:
        run.resume()
        if not run.set_frozen(is_frozen=False):
            signal_groups(run.groups, signal.SIGCONT)
