"""LoopLocal: one object per event loop, made when first used and closed together with the loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class LoopLocal(Generic[T]):
    """Holds one object per event loop. `asyncio.run` closes the object; in a loop that never ends it stays open.

    Example:
        _sandbox = LoopLocal(Sandbox)
        sandbox = await _sandbox.get()
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """Hold nothing yet.

        Args:
            make: Makes the object; entering the object's `async with` must not wait. A context manager that
                `@asynccontextmanager` makes is not allowed: `asyncio.run` would close its generator separately.
        """
        self._make = make
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]] = (
            WeakKeyDictionary()
        )

    async def get(self) -> T:
        """The object of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            holder = self._hold()
            self._held[loop] = (await anext(holder), holder)
        return self._held[loop][0]

    async def _hold(self) -> AsyncGenerator[T, None]:
        async with self._make() as made:
            yield made
