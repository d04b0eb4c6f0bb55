"""Mark for tests that need Chromium in its sandbox; they skip with the command that installs it, except in CI."""

import os

import pytest

from verl_pivot.browser.settings import find_browser
from verl_pivot.errors import ConfigError


def why_no_browser() -> str:
    """Reason why this machine renders no page; "" if it does."""
    try:
        find_browser()
    except ConfigError as error:
        reason = str(error)
    else:
        return ""
    assert "CI" not in os.environ, f"CI must render pages: {reason}"
    return reason


_REASON = why_no_browser()
needs_browser = pytest.mark.skipif(bool(_REASON), reason=_REASON)
