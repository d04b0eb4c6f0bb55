"""Writers that are functions: an answer that is no text or message in JSON is an error that names the function."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_server import chat_server, said
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import UserCodeError
from verl_pivot.synthesis import writer_settings
from verl_pivot.synthesis.writer import ProgramWriter, WriterQuestion
from verl_pivot.synthesis.writer_settings import WriterSettings, open_writers

QUESTION = WriterQuestion(messages=({"role": "user", "content": "Add 1 and 2."},), seed=0, max_tokens=8)


@pytest.mark.parametrize(
    "answer",
    [
        "'\\ud800'",
        "{'role': 'assistant', 'content': 'no', 'logprob': float('nan')}",
        "{'role': 'assistant', 'content': 'no', 'call': object()}",
        "3",
        "{'role': 'assistant', 'content': ['a part']}",
    ],
)
def test_an_answer_of_a_function_that_has_no_json_form_is_named(tmp_path: Path, answer: str) -> None:
    (tmp_path / "clerk.py").write_text(f"def answer(question):\n    return {answer}\n")
    writer = ProgramWriter(f"{tmp_path / 'clerk.py'}:answer")

    with pytest.raises(UserCodeError, match=r"program .*clerk.py:answer returned "):
        asyncio.run(writer.answer(QUESTION))


@pytest.fixture
def stand_in_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve every checkpoint by a scripted server instead of SGLang, which writes its log as SGLang does."""

    @contextmanager
    def served(model: str, *, log: Path, **options: Any) -> Iterator[str]:
        log.write_text("started")
        with chat_server([said("Yes.")]) as server:
            yield server.url

    monkeypatch.setattr(writer_settings, "sglang_server", served)


@pytest.mark.usefixtures("stand_in_server")
def test_the_log_of_a_started_server_lies_beside_an_output_whose_folder_is_new(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "synthetic"

    with open_writers({"writer": WriterSettings(model="policy")}, Retries(), logs=out, seed=0) as writers:
        assert writers.keys() == {"writer"}

    assert [path.name for path in out.parent.iterdir()] == ["synthetic.writer.server.log"]
