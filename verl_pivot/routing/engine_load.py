"""What an SGLang server says of itself: its KV cache, and how much of it is in use."""

from typing import Annotated

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from verl_pivot.errors import EngineError

_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Rank(BaseModel):
    num_running_reqs: _Count
    num_waiting_reqs: _Count
    num_used_tokens: _Count
    max_total_num_tokens: Annotated[int, Field(ge=1, lt=2**53)]


class _Answer(BaseModel):
    loads: Annotated[list[_Rank], Field(min_length=1)]


class EngineLoad(BaseModel):
    """All data-parallel ranks of one server together."""

    capacity: int
    """KV tokens."""
    used: int
    """Of them, by running requests."""
    num_running: int
    num_waiting: int

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_waiting


async def read_load(session: aiohttp.ClientSession, address: str) -> EngineLoad:
    """Ask a server for its load; takes part in no generation.

    Args:
        session: With the timeout that is wanted.
        address: host:port.

    Raises:
        EngineError: If it does not answer, or says what cannot be.
    """
    url = f"http://{address}/v1/loads"
    try:
        async with session.get(url, params={"include": "core"}, raise_for_status=True) as answer:
            ranks = _Answer.model_validate_json(await answer.read()).loads
    except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
        raise EngineError(f"{url} does not tell its load: {type(error).__name__}: {error}") from error
    return EngineLoad(
        capacity=sum(rank.max_total_num_tokens for rank in ranks),
        used=sum(rank.num_used_tokens for rank in ranks),
        num_running=sum(rank.num_running_reqs for rank in ranks),
        num_waiting=sum(rank.num_waiting_reqs for rank in ranks),
    )
