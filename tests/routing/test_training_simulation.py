"""routing.simulator.training: many steps in which slow groups wait, and rollouts that go on in a later step."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.routing.baselines import LeastInflight
from verl_pivot.routing.simulator.engine import EngineRates
from verl_pivot.routing.simulator.step import Simulation
from verl_pivot.routing.simulator.training import TAIL_RULES, TailRule, TrainingSimulation, simulate_training
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation, draw_conversations

RATES = EngineRates()
SMALL = Scenario(num_engines=2, num_groups=8, group_size=4, capacity=20_000, median_tokens=800.0, budget=3_000)


@pytest.mark.parametrize("name", TAIL_RULES)
def test_every_batch_is_exact_and_no_prompt_is_trained_twice(name: str) -> None:
    training = TrainingSimulation(SMALL, 0, TAIL_RULES[name], RATES)

    steps = [training.advance() for _ in range(10)]

    sizes = [Counter(each.group for each in step.trained) for step in steps]
    assert [list(groups.values()) for groups in sizes] == [[4] * 8] * 10
    assert len({group for groups in sizes for group in groups}) == 8 * 10


def test_prompts_that_were_thrown_away_are_trained_within_a_round_of_steps() -> None:
    """A quarter of a batch is left in each step, so that every fifth step consists of prompts that were left."""
    training = TrainingSimulation(SMALL, 0, TAIL_RULES["tail_batching"], RATES)

    steps = [training.advance() for _ in range(10)]

    assert [max(step.ages) for step in steps] == [1, 1, 1, 1, 5] * 2
    assert sorted({each.group for step in steps for each in step.trained}) == list(range(80))


@given(seed=st.integers(0, 1000), extra=st.sampled_from([0.25, 0.5, 1.0]), most=st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_no_group_that_goes_on_is_under_way_for_more_steps_than_it_may(seed: int, extra: float, most: int) -> None:
    training = TrainingSimulation(SMALL, seed, TailRule(extra_prompts=extra, goes_on=True, max_steps=most), RATES)

    assert max(age for _ in range(6) for age in training.advance().ages) <= most


@given(seed=st.integers(0, 1000), num_ended=st.integers(1, 31))
@settings(max_examples=25, deadline=None)
def test_rollouts_that_are_interrupted_lose_no_token_and_end_later(seed: int, num_ended: int) -> None:
    conversations = draw_conversations(SMALL, seed)
    ended: list[int] = []

    def is_enough(new: Sequence[SimulatedConversation]) -> bool:
        ended.extend(each.id for each in new)
        return len(ended) >= num_ended

    first = Simulation(SMALL, conversations, LeastInflight(), RATES)
    left = first.interrupt(first.run_until(is_enough))
    second = Simulation(SMALL, left, LeastInflight(), RATES)
    second.run_until(lambda ended: False)

    tokens = {each.id: each.response_tokens for each in conversations}
    assert {each.id: each.response_tokens for each in left} == {
        number: length for number, length in tokens.items() if number not in ended
    }
    drawn = sum(turn.generated for each in conversations for turn in each.turns)
    in_both = first.generated_tokens + second.generated_tokens
    assert drawn <= in_both <= drawn + len(left)  # a turn that ended just then has its last token generated again


def test_only_the_rule_that_takes_the_first_rollouts_to_end_prefers_short_ones() -> None:
    trainings = {
        name: simulate_training(SMALL, 1, TAIL_RULES[name], RATES, num_steps=5, num_warmup_steps=0)
        for name in ("tail_batching", "tail_batching_rollouts", "partial_half")
    }

    assert trainings["tail_batching"].length_ratio == trainings["partial_half"].length_ratio == 1.0
    assert trainings["tail_batching_rollouts"].length_ratio < 0.95
    assert trainings["tail_batching"].wasted_share > 0.0
    assert trainings["partial_half"].wasted_share == 0.0
