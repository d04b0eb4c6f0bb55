"""Expert trajectories and a policy -> the policy after SFT on them, in plain torch with any model's chat template."""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from examples.quickstart.policy import IGNORED, Batch, Example, sft_batch, train_on  # noqa: E402
from verl_pivot.data.trajectories import read_trajectories  # noqa: E402
from verl_pivot.data.turns import turns  # noqa: E402
from verl_pivot.engines.rendering import PromptRenderer  # noqa: E402
from verl_pivot.errors import DataError  # noqa: E402
from verl_pivot.types import Trajectory, Turn  # noqa: E402

BATCH_SIZE = 12
"""Number of trajectories in a step, as in the base policy's SFT."""
_PART_SIZE = 4
"""Number of examples in one pass through the model."""
_PADDING = 0
"""Padding token. It can be any token, since it stands on the right, where a causal model does not attend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """How an arm of SFT trains."""

    learning_rate: float
    num_epochs: int
    seed: int
    """Seed of the order of the trajectories."""
    on_gpu: bool = False


def train_sft(policy: Path, trajectories: Path, settings: SftSettings, folder: Path) -> Path:
    """Train a policy in `folder`, unless it is there; the loss is over all turns of the expert, as in verl's trainer.

    Raises:
        DataError: If the chat template does not begin an action where it asks for one, or does not end the action.
    """
    out = folder / "policy"
    if out.is_dir():
        return out
    renderer = PromptRenderer(str(policy))
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    model.to("cuda" if settings.on_gpu else "cpu")
    batches = list(_batches([examples_of(renderer, each) for each in read_trajectories(trajectories)], settings))
    title = "SFT on the expert's trajectories"
    train_on(model, batches, settings.learning_rate, title, partial(_summed_loss, model))
    unfinished = folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    renderer.tokenizer.save_pretrained(unfinished)
    unfinished.rename(out)  # atomically, so that a run that was killed before starts over
    return out


def examples_of(renderer: PromptRenderer, trajectory: Trajectory) -> list[Example]:
    """One example with all turns, if each turn and the tokens before it begin the next state; else one for each turn.

    Templates of thinking models render earlier turns differently from the current one. In both cases, each turn is
    trained after exactly the tokens that are before it in rollouts.

    Raises:
        DataError: If the chat template does not begin an action where it asks for one, or does not end the action.
    """
    pairs = [(renderer.prompt_ids(turn), _written(renderer, turn)) for turn in turns(trajectory)]
    whole, labels = list(pairs[0][0]), [IGNORED] * len(pairs[0][0])
    for (_, written), (following, _) in zip(pairs, [*pairs[1:], ([], [])], strict=True):
        whole, labels = [*whole, *written], [*labels, *written]
        if not following:
            return [Example(whole, labels)]
        if following[: len(whole)] != whole:
            break
        labels += [IGNORED] * (len(following) - len(whole))
        whole = list(following)
    return [Example([*prompt, *written], [IGNORED] * len(prompt) + written) for prompt, written in pairs]


def _written(renderer: PromptRenderer, turn: Turn) -> list[int]:
    """Tokens of the expert's action with its end, as the policy would have to sample them."""
    messages = [message.as_dict() for message in (*turn.state, turn.expert)]
    texts = [
        str(renderer.tokenizer.apply_chat_template(shown, tools=list(turn.tools) or None, tokenize=False, **more))
        for shown, more in ((messages[:-1], {"add_generation_prompt": True}), (messages, {}))
    ]
    if not texts[1].startswith(texts[0]):
        raise DataError(f"turn {turn.id}: the model's chat template does not begin an action where it asks for one")
    ids = renderer.tokenizer.encode(texts[1][len(texts[0]) :], add_special_tokens=False)
    stop = next((place + 1 for place, id in enumerate(ids) if id in renderer.end_token_ids), None)
    if stop is None:
        raise DataError(f"turn {turn.id}: the model's chat template ends no action with an end-of-turn token")
    return list(ids[:stop])


def _batches(trajectories: Sequence[Sequence[Example]], settings: SftSettings) -> Iterator[list[Batch]]:
    """Batches that have every trajectory once in each epoch, in a new order."""
    rng = random.Random(f"sft-{settings.seed}")
    for _ in range(settings.num_epochs):
        order = rng.sample(range(len(trajectories)), len(trajectories))
        for start in range(0, len(order), BATCH_SIZE):
            batch = [example for number in order[start : start + BATCH_SIZE] for example in trajectories[number]]
            yield sft_batch(batch, _PADDING, _PART_SIZE)


def _summed_loss(model: PreTrainedModel, part: Batch) -> torch.Tensor:
    """Summed cross entropy of any causal model, from its logits."""
    logits = model(input_ids=part.input_ids.to(model.device)).logits[:, :-1].flatten(0, 1).float()
    labels = part.labels[:, 1:].flatten().to(model.device)
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
