"""The pictures of the documentation: what `verl-pivot inspect` shows of the two runs of docs/tutorial_run.md.

`make screenshots` sets VERL_PIVOT_SCREENSHOTS, and then they are written to docs/images.
"""

import os
import re
import runpy
from pathlib import Path

import pytest

from tests.inspect.test_page import open_list, press, wait_until
from tests.support.browser import chromium, inspecting
from tests.support.paths import ROOT

pytestmark = pytest.mark.heavy

IMAGES = ROOT / "docs" / "images"
NAMES = ("inspect-run.png", "inspect-rollouts.png", "inspect-rollout.png", "inspect-compare.png")
MAX_BYTES = 150_000


def test_the_pictures_of_the_docs_are_taken_of_the_runs_of_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page_text = (ROOT / "docs" / "tutorial_run.md").read_text()
    program = re.search(r'^```python title="write_runs.py"\n(.*?)^```', page_text, re.MULTILINE | re.DOTALL)
    assert program is not None
    Path("write_runs.py").write_text(program[1])
    runpy.run_path("write_runs.py")
    target = IMAGES if "VERL_PIVOT_SCREENSHOTS" in os.environ else tmp_path

    with chromium() as browser, inspecting(tmp_path / "slow", tmp_path / "fast") as address:
        page = browser.new_page(viewport={"width": 1000, "height": 620}, color_scheme="light")
        page.goto(address)
        wait_until(page, "document.body.innerText.includes('960 rollouts')")
        page.wait_for_selector(".curve svg")
        page.screenshot(path=target / NAMES[0])
        open_list(page, "?sort=calls&is_descending=true")
        page.screenshot(path=target / NAMES[1])
        press(page, "x j j j j j j j x Enter")
        page.wait_for_selector(".turn")
        page.screenshot(path=target / NAMES[2])
        press(page, "c")
        page.wait_for_selector("mark")
        page.screenshot(path=target / NAMES[3])
        page.close()

    for name in NAMES:
        assert 0 < (target / name).stat().st_size < MAX_BYTES
