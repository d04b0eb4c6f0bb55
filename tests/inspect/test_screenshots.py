"""The pictures of the documentation: what `verl-pivot inspect` shows of the two runs of docs/tutorial_run.md.

With VERL_PIVOT_SCREENSHOTS set, as by `make screenshots`, the pictures are written to docs/images.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.inspect.test_page import open_list, press, wait_until
from tests.support.browser import chromium, inspecting
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.heavy

MAX_BYTES = 150_000
PROGRAM = re.compile(r'^```python title="write_runs.py"\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder with the runs of the tutorial; its name is short, since the page shows it."""
    program = PROGRAM.search((ROOT / "docs" / "tutorial_run.md").read_text())
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="runs-") as name:
        subprocess.run([sys.executable, "-c", program[1]], cwd=name, check=True)
        yield Path(name)


def take(page: "Page", target: Path) -> Iterator[Path]:
    """Take each picture and yield its file."""
    shots = {
        "inspect-run": "r",
        "inspect-rollouts": "",
        "inspect-rollout": "x j j x Enter",
        "inspect-compare": "c",
    }
    waits = {
        "inspect-run": ".curve svg",
        "inspect-rollouts": ".row",
        "inspect-rollout": ".turn",
        "inspect-compare": ".pair",
    }
    for name, keys in shots.items():
        if name == "inspect-rollouts":
            open_list(page, "?step=10&sort=num_calls&is_descending=true")
        press(page, keys)
        page.wait_for_selector(waits[name])
        page.screenshot(path=target / f"{name}.png")
        yield target / f"{name}.png"


def test_the_pictures_of_the_docs_are_of_the_runs_of_the_tutorial(folder: Path, tmp_path: Path) -> None:
    target = ROOT / "docs" / "images" if "VERL_PIVOT_SCREENSHOTS" in os.environ else tmp_path
    with chromium() as browser, inspecting(folder / "slow", folder / "fast") as address:
        page = browser.new_page(viewport={"width": 1000, "height": 560}, color_scheme="light")
        page.goto(address)
        wait_until(page, "document.body.innerText.includes('960 rollouts')")
        pictures = list(take(page, target))
        page.close()

    assert all(0 < path.stat().st_size < MAX_BYTES for path in pictures)
    assert sorted(path.name for path in pictures) == sorted(path.name for path in (ROOT / "docs" / "images").iterdir())
