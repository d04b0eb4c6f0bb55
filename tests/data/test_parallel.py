"""data.parallel: what a user is told when worker processes cannot be started."""

import errno
import multiprocessing
import os
from multiprocessing.context import SpawnProcess

import pytest

from verl_pivot.data.parallel import map_in_order
from verl_pivot.errors import ConfigError


def test_a_process_that_cannot_be_started_is_told_and_those_before_it_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[SpawnProcess] = []
    start = SpawnProcess.start

    def start_first(self: SpawnProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(self)
        start(self)

    monkeypatch.setattr(SpawnProcess, "start", start_first)

    with pytest.raises(ConfigError) as refused:
        list(map_in_order(abs, [1, 2, 3], workers=2))

    assert str(refused.value) == (
        "a worker process cannot be started (Resource temporarily unavailable): run the same command again with fewer "
        "--workers"
    )
    started[0].join(20)
    assert multiprocessing.active_children() == []
