"""The lane's event loop: readable descriptors, numbers of descriptors that are used again, and timers."""

import os

from verl_pivot.sandbox.lane.event_loop import EventLoop


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that has data."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    return read_end, write_end


def test_an_event_of_a_closed_file_does_not_reach_the_file_that_has_its_number() -> None:
    loop, called = EventLoop(), []
    pipes = [full_pipe(), full_pipe()]
    empty = os.pipe()

    def replace(other: int) -> None:
        """Put an empty pipe under the number of the other pipe; called for the pipe that is served first."""
        called.append("full")
        loop.forget(other)
        os.dup2(empty[0], other)
        loop.on_readable(other, lambda: called.append("empty"))

    for (read_end, _), (other, _) in zip(pipes, reversed(pipes), strict=True):
        loop.on_readable(read_end, lambda other=other: replace(other))
    loop.run_once(1.0)

    assert called == ["full"]
    for pipe in (*pipes, empty):
        for fd in pipe:
            os.close(fd)


def test_a_descriptor_that_is_forgotten_and_registered_again_is_called_the_next_time() -> None:
    loop, called = EventLoop(), []
    read_end, write_end = full_pipe()
    loop.on_readable(read_end, lambda: called.append("first"))

    loop.forget(read_end)
    loop.on_readable(read_end, lambda: called.append("second"))
    loop.run_once(1.0)

    assert called == ["second"]
    os.close(read_end)
    os.close(write_end)


def test_timers_are_called_in_their_order_and_cancelled_ones_never() -> None:
    loop, called = EventLoop(), []
    loop.after(0.02, lambda: called.append("late"))
    loop.after(0.0, lambda: called.append("early"))
    loop.after(0.01, lambda: called.append("never")).cancel()

    while len(called) < 2:
        loop.run_once(1.0)

    assert called == ["early", "late"]
