"""Workshop of one step whose writer is a scripted server: every question is sent on, without cache and budget."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.chat_server import MODEL
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.engines.retries import Retries
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.synthesis.writer import EndpointWriter, Writer, WriterQuestion


@dataclass(frozen=True)
class DirectGate:
    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        return await writer.answer(question)


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
            gate=DirectGate(),
        )
    finally:
        await writer.close()
