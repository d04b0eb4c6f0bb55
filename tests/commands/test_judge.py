"""`verl-pivot judge serve`: a real SGLang that answers questions about turns."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.launching import MINIMAL, cli
from tests.support.tiny_model import write_model
from verl_pivot.configuration import configs_dir
from verl_pivot.engines.chat import served_models
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import EngineError
from verl_pivot.rewards.principles import ShownTurn
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.turn_judge import TurnJudge

PORT = 39_117


def test_the_help_names_what_may_follow() -> None:
    done = cli("judge", "serve", "--help")

    assert done.returncode == 0
    assert "Flags of SGLang's launch_server may follow" in done.stdout


@pytest.mark.slow
async def test_a_served_model_is_asked_about_a_turn_and_ends_with_its_signal(tmp_path: Path) -> None:
    """The model has random weights, so that none of its answers is valid; server, request and response are real."""
    from transformers import AutoTokenizer

    model, url = write_model(tmp_path / "tiny"), f"http://127.0.0.1:{PORT}/v1"
    with serving(model, tmp_path / "log") as process:
        await wait_for(url, process)
        settings = ProcessSettings(
            base_url=url,
            model="tiny",
            principles=str(configs_dir() / "principles" / "search.yaml"),
            answer_format="text",
            max_tokens=16,
        )
        judge = TurnJudge(settings, AutoTokenizer.from_pretrained(model))
        judged = await judge.judge("Who?", [ShownTurn(text="I search."), ShownTurn(text="Ann.")])
        await judge.close()

    assert [turn.score for turn in judged.turns] == [None]
    assert judged.turns[0].reason.startswith("the judge's answer is invalid: ")
    lengths = [answer.num_completion_tokens for answer in judged.turns[0].answers]
    assert len(lengths) == 2
    assert all(1 <= each <= 16 for each in lengths)  # random weights may end an answer early
    said = (tmp_path / "log").read_text(errors="replace")
    assert f"pivot.process.base_url={url} pivot.process.model=tiny pivot.process.answer_format=text" in said


@contextmanager
def serving(model: Path, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run the command with its output in a file, and kill it at the end."""
    serve = [str(Path(sys.executable).parent / "verl-pivot"), "judge", "serve", str(model), "--port", str(PORT)]
    with log.open("wb") as output:
        process = subprocess.Popen(serve, stdout=output, stderr=subprocess.STDOUT, env=MINIMAL, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline and process.poll() is None:
        try:
            assert await served_models(url, "none", Retries(num_attempts=1)) == ["tiny"]
        except EngineError:
            time.sleep(1.0)  # noqa: ASYNC251  nothing else runs here
        else:
            return
    raise AssertionError("SGLang does not answer")
