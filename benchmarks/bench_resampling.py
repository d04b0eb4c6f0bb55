"""Seconds that GRPO-RoC's selection of rollouts takes after the last group of a step ended, without and with a dump.

Run by `make bench-resampling`, or with other sizes by `python -m benchmarks.bench_resampling --help`.

The rollouts lie in a real TransferQueue. Another process writes the groups one after the other, as in training. The
time runs from the end of the last group to the batch, and includes verl's poll of 0.2 s, all reads and all metrics. The
rows "all at once" are the worst case: all groups end before the first poll.

Steps without and with a dump alternate. They form pairs whose order is swapped from one round to the next, so that a
machine that slows down affects both alike. The table has the medians over the rounds, and the ratio of the medians with
a dump to those without. No round begins that would probably end after `--max-seconds`.

CPU seconds are those of the trainer's process, from the start of the selection until the dump's file is written. The
share of a step is the CPU time that the dump adds, in a step that takes no longer than its rollouts and the selection
took here. Agent loops encode the lines of the dump: one line of the output has the share of one core that this takes in
the same step, if one process has all agent loops. The last line has the memory of the trainer's process.
"""

import random
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from tests.support.rollout_queue import (
    announce,
    finish,
    rollout_fields,
    rows_left,
    sampler_kwargs,
    trainer_config,
    transfer_queue,
)
from verl_pivot.commands.tables import table_console
from verl_pivot.data.rollout_dumps import DumpedTurn, RecordedTexts, encode_prompt

PROMPT = "What is 1 + 2? " * 130
MASK = ([1] * 400 + [0] * 300) * 6
"""Mask of a response of 4,200 tokens."""
NUM_TEXTS = 64
"""Number of different texts; the turns of a rollout have one of them."""
LETTERS = 'abcdefgh ijklmnop\n"{}:,0123456789'


class Sizes(NamedTuple):
    """Size of one step."""

    num_prompts: int
    num_rollouts: int
    """Rollouts of each prompt."""
    num_kept: int
    """Rollouts of each prompt that the update sees."""


class Measured(NamedTuple):
    """Times of one selection."""

    seconds: float
    """Seconds from the end of the last group to the batch."""
    write_seconds: float
    """Seconds from the batch to the dump's file, during which training goes on; 0 without a dump."""
    cpu_seconds: float
    """CPU time of this process, until the batch and the dump's file are complete."""
    step_seconds: float
    """Seconds from the start of the first group to the batch; on a busy machine more than were asked for."""
    num_bytes: int
    """Size of the dump."""


class Case(NamedTuple):
    """Kind of a step: when its groups end, and whether it is dumped."""

    spread_seconds: float | None
    """Seconds over which the groups end; None if all have ended before the first poll."""
    is_dumped: bool


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step.")] = 512,
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts of each prompt.")] = 32,
    keep: Annotated[int, typer.Option(min=2, help="Rollouts of each prompt that the update sees.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Maximum number of rounds; medians are shown.")] = 3,
    spread_seconds: Annotated[float, typer.Option(min=0.0, help="Seconds over which the groups end.")] = 20.0,
    characters: Annotated[int, typer.Option(min=0, help="Characters of a rollout's texts in the dump.")] = 16_000,
    record: Annotated[RecordedTexts, typer.Option(help="Texts in the dump, as in pivot.record.")] = RecordedTexts.ALL,
    max_seconds: Annotated[
        float, typer.Option(min=0.0, help="No round begins that would probably end later, except the first.")
    ] = 160.0,
) -> None:
    """Print seconds from the end of the last group to the batch, without and with a dump."""
    sizes = Sizes(prompts, rollouts, keep)
    found: dict[Case, list[Measured]] = {}
    with transfer_queue():
        before = peak_mib()
        began = time.monotonic()
        for number in range(rounds):
            spent = time.monotonic() - began
            if number and spent * (number + 1) / number > max_seconds:
                break
            for case in round_order(number, spread_seconds):
                num_characters = characters if case.is_dumped else None
                measured = measure(sizes, num_characters, record, seed=number, spread_seconds=case.spread_seconds)
                found.setdefault(case, []).append(measured)
    num_rounds = min(map(len, found.values()))
    title = f"{prompts} prompts x {rollouts} -> {keep} rollouts, {num_rounds} rounds, pivot.record={record}"
    console = table_console()
    console.print(table(title, found, spread_seconds))
    seconds = encode_seconds(characters, record)
    share = seconds * prompts * rollouts / spread_seconds if spread_seconds else 0.0
    console.print(f"encoding in the agent loops: {seconds * 1e6:.0f} us per rollout, {share:.1%} of a core in a step")
    console.print(f"memory of the trainer's process: {before:.0f} MiB before the first step, {peak_mib():.0f} at peak")


