"""A played conversation with its outcome -> a line of played.jsonl, which `verl-pivot import` can read."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.data.files import make_folder, unwritable
from verl_pivot.data.json_values import BadRowError, decode_json, encode_json
from verl_pivot.errors import ConfigError
from verl_pivot.playing.conversation import PlayedConversation
from verl_pivot.playing.problems import Problem
from verl_pivot.playing.rewarding import Outcome
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedProblem:
    """One conversation about a problem, with its outcome."""

    problem: Problem
    sample: int
    """Number of the conversation among those about the same problem, counted from 0."""
    player: str
    """Name of the model, or "human"."""
    tools: tuple[JsonObject, ...]
    """Schemas of the tools that the player had."""
    played: PlayedConversation
    outcome: Outcome

    @property
    def id(self) -> str:
        return f"{self.problem.id}-{self.sample}"

    def as_dict(self) -> JsonObject:
        """Columns of a trajectory as importers read them, with the verdict and the record of the rollout."""
        metadata = self.problem.columns.get("metadata") or {}
        chosen = self.played.expert_turns
        return {
            "id": self.id,
            "task_id": self.problem.id,
            "trial": self.sample,
            "messages": [message.as_dict() for message in self.played.messages],
            "tools": list(self.tools),
            "expert_turns": chosen if chosen == "all" else list(chosen),
            "metadata": decode_json(metadata) if isinstance(metadata, str) else metadata,
            "passed": self.outcome.passed,
            "reward": self.outcome.reward,
            "verdict": self.outcome.as_dict(),
            "player": self.player,
            "rollout": self.played.record(self.problem.prompt_id).as_dict(),
        }


def played_line(played: PlayedProblem) -> str:
    """The JSON line of a conversation; text that is no valid Unicode is escaped, and the import refuses such a row."""
    fields = played.as_dict()
    try:
        return encode_json(fields)
    except BadRowError:
        return json.dumps(fields)


@contextmanager
def writing_played(path: Path) -> Iterator[Callable[[PlayedProblem], None]]:
    """Function that writes each conversation to a new file immediately, so that an interruption loses none.

    A file without any conversation is removed at the end.

    Raises:
        ConfigError: If the file exists, or cannot be written.
    """
    try:
        make_folder(path.parent)
        file = path.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists, and its conversations are not overwritten: choose another --out, or remove the file"
        ) from error
    except OSError as error:
        raise unwritable(path, error) from error

    def write(played: PlayedProblem) -> None:
        try:
            file.write(f"{played_line(played)}\n")
            file.flush()
        except OSError as error:
            raise unwritable(path, error) from error

    try:
        with file:
            yield write
    finally:
        if path.stat().st_size == 0:
            path.unlink()
