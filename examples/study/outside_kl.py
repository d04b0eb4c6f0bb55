"""A trained policy and the base policy -> the KL between them, per token, on prompts outside of the domains."""

import random
from collections.abc import Sequence

import torch
from rich.progress import track

from examples.study.domains.known import OUTSIDE
from examples.study.domains.protocol import StudyTask, say
from examples.study.measures_file import OutsideKl
from examples.study.recording import held_out_tasks
from examples.study.torch_policy import TorchPolicy, kl_of_answers
from verl_pivot.types import Turn

NUM_PROMPTS = 50
"""Number of prompts of each kind; they are the first held-out tasks."""


def measure_outside_kl(
    trained: TorchPolicy, base: TorchPolicy, arm: str, seed: int, most_tokens: int, num_prompts: int = NUM_PROMPTS
) -> list[OutsideKl]:
    """KL for each kind of prompts, on one answer to each prompt that the trained policy samples.

    Args:
        trained: The policy after training.
        base: The policy before training.
        arm: Name of the arm.
        seed: Seed of the arm, which also decides the sampled answers.
        most_tokens: Number of tokens at which an answer is cut off.
        num_prompts: Number of prompts of each kind.
    """
    return [_measured(trained, base, arm, seed, group, most_tokens, num_prompts) for group in OUTSIDE]


@torch.no_grad()
def _measured(
    trained: TorchPolicy, base: TorchPolicy, arm: str, seed: int, group: str, most_tokens: int, num_prompts: int
) -> OutsideKl:
    generator = torch.Generator(trained.model.device)
    generator.manual_seed(random.Random(f"kl-{seed}-{arm}-{group}").getrandbits(62))
    num_tokens, nats = 0, 0.0
    for task in track(held_out_tasks(group, num_prompts, seed), f"{arm} beside the base policy, {group}"):
        prompt = trained.renderer.prompt_ids(_turn(task))
        answers = trained.sample(prompt, 1, most_tokens, generator)
        num_tokens += _length(answers)
        parts = (trained.log_probs(prompt, answers), base.log_probs(prompt, answers))
        nats += float(kl_of_answers(*parts, answers).sum())
    return OutsideKl(arm=arm, seed=seed, group=group, num_tokens=num_tokens, nats=nats)


def _length(answers: Sequence[Sequence[int]]) -> int:
    return sum(map(len, answers))


def _turn(task: StudyTask) -> Turn:
    tools = tuple(OUTSIDE[task.domain].tools)
    return Turn(trajectory_id=task.id, index=0, state=task.opening, expert=say("-"), tools=tools)
