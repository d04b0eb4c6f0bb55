"""This machine -> overrides with which the studies' launches run on it: on its GPU, or on the CPU if it has none."""

from functools import cache

from verl_pivot.smoke.composing import this_machine


@cache
def machine_overrides() -> tuple[str, ...]:
    """Overrides of a launch with one worker; like one with `+local=cpu`, it logs to the console alone.

    Raises:
        ConfigError: If no rollout engine is installed.
    """
    overrides = tuple(this_machine(num_workers=1).overrides)
    return overrides if "+local=cpu" in overrides else (*overrides, "trainer.logger=[console]")
