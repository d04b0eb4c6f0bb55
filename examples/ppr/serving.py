"""A judge's name -> its endpoint on this machine, which is served during a with-block."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from examples.ppr.judges import SCRIPTED
from examples.scripted_judge import refuse_ended, served
from verl_pivot.engines.server import await_ready, end_process_group, free_port

MODEL_NAME = "judge"
"""Name under which every judge is served."""
_START_SECONDS = 900.0


class JudgeModels(NamedTuple):
    """Folders of trained judges; None: no arm uses one."""

    pprm: Path | None = None
    """A judge that scores by the principles."""
    one_question: Path | None = None
    """A judge that scores by a single question."""

    def folder(self, judge: str) -> Path | None:
        """Folder of the trained judge of this name."""
        return {"pprm": self.pprm, "pprm_one_question": self.one_question}[judge]


def digest_of(files: Sequence[Path]) -> str:
    """12 hexadecimal digits of the SHA-256 of files, in their order."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()[:12]


def judge_digest(folder: Path) -> str:
    """Digest of a model's weights and tokenizer, which changes if a judge is trained again."""
    return digest_of([*sorted(folder.glob("*.safetensors")), folder / "tokenizer.json"])


@contextmanager
def served_judge(
    judge: str, models: JudgeModels, question_files: Sequence[Path], log: Path, console: Console
) -> Iterator[str]:
    """Serve a judge; yields the URL of its endpoint.

    Args:
        judge: A name in SCRIPTED, or the name of a trained judge.
        models: Folders of the trained judges.
        question_files: Files with the questions that a scripted judge knows.
        log: File for what its process prints.
        console: Shows the wait until a model is ready.

    Raises:
        SystemExit: If the judge does not start, or ends before the block does; names the log.
        EngineError: If SGLang does not start; names the log.
    """
    if judge in SCRIPTED:
        files = map(str, question_files)
        with served(judge, "examples.ppr.judge_server", judge, *files, log=log) as url:
            yield url
        return
    with _model(str(models.folder(judge)), log, console) as url:
        yield url


@contextmanager
def _model(folder: str, log: Path, console: Console) -> Iterator[str]:
    """Serve a model with the command that a user would type; yields the URL of its endpoint."""
    port = free_port()
    program = Path(sys.executable).parent / "verl-pivot"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "judge", "serve", folder, "--port", str(port), "--name", MODEL_NAME],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        await_ready(process, f"http://127.0.0.1:{port}", folder, log, _START_SECONDS, console)
        yield f"http://127.0.0.1:{port}/v1"
        refuse_ended(folder, process, log)
    finally:
        end_process_group(process)
