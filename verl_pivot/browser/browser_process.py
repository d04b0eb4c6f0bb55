"""Settings -> a Chromium that runs in bubblewrap, driven by Playwright over a pipe."""

import asyncio
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from verl_pivot.browser.allowed_requests import resolver_rules
from verl_pivot.browser.settings import BrowserSettings, find_browser
from verl_pivot.errors import BrowserError, ConfigError
from verl_pivot.extras import extra
from verl_pivot.sandbox.bubblewrap.browser_command import browser_script
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.lane.seccomp import filter_bytes

with extra("web"):
    from playwright.async_api import Browser, BrowserContext, CDPSession, Playwright, async_playwright
    from playwright.async_api import Error as PlaywrightError

logger = logging.getLogger(__name__)

PING_SECONDS = 10.0
"""Seconds within which a live browser answers a request that no page can delay."""
_ACTIONS_PER_PROCESSOR = 2
"""Pages per processor that may act on an element at the same time; an action must be done within two seconds."""
_CLOSE_SECONDS = 10.0
_TIDY_SECONDS = 0.5
"""Seconds that a driver gets to remove its empty folders after its browser has ended."""
_REAP_SECONDS = 0.05
"""Seconds that asyncio gets to notice that a child process has ended, and to close its pipes."""
_HEAP_SHARE = 0.5
"""Share of a process's memory limit that V8's old generation may use, so that a script fails before the process."""


