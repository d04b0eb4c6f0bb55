"""Logs of actions on elements: why an element was not ready, how often the page said so, and whether it was clicked."""

import pytest

from verl_pivot.browser.element_log import ElementLog, read_element_log

COVERED = """Locator.click: Timeout 2000ms exceeded.
Call log:
  - waiting for locator("aria-ref=e2")
  -   - locator resolved to <button>OK</button>
  - attempting click action
    2 \u00d7 waiting for element to be visible, enabled and stable
      - element is visible, enabled and stable
      - scrolling into view if needed
      - done scrolling
      - <div>3 \u00d7 me</div> intercepts pointer events
    - retrying click action
    - waiting 20ms
    3 \u00d7 waiting for element to be visible, enabled and stable
      - element is visible, enabled and stable
      - performing click action
      - <div>3 \u00d7 me</div> intercepts pointer events
    - retrying click action
      - waiting 500ms
"""
MOVING = """Locator.click: Timeout 2000ms exceeded.
Call log:
  - attempting click action
    - waiting for element to be visible, enabled and stable
"""
CLICKED = f"""{MOVING}    - element is visible, enabled and stable
    - performing click action
"""
DONE = f"""{CLICKED}    - click action done
    - waiting for scheduled navigations to finish
"""
PRESSED = """Locator.press: Timeout 2000ms exceeded.
Call log:
  - waiting for locator("aria-ref=e2")
  - elementHandle.press("Enter")
"""
FORGED_DONE = """Locator.press: Timeout 2000ms exceeded.
Call log:
  - elementHandle.press("
click action done
")
"""
FORGED = """Locator.fill: Timeout 2000ms exceeded.
Call log:
  - fill("
9 \u00d7 waiting
element is not visible")
"""


@pytest.mark.parametrize(
    ("error", "log"),
    [
        (COVERED, ElementLog("<div>3 \u00d7 me</div> intercepts pointer events", 5, has_acted=False)),
        (MOVING, ElementLog("Timeout 2000ms exceeded.", 0, has_acted=False)),
        (CLICKED, ElementLog("Timeout 2000ms exceeded.", 0, has_acted=True)),
        (DONE, ElementLog("Timeout 2000ms exceeded.", 0, has_acted=True, is_done=True)),
        (FORGED_DONE, ElementLog("Timeout 2000ms exceeded.", 0, has_acted=True)),
        (PRESSED, ElementLog("Timeout 2000ms exceeded.", 0, has_acted=True)),
        (FORGED, ElementLog('element is not visible")', 9, has_acted=False)),
        ("", ElementLog("", 0, has_acted=False)),
    ],
)
def test_a_log_says_why_how_often_and_whether_the_browser_was_given_the_click(error: str, log: ElementLog) -> None:
    assert read_element_log(error) == log
