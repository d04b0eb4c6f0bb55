"""The study's policy: a tiny Qwen2 that acts on pages, with partial skill from SFT on recorded demonstrations."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from string import ascii_lowercase, ascii_uppercase

from transformers import Qwen2Tokenizer

from examples.quickstart.policy import Lessons, SftConfig, learn_tokenizer, teach_policy
from examples.web.demonstrations import Demonstrations, goal_of
from examples.web.words import KNOWN
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.rollout.workflow_files import read_workflows
from verl_pivot.rollout.workflow_prompt import HEADING, shown_workflows
from verl_pivot.rollout.workflow_ranking import WorkflowRanking
from verl_pivot.rollout.workflows import Workflow, WorkflowTask
from verl_pivot.types import Message, Role, Trajectory

MAX_PROMPT_TOKENS = 272
"""Tokens of the tools, the workflows, the task and the first page."""
MAX_TURN_TOKENS = 48
MAX_OBSERVATION_TOKENS = 256
MAX_RESPONSE_TOKENS = 640
"""Tokens of a whole trajectory after its prompt, observations included."""
WORKFLOW_TOKENS = 96
"""Most tokens of the workflows in a prompt: the heading, and three workflows of a login, or more shorter ones."""
_SHOWN_SHARE = 0.5
"""Share of the demonstrations whose prompt shows workflows, so that the policy has seen some in SFT."""
_PAIRS = tuple(f"{first}{second}" for first, second in product(ascii_lowercase + ascii_uppercase, ascii_lowercase))
_VALUES = (*_PAIRS, *(str(number) for number in range(100)))
"""Texts that are one token each; names and other words of pages consist of pairs of letters."""
_BETWEEN_PHRASES = re.compile(
    r"<[^>]*>|(?<=assistant\n)|(?<=system\n)|(?<=\}\))|(?=\n\nWorkflow: )|(?<=\nWorkflow: )|(?=\nTools:)"
    rf"|(?<![A-Za-z0-9])(?!(?:{'|'.join(KNOWN)})(?![A-Za-z0-9]))[A-Za-z0-9]+"
)
"""Marks of the chat template, and words that differ from page to page; each text between these is one token, so that a
policy chooses what to do in a single token."""


def sft_config(seed: int) -> SftConfig:
    """Settings of the base policy, which decide its skill."""
    return SftConfig(
        seed=seed,
        num_logs=768,
        num_copy_steps=150,
        num_far_copy_steps=150,
        num_careful_steps=900,
        num_careless_steps=400,
        head_size=32,
    )


def make_policy(folder: Path, config: SftConfig, demonstrations: Demonstrations) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, lambda config: lessons(demonstrations, config))


def lessons(demonstrations: Demonstrations, config: SftConfig) -> Lessons:
    """The demonstrations for SFT; half of the prompts begin with workflows, as the agent loop shows them."""
    careful, careless = (each[: config.num_logs] for each in (demonstrations.careful, demonstrations.careless))
    workflows = read_workflows(demonstrations.workflows)
    tokenizer = build_tokenizer([*demonstrations.of_workflows, *careful, *careless], workflows)
    ranking = WorkflowRanking(workflows, 1)
    rng = Random(config.seed)
    careful, careless = (
        [
            with_shown_workflows(each, ranking, tokenizer) if rng.random() < _SHOWN_SHARE else each
            for each in trajectories
        ]
        for trajectories in (careful, careless)
    )
    return Lessons(tokenizer, careful, careless)


def with_shown_workflows(trajectory: Trajectory, ranking: WorkflowRanking, tokenizer: Qwen2Tokenizer) -> Trajectory:
    """The trajectory, preceded by the workflows that the agent loop would show for its task."""
    ranked = ranking.ranked(WorkflowTask(goal=goal_of(trajectory)))
    tools = {name_of(each) for each in trajectory.tools}
    shown = shown_workflows(ranked, tools, WORKFLOW_TOKENS, tokenizer, tokenizer.all_special_tokens)
    return _below(shown.text, trajectory) if shown.text else trajectory


def _below(text: str, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, messages=(Message(role=Role.SYSTEM, content=text), *trajectory.messages))


def build_tokenizer(trajectories: Sequence[Trajectory], workflows: Sequence[Workflow]) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, pairs of letters, numbers, and the phrases between words in these texts."""
    text = "\n\n".join((HEADING, *(each.text for each in workflows)))
    return learn_tokenizer([*trajectories, _below(text, trajectories[0])], _VALUES, _BETWEEN_PHRASES)


def passed_share(trajectories: Iterable[Trajectory]) -> float:
    """Share of the trajectories whose task was solved."""
    outcomes = [bool(each.passed) for each in trajectories]
    return sum(outcomes) / len(outcomes)