class BrowserProcess:
    """One Chromium with its driver. It is never restarted: a further browser is a further instance."""

    def __init__(self, settings: BrowserSettings) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="verl-pivot-browser-"))
        self._playwright: asyncio.Future[Playwright] | None = None
        """The driver, set as soon as it begins to start, so that a cancelled start can wait for it and end it."""
        self._browser: Browser | None = None
        self._questions: CDPSession | None = None
        self._driver: int | None = None
        """pidfd of the driver's process, with which it is ended by a signal if its event loop has ended before."""
        self._sandbox: int | None = None
        """pidfd of the browser's bubblewrap; the number of a process that has ended may be that of another one."""
        self.num_opened = 0
        """Number of contexts opened so far."""
        self.action_turns = asyncio.Semaphore(_ACTIONS_PER_PROCESSOR * len(os.sched_getaffinity(0)))
        """Limits how many pages act on an element at once; more would only slow each other past their time limit."""
        self.num_open = 0
        """Number of contexts that are still open."""
        self.is_dead = False
        """Whether the browser is known to have ended, or not to answer."""

    async def start(self) -> None:
        """Start the browser.

        Raises:
            ConfigError: If no browser is installed, or this machine has no sandbox for it.
            BrowserError: If it does not start.
        """
        program: Path | str = self._settings.path or "Chromium"
        try:
            program = await asyncio.to_thread(self._write_script)
            async with asyncio.timeout(self._settings.start_seconds):
                self._playwright = asyncio.ensure_future(async_playwright().start())
                playwright = await asyncio.shield(self._playwright)
                self._browser = await playwright.chromium.launch(
                    executable_path=str(self._folder / "browser"),
                    args=self._arguments(),
                    env={},
                    ignore_default_args=["--disable-popup-blocking"],
                    handle_sigint=False,
                    handle_sighup=False,
                )
                self._questions = await self._browser.new_browser_cdp_session()
            self._driver = os.pidfd_open(_driver_of(self.pid))
            self._sandbox = os.pidfd_open(self.pid)
        except (PlaywrightError, OSError, TimeoutError) as error:
            await self.close()
            await asyncio.to_thread(_check_machine)
            raise BrowserError(f"the browser {program} does not start: {_first_line(error)}") from error
        except BaseException:  # also a start that is given up: nobody else knows of this browser
            await self.close()
            raise
        self._browser.on("disconnected", lambda _: self._ended())

    @property
    def pid(self) -> int:
        """Process id of the browser's bubblewrap."""
        return int((self._folder / "pid").read_text())

    async def open(self, width: int, height: int) -> "BrowserContext":
        """Open a context with its own cookies, storage and pages, all of which are gone when it closes.

        Raises:
            BrowserError: If the browser has died.
        """
        if self._browser is None or self.is_dead:
            raise BrowserError("the browser has ended")
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                context = await self._browser.new_context(
                    viewport={"width": width, "height": height},
                    accept_downloads=False,
                    locale="en-US",
                    timezone_id="UTC",
                    service_workers="block",
                )
        except (PlaywrightError, TimeoutError) as error:
            self.is_dead = True
            raise BrowserError(f"the browser can no longer open pages: {_first_line(error)}") from error
        self.num_opened += 1
        self.num_open += 1
        return context

    async def answers(self) -> bool:
        """Whether the browser itself is alive, whatever its pages do; without an answer in time it counts as dead."""
        if self.is_dead or self._questions is None:
            return False
        question = asyncio.ensure_future(self._questions.send("Browser.getVersion"))
        done, _ = await asyncio.wait({question}, timeout=PING_SECONDS)
        if not done or question.exception() is not None:
            question.cancel()
            self._ended()
        return not self.is_dead

    async def close_context(self, context: "BrowserContext") -> None:
        """Close a context with its pages, also pages that hang; a browser that fails to do so counts as dead."""
        closing = asyncio.ensure_future(context.close())
        done, _ = await asyncio.wait({closing}, timeout=_CLOSE_SECONDS)
        if not done:
            done, _ = await asyncio.wait({closing}, timeout=_CLOSE_SECONDS if await self.answers() else 0)
        self.num_open -= 1
        if not done:
            closing.add_done_callback(forget_result)
            self._ended()
        elif closing.exception() is not None and not await self.answers():
            logger.warning("a page was closed with its browser: %s", _first_line(closing.exception()))

    def kill(self) -> None:
        """End the browser at once, with all processes of its sandbox."""
        self._ended()
        with suppress(OSError, ValueError):
            if self._sandbox is None:  # of a start that did not end: the number has just been written, if at all
                self._sandbox = os.pidfd_open(self.pid)
            signal.pidfd_send_signal(self._sandbox, signal.SIGKILL)

    async def close(self) -> None:
        """End the browser and its driver, and remove what they wrote."""
        try:
            if self._browser is not None:
                await _done_within(self._browser.close(), _CLOSE_SECONDS)
            if self._playwright is not None:
                await _done_within(_stop(self._playwright), _CLOSE_SECONDS)
        finally:
            self.kill()
            if self._sandbox is not None:
                os.close(self._sandbox)
                self._sandbox = None
            await self._end_driver()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _end_driver(self) -> None:
        """Kill a driver that still runs: when an event loop ends, asyncio cancels Playwright's tasks before ours."""
        if self._driver is None:
            return
        driver, self._driver = self._driver, None
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(driver, ended.set)
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(driver, signal.SIGTERM)  # it then removes its folders, but does not exit
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _TIDY_SECONDS)
                signal.pidfd_send_signal(driver, signal.SIGKILL)
                await ended.wait()
            await asyncio.sleep(_REAP_SECONDS)
        finally:
            loop.remove_reader(driver)
            os.close(driver)

    def _ended(self) -> None:
        self.is_dead = True

    def _write_script(self) -> Path:
        """Write the script that Playwright starts, and return the browser's path."""
        program = find_browser(self._settings.path)
        filter_file = self._folder / "filter"
        filter_file.write_bytes(_filter())
        script = self._folder / "browser"
        script.write_text(
            browser_script(
                program,
                folders=self._settings.folders,
                has_network=bool(self._settings.hosts),
                memory_mib=self._settings.memory_mib,
                filter_file=filter_file,
                pid_file=self._folder / "pid",
            )
        )
        script.chmod(0o700)
        return program

    def _arguments(self) -> list[str]:
        heap_mib = int(self._settings.memory_mib * _HEAP_SHARE)
        return [
            "--disable-gpu",
            f"--js-flags=--max-old-space-size={heap_mib}",
            f"--host-resolver-rules={resolver_rules(self._settings.hosts)}",
            "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--disk-cache-size=1048576",
        ]


def _driver_of(pid: int) -> int:
    """Process id of the driver: the child of this process under which a browser runs."""
    while (parent := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) != os.getpid():
        pid = parent
    return pid


async def _stop(starting: "asyncio.Future[Playwright]") -> None:
    """End a driver as soon as it has started; a driver that failed to start has already ended."""
    await (await starting).stop()


async def _done_within(ending: Coroutine[Any, Any, None], seconds: float) -> None:
    """Wait a limited time for a browser to end: if its driver or its event loop's tasks are dead, it never does."""
    task = asyncio.ensure_future(ending)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    task.add_done_callback(forget_result)
    if not done:
        task.cancel()


def forget_result(task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a task that no caller awaits, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


@cache
def _filter() -> bytes:
    """Filter of system calls, compiled once in a process."""
    return filter_bytes()


def _check_machine() -> None:
    """Refuse a machine without a sandbox.

    Raises:
        ConfigError: With the obstacles and their remedies.
    """
    found = probe(PythonView.of())
    if found.tier >= Tier.T3:
        causes = "; ".join(f"{obstacle.what}: {obstacle.remedy}" for obstacle in found.obstacles)
        raise ConfigError(f"this machine has no sandbox for a browser ({causes})")


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
