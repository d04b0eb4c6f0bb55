"""A web application -> a service that answers until Ctrl-C or SIGTERM ends it."""

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web


def serve_until_told(
    make_app: "Callable[[], web.Application]", host: str, port: int, on_ready: Callable[[str], None]
) -> None:
    """Serve an application until a signal ends it; the application is made within the event loop that runs it.

    Args:
        make_app: Makes the application.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        on_ready: Called with the address as soon as requests are answered.

    Raises:
        ConfigError: If it cannot listen on this address and port.
    """
    from verl_pivot.tools.http_service import serve

    async def run() -> None:
        task = asyncio.ensure_future(serve(make_app(), host, port, on_ready))
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, task.cancel)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    asyncio.run(run())
