"""Verifier `terminus`: terminal keystrokes are right if they do the same as the expert's; both Terminus formats."""

import json
import re
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, StrictBool, StrictStr, ValidationError

from verl_pivot.data.json_values import object_of_unique_names
from verl_pivot.off_loop import run_off_loop
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.shell_lines import compare_lines
from verl_pivot.verifiers.similarity import similarity
from verl_pivot.verifiers.terminal_lines import returns_to_prompt, shows_prompt
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

MAX_CHARS = 100_000
"""Most characters of a batch."""
_MAX_SIMILAR_CHARS = 5_000
"""Most characters of keystrokes whose similarity is measured; the time grows with the square of their number."""
_MAX_EXTRA_SECONDS = 60.0
"""Most seconds that a batch may wait longer than the expert's; a command of Terminus 2 never waits longer than this."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_MAY_BE_KEY = re.compile(r"\S{2,}")
_KEY = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
"""Keys that are not text of a line: bash completes a word at a tab, and edits the line or its history at others."""
_Seconds = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]


class _Terminus1Command(Options):
    keystrokes: StrictStr
    is_blocking: StrictBool
    timeout_sec: _Seconds


class _Terminus1Batch(Options):
    """Action in the format of Terminus 1."""

    state_analysis: StrictStr
    explanation: StrictStr
    commands: tuple[_Terminus1Command, ...]
    is_task_complete: StrictBool


class _Terminus2Command(Options):
    keystrokes: StrictStr
    duration: _Seconds = 1.0


class _Terminus2Batch(Options):
    """Action in the format of Terminus 2."""

    analysis: StrictStr
    plan: StrictStr
    commands: tuple[_Terminus2Command, ...]
    task_complete: StrictBool = False


class _Keys(NamedTuple):
    """A line, or keys that form no line, of a batch of Terminus 2; cheaper to make than the batch's commands."""

    keystrokes: str
    stands_alone: bool
    """Whether tmux may read the keystrokes as the name of a key."""


Command: TypeAlias = _Terminus1Command | _Keys
Batch: TypeAlias = _Terminus1Batch | _Terminus2Batch


class TerminusOptions(Options):
    """Options of the verifier `terminus`."""

    mode: Literal["form", "similarity"] = "form"
    """
    form: the same lines. A line that bash reads is compared by its form, as in verifier `shell`; other keys must be
    equal. Bash reads a line if the screen shows its prompt and no line before it reads the terminal. In Terminus 1, the
    same commands must be blocking. A batch may wait at most 60 s longer than the expert's.
    similarity: the edit similarity of all keystrokes together must be at least `threshold`; NeMo Gym's rule without its
    judge, for comparison.
    """
    threshold: Annotated[float, Field(ge=0.5, le=1.0)] = 0.95
    """Smallest similarity at which a batch is accepted in mode `similarity`; 0.95 and 0.9 in NeMo Gym's
    configurations."""


