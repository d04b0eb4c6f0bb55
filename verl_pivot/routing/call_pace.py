"""CallPace: how busy an actor of the router is -> the least time that its callers leave between two calls."""

FASTEST_MS = 3
"""Period of an actor that has little to do, and of one that has just started."""
_SLOWEST_MS = 24
_BUSY = 0.3
"""Share of one core above which calls are to come more rarely."""
_IDLE = 0.1
"""Share of one core below which calls may come more often."""


class CallPace:
    """Minimum time between two calls of one process.

    A call between processes costs the actor as much time as ten messages in one call. A busy actor therefore takes more
    messages in fewer calls, and each message waits some milliseconds longer.
    """

    def __init__(self) -> None:
        self.period_ms = FASTEST_MS

    def observe(self, cpu_seconds: float, seconds: float) -> None:
        """Adjust the period after `seconds` seconds, in which the actor has used `cpu_seconds` of CPU time."""
        share = cpu_seconds / seconds
        if share > _BUSY:
            self.period_ms = min(2 * self.period_ms, _SLOWEST_MS)
        elif share < _IDLE:
            self.period_ms = max(self.period_ms // 2, FASTEST_MS)
