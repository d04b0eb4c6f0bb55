"""Programs that compute for long -> turns on the lane's core, so that no number of them keeps others waiting.

Low priority alone does not hold back a thousand processes of fork bombs: they have a thousand small shares. So one
program computes at a time, and the others are stopped, all their processes together: the one that has had the least so
far goes on (least attained service), so that what needs little more than the foreground gives is soon through. Those
that have had much stand back while programs are in the foreground, but for the start of their turn. The time in which
a program is stopped does not count against its wall limit, as little as time in which it has no core.
"""

import signal
import time

from verl_pivot.lane.loop import Loop, Timer
from verl_pivot.lane.runs import Run
from verl_pivot.lane.watchdog import are_asleep, cpu_seconds_of, lower_priority, signal_groups

_TURN_SECONDS = 0.1
_SHORT_TURN_SECONDS = 0.03
"""Of those that have not had much."""
_SURE_SECONDS = 0.02
"""Of each turn, whatever is in the foreground."""
_MUCH_CPU_SECONDS = 0.25


class Background:
    """Holds programs by their process groups; at most one runs."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._latest_turns: dict[Run, float] = {}
        """When each had its latest turn, 0 if it had none."""
        self._current: Run | None = None
        """Whose turn it is."""
        self._is_running = False
        """Unless it stands back."""
        self._sure_until = 0.0
        self._had_at_start = 0.0
        """CPU time of the current one when its turn began."""
        self._is_foreground_empty = True
        self._timer = Timer(lambda: None)

    def is_stopped(self, run: Run) -> bool:
        return run in self._latest_turns and not (run is self._current and self._is_running)

    def add(self, run: Run) -> None:
        """It has used its share of the foreground; harmless to repeat."""
        if run not in self._latest_turns:
            lower_priority(run.groups)
            self._stop(run)
            self._latest_turns[run] = 0.0
            if self._current is None or _had_less(run, self._current):
                self._begin_turn()

    def remove(self, run: Run) -> None:
        """It has ended, or sleeps; harmless if it was never added."""
        if run in self._latest_turns:
            if self.is_stopped(run):
                self._continue(run)
            del self._latest_turns[run]
            if run is self._current:
                self._current, self._is_running = None, False
                self._begin_turn()

    def stand_back(self, *, is_foreground_empty: bool) -> None:
        """Told whenever programs come to the foreground, or none is left in it."""
        if is_foreground_empty != self._is_foreground_empty:
            self._is_foreground_empty = is_foreground_empty
            self._obey()

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
        self._had_at_start = chosen.cpu_seconds
        self._sure_until = now + _SURE_SECONDS
        self._obey()
        self._loop.after(_SURE_SECONDS, self._obey)
        turn = _TURN_SECONDS if chosen.attained_seconds > _MUCH_CPU_SECONDS else _SHORT_TURN_SECONDS
        self._timer = self._loop.after(turn, self._end_turn)

    def _end_turn(self) -> None:
        """Who did nothing sleeps and needs no turn, or had no chance; its turn is over all the same."""
        current = self._current
        if current is not None and self._is_running:
            had = cpu_seconds_of(current.pids)
            if current.has_threads and had <= self._had_at_start:
                current.unused_seconds += _SHORT_TURN_SECONDS
                if not current.is_crowd and are_asleep(current.pids):
                    self.remove(current)
                    return
            current.cpu_seconds = max(current.cpu_seconds, had)
        self._begin_turn()

    def _obey(self) -> None:
        """Stop or continue the current one, as it must."""
        if self._current is None:
            return
        has_much = self._current.attained_seconds > _MUCH_CPU_SECONDS
        stands_back = has_much and not self._is_foreground_empty and time.monotonic() >= self._sure_until
        if stands_back and self._is_running:
            self._stop(self._current)
        elif not stands_back and not self._is_running:
            self._continue(self._current)
        self._is_running = not stands_back

    def _stop(self, run: Run) -> None:
        run.pause()
        signal_groups(run.groups, signal.SIGSTOP)

    def _continue(self, run: Run) -> None:
        run.resume()
        signal_groups(run.groups, signal.SIGCONT)


def _had_less(run: Run, other: Run) -> bool:
    return run.attained_seconds < other.attained_seconds
