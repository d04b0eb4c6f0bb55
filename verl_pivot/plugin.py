"""Loaded by `import verl` in every process, Ray workers included (entry point `verl.plugins`).

verl drops an exception here at DEBUG level, so a broken plugin would be silent: what fails is logged at
ERROR with the remedy, and `verl-pivot doctor` says so too.
"""

import logging
import os

logger = logging.getLogger(__name__)


def load() -> None:
    """Register what verl finds by name. verl itself is still importing: keep to light modules."""
    from verl_pivot.configuration import register_resolvers

    register_resolvers()
    _repair_cpu_build()
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        from verl_pivot.local.platform import activate

        activate()


def _repair_cpu_build() -> None:
    """Beside a torch built without CUDA, PyPI's torchvision breaks `import verl.trainer.main_ppo` already."""
    import torch

    if torch.version.cuda is None and not torch.accelerator.is_available():
        from verl_pivot.local.environment import activate_shims

        activate_shims()


try:
    load()
except Exception:  # whatever it is, verl would drop it without a word
    logger.exception("verl-pivot could not load into this process; run `verl-pivot doctor` for the cause")
    raise
