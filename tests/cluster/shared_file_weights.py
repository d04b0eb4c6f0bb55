"""Checkpoint engine for verl that passes weights in files: verl's own engines need a GPU or a network card with RDMA.

A launch names this module as `checkpoint_engine.custom_backend_module`, and the folder in `engine_kwargs`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("shared_file")
class SharedFileCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # verl is untyped here
    """One file for the weights of each step, which the first worker writes and the engines read."""

    def __init__(self, bucket_size: int, folder: str, is_master: bool = False) -> None:
        self._folder, self._is_writer = Path(folder), is_master

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, *args: Any) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    def init_process_group(self) -> None:
        pass

    def finalize(self) -> None:
        pass

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        found = {name: weight.detach().clone() for name, weight in weights}  # every worker takes part in gathering them
        if self._is_writer:
            part = self._folder / "part"
            torch.save(found, part)
            part.rename(self._folder / f"{global_steps}.pt")

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        path = self._folder / f"{global_steps}.pt"
        while not path.exists():  # noqa: ASYNC110  it waits for another process
            await asyncio.sleep(0.05)
        for name, weight in torch.load(path).items():
            yield name, weight
