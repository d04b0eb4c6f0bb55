"""The installed packages -> the rollout engine of verl that a launch here can sample with."""

from importlib.util import find_spec

ENGINES = ("sglang", "vllm")
"""Names of `actor_rollout_ref.rollout.name` that are packages too, the first choice first."""


def installed_engine() -> str | None:
    """The first engine that is installed; None if there is none."""
    return next((engine for engine in ENGINES if find_spec(engine) is not None), None)