@register("terminus", options=TerminusOptions)
class TerminusVerifier:
    """Compares two batches of the same format, which must also agree on whether the task is complete.

    Differs from NeMo Gym 07d6b0d (resources_servers/terminus_judge), which compares completeness only if the expert
    claims it, so that a policy could always claim it.
    """

    def __init__(self, options: TerminusOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert = _parse_expert(turn.expert.content)
        if expert is None or turn.expert.tool_calls:
            return broken_expert("the expert's action is not a batch in a format of Terminus")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        batch = _parse_batch(action.content, type(expert))
        if batch is None:
            return refuse(Reason.WRONG_TYPE, action.content[:200])
        if _is_complete(batch) != _is_complete(expert):
            return refuse(Reason.WRONG_VALUE, f"task complete: {_is_complete(batch)}")
        if self._options.mode == "similarity":
            return await _by_similarity(batch, expert, self._options.threshold)
        return await _by_form(batch, expert, screen=turn.state[-1].content)


@lru_cache(maxsize=256)
def _parse_expert(text: str) -> Batch | None:
    """The expert's batch, of either format; cached for the other rollouts of its turn."""
    return _parse_batch(text, _Terminus1Batch) or _parse_batch(text, _Terminus2Batch)


def _parse_batch(text: str, form: type[Batch]) -> Batch | None:
    """The batch that the whole text is; None if the text is anything else."""
    if len(text) > MAX_CHARS:
        return None
    try:
        return form.model_validate(json.loads(text, object_pairs_hook=object_of_unique_names))
    except (ValueError, ValidationError, RecursionError):
        return None


def _is_complete(batch: Batch) -> bool:
    return batch.is_task_complete if isinstance(batch, _Terminus1Batch) else batch.task_complete


async def _by_form(batch: Batch, expert: Batch, screen: str) -> Verdict:
    commands, expert_commands = _typing_commands(batch), _typing_commands(expert)
    if len(commands) != len(expert_commands):
        return refuse(Reason.WRONG_NUMBER_OF_CALLS, f"{len(commands)} commands, the expert has {len(expert_commands)}")
    if (seconds := _total_seconds(batch)) > _total_seconds(expert) + _MAX_EXTRA_SECONDS:
        return refuse(Reason.TIME_LIMIT, f"waits {seconds:g} s, the expert waits {_total_seconds(expert):g} s")
    is_read_by_bash = shows_prompt(screen)
    for command, expert_command in zip(commands, expert_commands, strict=True):
        verdict = await _compare(command, expert_command, is_read_by_bash=is_read_by_bash)
        if verdict.score != 1.0:
            return verdict
        is_read_by_bash = is_read_by_bash and returns_to_prompt(expert_command.keystrokes)
    return Verdict.accept()


async def _compare(command: Command, expert: Command, *, is_read_by_bash: bool) -> Verdict:
    line, expert_line = command.keystrokes, expert.keystrokes
    if not _waits_alike(command, expert):
        problem = "differs from the expert's command in is_blocking, or times out too early"
        return refuse(Reason.WRONG_VALUE, f"{problem}: {command}")
    if isinstance(command, _Keys) and isinstance(expert, _Keys) and command.stands_alone != expert.stands_alone:
        return refuse(Reason.WRONG_VALUE, f"{line[:200]!r} are letters in one batch, and may be a key in the other")
    if line == expert_line:
        return Verdict.accept()
    # Keys that do not end a line are not executed. Of several lines, the first may start a program that reads the rest.
    is_one_line = all(each.find("\n") == len(each) - 1 and not _KEY.search(each) for each in (line, expert_line))
    if not is_read_by_bash or not is_one_line:
        return refuse(Reason.WRONG_VALUE, f"{line[:200]!r}, the expert types {expert_line[:200]!r}")
    return await compare_lines(line, expert_line)


def _waits_alike(command: Command, expert: Command) -> bool:
    """Whether both commands are blocking or neither is, and `command` does not time out at once if the expert waits."""
    if isinstance(command, _Terminus1Command) and isinstance(expert, _Terminus1Command):
        return command.is_blocking == expert.is_blocking and command.timeout_sec >= min(1.0, expert.timeout_sec)
    return True


def _typing_commands(batch: Batch) -> list[Command]:
    """The commands of a batch without those that only wait; for Terminus 2 its lines, however commands split them.

    In Terminus 2, keystrokes of two or more characters without a blank or line end stay apart, since tmux reads some of
    them as the name of a key, such as C-c or Up.
    """
    if isinstance(batch, _Terminus1Batch):
        return [command for command in batch.commands if command.keystrokes]
    found: list[Command] = []
    for stands_alone, commands in groupby(batch.commands, _may_be_key):
        typed = [command.keystrokes for command in commands]
        lines = typed if stands_alone else _LINE.findall("".join(typed))
        found += (_Keys(line, stands_alone) for line in lines)
    return found


def _may_be_key(command: _Terminus2Command) -> bool:
    return _MAY_BE_KEY.fullmatch(command.keystrokes) is not None


def _total_seconds(batch: Batch) -> float:
    return sum(
        command.timeout_sec if isinstance(command, _Terminus1Command) else command.duration
        for command in batch.commands
    )


async def _by_similarity(batch: Batch, expert: Batch, threshold: float) -> Verdict:
    if bool(batch.commands) != bool(expert.commands):
        return refuse(Reason.WRONG_NUMBER_OF_CALLS, f"{len(batch.commands)} commands")
    keys, expert_keys = ("".join(command.keystrokes for command in each.commands) for each in (batch, expert))
    if keys != expert_keys and max(len(keys), len(expert_keys)) > _MAX_SIMILAR_CHARS:
        return refuse(Reason.TOO_LONG, f"{len(keys)} characters")
    size = len(keys) * len(expert_keys)
    found = await run_off_loop(size, similarity, expert_keys, keys, at_least=threshold)
    if found >= threshold:
        return Verdict.accept(detail=f"similarity {found:.3f}")
    return refuse(Reason.WRONG_VALUE, f"similarity below {threshold}")
