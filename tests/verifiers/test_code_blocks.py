"""verifiers.code_blocks: fenced blocks of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.verifiers.code_blocks import code_blocks


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```python\nx\n```", [("python", "x\n")]),
        ("Say:\n```\nx\n\ny\n```\nand\n```sh\nz\n```", [("", "x\n\ny\n"), ("sh", "z\n")]),
        ("1. Do\n\n   ```Python title\n   if x:\n       y\n   ```", [("python", "if x:\n    y\n")]),
        ("~~~\nx\n~~~", [("", "x\n")]),
        ("````md\n```\nx\n```\n````", [("md", "```\nx\n```\n")]),
        ("```\r\nx\r\n```\r\n", [("", "x\n")]),
        ("```\nx\n`````", [("", "x\n")]),
        ("```\n```", [("", "")]),
        ("```\nx", []),
        ("```\nx\n~~~", []),
        ("````\nx\n```", []),
        ("```\nx\n```python\ny\n```", [("", "x\n```python\ny\n")]),
        ("```x``` y\nz\n```", []),
        ("x ```\ny\n```", []),
        ("```\r\nx\r\n```", [("", "x\n")]),
        ("```\nx\r\n```", [("", "x\r\n")]),
        ("", []),
    ],
)
def test_blocks_are_read_as_commonmark_reads_them(text: str, blocks: list[tuple[str, str]]) -> None:
    assert code_blocks(text) == blocks


@given(st.lists(st.sampled_from(["```", "~~~", "````", " ```", "```a", "a", "\t~~~", "\r\n", "`"])))
def test_every_line_of_a_block_is_a_line_of_the_text(lines: list[str]) -> None:
    text = "\n".join(lines)
    rows = [*text.splitlines(), *text.split("\n")]
    contents = [line for block in code_blocks(text) for line in block.text.split("\n")[:-1]]

    assert all(any(line.endswith(each) for line in rows) for each in contents)
    assert len(contents) <= text.count("\n")
