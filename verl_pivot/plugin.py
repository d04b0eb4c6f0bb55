"""Plugin that `import verl` loads in every process, Ray workers included (entry point `verl.plugins`).

verl logs an exception of a plugin at DEBUG level only. So that a broken plugin is noticed, this module logs it at
ERROR level with the remedy; `verl-pivot doctor` reports it too.
"""

import logging
import os

logger = logging.getLogger(__name__)


def load() -> None:
    """Register the names that verl looks up. verl is still being imported here, so import only light modules."""
    from verl_pivot.configuration import register_resolvers

    register_resolvers()
    _repair_cpu_build()
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        from verl_pivot.local.platform import activate

        activate()


def _repair_cpu_build() -> None:
    """Make `import verl.trainer.main_ppo` work beside a torch without CUDA, where PyPI's torchvision breaks it."""
    import torch

    if torch.version.cuda is None and not torch.accelerator.is_available():
        from verl_pivot.local.environment import activate_shims

        activate_shims()


try:
    load()
except Exception:  # any failure of our own loading, which verl would hide
    logger.exception("verl-pivot could not load into this process; run `verl-pivot doctor` for the cause")
    raise
