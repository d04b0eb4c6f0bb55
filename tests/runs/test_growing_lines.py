"""runs.growing_lines: a file that is still being written gives each whole line once, with number and offset."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.runs.growing_lines import GrowingLines, NewLines, PlacedLine


def test_a_torn_last_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a"')
    reader = GrowingLines(path)

    assert reader.read() == NewLines([PlacedLine(1, 0, b'{"a": 1}')], False, True)
    assert reader.read() == NewLines([], False, True)
    with path.open("ab") as file:
        file.write(b': 2}\n\n{"a": 3}')
    assert reader.read() == NewLines([PlacedLine(2, 9, b'{"a": 2}'), PlacedLine(4, 19, b'{"a": 3}')], False, True)
    assert reader.read() == NewLines([], False, True)  # the writer pauses
    with path.open("ab") as file:
        file.write(b'\n{"a": 4}\n')
    assert reader.read() == NewLines([PlacedLine(5, 28, b'{"a": 4}')], False, True)


def test_the_offset_of_a_line_is_that_of_its_text(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b'  {"a": 1} \n\t{}\n')

    assert GrowingLines(path).read().lines == [PlacedLine(1, 2, b'{"a": 1}'), PlacedLine(2, 13, b"{}")]


def test_a_file_that_is_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"{}\n{}\n")
    reader = GrowingLines(path)
    reader.read()

    (tmp_path / "new").write_bytes(b'{"a": 1}\n{"a": 2}\n')
    (tmp_path / "new").replace(path)
    assert reader.read() == NewLines([PlacedLine(1, 0, b'{"a": 1}'), PlacedLine(2, 9, b'{"a": 2}')], True, True)
    path.write_bytes(b"{}\n")
    assert reader.read() == NewLines([PlacedLine(1, 0, b"{}")], True, True)


def test_a_file_that_is_rewritten_in_place_and_not_shorter_is_read_anew(tmp_path: Path) -> None:
    """As verl writes its own dump of a step that a resumed run samples again."""
    path = tmp_path / "1.jsonl"
    prompt = b'{"input": "' + 2000 * b"a"
    path.write_bytes(prompt + b'", "score": 1}\n')
    reader = GrowingLines(path)
    reader.read()

    path.write_bytes(prompt + b'", "score": 0}\n{}')
    assert reader.read() == NewLines(
        [PlacedLine(1, 0, prompt + b'", "score": 0}'), PlacedLine(2, len(prompt) + 15, b"{}")], True, True
    )
    path.write_bytes(prompt + b'", "score": 0}\n{}\n[]\n')
    assert reader.read() == NewLines([PlacedLine(3, len(prompt) + 18, b"[]")], False, True)


@given(st.lists(st.just('{"a": 1}') | st.text("a\r\u2028\x85 ", max_size=4)), st.lists(st.integers(0, 60)))
def test_lines_are_those_between_newlines_wherever_the_writer_pauses(texts: list[str], pauses: list[int]) -> None:
    import tempfile

    data = "".join(f"{text}\n" for text in texts).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.touch()
        reader, read = GrowingLines(path), []
        cuts = [0, *sorted(min(pause, len(data)) for pause in pauses), len(data)]
        for begin, end in pairwise(cuts):
            with path.open("ab") as file:
                file.write(data[begin:end])
            read += reader.read().lines

    expected = [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    assert [(line.number, line.text) for line in read] == expected
    assert all(data[line.offset :].startswith(line.text) or line.text in data[line.offset :] for line in read)
