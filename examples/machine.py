"""This machine -> overrides with which the studies' launches run on it: on its GPU, or on the CPU if it has none."""

from functools import cache

from verl_pivot.smoke.composing import SmokeMachine, this_machine


@cache
def machine_overrides() -> tuple[str, ...]:
    """Overrides of a launch with one worker on this machine.

    Raises:
        ConfigError: If no rollout engine is installed.
    """
    return overrides_on(this_machine(num_workers=1))


def overrides_on(machine: SmokeMachine) -> tuple[str, ...]:
    """Overrides of a launch on a machine; on a GPU it logs to the console alone, as one with `+local=cpu` does."""
    return (*machine.overrides, *(("trainer.logger=[console]",) if machine.has_accelerator else ()))
