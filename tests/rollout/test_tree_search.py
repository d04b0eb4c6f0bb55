"""Tree search over turns: the pure search on written trees, and the loop `pivot_tree_search` over a scripted engine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import Said, call, loop_of, rollout_config, row, scripted_model
from tests.support.tallies import OPENED
from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.rollout_records import CallRecord, RolloutRecord, SearchRecord, StopReason, parse_record
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.rollout_metrics import rollout_metrics
from verl_pivot.rollout.rollout_tree import first_difference
from verl_pivot.rollout.tree_search import SearchShape, kept_gain, ranking, search
from verl_pivot.rollout.tree_search_loop import TreeSearchLoop

SAMPLING = {"temperature": 1.0, "logprobs": True}


class WrittenTree:
    """A tree whose nodes are paths such as "ab"; leaves are finished. It counts how nodes grow and are dropped."""

    def __init__(self, scores: Mapping[str, float | None], failed: str = "") -> None:
        self.scores, self.dropped, self.grown = scores, Counter[str](), Counter[str]()
        self.failed = failed

    async def grow(self, node: str, number: int) -> Sequence[str]:
        self.grown[node] += number
        return [path for path in self.scores if path[:-1] == node and path][:number]

    async def score(self, node: str) -> float | None:
        return self.scores[node]

    def is_finished(self, node: str) -> bool:
        return not any(path[:-1] == node for path in self.scores if path)

    def is_failed(self, node: str) -> bool:
        return node == self.failed

    async def drop(self, node: str) -> None:
        self.dropped[node] += 1


def shape(num_candidates: int, beam: int, lookahead: int = 1) -> SearchShape:
    return SearchShape(num_candidates=num_candidates, beam=beam, lookahead=lookahead)


TREE = {"a": 3.0, "b": 2.0, "c": 1.0, "aa": 0.0, "ab": 1.0, "ba": 5.0, "bb": 0.0, "ca": 9.0}


async def test_a_beam_of_one_goes_by_the_next_turn_alone() -> None:
    tree = WrittenTree(TREE)

    found = await search(tree, "", shape(3, 1))

    assert found.node == "ab"
    # (3 - (3 + 2 + 1) / 3 + 1 - (0 + 1) / 2) / 2
    assert found.gain == (1.0 + 0.5) / 2


async def test_a_beam_of_two_keeps_the_second_best_turn() -> None:
    tree = WrittenTree(TREE)

    found = await search(tree, "", shape(3, 2))

    assert found.node == "ba"
    # ((3 + 2) / 2 - 2 + (5 + 1) / 2 - (0 + 1 + 5 + 0) / 4) / 2
    assert found.gain == (0.5 + 1.5) / 2
    assert tree.dropped == Counter({"": 1, "a": 1, "b": 1, "c": 1, "aa": 1, "ab": 1, "bb": 1})


async def test_lookahead_scores_a_turn_by_what_follows_it() -> None:
    tree = WrittenTree(TREE)

    assert (await search(tree, "", shape(3, 1, lookahead=2))).node == "ca"
    assert tree.grown == Counter({"": 3, "a": 1, "b": 1, "c": 1 + 3})
    assert tree.dropped == Counter({"": 1, "a": 1, "b": 1, "c": 1, "aa": 1, "ba": 1, "ca": 1})


async def test_a_finished_rollout_stays_in_the_beam_and_competes_with_longer_ones() -> None:
    assert (await search(WrittenTree({"a": 4.0, "b": 2.0, "ba": 3.0}), "", shape(2, 2))).node == "a"
    assert (await search(WrittenTree({"a": 4.0, "b": 2.0, "ba": 5.0}), "", shape(2, 2))).node == "ba"


async def test_where_nothing_is_scored_the_first_draws_stay() -> None:
    found = await search(WrittenTree({"a": None, "b": None, "aa": None}), "", shape(2, 1))

    assert (found.node, found.gain) == ("aa", None)


async def test_what_a_system_failed_comes_behind_what_nobody_can_score() -> None:
    found = await search(WrittenTree({"a": None, "b": None, "ba": None}, failed="a"), "", shape(2, 2))
    alone = await search(WrittenTree({"a": None}, failed="a"), "", shape(2, 2))

    assert (found.node, alone.node) == ("ba", "a")


def test_equal_scores_keep_their_order_and_unknown_ones_come_last() -> None:
    assert ranking([0.0, None, 2.0, 0.0, -1.0]) == [2, 0, 3, 4, 1]


def test_the_gain_is_the_mean_of_what_is_kept_above_the_mean_of_all() -> None:
    assert kept_gain([1.0, None, 4.0, 1.0], [2, 0]) == 0.5
    assert kept_gain([None, None], [0]) is None


async def test_the_first_error_of_several_works_is_raised_as_it_is() -> None:
    async def fail() -> int:
        raise ToolFailureError("down")

    with pytest.raises(ToolFailureError, match="down"):
        await all_at_once([fail(), fail()])


# The agent loop `pivot_tree_search`


def make_search(
    script: Sequence[Said | str], folder: Path, *overrides: str, tally: str = "Tally", **client: Any
) -> Any:
    file = folder / "tools.yaml"
    file.write_text(f"- environment: {tally if ':' in tally else f'tests.support.tallies:{tally}'}\n")
    OPENED.clear()
    config = rollout_config(
        scripted_model(), f"pivot.rollout.tools={file}", "pivot.tree_search.num_candidates=2", *overrides,
        method="tree_search",
    )  # fmt: skip
    return loop_of(TreeSearchLoop, config, script, **client)


def tell(number: int) -> str:
    return call("tell", number=number)


async def play(loop: Any, **columns: Any) -> TurnRewardOutput:
    output = await loop.run(SAMPLING, **row(is_validation=False, **columns))
    assert isinstance(output, TurnRewardOutput)
    return output


BEAM_1, BEAM_2 = "pivot.tree_search.beam=1", "pivot.tree_search.beam=2"
GREEDY = [tell(1), tell(2), "Give up.", tell(1), "Done.", "Stop."]
"""Three pairs of draws: in the first two pairs the second draw is nearer to 3, in the third both end there."""


@pytest.mark.parametrize("tally", ["Tally", "ForkingTally"])
async def test_the_row_holds_exactly_the_tokens_of_the_chosen_turns(tmp_path: Path, tally: str) -> None:
    loop = make_search(GREEDY, tmp_path, BEAM_1, tally=tally)

    output = await play(loop)

    encode = lambda text: loop.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    said = [encode(f"{text}<|im_end|>") for text in (tell(2), tell(1), "Done.")]
    read = [encode(f"\n<|im_start|>tool\n{told}<|im_end|>\n<|im_start|>assistant\n") for told in (2, 3)]
    parts = [said[0], read[0], said[1], read[1], said[2]]
    assert output.response_ids == [token for part in parts for token in part]
    sampled = [1, 0, 1, 0, 1]
    assert output.response_mask == [mask for part, mask in zip(parts, sampled, strict=True) for _ in part]
    assert output.response_logprobs == [-0.5 * mask for mask in output.response_mask]
    assert output.turn_ends == [sum(map(len, parts[:end])) for end in (1, 3, 5)]
    assert output.extra_fields["verdict"]["score"] == 1.0
    requests = loop.server_manager.requests
    assert [request["prompt_ids"] for request in requests[2:4]] == [[*output.prompt_ids, *said[0], *read[0]]] * 2
    assert len({request["id"] for request in requests}) == 1


async def test_the_record_says_what_the_search_gained_and_what_it_cost(tmp_path: Path) -> None:
    loop = make_search(GREEDY, tmp_path, BEAM_1)

    record = parse_record((await play(loop)).extra_fields["rollout"])

    others = sum(len(loop.tokenizer.encode(text)) + 1 for text in (tell(1), "Give up.", "Stop."))
    # Progress is -2 and -1, then -1 and 0, then twice 0.
    assert record.search == SearchRecord(gain=pytest.approx((0.5 + 0.5 + 0.0) / 3), extra_tokens=others)
    assert (record.stop_reason, record.num_calls) == (StopReason.ANSWERED, 2)


@pytest.mark.parametrize("tally", ["Tally", "ForkingTally"])
async def test_every_environment_is_closed_once(tmp_path: Path, tally: str) -> None:
    await play(make_search(GREEDY, tmp_path, BEAM_1, tally=tally))

    assert len(OPENED) == 1 + 3 * 2
    assert {each.num_closed for each in OPENED} == {1}


async def test_the_second_of_a_beam_may_win_in_the_end(tmp_path: Path) -> None:
    script = [tell(2), tell(9), tell(7), "Give up.", tell(-6), tell(-7), "Done.", "Stop."]

    output = await play(make_search(script, tmp_path, BEAM_2))

    record = parse_record(output.extra_fields["rollout"])
    assert [each.arguments for each in record.calls] == [{"number": 9}, {"number": -6}]


async def test_lookahead_draws_a_turn_that_the_row_does_not_hold(tmp_path: Path) -> None:
    first, second = [tell(2), tell(9), tell(7), tell(-6)], [tell(-6), tell(1), "Done.", "Done."]
    loop = make_search([*first, *second, "Done.", "Stop."], tmp_path, BEAM_1, "pivot.tree_search.lookahead=2")

    record = parse_record((await play(loop)).extra_fields["rollout"])

    assert [each.arguments for each in record.calls] == [{"number": 9}, {"number": -6}]


async def test_by_outcome_only_a_state_that_solves_the_task_counts(tmp_path: Path) -> None:
    script = [tell(2), tell(3), "Done.", "Stop."]
    loop = make_search(script, tmp_path, BEAM_1, "pivot.tree_search.scored_by=outcome")

    record = parse_record((await play(loop)).extra_fields["rollout"])

    assert [each.arguments for each in record.calls] == [{"number": 3}]
    assert record.search is not None
    assert record.search.gain == 0.25


async def test_an_environment_of_gymnasium_is_searched_by_its_rewards_so_far(tmp_path: Path) -> None:
    script = [call("step", action=number) for number in (1, 2, 0, 1)]

    output = await play(
        make_search(script, tmp_path, BEAM_1, tally="gymnasium:tests.support.gym_environments:CountTo-v0")
    )

    record = parse_record(output.extra_fields["rollout"])
    assert [each.arguments for each in record.calls] == [{"action": 2}, {"action": 1}]
    assert (record.stop_reason, output.extra_fields["verdict"]["score"]) == (StopReason.ENVIRONMENT_TERMINATED, 3.0)
    assert record.search is not None
    assert record.search.gain == 0.5


async def test_equal_draws_are_one_candidate(tmp_path: Path) -> None:
    await play(make_search([tell(3), tell(3), "Done.", "Done."], tmp_path, BEAM_1))

    assert len(OPENED) == 1 + 2


async def test_validation_is_the_policys_own_draw(tmp_path: Path) -> None:
    loop = make_search([tell(1), "Done."], tmp_path)

    output = await loop.run(SAMPLING, **row(is_validation=True))

    assert parse_record(output.extra_fields["rollout"]).search is None
    assert output.extra_fields["verdict"]["score"] == 0.0


async def test_a_loop_that_is_not_told_of_validation_stops(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pivot\.tree_search cannot tell training from validation"):
        await make_search([], tmp_path).run(SAMPLING, **row())


async def test_rows_of_the_loop_need_the_method() -> None:
    config = rollout_config(scripted_model(), method="tool_rollout")

    with pytest.raises(ConfigError, match=r"no pivot\.tree_search: add \+method=tree_search"):
        loop_of(TreeSearchLoop, config, [])


@pytest.mark.parametrize(("tally", "why"), [("NumberedTally", "turn 0 gave"), ("SecretTally", "the states of envir")])
async def test_an_environment_that_does_not_replay_stops_the_search(tmp_path: Path, tally: str, why: str) -> None:
    loop = make_search([tell(1), tell(2), "Done.", "Stop."], tmp_path, BEAM_1, tally=tally)

    with pytest.raises(ToolFailureError, match=f"do not replay exactly: .*{why}"):
        await play(loop)

    assert {each.num_closed for each in OPENED} == {1}


def test_a_message_quotes_long_observations_where_they_differ() -> None:
    same = "x" * 500

    assert first_difference(f"{same}: 1", f"{same}: 2") == ("x" * 18 + ": 1", "x" * 18 + ": 2")
    assert first_difference("", "a" * 500) == ("", "a" * 120)


async def test_a_candidate_at_which_a_system_fails_is_left_out(tmp_path: Path) -> None:
    output = await play(make_search([tell(1), "Done."], tmp_path, BEAM_1, tally="DownTally"))

    record = parse_record(output.extra_fields["rollout"])
    assert (record.stop_reason, record.calls) == (StopReason.ANSWERED, ())


async def test_a_candidate_at_which_a_system_fails_as_earlier_calls_run_again_is_left_out(tmp_path: Path) -> None:
    """The fifth tally is that of the second turn's better draw."""
    output = await play(make_search(GREEDY, tmp_path, BEAM_1, tally="FlakyTally"))

    record = parse_record(output.extra_fields["rollout"])
    assert [each.arguments for each in record.calls] == [{"number": 2}]
    assert record.stop_reason is StopReason.ANSWERED
    assert {each.num_closed for each in OPENED} == {1}


