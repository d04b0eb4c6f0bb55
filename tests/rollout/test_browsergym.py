"""The example's agent in BrowserGym's own Python, with its real browser, driven through the rollout."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from examples.browsergym.rows import row_of
from tests.rollout.test_tool_loop import SAMPLING
from tests.support.paths import ROOT
from tests.support.scripted_engine import make_loop, row

miniwob = pytest.importorskip("miniwob")

PYTHON = os.environ.get("VERL_PIVOT_BROWSERGYM_PYTHON")
needs_browsergym = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with browsergym-miniwob: set VERL_PIVOT_BROWSERGYM_PYTHON"
)
CLICK_TEST = "browsergym/miniwob.click-test"


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIWOB_URL", f"file://{Path(miniwob.__file__).parent}/html/miniwob/")


async def played(script: list[str]) -> tuple[dict[str, Any], str]:
    """Verdict and conversation of one rollout."""
    command = f"pivot.rollout.environment.command=[{PYTHON},{ROOT / 'examples/browsergym/agent.py'}]"
    loop = make_loop(script, command)
    (output,) = await loop.run(SAMPLING, **row("", **row_of(CLICK_TEST, seed=3, index=0)))
    return output.extra_fields["verdict"], loop.tokenizer.decode([*output.prompt_ids, *output.response_ids])


@pytest.mark.heavy
@needs_browsergym
async def test_an_episode_is_one_row_with_its_mistakes_and_its_reward() -> None:
    verdict, text = await played(["I click it.", "click('999')", "click('13')"])

    assert verdict["score"] == 1.0
    assert "Click the button." in text
    assert "[13] button 'Click Me!'" in text
    assert 'Could not find element with bid "999"' in text


@pytest.mark.heavy
@needs_browsergym
async def test_a_file_of_the_machine_cannot_be_asked_for() -> None:
    _, text = await played(["goto('file:///etc/hosts')", "upload_file('13', '/etc/hosts')", "click('13')"])

    assert "localhost" not in text


def test_a_name_that_is_not_of_browsergym_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="browsergym/miniwob"):
        row_of("miniwob.click-test", seed=0, index=0)
