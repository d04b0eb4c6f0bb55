"""The study's arms: which criteria count, and the stock command of each."""

from dataclasses import replace
from pathlib import Path

from examples.arms import Lengths, ToolArm
from examples.rubrics.corpus import Corpus

BASE, FIXED, EVOLVING = "base", "fixed", "evolving"
ARMS = (BASE, FIXED, EVOLVING)
"""Without training; trained on the criteria of the row alone; trained also on criteria that the judge writes (RLER)."""
LENGTHS = Lengths(max_turns=2, prompt=64, turn=96, response=320)
JUDGE = "fooled-judge"
NOT_SERVED = "http://127.0.0.1:0/v1"
"""Endpoint of a judge that is not served yet."""


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, corpus: Corpus, num_steps: int) -> ToolArm:
    """One arm of a seed; all arms of a seed start from one policy and see the same people."""
    arm = ToolArm(
        name=name,
        model=policy,
        rows=corpus.training,
        held_out=corpus.held_out,
        tools=corpus.tools,
        folder=folder / name,
        seed=seed,
        num_steps=num_steps,
        learning_rate=3e-4,
        batch_size=8,
        group_size=8,
        project="rubrics",
        overrides=(),
        is_base=name == BASE,
        lengths=LENGTHS,
    )
    return with_judge(arm, NOT_SERVED)


def with_judge(arm: ToolArm, url: str) -> ToolArm:
    """The arm with a judge that is served."""
    overrides = (
        "+method=rubrics",
        "+tool_format=search_r1",
        f"pivot.rubrics.base_url={url}",
        f"pivot.rubrics.model={JUDGE}",
        "pivot.rubrics.answer_format=text",
        f"pivot.rubrics.evolve={arm.name == EVOLVING}",
    )
    return replace(arm, overrides=overrides)
