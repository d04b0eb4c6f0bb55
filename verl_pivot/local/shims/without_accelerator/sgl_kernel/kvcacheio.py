"""Functions that SGLang imports for its host cache, which needs an accelerator; each raises an error when called."""

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if not name.startswith("transfer_kv_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def unavailable(*args: object, **kwargs: object) -> None:
        raise RuntimeError(
            f"sgl_kernel.kvcacheio.{name} needs an accelerator; leave SGLang's hierarchical cache off on a CPU"
        )

    return unavailable
