"""Chromium for tests of pages; tests skip where it is not installed, except in CI."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_INSTALL = "apt-get install --no-install-recommends chromium-headless-shell, and pip install playwright"


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser that opens our own pages alone, so that root may run it without Chromium's sandbox."""
    executable = shutil.which("chromium-headless-shell")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        executable = None
    if executable is None:
        assert "CI" not in os.environ, f"CI must test pages: {_INSTALL}"
        pytest.skip(f"needs a browser: {_INSTALL}")
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=executable, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def inspecting(*paths: Path) -> Iterator[str]:
    """Run `verl-pivot inspect` as a user does, and terminate it at the end; yields its address."""
    command = [sys.executable, "-m", "verl_pivot.cli", "inspect", *map(str, paths)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        try:
            assert found is not None, line
            yield found.group()
        finally:
            process.terminate()
            process.wait(timeout=30)
