"""Programs that compute for long -> turns on the lane's core, so that no number of them keeps others waiting.

Low priority alone does not hold back a thousand processes of fork bombs: they have a thousand small shares. So a few
programs compute at a time; the others are stopped, all their processes together, until it is their turn. The time in
which a program is stopped does not count against its wall limit, as little as time in which it has no core.
"""

import signal
from collections import deque

from verl_pivot.lane.loop import Loop
from verl_pivot.lane.runs import Run
from verl_pivot.lane.watchdog import lower_priority, signal_groups

_TURN_SECONDS = 0.1


class Background:
    """Turns of `num_active` programs at a time, in a circle."""

    def __init__(self, loop: Loop, num_active: int) -> None:
        self._loop = loop
        self._num_active = num_active
        self._active: deque[Run] = deque()
        self._stopped: deque[Run] = deque()
        self._is_turning = False

    def is_stopped(self, run: Run) -> bool:
        return run in self._stopped

    def add(self, run: Run) -> None:
        """It has used its share of the foreground, and has the next turn; harmless to repeat."""
        if run in self._active or run in self._stopped:
            return
        lower_priority(run.groups)
        if len(self._active) < self._num_active:
            self._active.append(run)
            return
        self._stop(run)
        self._stopped.appendleft(run)
        if not self._is_turning:
            self._is_turning = True
            self._loop.after(_TURN_SECONDS, self._turn)

    def remove(self, run: Run) -> None:
        """It has ended, or sleeps; harmless if it was never added."""
        if run in self._stopped:
            self._stopped.remove(run)
        elif run in self._active:
            self._active.remove(run)
            self._continue_next()

    def _turn(self) -> None:
        self._is_turning = bool(self._stopped)
        if self._stopped:
            last = self._active.popleft()
            self._stop(last)
            self._stopped.append(last)
            self._continue_next()
            self._loop.after(_TURN_SECONDS, self._turn)

    def _continue_next(self) -> None:
        if self._stopped and len(self._active) < self._num_active:
            run = self._stopped.popleft()
            self._active.append(run)
            run.resume()
            signal_groups(run.groups, signal.SIGCONT)

    def _stop(self, run: Run) -> None:
        run.pause()
        signal_groups(run.groups, signal.SIGSTOP)
