"""GRPO-RoC's selection of 512 prompts x 32 rollouts on a real TransferQueue. `make bench-resampling`.

The clock runs from the end of the last group to the batch. It includes verl's poll of 0.2 s, all reads and all metrics.
Groups end one after the other, written by another process, as in training. The last row is the worst case: all groups
end before the first poll.
"""

import random
import statistics
import tempfile
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.rollout_queue import announce, finish, rollout_fields, rows_left, sampler_kwargs, transfer_queue

NUM_PROMPTS = 512
NUM_ROLLOUTS = 32
KEEP = 16
ROUNDS = 3
SPREAD_SECONDS = 20.0
"""Seconds over which the groups end."""


def rollouts(rng: random.Random) -> list[dict[str, object]]:
    """Fields of one group's rollouts, each with five calls of some hundred characters."""
    return [
        rollout_fields(float(rng.random() < 0.5), rng.randrange(3), num_calls=5, code="print(1 + 2)\n" * 25)
        for _ in range(NUM_ROLLOUTS)
    ]


def finish_all(uids: list[str], seconds: float) -> float:
    """Let the groups end, spread over `seconds` or as fast as they can be written; the time at which the last ended."""
    import transfer_queue as tq

    tq.init()
    rng = random.Random(0)
    began = time.time()
    for number, uid in enumerate(uids):
        time.sleep(max(0.0, began + seconds * number / len(uids) - time.time()))
        finish(uid, rollouts(rng))
    return time.time()


def measure(number: int, folder: str, *, spread: bool) -> tuple[float, float]:
    """Seconds from the end of the last group to the batch, and how many of these the metrics and the dump took."""
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

    kwargs = sampler_kwargs(folder, group_size=KEEP, seed=number)
    kwargs.poll_interval = 0.2
    buffer = TimedBuffer(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs=kwargs, refill_fn=None,
    )  # fmt: skip
    uids = [f"{number}-{prompt}" for prompt in range(NUM_PROMPTS)]
    announce(uids)
    writing = ray.remote(finish_all).remote(uids, SPREAD_SECONDS if spread else 0.0)
    last = None if spread else ray.get(writing)
    began = time.time()
    batch, _ = buffer.sample(1, "train", NUM_PROMPTS)
    seconds = time.time() - (began if last is not None else ray.get(writing))
    assert len(batch.keys) == NUM_PROMPTS * KEEP == len(rows_left()), len(batch.keys)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    return seconds, sum(report_seconds)


def main() -> None:
    """Measure and print."""
    table = Table(title=f"{NUM_PROMPTS} prompts x {NUM_ROLLOUTS} -> {KEEP} rollouts, {ROUNDS} rounds")
    for column in ("groups end", "median, s", "longest, s", "of it metrics and dump, median"):
        table.add_column(column, justify="left" if column == "groups end" else "right")
    with transfer_queue(), tempfile.TemporaryDirectory() as folder:
        for name, spread in ((f"within {SPREAD_SECONDS:g} s", True), ("all at once", False)):
            rounds = [measure(2 * round_ + spread, folder, spread=spread) for round_ in range(ROUNDS)]
            seconds, reporting = zip(*rounds, strict=True)
            values = (statistics.median(seconds), max(seconds), statistics.median(reporting))
            table.add_row(name, *(f"{value:.2f}" for value in values))
    Console().print(table)


if __name__ == "__main__":
    main()
