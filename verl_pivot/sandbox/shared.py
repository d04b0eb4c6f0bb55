"""The running event loop -> its one Sandbox, which verifiers and tools share."""

from verl_pivot.loop_local import LoopLocal
from verl_pivot.sandbox.client import Sandbox

_sandbox = LoopLocal(Sandbox)


async def shared_sandbox() -> Sandbox:
    """Sandbox of the running event loop; it finds its nodes as every Sandbox does, and is closed with the loop."""
    return await _sandbox.get()
