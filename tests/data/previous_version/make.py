"""Writes the files of this folder with the code of release 0.1.0: see README.md."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

FOLDER = Path(__file__).parent
NUM_TRAJECTORIES = 6
REFUND = {
    "type": "function",
    "function": {
        "name": "refund",
        "description": "Pay money back.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "integer"}}, "required": ["order_id"]},
    },
}


def write_input() -> None:
    """Write six trajectories of two turns, and one row that no import can use."""
    rows = []
    for number in range(NUM_TRAJECTORIES):
        call = {
            "type": "function",
            "id": "c",
            "function": {"name": "refund", "arguments": json.dumps({"order_id": number})},
        }
        messages = [
            {"role": "user", "content": f"Refund order {number}."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": '{"ok": true}', "tool_call_id": "c"},
            {"role": "assistant", "content": "It is refunded."},
        ]
        rows.append({"id": f"shop-{number}", "messages": messages, "tools": [REFUND]})
    rows.insert(3, {"id": "broken", "messages": [{"role": "user", "content": "Hello?"}]})
    (FOLDER / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def import_interrupted() -> None:
    """Kill an import after two commits; keep its files, and the content of its journal's database as SQL."""
    from functools import partial

    from verl_pivot.formats.rows import ImportOptions

    from verl_pivot.formats import importing
    from verl_pivot.formats.importing import import_files

    importing._CHUNKS_PER_COMMIT = 1
    importing.in_chunks = partial(importing.in_chunks, num_rows=2)
    num_done = 0

    def kill_in_third_chunk(num_rows: int) -> None:
        nonlocal num_done
        num_done += num_rows
        if num_done == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    out = FOLDER / "import" / "trajectories.jsonl"
    out.parent.mkdir(exist_ok=True)
    if os.fork() == 0:
        import_files([FOLDER / "input.jsonl"], out, ImportOptions(), on_rows=kill_in_third_chunk)
    os.wait()
    journal = FOLDER / "import" / "trajectories.jsonl.unfinished"
    with sqlite3.connect(journal / "journal.sqlite") as database:
        (FOLDER / "import" / "journal.sql").write_text("\n".join(database.iterdump()) + "\n")
    found = (FOLDER / "input.jsonl").stat()
    identity = [str(FOLDER / "input.jsonl"), found.st_size, found.st_mtime_ns]
    (FOLDER / "import" / "input_identity.json").write_text(json.dumps(identity) + "\n")
    for name in ("journal.sqlite", "journal.sqlite-journal"):
        (journal / name).unlink(missing_ok=True)
    for path in journal.iterdir():
        path.rename(FOLDER / "import" / f"unfinished.{path.name}")
    journal.rmdir()


def verl_pivot(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "verl_pivot.cli", *map(str, arguments)], check=True, cwd=FOLDER)


class ByteRenderer:
    """Renderer with a token for each byte of the state's text; byte 0 ends a turn."""

    def prompt_ids(self, turn):
        return list("".join(message.content for message in turn.state).encode())

    def action_text(self, token_ids):
        from collections import namedtuple

        ended = token_ids[-1] == 0
        return namedtuple("ActionText", ["text", "ended"])(bytes(token_ids[: len(token_ids) - ended]).decode(), ended)


class HashEngine:
    """Samples that depend on the prompt and the seed alone: the right call, a wrong call, or a sentence."""

    url = "http://engine"

    async def generate(self, prompt_ids: Sequence[int], sampling, n: int):
        from verl_pivot.rollout.engine import Completion

        texts = [sampled_text(bytes(prompt_ids).decode(), sampling.seed_of(k)) for k in range(n)]
        return tuple(
            Completion(token_ids=(*text.encode(), 0), text="", ended=True, num_tokens=len(text) + 1) for text in texts
        )

    async def close(self) -> None: ...


def sampled_text(prompt: str, seed: int) -> str:
    order = prompt.partition("order ")[2].partition(".")[0]
    calls = [f'<tool_call>{{"name": "refund", "arguments": {{"order_id": {id_}}}}}</tool_call>' for id_ in (order, 99)]
    return [*calls, "It is refunded."][sha256(f"{prompt}/{seed}".encode()).digest()[0] % 3]


