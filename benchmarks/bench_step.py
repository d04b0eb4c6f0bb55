"""Seconds and memory that a step of many rollouts takes in the trainer's process, without an engine.

Run by `make bench-resampling`, or with other sizes by `python -m benchmarks.bench_step --help`. The rows are pivots of
a real file, read by verl's dataset and collated as verl does; the rollouts lie in a real TransferQueue, where another
process writes them with records and texts. The memory is what the trainer's process has more at its peak than before.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bench_resampling import finish_groups
from tests.support.rollout_queue import announce, sampler_kwargs, trainer_config, transfer_queue
from verl_pivot.smoke.methods import RowKind
from verl_pivot.smoke.rows import write_rows
from verl_pivot.smoke.tiny_model import write_tokenizer

BUFFERS = {"pivotrl": "replay_buffer:PivotReplayBuffer", "grpo_roc": "roc_replay_buffer:RocReplayBuffer"}
"""{method: module and class of its buffer}"""


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step.")] = 625,
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts of each prompt.")] = 16,
    pivots: Annotated[int, typer.Option(min=1, help="Rows of the file.")] = 10_000,
    characters: Annotated[int, typer.Option(min=6, help="Characters of a rollout's texts in the dump.")] = 16_000,
) -> None:
    """Print seconds and memory of each part of a step."""
    table = Table(title=f"{prompts} prompts x {rollouts} rollouts of {characters:,} characters, {pivots:,} rows")
    for column in ("part", "s", "MiB"):
        table.add_column(column, justify="left" if column == "part" else "right")
    with tempfile.TemporaryDirectory() as name, transfer_queue():
        folder = Path(name)
        with measured(table, "dataset opened"):
            dataset = open_dataset(folder, pivots)
        with measured(table, "prompts read and collated"):
            collate(dataset, prompts)
        for method, place in BUFFERS.items():
            for dumped in (False, True):
                dump_folder = folder / method if dumped else None
                buffer, uids = fill(place, prompts, rollouts, characters if dumped else None, dump_folder)
                with measured(table, f"{method}: selection and metrics{', dumped' if dumped else ''}"):
                    empty(buffer, prompts, dump_folder)
                assert len(uids) == prompts
    Console().print(table)


@contextmanager
def measured(table: Table, part: str) -> Iterator[None]:
    """Add a row with the seconds of a part, and the most memory that this process took beyond what it had before."""
    process, ended = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    ended.set()
    thread.join()
    table.add_row(part, f"{seconds:.2f}", f"{(max(peak, process.memory_info().rss) - before) / 2**20:.0f}")


def open_dataset(folder: Path, number: int) -> Any:
    """verl's dataset over a new file of so many pivots."""
    from hydra import compose, initialize_config_module
    from transformers import AutoTokenizer

    from verl_pivot.data.dataset import PivotDataset

    rows = write_rows(folder / "pivots.parquet", RowKind.PIVOTS, number)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["+method=pivotrl", f"data.train_files={rows}"])
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(folder / "policy"))
    return PivotDataset(data_files=str(rows), tokenizer=tokenizer, processor=None, config=config.data)


def collate(dataset: Any, number: int) -> None:
    """Read so many rows and put them into one batch, as verl's dataloader does."""
    from verl.utils.dataset.rl_dataset import collate_fn

    collate_fn([dataset[index] for index in range(number)])


def fill(place: str, prompts: int, rollouts: int, characters: int | None, folder: Path | None) -> tuple[Any, list[str]]:
    """A method's buffer, and the names of the groups that another process has put into the queue."""
    from importlib import import_module

    import ray

    module, _, name = place.partition(":")
    config = trainer_config(train_batch_size=prompts, mini_batch_size=prompts, group_size=rollouts)
    buffer = getattr(import_module(f"verl_pivot.resampling.{module}"), name)(
        trainer_mode="sync", trainer_config=config, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs(None if folder is None else str(folder), group_size=rollouts, seed=0),
        refill_fn=None,
    )  # fmt: skip
    uids = [f"{name}-{characters}-{number}" for number in range(prompts)]
    announce(uids)
    ray.get(ray.remote(finish_groups).remote(uids, rollouts, 0.0, characters))
    return buffer, uids


def empty(buffer: Any, prompts: int, folder: Path | None) -> None:
    """Sample the batch with its metrics, wait for its dump, and clear it."""
    import transfer_queue as tq

    batch, metrics = buffer.sample(1, "train", prompts)
    assert metrics["pivot/undecided_rows"] == 0.0
    dump = None if folder is None else folder / "pivot" / "1.jsonl"
    while dump is not None and not dump.exists():
        time.sleep(0.01)
    tq.kv_clear(keys=batch.keys, partition_id="train")


if __name__ == "__main__":
    typer.run(main)
