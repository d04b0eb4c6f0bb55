"""TorchPolicy: a checkpoint in plain torch that samples answers, and gives the log probabilities of any answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from verl_pivot.engines.rendering import PromptRenderer  # noqa: E402

PART_SIZE = 16
"""Number of answers in one pass through the model."""
Answer: TypeAlias = tuple[int, ...]
"""[num_tokens] sampled tokens, including the end token if it was sampled."""


class TorchPolicy:
    """A policy that renders turns as training does, in single precision, since small differences matter."""

    def __init__(self, model: PreTrainedModel, renderer: PromptRenderer) -> None:
        self.model, self.renderer = model, renderer

    @classmethod
    def read(cls, folder: Path, *, on_gpu: bool) -> "TorchPolicy":
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model.to("cuda" if on_gpu else "cpu"), PromptRenderer(str(folder)))

    @torch.no_grad()
    def sample(self, prompt: Sequence[int], number: int, most_tokens: int, generator: torch.Generator) -> list[Answer]:
        """[number] answers from the policy's own distribution.

        Args:
            prompt: Token ids.
            number: Number of answers to sample.
            most_tokens: Number of tokens at which an answer is cut off.
            generator: Random generator on the model's device.
        """
        ends = self.renderer.end_token_ids
        states = self.model(input_ids=self._row(prompt[:-1]), use_cache=True).past_key_values
        states.batch_repeat_interleave(number)
        last = self._row(prompt[-1:]).expand(number, 1)
        columns: list[list[int]] = []
        for _ in range(most_tokens):
            logits = self.model(input_ids=last, past_key_values=states, use_cache=True).logits[:, -1]
            last = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)
            columns.append(last[:, 0].tolist())
            if all(any(column[row] in ends for column in columns) for row in range(number)):
                break
        return [_until_end([column[row] for column in columns], ends) for row in range(number)]

    def log_probs(self, prompt: Sequence[int], answers: Sequence[Answer]) -> torch.Tensor:
        """[num_answers, longest answer, vocabulary] log probabilities at each place; arbitrary after an answer's end.

        The prompt is processed once for all answers, also when gradients are kept.
        """
        longest = max(map(len, answers))
        states = self.model(input_ids=self._row(prompt[:-1]), use_cache=True).past_key_values
        states.batch_repeat_interleave(len(answers))
        # Padding is on the right, which no token before it attends to.
        rows = [[prompt[-1], *answer[:-1], *[prompt[-1]] * (longest - len(answer))] for answer in answers]
        ids = torch.tensor(rows, device=self.model.device)
        logits = self.model(input_ids=ids, past_key_values=states, use_cache=True).logits
        log_probs: torch.Tensor = logits.float().log_softmax(-1)
        return log_probs

    def answer_log_probs(self, log_probs: torch.Tensor, answers: Sequence[Answer]) -> torch.Tensor:
        """[num_answers] log probability of each whole answer, from the result of `log_probs`."""
        longest = max(map(len, answers))
        ids = torch.tensor([[*answer, *[0] * (longest - len(answer))] for answer in answers], device=log_probs.device)
        chosen = log_probs.gather(-1, ids[..., None])[..., 0]
        return (chosen * mask_of(answers).to(log_probs.device)).sum(-1)

    def _row(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], device=self.model.device)


def mask_of(answers: Sequence[Answer]) -> torch.Tensor:
    """[num_answers, longest answer] 1 at the tokens of an answer, 0 after them."""
    longest = max(map(len, answers))
    return torch.tensor([[1.0] * len(answer) + [0.0] * (longest - len(answer)) for answer in answers])


def kl_of_answers(sampled: torch.Tensor, other: torch.Tensor, answers: Sequence[Answer]) -> torch.Tensor:
    """[num_answers] sum over an answer's tokens of KL(sampled || other), over the whole vocabulary.

    Its mean over answers that the first policy sampled estimates the KL of whole answers, with less noise than
    log ratios.

    Args:
        sampled: [num_answers, longest answer, vocabulary] log probabilities of the policy that wrote the answers.
        other: Log probabilities of the other policy, in the same shape.
        answers: The answers.
    """
    by_token = (sampled.exp() * (sampled - other)).sum(-1)
    return (by_token * mask_of(answers).to(by_token.device)).sum(-1)


def _until_end(ids: list[int], ends: frozenset[int]) -> Answer:
    stop = next((position + 1 for position, id in enumerate(ids) if id in ends), len(ids))
    return tuple(ids[:stop])
