"""Workshop of one step whose writer is a scripted server: every question is sent on, without cache and budget."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.chat_server import MODEL
from tests.support.workshops import OpenGate
from verl_pivot.engines.retries import Retries
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.synthesis.writer import EndpointWriter


@asynccontextmanager
async def direct_workshop(url: str, *, inputs: Inputs | None = None, seed: int = 0) -> AsyncIterator[Workshop]:
    """The workshop of a step called "step" at a draft "0"; the server plays every role."""
    writer = EndpointWriter(url, MODEL, answer_format="text", retries=Retries())
    try:
        yield Workshop(
            recipe_seed=seed,
            item="0",
            step="step",
            inputs=inputs or Inputs(),
            writers={"writer": writer},
            gate=OpenGate(),
        )
    finally:
        await writer.close()
