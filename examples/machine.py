"""This machine -> the overrides by which launches of the studies run on it: on a GPU if it has one, else on the CPU."""

from functools import cache

from verl_pivot.smoke.composing import this_machine


@cache
def machine_overrides() -> tuple[str, ...]:
    """Overrides of a launch with one worker.

    Raises:
        ConfigError: If no rollout engine is installed.
    """
    return tuple(this_machine(num_workers=1).overrides)