def profile(name: str, *, num_turns: int | None = None, stages: tuple[int, ...] | None = None) -> None:
    """Profile the trajectories; `num_turns` profiles only so many turns, and cuts the end of the last line off."""
    from verl_pivot.rollout.engine import Sampling

    from verl_pivot.data.trajectories import read_trajectories
    from verl_pivot.data.turns import turns
    from verl_pivot.profiling.early_stopping import EarlyStop
    from verl_pivot.profiling.profiler import EnginePool, Profiler, Totals, profile_turns
    from verl_pivot.profiling.profiles import ProfileSettings, TurnKey, file_sha256
    from verl_pivot.profiling.writer import open_profile

    settings = ProfileSettings(
        model="policy",
        input_sha256=file_sha256(FOLDER / "trajectories.jsonl"),
        num_samples=4,
        sampling=Sampling(),
        max_prompt_tokens=100,
        chat_template_kwargs={},
        early_stop=None if stages is None else EarlyStop(filter="pivots", stages=stages),
    )
    everything = [turn for trajectory in read_trajectories(FOLDER / "trajectories.jsonl") for turn in turns(trajectory)]

    async def run() -> None:
        with open_profile(FOLDER / name, settings) as writer:
            pool = EnginePool([HashEngine()], print)
            profiler = Profiler(renderer=ByteRenderer(), pool=pool, settings=settings, seed=0, totals=Totals())
            await profile_turns(everything[:num_turns], profiler, writer, concurrency=4, on_turn=lambda: None)
            if num_turns is None:
                writer.put_in_order(TurnKey(turn.trajectory_id, turn.index) for turn in everything)

    asyncio.run(run())
    if num_turns is not None:
        content = (FOLDER / name).read_bytes()
        (FOLDER / name).write_bytes(content[:-40])


def curriculum() -> None:
    """Train three steps, save verl's data.pt, and record the pivots that the next six steps drew."""
    import torch
    from tests.test_curriculum_training import Training, data_config

    from verl_pivot.rollout import manager  # noqa: F401  # verl is imported as in training

    config = data_config(FOLDER / "pivots.parquet", "data.train_batch_size=2", "pivot.curriculum.reprofile_every=2")
    training = Training(config)
    (FOLDER / "validation.parquet").unlink()
    steps = training.steps(1)
    list(islice(steps, 3))
    torch.save(training.loader.state_dict(), FOLDER / "data.pt")
    (FOLDER / "drawn.json").write_text(json.dumps(list(islice(steps, 6))) + "\n")


def dump_rollouts() -> None:
    """Play three rollouts with the agent loop, and dump their records as the replay buffer does."""
    import tempfile

    from tests.scripted_engine import call, make_loop, row
    from tests.test_tool_loop import SAMPLING, tools_file
    from verl_pivot.rollout.rollout_record import FIELD, write_records

    scripts = {
        "a_0_0": ([call("add", a=2, b=3), "It is 5."], 1.0),
        "a_1_0": ([call("multiply", a=2), "I cannot."], 0.0),
        "b_0_0": ([call("crash")], None),
    }

    async def play(script: list[str], folder: Path) -> dict[str, object]:
        output = await make_loop(script, tools_file(folder, "add", "crash")).run(SAMPLING, **row())
        return output.extra_fields[FIELD]

    def records() -> Iterator[tuple[str, dict[str, object]]]:
        for uid, (script, score) in scripts.items():
            with tempfile.TemporaryDirectory() as folder:
                yield uid, {"score": score, "kept": score is not None, **asyncio.run(play(script, Path(folder)))}

    write_records(FOLDER / "rollouts.jsonl", dict(records()))


if __name__ == "__main__":
    write_input()
    import_interrupted()
    verl_pivot("import", "input.jsonl", "--out", "trajectories.jsonl")
    profile("profile.interrupted.jsonl", num_turns=9)
    profile("profile.jsonl")
    profile("profile.early_stop.jsonl", stages=(2, 4))
    select = ("--profile", "profile.jsonl", "--out", "pivots.parquet", "--validation-share", "0.25")
    verl_pivot("select", "trajectories.jsonl", *select)
    curriculum()
    dump_rollouts()
    (FOLDER / "pivots.png").unlink()
