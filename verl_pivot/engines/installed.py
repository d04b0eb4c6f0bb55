"""Installed packages -> the rollout engine of verl that a launch on this machine can use."""

from importlib.util import find_spec

ENGINES = ("sglang", "vllm")
"""Values of verl's `actor_rollout_ref.rollout.name` that are also package names, in order of preference."""


def installed_engine() -> str | None:
    """The first engine that is installed; None if there is none."""
    return next((engine for engine in ENGINES if find_spec(engine) is not None), None)