async def test_a_rollout_is_masked_where_a_system_fails_whenever_earlier_calls_run_again(tmp_path: Path) -> None:
    output = await play(make_search(GREEDY, tmp_path, BEAM_1, tally="DoomedTally"))

    record = parse_record(output.extra_fields["rollout"])
    assert record.is_masked
    assert record.failure.startswith("environment DoomedTally.tell raised ConnectionError: no database")
    assert output.extra_fields["verdict"]["score"] is None
    assert {each.num_closed for each in OPENED} == {1}


async def test_a_rollout_is_masked_where_a_system_fails_at_every_candidate(tmp_path: Path) -> None:
    output = await play(make_search([tell(1), tell(2)], tmp_path, BEAM_1, tally="DownTally"))

    record = parse_record(output.extra_fields["rollout"])
    assert record.is_masked
    assert "no database" in record.failure
    assert output.extra_fields["verdict"]["score"] is None


async def test_an_engine_that_never_returns_a_token_gives_no_row(tmp_path: Path) -> None:
    loop = make_search([Said("", ended=False)] * 6, tmp_path)

    assert await loop.run(SAMPLING, **row(is_validation=False)) == []


async def test_a_branch_ends_at_its_own_limit(tmp_path: Path) -> None:
    script = [tell(1), tell(2), tell(4), tell(5)]

    record = parse_record(
        (await play(make_search(script, tmp_path, BEAM_1, "pivot.rollout.max_turns=2"))).extra_fields["rollout"]
    )

    assert (record.stop_reason, record.num_calls) == (StopReason.MAX_TURNS, 1)


def make_record(search: SearchRecord | None, calls: tuple[CallRecord, ...] = ()) -> RolloutRecord:
    return RolloutRecord(
        prompt_id="p", stop_reason=StopReason.ANSWERED, calls=calls, turn_tokens=(1,), prompt_tokens=1,
        response_tokens=1, generate_seconds=0.0, tool_seconds=0.0, search=search,
    )  # fmt: skip


def test_the_metrics_are_means_over_the_rollouts_that_were_searched() -> None:
    searched = [SearchRecord(gain=1.0, extra_tokens=10), SearchRecord(gain=None, extra_tokens=30)]

    metrics = rollout_metrics([make_record(each) for each in (*searched, None)])

    assert (metrics["tree_search/gain"], metrics["tree_search/extra_tokens"]) == (1.0, 20.0)
    assert "tree_search/gain" not in rollout_metrics([make_record(None)])
