"""`pivot.process.best_of`: a judge by checklist chooses among draws of each turn in validation."""

from pathlib import Path
from typing import Any

import pytest

from tests.rewards.test_process_rewards import loop_of_ppr
from tests.support.fake_judge import FakeJudge, checking, judging
from tests.support.scripted_engine import Said, call, row
from verl_pivot.data.rollout_records import IS_VALIDATION, RECORD_FIELD, StopReason, parse_record
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.launch_checks.process import check_process

ITEMS = ["The sum is computed.", "The sum is told."]
DRAWS: list[Said | str] = [
    f"1 is No {call('add', a=2, b=2)}",
    f"1 is Yes {call('add', a=2, b=3)}",
    f"1 is In Progress {call('add', a=1, b=1)}",
    "2 is Yes. It is 5.",
    "2 is No. It is 4.",
    "2 is Yes. It is 7.",
]
"""Three draws of a turn with a call, the second the best; three of the answer, the first as good as the third."""
BEST_OF_3 = ("pivot.process.form=checklist", "pivot.process.mode=sum", "pivot.process.best_of=3")


async def played(
    folder: Path, judge: FakeJudge, *, script: list[Said | str] = DRAWS, is_validation: bool = True, **columns: Any
) -> tuple[Any, Any]:
    """Output of the agent loop, and its client of the engine."""
    loop = loop_of_ppr(folder, judge, script, *BEST_OF_3)
    given = {"checklist": ITEMS, **columns, IS_VALIDATION: is_validation}
    return await loop.run({"temperature": 1.0}, **row("Add 2 and 3.", **given)), loop.server_manager


def text_of(output: Any, client: Any) -> str:
    return str(client.tokenizer.decode(output.response_ids, skip_special_tokens=True))


async def test_the_turn_with_the_most_progress_is_done_and_of_equal_ones_the_first(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        output, client = await played(tmp_path, judge)

    text = text_of(output, client)
    assert '"a": 2, "b": 3' in text
    assert "It is 5." in text
    assert not any(left_out in text for left_out in ("1 is No", "In Progress", "It is 4", "It is 7"))
    record = parse_record(output.extra_fields[RECORD_FIELD])
    assert [each.arguments for each in record.calls] == [{"a": 2, "b": 3}]  # the calls of the other draws were not run
    assert len(client.requests) == 6
    assert len({request["id"] for request in client.requests}) == 1


async def test_the_record_has_the_gain_over_all_draws_and_the_tokens_of_those_left_out(tmp_path: Path) -> None:
    """Progress is 0, 1/2 and 1/4 after the first draws, and 1, 1/2 and 1 after the second."""
    async with judging(checking) as judge:
        output, client = await played(tmp_path, judge)

    found = parse_record(output.extra_fields[RECORD_FIELD]).search
    assert found is not None
    assert found.gain == pytest.approx(((1 / 2 - 1 / 4) + (1 - 5 / 6)) / 2)
    sizes = [len(client.tokenizer.encode(str(each), add_special_tokens=False)) + 1 for each in DRAWS]
    assert found.extra_tokens == sum(sizes) - sizes[1] - sizes[3]


async def test_in_training_each_turn_is_the_first_draw(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        output, client = await played(tmp_path, judge, script=[DRAWS[0], DRAWS[3]], is_validation=False)

    assert "1 is No" in text_of(output, client)
    assert judge.requests == []
    assert parse_record(output.extra_fields[RECORD_FIELD]).search is None


async def test_a_judge_that_is_down_masks_the_rollout(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        judge.failures = [500] * 200
        output, _ = await played(tmp_path, judge)

    record = parse_record(output.extra_fields[RECORD_FIELD])
    assert record.stop_reason is StopReason.TOOL_FAILURE
    assert record.is_masked
    assert "the judge could not choose a turn" in record.failure
    assert record.calls == ()


async def test_a_turn_that_the_engine_fails_in_every_draw_masks_the_rollout(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        output, _ = await played(tmp_path, judge, script=[*DRAWS[:3], *[Said("", ended=False)] * 60])

    record = parse_record(output.extra_fields[RECORD_FIELD])
    assert record.stop_reason is StopReason.ENGINE_FAILURE
    assert len(record.turn_tokens) == 1


async def test_draws_without_a_valid_answer_come_last_and_the_first_stays_if_all_are_such(tmp_path: Path) -> None:
    def broken(outside: str, inside: list[str]) -> Any:
        return "nothing" if "1 is" in " ".join(inside) else checking(outside, inside)

    async with judging(broken) as judge:
        output, client = await played(tmp_path, judge, script=[*DRAWS[:3], *["2 is Yes. It is 5."] * 3])

    assert "1 is No" in text_of(output, client)


async def test_a_judge_that_writes_the_checklist_does_so_once_for_all_draws(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        await played(tmp_path, judge, checklist=None)

    written = [request for request in judge.requests if "Write one to 5 items" in str(request)]
    assert len(written) == 2  # one before a page was seen, and one after the first turn


async def test_a_row_with_a_broken_checklist_stops_the_step(tmp_path: Path) -> None:
    async with judging(checking) as judge:
        with pytest.raises(DataError, match="a checklist must have 1 to 5 items, got 0"):
            await played(tmp_path, judge, checklist=[])


def test_greedy_validation_is_refused_since_all_draws_are_equal(tmp_path: Path) -> None:
    from tests.launch_checks.test_process import JUDGE, composed

    sampled = (
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1",
    )
    check_process(composed(*JUDGE, *BEST_OF_3, *sampled))
    for overrides in ((), sampled[:1], sampled[1:]):
        with pytest.raises(ConfigError, match=r"pivot\.process\.best_of=3 would choose among identical turns"):
            check_process(composed(*JUDGE, *BEST_OF_3, *overrides))
