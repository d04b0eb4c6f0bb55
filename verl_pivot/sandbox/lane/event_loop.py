"""The event loop of a lane: ready file descriptors and due timers -> calls, all in one thread."""

import heapq
import itertools
import select
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    """One call at a later time, unless it is cancelled before."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class EventLoop:
    """An epoll loop of plain callbacks; asyncio would take more memory and import time than a lane should have."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._forgotten: set[int] = set()
        """Descriptors forgotten in this round: the remaining events under these numbers are those of closed files."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self.is_running = True

    def on_readable(self, fd: int, callback: Callback) -> None:
        """Call `callback` whenever `fd` has data or has ended, until `forget`."""
        self._readers[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def on_writable(self, fd: int, callback: Callback | None) -> None:
        """Call `callback` also whenever `fd`, which is registered for reading, takes data; None ends that."""
        if callback is None:
            self._writers.pop(fd, None)
            self._epoll.modify(fd, select.EPOLLIN)
        elif fd not in self._writers:
            self._writers[fd] = callback
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed; harmless if it is not watched."""
        self._writers.pop(fd, None)
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self._forgotten.add(fd)

    def after(self, seconds: float, callback: Callback) -> Timer:
        """Call `callback` once, after this time."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def run_once(self, max_seconds: float) -> None:
        """Wait for events, then make the calls for them and for the timers that are due."""
        events = self._epoll.poll(min(max_seconds, self._seconds_to_timer()))
        self._forgotten.clear()
        for fd, event in events:
            if event & ~select.EPOLLOUT and fd not in self._forgotten and (reader := self._readers.get(fd)):
                reader()
            if event & select.EPOLLOUT and fd not in self._forgotten and (writer := self._writers.get(fd)):
                writer()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def _seconds_to_timer(self) -> float:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 60.0
