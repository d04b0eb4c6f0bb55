"""Qwen2 checkpoints small enough for tests and benchmarks, and training until they repeat conversations exactly."""

import json
from collections.abc import Sequence
from pathlib import Path

from verl_pivot.smoke.tiny_model import assert_finite, write_model, write_tokenizer

__all__ = ("assert_finite", "set_end_tokens", "teach", "teach_all", "write_model", "write_tokenizer")


def teach(folder: Path, token_ids: list[int], mask: list[int], *, num_steps: int = 80) -> Path:
    """Train a checkpoint until it repeats one conversation.

    Args:
        folder: Folder with a checkpoint of `write_model`.
        token_ids: [num_tokens] of the conversation.
        mask: [num_tokens] 1 for tokens of the policy, 0 for all others.
        num_steps: Steps of AdamW.
    """
    return teach_all(folder, [(token_ids, mask)], num_steps=num_steps)


def teach_all(
    folder: Path,
    conversations: Sequence[tuple[list[int], list[int]]],
    *,
    num_steps: int = 80,
    max_loss: float = 0.01,
) -> Path:
    """Train a checkpoint until it repeats several conversations, each with its tokens and mask as in `teach`.

    Conversations that contradict each other, such as two answers to a question, need a larger `max_loss`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    shown = [(torch.tensor([ids]), torch.tensor([mask]) == 0) for ids, mask in conversations]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(num_steps):
        losses = [model(input_ids=ids, labels=ids.masked_fill(other, -100)).loss for ids, other in shown]
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < max_loss, loss.item()
    model.save_pretrained(folder)
    return folder


def set_end_tokens(folder: Path, token_ids: list[int]) -> None:
    """Write a generation config with several end-of-turn tokens, as Qwen and Llama have."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": token_ids}))