def peak_mib() -> float:
    """Peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def round_order(number: int, spread_seconds: float) -> list[Case]:
    """[4] steps of a round; if its number is even, the step without a dump comes first in each pair.

    Args:
        number: Number of the round, from 0.
        spread_seconds: Seconds over which the groups of the first pair end.
    """
    dumps = (False, True) if number % 2 == 0 else (True, False)
    return [Case(spread, is_dumped) for spread in (spread_seconds, None) for is_dumped in dumps]


def table(title: str, found: Mapping[Case, Sequence[Measured]], spread_seconds: float) -> Table:
    """Medians of each case, and for each pair the ratio of the medians with a dump to those without.

    Args:
        title: Title of the table.
        found: {case: [num_rounds] measured steps}
        spread_seconds: Seconds over which the groups of the first pair end.
    """
    shown = Table(title=title)
    for column in ("groups end", "dump", "median, s", "longest, s", "dump file after, s", "CPU, s", "share of a step"):
        shown.add_column(column, justify="left" if column in ("groups end", "dump") else "right")
    for name, spread in ((f"within {spread_seconds:g} s", spread_seconds), ("all at once", None)):
        without, dumped = found[Case(spread, False)], found[Case(spread, True)]
        cpu = [median(each.cpu_seconds for each in steps) for steps in (without, dumped)]
        medians = [median(each.seconds for each in steps) for steps in (without, dumped)]
        share = (cpu[1] - cpu[0]) / median(each.step_seconds for each in dumped)
        for steps in (without, dumped):
            shown.add_row(
                name,
                f"{steps[0].num_bytes / 2**20:.0f} MiB" if steps is dumped else "none",
                f"{median(each.seconds for each in steps):.2f}",
                f"{max(each.seconds for each in steps):.2f}",
                f"{median(each.write_seconds for each in steps):.2f}",
                f"{median(each.cpu_seconds for each in steps):.2f}",
                f"{share:.1%}" if steps is dumped and spread is not None else "",
            )
        shown.add_row(name, "ratio", f"{medians[1] / medians[0]:.2f}", "", "", f"{cpu[1] / cpu[0]:.2f}", "")
    return shown


def encode_seconds(characters: int, record: RecordedTexts) -> float:
    """CPU seconds that the line of a dump adds to a rollout in an agent loop, which encodes it."""
    num = 200
    times = []
    for each in (None, characters):
        rng = random.Random(0)
        began = time.process_time()
        for _ in range(num):
            make_rollout(rng, each, record, "x" * (characters // 6))
        times.append((time.process_time() - began) / num)
    return times[1] - times[0]


def measure(
    sizes: Sizes, characters: int | None, record: RecordedTexts, *, seed: int, spread_seconds: float | None
) -> Measured:
    """Let the groups of one step end over `spread_seconds`, or before the first poll if None, and time the selection.

    Args:
        sizes: Size of the step.
        characters: Characters of a rollout's texts; None to dump nothing.
        record: Texts in the dump.
        seed: Seed of the draw.
        spread_seconds: Seconds over which the groups end; None to select when all have ended.
    """
    import ray
    import transfer_queue as tq

    from verl_pivot.resampling.roc_replay_buffer import RocReplayBuffer

    with tempfile.TemporaryDirectory() as folder:
        kwargs = sampler_kwargs(None if characters is None else folder, group_size=sizes.num_kept, seed=seed)
        kwargs.poll_interval = 0.2
        kwargs.record = record.value
        config = trainer_config(
            train_batch_size=sizes.num_prompts, mini_batch_size=sizes.num_prompts, group_size=sizes.num_kept
        )
        buffer = RocReplayBuffer(
            trainer_mode="sync", trainer_config=config, max_off_policy_threshold=None, max_off_policy_strategy="drop",
            sampler_kwargs=kwargs, refill_fn=None,
        )  # fmt: skip
        uids = [f"{seed}-{spread_seconds}-{characters}-{prompt}" for prompt in range(sizes.num_prompts)]
        announce(uids)
        writing = ray.remote(finish_groups).remote(uids, sizes.num_rollouts, spread_seconds or 0.0, characters, record)
        if spread_seconds is None:
            ray.get(writing)
        began, cpu_began = time.time(), time.process_time()
        batch, _ = buffer.sample(1, "train", sizes.num_prompts)
        ended = time.time()
        assert len(batch.keys) == sizes.num_prompts * sizes.num_kept == len(rows_left()), len(batch.keys)
        dump = Path(folder) / "pivot" / "1.jsonl"
        while characters is not None and not dump.exists():
            time.sleep(0.01)
        write_seconds = 0.0 if characters is None else time.time() - ended
        cpu_seconds = time.process_time() - cpu_began
        tq.kv_clear(keys=batch.keys, partition_id="train")
        num_bytes = 0 if characters is None else dump.stat().st_size
    last_group = began if spread_seconds is None else ray.get(writing)
    return Measured(ended - last_group, write_seconds, cpu_seconds, ended - began, num_bytes)


def finish_groups(
    uids: list[str], num_rollouts: int, seconds: float, characters: int | None, record: RecordedTexts
) -> float:
    """Write the groups over `seconds`, or as fast as possible if 0; returns the time when the last group ended."""
    import transfer_queue as tq

    tq.init()
    rng = random.Random(0)
    # Drawing new texts for each rollout would take longer than `seconds`.
    texts = ["".join(rng.choices(LETTERS, k=(characters or 0) // 6)) for _ in range(NUM_TEXTS)]
    began = time.time()
    for number, uid in enumerate(uids):
        time.sleep(max(0.0, began + seconds * number / len(uids) - time.time()))
        finish(uid, [make_rollout(rng, characters, record, rng.choice(texts)) for _ in range(num_rollouts)])
    return time.time()


def make_rollout(rng: random.Random, characters: int | None, record: RecordedTexts, text: str) -> dict[str, object]:
    """Fields of a rollout with five calls of some hundred characters; a dump adds six turns, and a prompt.

    Args:
        rng: Random source of the score.
        characters: Characters of the texts; None to dump nothing.
        record: Texts in the dump; with `calls` the agent loop leaves out all of them.
        text: Text of each turn.
    """
    has_texts = record is not RecordedTexts.CALLS
    turn = DumpedTurn(num_tokens=5, ended=True)
    if has_texts:
        half = len(text) // 2
        turn = DumpedTurn(text=text[:half], num_tokens=5, ended=True, observations=(text[half:],))
    fields = rollout_fields(
        float(rng.random() < 0.5), rng.randrange(3), num_calls=5, code="print(1 + 2)\n" * 25,
        turns=[] if characters is None else [turn] * 6, mask=MASK,
    )  # fmt: skip
    if characters is not None and has_texts:
        fields["prompt_messages"] = encode_prompt([{"role": "user", "content": PROMPT}])
    return fields


if __name__ == "__main__":
    typer.run(main)
