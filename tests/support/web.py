"""Chromium for tests of the browser; they skip where it is not installed, except in CI."""

import os
import shutil

import pytest

from verl_pivot.browser.settings import DEFAULT_BROWSER, INSTALL

if shutil.which(DEFAULT_BROWSER) is None and "CI" in os.environ:
    raise AssertionError(f"CI must test the browser: {INSTALL}")
one_browser = pytest.mark.asyncio(loop_scope="module")
"""Marker: the tests of a file share an event loop, and so its browser, which takes seconds to start."""
needs_browser = pytest.mark.skipif(shutil.which(DEFAULT_BROWSER) is None, reason=f"needs a browser: {INSTALL}")
