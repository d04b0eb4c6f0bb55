"""Chromium for tests of the browser; they skip where it is not installed, except in CI."""

import os
import shutil

import pytest

from verl_pivot.browser.settings import DEFAULT_BROWSER, INSTALL

if shutil.which(DEFAULT_BROWSER) is None and "CI" in os.environ:
    raise AssertionError(f"CI must test the browser: {INSTALL}")
needs_browser = pytest.mark.skipif(shutil.which(DEFAULT_BROWSER) is None, reason=f"needs a browser: {INSTALL}")
