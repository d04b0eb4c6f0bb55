"""The example of GRPO-RoC: its problems, the programmer whose transcripts teach the policy, and what it measures."""

import contextlib
import io
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from verl.utils.reward_score import default_compute_score  # noqa: E402
from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder  # noqa: E402

from examples.grpo_roc import report  # noqa: E402
from examples.grpo_roc.measures import (  # noqa: E402
    ACCURACY,
    ERRORS,
    TOKENS,
    Rollout,
    estimate,
    first_step,
    last_steps,
    measure,
    read_rollouts,
    reduction,
)
from examples.grpo_roc.policy import build_tokenizer  # noqa: E402
from examples.grpo_roc.problems import FAMILIES, MAX_NUMBER, WAYS_TO_BREAK, Problem, break_code, make_problem  # noqa: E402
from examples.grpo_roc.training import ARMS, MAX_OBSERVATION_TOKENS, MAX_RESPONSE_TOKENS, Arm, write_problems  # noqa: E402
from examples.grpo_roc.transcripts import plan, record_transcripts  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from tests.sandbox_machine import needs_sandbox  # noqa: E402
from tests.sandbox_services import use_service  # noqa: E402
from verl_pivot.rollout.observations import cut_to_tokens  # noqa: E402
from verl_pivot.types import Role, Trajectory  # noqa: E402

PROBLEMS = [make_problem(seed) for seed in range(200)]


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue()


def make_rollout(score: float = 1.0, *, calls: int = 1, errors: int = 0, group: str = "a", step: int = 1) -> Rollout:
    return Rollout(group=group, step=step, score=score, num_tokens=10 * calls, num_calls=calls, num_tool_errors=errors)


def test_a_problem_is_the_same_every_time() -> None:
    assert make_problem(1) == Problem(
        family="digits",
        text="What is the sum of the digits of 5 to the power of 6?",
        answer=19,
        code="print(sum(int(d) for d in str(5 ** 6)))",
        slip="print(sum(int(d) for d in str(5 ^ 6)))",
    )


def test_good_code_prints_the_answer_and_a_slip_another_number() -> None:
    assert {problem.family for problem in PROBLEMS} == set(FAMILIES)
    for problem in PROBLEMS:
        assert printed(problem.code) == f"{problem.answer}\n"
        assert 0 <= problem.answer <= MAX_NUMBER
        assert printed(problem.slip) != printed(problem.code)


@pytest.mark.parametrize("way", WAYS_TO_BREAK, ids=lambda way: way.__name__.strip("_"))
def test_broken_code_raises(way: object) -> None:
    assert callable(way)
    broken = [way(code) for problem in PROBLEMS for code in (problem.code, problem.slip)]
    assert broken
    for code in filter(None, broken):
        with pytest.raises((SyntaxError, NameError, TypeError)):
            printed(code)
