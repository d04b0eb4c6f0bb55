"""Outcomes and transcripts of rollouts -> `<folder>/<step>.jsonl`, written by a thread, completely or not at all."""

import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from verl_pivot.data.rollout_dumps import DumpedOutcome, RecordedTexts, encode_line, place_in_dump, without_texts
from verl_pivot.errors import ConfigError

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 20
"""Bytes of lines that are written at once; writing each line by itself takes twice the CPU time."""


class DumpLine(NamedTuple):
    """One line before it is encoded."""

    outcome: DumpedOutcome
    transcript: bytes | None
    """The part that the agent loop wrote; None for agent loops of verl."""
    prompt: bytes | None = None
    """Messages of the prompt, as the agent loop wrote them; None if texts are left out."""


class StepDump:
    """Dumps of one partition, a file per step; later batches of a step are appended to its file.

    If a run is resumed, the file of a step that was dumped before is replaced.
    """

    def __init__(self, folder: Path, *, batches_per_step: int = 1, recorded: RecordedTexts = RecordedTexts.ALL) -> None:
        """Create the folder.

        Args:
            folder: Folder of the files.
            batches_per_step: Number of batches after which the file of a step appears.
            recorded: Rollouts whose texts are dumped; with `calls` the agent loop has left all texts out.

        Raises:
            ConfigError: If the folder cannot be created.
        """
        self._folder = folder
        self._batches_per_step = batches_per_step
        self._recorded = recorded
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error) from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout-dump")
        self._writing: deque[Future[None]] = deque()
        self._failed: set[int] = set()
        """Steps of which lines could not be written; nothing of them is published from then on."""
        self._step: int | None = None
        self._num_batches = 0
        """Number of batches of the step that have ended."""

    def add(self, step: int, lines: Sequence[DumpLine]) -> None:
        """Write lines in the background, in the order of their groups, sessions and parts.

        Raises:
            ConfigError: If an earlier write failed.
        """
        is_new = step != self._step
        if is_new:
            self._step, self._num_batches = step, 0
        is_published = self._num_batches >= self._batches_per_step
        self._submit(self._thread.submit(self._append, step, list(lines), is_new, is_published))

    def end_batch(self) -> None:
        """Publish the file of the step in the background, if this was its last batch.

        Raises:
            ConfigError: If an earlier write failed.
        """
        self._num_batches += 1
        if self._step is not None and self._num_batches >= self._batches_per_step:
            self._submit(self._thread.submit(self._publish, self._step))

    def finish(self) -> None:
        """Publish the file of the step, and wait until it is there.

        Raises:
            ConfigError: If a write failed.
        """
        if self._step is not None:
            self._num_batches = max(self._num_batches, self._batches_per_step)
            self._submit(self._thread.submit(self._publish, self._step))
        while self._writing:
            self._result(self._writing.popleft())

    def _submit(self, future: "Future[None]") -> None:
        self._writing.append(future)
        while self._writing and self._writing[0].done():
            self._result(self._writing.popleft())

    def _result(self, future: "Future[None]") -> None:
        try:
            future.result()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the dump of rollouts in {self._folder} cannot be written: {error}; make room there or choose another "
            "folder with trainer.rollout_data_dir or trainer.validation_data_dir"
        )

    def _append(self, step: int, lines: list[DumpLine], is_new: bool, is_published: bool) -> None:
        """Append lines to the unfinished file of a step, unless an earlier write of the step has failed."""
        if step in self._failed:
            return
        path = self._unfinished(step)
        lines.sort(key=lambda line: place_in_dump(line.outcome.uid))
        try:
            if is_published:
                shutil.copyfile(self._finished(step), path)
            with path.open("wb" if is_new else "ab", buffering=_BUFFER_BYTES) as file:
                file.writelines(self._encoded(lines))
        except OSError:
            self._failed.add(step)
            path.unlink(missing_ok=True)  # so that no part of a step is taken for the whole
            raise

    def _encoded(self, lines: Sequence[DumpLine]) -> Iterator[bytes]:
        """The encoded lines; a line has its prompt only if it differs from the one before in the same group."""
        last: tuple[str, bytes | None] = ("", None)
        for outcome, transcript, prompt in lines:
            if transcript is not None and self._recorded is RecordedTexts.KEPT and not outcome.is_kept:
                yield encode_line(outcome, without_texts(transcript))
                continue
            group = outcome.uid.split("_")[0]
            yield encode_line(outcome, transcript, None if (group, prompt) == last else prompt)
            last = (group, prompt)

    def _publish(self, step: int) -> None:
        if step not in self._failed and self._unfinished(step).exists():
            os.replace(self._unfinished(step), self._finished(step))

    def _finished(self, step: int) -> Path:
        return self._folder / f"{step}.jsonl"

    def _unfinished(self, step: int) -> Path:
        return self._folder / f"{step}.jsonl.unfinished"
