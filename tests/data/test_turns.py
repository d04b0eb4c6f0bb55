"""data.turns: pivot candidates of a trajectory, the split, and fingerprints."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import ANSWER, CALL, RESULT, SYSTEM, USER, make_trajectory, make_turn
from verl_pivot.data.turns import PROVENANCE, fingerprints, split_key, split_of, turns, with_split_key
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject, Message, Role, ToolCall


def test_every_assistant_turn_is_a_candidate_with_all_messages_before_it_as_state() -> None:
    trajectory = make_trajectory(verifier="shop", metadata={"seed": 3})

    first, second = turns(trajectory)

    assert first == make_turn(index=0, state=(SYSTEM, USER), expert=CALL, verifier="shop", metadata={"seed": 3})
    assert second.state == (SYSTEM, USER, CALL, RESULT)
    assert (second.index, second.expert) == (1, ANSWER)


def test_parallel_calls_are_one_action() -> None:
    both = Message(role=Role.ASSISTANT, tool_calls=(*CALL.tool_calls, *CALL.tool_calls))

    (turn,) = turns(make_trajectory(messages=(USER, both)))

    assert turn.expert == both


def test_a_greeting_without_a_state_is_counted_but_not_a_candidate() -> None:
    (turn,) = turns(make_trajectory(messages=(ANSWER, USER, CALL)))

    assert (turn.index, turn.state) == (1, (ANSWER, USER))


def test_two_assistant_messages_in_a_row_are_refused_with_the_turn_and_the_remedy() -> None:
    with pytest.raises(DataError, match=r"^turn shop-1:1: the state must end before .* `verl-pivot filter`, or import"):
        turns(make_trajectory(messages=(USER, ANSWER, ANSWER)))


def test_a_text_without_a_fingerprint_is_refused_with_its_trajectory() -> None:
    half = Message(role=Role.USER, content="half an emoji: \ud83d")

    with pytest.raises(DataError, match=r"^trajectory 'shop-1': a value has no JSON form: .* import it again"):
        fingerprints(make_trajectory(messages=(half, ANSWER)))


def test_with_expert_turns_last_only_the_last_turn_is_a_candidate() -> None:
    (turn,) = turns(replace(make_trajectory(), expert_turns="last"))

    assert (turn.index, turn.expert) == (1, ANSWER)


def test_with_positions_only_those_turns_are_candidates_and_the_others_stay_in_the_state() -> None:
    trajectory = make_trajectory(messages=(USER, CALL, RESULT, CALL, RESULT, ANSWER))

    chosen = replace(trajectory, expert_turns=(0, 2))

    assert [(turn.index, len(turn.state)) for turn in turns(chosen)] == [(0, 1), (2, 5)]
    assert fingerprints(chosen) == (fingerprints(trajectory)[0], fingerprints(trajectory)[2])


def test_a_position_counts_a_greeting_without_a_state() -> None:
    trajectory = replace(make_trajectory(messages=(ANSWER, USER, CALL)), expert_turns=(0, 1))

    assert [turn.index for turn in turns(trajectory)] == [1]
    assert len(fingerprints(trajectory)) == 1


@pytest.mark.parametrize("positions", [(), (2,), (-1,), (1, 0), (0, 0)])
def test_positions_must_be_those_of_turns_in_ascending_order(positions: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="from 0 to 1, got"):
        replace(make_trajectory(), expert_turns=positions)


def test_the_split_is_the_same_on_every_machine() -> None:
    # Checked by hand: `printf 0:shop-5 | sha256sum` begins with 1f, and 0x1f / 0x100 < 0.3.
    held_out = [i for i in range(12) if split_of(f"shop-{i}", seed=0, validation_share=0.3) == "validation"]

    assert held_out == [5, 7, 8, 10]


@given(st.text(), st.integers(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_only_adds_to_validation(name: str, seed: int, share: float, other: float) -> None:
    small, large = sorted([share, other])

    if split_of(name, seed=seed, validation_share=small) == "validation":
        assert split_of(name, seed=seed, validation_share=large) == "validation"
    assert split_of(name, seed=seed, validation_share=0.0) == "train"
    assert split_of(name, seed=seed, validation_share=1.0) == "validation"


def test_the_share_is_met_to_within_sampling_error_for_each_seed() -> None:
    for seed in range(5):
        num = sum(split_of(f"shop-{i}", seed=seed, validation_share=0.1) == "validation" for i in range(4000))
        assert abs(num - 400) < 4 * (4000 * 0.1 * 0.9) ** 0.5


def test_the_split_follows_the_task_that_the_import_recorded() -> None:
    assert split_key("run-1", {}) == "run-1"
    assert split_key("run-1", {PROVENANCE: {"split_by": "task-9"}}) == "task-9"


def test_what_is_made_for_a_task_goes_into_the_split_of_its_other_trajectories() -> None:
    imported: JsonObject = {"seed": 7, PROVENANCE: {"file": "a.jsonl", "split_by": "task-9"}}

    assert with_split_key(imported, "tasks-1") == imported
    assert with_split_key({"seed": 7}, "tasks-1") == {"seed": 7, PROVENANCE: {"split_by": "tasks-1"}}


def test_a_fingerprint_ignores_ids_of_calls_and_the_experts_thinking() -> None:
    def last(call_id: str, thinking: str | None) -> bytes:
        call = ToolCall(id=call_id, name="find_order", arguments={"order_id": 17})
        asked = Message(role=Role.ASSISTANT, tool_calls=(call,))
        result = Message(role=Role.TOOL, content="{}", tool_call_id=call_id)
        return fingerprints(make_trajectory(messages=(USER, asked, result, replace(asked, reasoning=thinking))))[-1]

    assert last("a", "hm") == last("b", None)


def test_a_fingerprint_depends_on_state_tools_verifier_and_action() -> None:
    trajectory = make_trajectory(messages=(SYSTEM, USER, CALL))
    others = [
        replace(trajectory, messages=(USER, CALL)),
        replace(trajectory, tools=()),
        replace(trajectory, verifier="shop"),
        replace(trajectory, verifier_options={"mode": "strict"}),
        replace(trajectory, messages=(SYSTEM, USER, ANSWER)),
        replace(trajectory, messages=(SYSTEM, Message(role=Role.USER, content="Where is order 18?"), CALL)),
    ]

    assert len({fingerprints(each) for each in [trajectory, *others]}) == 7
    assert fingerprints(replace(trajectory, id="shop-2", metadata={"file": "x"})) == fingerprints(trajectory)


def test_each_candidate_has_its_own_fingerprint() -> None:
    trajectory = make_trajectory(messages=(SYSTEM, USER, CALL, RESULT, ANSWER))

    first, second = fingerprints(trajectory)

    assert first == fingerprints(replace(trajectory, messages=(SYSTEM, USER, CALL)))[0] != second
    assert fingerprints(replace(trajectory, expert_turns="last")) == (second,)
