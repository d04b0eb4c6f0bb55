"""Errors of a worker that is a Ray actor; the actor is a fake, and no cluster runs."""

from types import SimpleNamespace

import pytest

from tests.workers.test_worker_pool import make_turn
from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.profiling.turn_pool import Measured
from verl_pivot.types import Turn
from verl_pivot.workers.worker_pool import WorkerLostError


async def measure_with(cause: Exception, *, has_server: bool) -> None:
    """Measure a turn with a worker that raises `cause`."""
    from ray.exceptions import RayTaskError

    from verl_pivot.workers.ray_workers import RayWorker

    async def fail(turn: Turn) -> Measured:
        raise RayTaskError(
            "measure", "Traceback (most recent call last):\n  in the worker\nKeyError", cause
        ).as_instanceof_cause()

    actor = SimpleNamespace(work=SimpleNamespace(remote=fail))
    await RayWorker[Turn, Measured](actor, "10.0.0.7", has_server=has_server).work(make_turn())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "has_server", "expected"),
    [
        (ConfigError("no tokenizer"), False, ConfigError("on 10.0.0.7: no tokenizer")),
        (EngineError("no endpoint is left"), False, EngineError("on 10.0.0.7: no endpoint is left")),
        (EngineError("no endpoint is left"), True, WorkerLostError("on 10.0.0.7: no endpoint is left")),
        (ConfigError("no tokenizer"), True, ConfigError("on 10.0.0.7: no tokenizer")),
    ],
)
async def test_an_error_of_a_worker_is_one_sentence_that_names_the_node(
    cause: Exception, has_server: bool, expected: Exception
) -> None:
    with pytest.raises(type(expected)) as caught:
        await measure_with(cause, has_server=has_server)

    assert (type(caught.value), str(caught.value)) == (type(expected), str(expected))


@pytest.mark.slow
async def test_an_exception_of_a_verifier_keeps_the_traceback_of_the_worker() -> None:
    with pytest.raises(KeyError, match="in the worker"):
        await measure_with(KeyError("name"), has_server=True)
