"""Two calls of a coding agent -> the score of NeMo Gym's swe_pivot, for comparison with published results.

Source: NVIDIA-NeMo/Gym 07d6b0d. Level 0 asks for the same tool, level 1 for the same target, level 2 for similar text.
No file is read, so that a small edit that breaks the program can score as much as the expert's.
"""

import re
from collections.abc import Mapping

from verl_pivot.types import Json, ToolCall
from verl_pivot.verifiers.similarity import similarity

_MAX_CHARS = 2000
"""Number of characters that are compared, from the start of each text."""
_FULL_SIMILARITY, _NO_SIMILARITY = 0.8, 0.4
"""Similarity from which level 2 gives the full score, and similarity below which it gives 0."""
_MIN_OVERLAP = 0.8
"""Smallest overlap at which two ranges of lines are the same target."""
_MIN_COMMAND_SIMILARITY = 0.3
_NUM_PATH_PARTS, _NUM_SHELL_PATH_PARTS = 2, 3
"""Number of last parts of a path that are compared: of an edited file, and in a shell command."""
_MAX_PENALTY, _MAX_PENALTY_CHARS = 0.1, 500
"""Largest share that long texts take off the continuous score, and number of characters at which it is reached."""
_LETTERS_OF_PATH = re.compile(r"[\w./~-]+")
_TEXTS = ("old_str", "new_str", "file_text")


def score(call: ToolCall, expert: ToolCall, *, level: int, is_continuous: bool) -> float:
    """Score of `call` in [0, 1], compared up to `level`."""
    if call.name != expert.name:
        return 0.0
    if level >= 1 and not _same_target(call.arguments, expert.arguments):
        return 0.0
    if level < 2:
        return 1.0
    least = _least_similarity(call.arguments, expert.arguments, _NO_SIMILARITY if is_continuous else _FULL_SIMILARITY)
    if not is_continuous:
        return float(least >= _FULL_SIMILARITY)
    if least < _NO_SIMILARITY:
        return 0.0
    reward = min(1.0, 0.5 + 0.5 * (least - _NO_SIMILARITY) / (_FULL_SIMILARITY - _NO_SIMILARITY))
    num_chars = sum(len(_text(call.arguments, name)) for name in _TEXTS)
    return reward * (1.0 - _MAX_PENALTY * min(num_chars / _MAX_PENALTY_CHARS, 1.0))


def _same_target(given: Mapping[str, Json], expert: Mapping[str, Json]) -> bool:
    if "path" not in expert:
        return _same_shell(_text(given, "command"), _text(expert, "command"))
    if given.get("command") != expert.get("command"):
        return False
    is_same_file = _end(_text(given, "path"), _NUM_PATH_PARTS) == _end(_text(expert, "path"), _NUM_PATH_PARTS)
    return is_same_file and _overlap(given.get("view_range"), expert.get("view_range")) >= _MIN_OVERLAP


def _same_shell(given: str, expert: str) -> bool:
    if given.split()[:1] != expert.split()[:1]:
        return False
    paths, expert_paths = ({_end(path, _NUM_SHELL_PATH_PARTS) for path in _paths(text)} for text in (given, expert))
    if expert_paths and not paths & expert_paths:
        return False
    return _ratio(given, expert, _MIN_COMMAND_SIMILARITY) >= _MIN_COMMAND_SIMILARITY


def _paths(text: str) -> list[str]:
    r"""Matches of the published pattern [\w.~-]*/[\w./~-]+, whose own search is quadratic in a word's length."""
    words: list[str] = _LETTERS_OF_PATH.findall(text)
    return [word for word in words if 0 <= word.find("/") < len(word) - 1]


def _end(path: str, num_parts: int) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)[-num_parts:]


def _overlap(given: Json, expert: Json) -> float:
    """Share of the lines from the first to the last of two ranges that are in both, in [0, 1]."""
    if given == expert:
        return 1.0
    first, second = _range(given), _range(expert)
    if first is None or second is None:
        return 0.0
    num_shared = min(first[1], second[1]) - max(first[0], second[0]) + 1
    return max(num_shared, 0) / (max(first[1], second[1]) - min(first[0], second[0]) + 1)


def _range(value: Json) -> tuple[int, int] | None:
    """First and last line; None if the value is no range."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, last = value
    if type(first) is not int or type(last) is not int or first > last:
        return None
    return first, last


def _least_similarity(given: Mapping[str, Json], expert: Mapping[str, Json], at_least: float) -> float:
    """Smallest similarity over the texts that the expert gives; for a shell command, that of the whole command."""
    names = [name for name in _TEXTS if expert.get(name)] or (["command"] if "path" not in expert else [])
    return min((_ratio(_text(given, name), _text(expert, name), at_least) for name in names), default=1.0)


def _text(arguments: Mapping[str, Json], name: str) -> str:
    value = arguments.get(name)
    return value if isinstance(value, str) else ""


def _ratio(first: str, second: str, at_least: float) -> float:
    return similarity(first[:_MAX_CHARS], second[:_MAX_CHARS], at_least=at_least)
