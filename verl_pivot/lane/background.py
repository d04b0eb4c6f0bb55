"""Programs that compute for long -> turns on the lane's core, so that no number of them keeps others waiting.

Low priority alone does not hold back a thousand processes of fork bombs: they have a thousand small shares. So one
program computes at a time, for a turn; the others are stopped, all their processes together. Even the one whose turn
it is stands back while programs are in the foreground, but for the start of its turn. The time in which a program is
stopped does not count against its wall limit, as little as time in which it has no core.
"""

import signal
from collections import deque

from verl_pivot.lane.loop import Loop
from verl_pivot.lane.runs import Run
from verl_pivot.lane.watchdog import lower_priority, signal_groups

_TURN_SECONDS = 0.1
_SURE_SECONDS = 0.02
"""Of each turn, whatever is in the foreground."""


class Background:
    """A circle of programs; the first has its turn."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._circle: deque[Run] = deque()
        self._running: Run | None = None
        """The first, unless it stands back."""
        self._is_foreground_empty = True
        self._is_turning = False

    def is_stopped(self, run: Run) -> bool:
        return run in self._circle and run is not self._running

    def add(self, run: Run) -> None:
        """It has used its share of the foreground, and has the next turn; harmless to repeat."""
        if run in self._circle:
            return
        lower_priority(run.groups)
        run.pause()
        signal_groups(run.groups, signal.SIGSTOP)
        self._circle.insert(1, run)
        if not self._is_turning:
            self._is_turning = True
            self._begin_turn()

    def remove(self, run: Run) -> None:
        """It has ended, or sleeps; harmless if it was never added."""
        if run in self._circle:
            self._circle.remove(run)
            if run is self._running:
                self._running = None
            else:
                self._continue(run)

    def stand_back(self, *, is_foreground_empty: bool) -> None:
        """Told whenever programs come to the foreground, or none is left in it."""
        if is_foreground_empty != self._is_foreground_empty:
            self._is_foreground_empty = is_foreground_empty
            self._obey()

    def _begin_turn(self) -> None:
        """The next one runs for a short time at least."""
        self._stop()
        self._is_turning = bool(self._circle)
        if self._circle:
            self._circle.rotate(-1)
            self._running = self._circle[0]
            self._continue(self._running)
            self._loop.after(_SURE_SECONDS, self._obey)
            self._loop.after(_TURN_SECONDS, self._begin_turn)

    def _obey(self) -> None:
        if not self._is_foreground_empty:
            self._stop()
        elif self._running is None and self._circle:
            self._running = self._circle[0]
            self._continue(self._running)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.pause()
            signal_groups(self._running.groups, signal.SIGSTOP)
            self._running = None

    def _continue(self, run: Run) -> None:
        run.resume()
        signal_groups(run.groups, signal.SIGCONT)
