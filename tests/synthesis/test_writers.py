"""Writers that are functions: an answer that is no text or message in JSON is an error that names the function."""

import asyncio
from pathlib import Path

import pytest

from verl_pivot.errors import UserCodeError
from verl_pivot.synthesis.writer import ProgramWriter, WriterQuestion

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
