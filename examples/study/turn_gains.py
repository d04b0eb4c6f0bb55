"""Turns and a policy -> the gain in a turn's mean reward by one update on it alone, and the rewards' deviation."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track

from examples.study.measures import advantages, deviation, gain_in_mean, has_signal, length_of_step
from examples.study.measures_file import TurnGain
from examples.study.torch_policy import PART_SIZE, Answer, TorchPolicy, kl_of_answers
from verl_pivot.data.files import make_folder
from verl_pivot.types import Turn
from verl_pivot.verifiers.scoring import score_completion

NUM_ANSWERS = 16
"""Number of answers of the update, over which the deviation of rewards is measured; the group size of the paper."""
NUM_FRESH = 48
"""Number of other answers, on which the gain is measured."""
SMALL_KL = 0.01
"""KL(before || after) of each update, in nats per whole answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswers:
    """Distinct answers with their rewards; those that the verifier could not decide are left out."""

    answers: list[Answer]
    rewards: list[float]
    counts: list[int]

    @property
    def all_rewards(self) -> list[float]:
        """[num_samples] reward of each sample, in no particular order."""
        return [reward for reward, count in zip(self.rewards, self.counts, strict=True) for _ in range(count)]


def measure_gains(policy: TorchPolicy, turns: Sequence[Turn], most_tokens: int, path: Path, seed: int) -> None:
    """Measure every turn, and add a line for each to a file; turns that the file has are not measured again."""
    make_folder(path.parent)
    done = {gain.turn for gain in read_gains(path, seed)}
    with path.open("a") as file, asyncio.Runner() as runner:  # one loop for all, in which verifiers keep sandboxes open
        for turn in track([turn for turn in turns if turn.id not in done], "One update on each turn"):
            gain = _measured(policy, turn, most_tokens, seed, runner)
            file.write(json.dumps(gain.model_dump(exclude={"seed"})) + "\n")
            file.flush()


def read_gains(path: Path, seed: int) -> list[TurnGain]:
    """The gains in a file; an incomplete last line, left by a killed process, is removed from it."""
    if not path.is_file():
        return []
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))
    return [TurnGain(seed=seed, **json.loads(line)) for line in lines if line.endswith("\n")]


def _measured(policy: TorchPolicy, turn: Turn, most_tokens: int, seed: int, runner: asyncio.Runner) -> TurnGain:
    generator = torch.Generator(policy.model.device).manual_seed(random.Random(f"{seed}-{turn.id}").getrandbits(62))
    prompt = policy.renderer.prompt_ids(turn)
    own, fresh = (
        runner.run(_scored(policy, turn, policy.sample(prompt, number, most_tokens, generator)))
        for number in (NUM_ANSWERS, NUM_FRESH)
    )
    is_known = bool(own.answers and fresh.answers)
    # If all rewards are equal, the gradient is 0 (PivotRL, proposition 3.1).
    gain = gain_of_update(policy, prompt, own, fresh) if is_known and has_signal(own.rewards) else 0.0
    return TurnGain(
        seed=seed,
        turn=turn.id,
        domain=str(turn.metadata.get("domain")),
        num_answers=len(own.all_rewards),
        deviation=deviation(own.all_rewards) if is_known else None,
        gain=gain if is_known else None,
    )


def gain_of_update(
    policy: TorchPolicy, prompt: Sequence[int], own: ScoredAnswers, fresh: ScoredAnswers
) -> float | None:
    """Gain in mean reward by one step along the policy gradient, scaled to `SMALL_KL`; the policy is then restored.

    None if no step has that KL.

    Args:
        policy: The policy that wrote all answers.
        prompt: Token ids of the turn's state.
        own: Answers of the update.
        fresh: Answers on which KL and gain are measured.
    """
    direction = _gradient(policy, prompt, own)
    norm = sum(float(each.square().sum()) for each in direction) ** 0.5
    parameters = list(policy.model.parameters())
    before = _log_probs(policy, prompt, fresh.answers)
    counts = torch.tensor(fresh.counts, dtype=torch.float64)

    def after(length: float) -> list[torch.Tensor]:
        with _moved(parameters, direction, length):
            return _log_probs(policy, prompt, fresh.answers)

    def kl(length: float) -> float:
        parts = zip(before, after(length), _in_parts(fresh.answers), strict=True)
        by_answer = torch.cat([kl_of_answers(old, new, answers) for old, new, answers in parts]).double().cpu()
        return float((by_answer @ counts) / counts.sum())

    length = length_of_step(kl, SMALL_KL, SMALL_KL**0.5 / norm) if norm > 0.0 else None
    if length is None:
        return None
    old, new = (_of_answers(policy, each, fresh.answers) for each in (before, after(length)))
    return gain_in_mean((new - old).double().cpu().numpy(), fresh.rewards, fresh.counts)


def _gradient(policy: TorchPolicy, prompt: Sequence[int], own: ScoredAnswers) -> list[torch.Tensor]:
    """[num_parameters] gradient of the mean over samples of advantage times log probability of the answer."""
    policy.model.zero_grad()
    weights = torch.tensor(advantages(own.rewards, own.counts), device=policy.model.device)
    for start in range(0, len(own.answers), PART_SIZE):
        part = own.answers[start : start + PART_SIZE]
        found = policy.answer_log_probs(policy.log_probs(prompt, part), part)
        (found @ weights[start : start + PART_SIZE]).backward()  # type: ignore[no-untyped-call]  # torch gives none
    gradients = [
        torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in policy.model.parameters()
    ]
    policy.model.zero_grad()
    return gradients


@torch.no_grad()
def _log_probs(policy: TorchPolicy, prompt: Sequence[int], answers: Sequence[Answer]) -> list[torch.Tensor]:
    return [policy.log_probs(prompt, part) for part in _in_parts(answers)]


def _of_answers(policy: TorchPolicy, parts: Sequence[torch.Tensor], answers: Sequence[Answer]) -> torch.Tensor:
    """[num_answers] log probability of each answer."""
    pairs = zip(parts, _in_parts(answers), strict=True)
    return torch.cat([policy.answer_log_probs(found, part) for found, part in pairs])


def _in_parts(answers: Sequence[Answer]) -> Iterator[Sequence[Answer]]:
    return (answers[start : start + PART_SIZE] for start in range(0, len(answers), PART_SIZE))


@contextmanager
def _moved(
    parameters: Sequence[torch.nn.Parameter], direction: Sequence[torch.Tensor], length: float
) -> Iterator[None]:
    """Move the parameters by a step while the context lasts; then they have exactly their old values."""
    with torch.no_grad():
        kept = [each.clone() for each in parameters]
        try:
            for each, step in zip(parameters, direction, strict=True):
                each.add_(step, alpha=length)
            yield
        finally:
            for each, old in zip(parameters, kept, strict=True):
                each.copy_(old)


async def _scored(policy: TorchPolicy, turn: Turn, sampled: Sequence[Answer]) -> ScoredAnswers:
    counts = Counter(sampled)
    texts = [policy.renderer.action_text(answer) for answer in counts]
    verdicts = await asyncio.gather(*(score_completion(each.text, each.ended, turn) for each in texts))
    known = [
        (answer, verdict.score, counts[answer])
        for answer, verdict in zip(counts, verdicts, strict=True)
        if verdict.score is not None
    ]
    answers, rewards, numbers = (list(each) for each in zip(*known, strict=True)) if known else ([], [], [])
    return ScoredAnswers(answers=answers, rewards=rewards, counts=numbers)
