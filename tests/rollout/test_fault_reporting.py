"""rollout.fault_reporting: an agent loop that raises gives a row with the cause."""

from typing import Any

import pytest

from verl_pivot.data.rollout_records import VERDICT_FIELD
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.rollout.fault_reporting import FaultReportingLoop


class RaisingLoop:
    """An agent loop that raises where its argument says."""

    def __init__(self, where: str) -> None:
        self.where = where
        if where == "made":
            raise ConfigError("a setting is wrong")

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> str:
        if self.where == "row":
            raise DataError("a prompt of 9 tokens is too long")
        if self.where == "code":
            raise KeyError(row["name"])
        return "the outputs"


def loop(where: str) -> FaultReportingLoop:
    return FaultReportingLoop(loop=f"{__name__}.RaisingLoop", where=where)


@pytest.mark.parametrize(
    ("where", "reason", "detail"),
    [
        ("made", "broken_row", "a setting is wrong"),
        ("row", "broken_row", "a prompt of 9 tokens is too long"),
        ("code", "rollout_failed", "KeyError: 'x' ("),
    ],
)
async def test_an_exception_becomes_a_masked_undecided_row(where: str, reason: str, detail: str) -> None:
    output = await loop(where).run({}, name="x")

    assert (output.response_ids, output.response_mask) == ([0], [0])
    verdict = output.as_dict()["extra_fields"][VERDICT_FIELD]
    assert (verdict["score"], verdict["reason"]) == (None, reason)
    assert verdict["detail"].startswith(detail)


async def test_the_outputs_of_a_loop_that_does_not_raise_are_its_own() -> None:
    assert await loop("nowhere").run({}) == "the outputs"
