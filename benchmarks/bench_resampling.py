"""Seconds that GRPO-RoC's selection of rollouts takes after the last group of a step has ended.

Run by `make bench-resampling`, or with other sizes by `python -m benchmarks.bench_resampling --help`. The rollouts lie
in a real TransferQueue. The time runs from the end of the last group to the batch, and includes verl's poll of 0.2 s,
all reads and all metrics. Another process writes the groups one after the other, as in training. The table's last row
is the worst case: all groups end before the first poll.
"""

import random
import statistics
import tempfile
import time
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
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
    """From the end of the last group to the batch."""
    report_seconds: float
    """Part of it that the metrics and the dump took."""


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step.")] = 512,
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts of each prompt.")] = 32,
    keep: Annotated[int, typer.Option(min=2, help="Rollouts of each prompt that the update sees.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians over them are shown.")] = 3,
    spread_seconds: Annotated[float, typer.Option(min=0.0, help="Seconds over which the groups end.")] = 20.0,
) -> None:
    """Print seconds from the end of the last group to the batch."""
    sizes = Sizes(prompts, rollouts, keep)
    table = Table(title=f"{prompts} prompts x {rollouts} -> {keep} rollouts, {rounds} rounds")
    for column in ("groups end", "median, s", "longest, s", "metrics and dump, median, s"):
        table.add_column(column, justify="left" if column == "groups end" else "right")
    with transfer_queue(), tempfile.TemporaryDirectory() as folder:
        for name, spread in ((f"within {spread_seconds:g} s", spread_seconds), ("all at once", None)):
            found = [measure(sizes, folder, seed=seed, spread_seconds=spread) for seed in range(rounds)]
            seconds, reporting = zip(*found, strict=True)
            values = (statistics.median(seconds), max(seconds), statistics.median(reporting))
            table.add_row(name, *(f"{value:.2f}" for value in values))
    Console().print(table)


def measure(sizes: Sizes, folder: str, *, seed: int, spread_seconds: float | None) -> Measured:
    """Let the groups of one step end over `spread_seconds`, or before the first poll if None, and time the selection.

    Args:
        sizes: Size of the step.
        folder: Folder of the dump.
        seed: Seed of the draw.
        spread_seconds: Seconds over which the groups end; None to select when all have ended.
    """
    import ray
    import transfer_queue as tq

    from verl_pivot.resampling.roc_replay_buffer import RocReplayBuffer

    report_seconds = []

    class TimedBuffer(RocReplayBuffer):
        def _report_rollouts(self, *args: Any) -> dict[str, float]:
            began = time.time()
            metrics = super()._report_rollouts(*args)
            report_seconds.append(time.time() - began)
            return metrics

    kwargs = sampler_kwargs(folder, group_size=sizes.num_kept, seed=seed)
    kwargs.poll_interval = 0.2
    config = trainer_config(
        train_batch_size=sizes.num_prompts, mini_batch_size=sizes.num_prompts, group_size=sizes.num_kept
    )
    buffer = TimedBuffer(
        trainer_mode="sync", trainer_config=config, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs=kwargs, refill_fn=None,
    )  # fmt: skip
    uids = [f"{seed}-{spread_seconds}-{prompt}" for prompt in range(sizes.num_prompts)]
    announce(uids)
    writing = ray.remote(finish_groups).remote(uids, sizes.num_rollouts, spread_seconds or 0.0)
    if spread_seconds is None:
        ray.get(writing)
    began = time.time()
    batch, _ = buffer.sample(1, "train", sizes.num_prompts)
    ended = time.time()
    assert len(batch.keys) == sizes.num_prompts * sizes.num_kept == len(rows_left()), len(batch.keys)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    return Measured(ended - (began if spread_seconds is None else ray.get(writing)), sum(report_seconds))


def finish_groups(uids: list[str], num_rollouts: int, seconds: float) -> float:
    """Write the groups spread over `seconds`, or as fast as possible if 0; the time at which the last one ended."""
    import transfer_queue as tq

    tq.init()
    rng = random.Random(0)
    began = time.time()
    for number, uid in enumerate(uids):
        time.sleep(max(0.0, began + seconds * number / len(uids) - time.time()))
        finish(uid, [make_rollout(rng) for _ in range(num_rollouts)])
    return time.time()


def make_rollout(rng: random.Random) -> dict[str, object]:
    """Fields of a rollout with five calls of some hundred characters."""
    return rollout_fields(float(rng.random() < 0.5), rng.randrange(3), num_calls=5, code="print(1 + 2)\n" * 25)


if __name__ == "__main__":
    typer.run(main)
