"""Qwen2 checkpoints small enough for tests and benchmarks: byte tokens, a Hermes tool template, head size 64."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# transformers renders with trim_blocks: a newline right after a %} is dropped.
CHAT_TEMPLATE = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if system or tools %}{{ '<|im_start|>system\\n' + system }}
{%- if tools %}{{ '\\n<tools>\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- '</tools>' }}{% endif %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- set function = {'name': call.function.name, 'arguments': call.function.arguments} %}
{{- '\\n<tool_call>\\n' + function | tojson + '\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""


def write_tokenizer(folder: Path, corpus: Iterable[str] = ()) -> Path:
    """Write a tokenizer and config without weights, enough to render prompts; a corpus adds 4,000 longer tokens."""
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    num_words = 4_000 if corpus else 0
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(SPECIAL) + num_words, initial_alphabet=alphabet, special_tokens=list(SPECIAL),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(corpus or ["a shop"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(folder)
    Qwen2Config(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16384,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
        dtype="float32",
    ).save_pretrained(folder)
    return folder


def write_model(
    folder: Path, *, seed: int = 0, corpus: Iterable[str] = (), sizes: Mapping[str, int] | None = None
) -> Path:
    """Write a checkpoint with random weights, drawn wide so that greedy decoding has no near ties.

    Args:
        folder: Folder for the checkpoint.
        seed: Seed of the weights.
        corpus: Texts that the tokenizer learns from.
        sizes: Fields of Qwen2's config that replace the smallest sizes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_tokenizer(folder, corpus)
    config = AutoConfig.from_pretrained(folder)
    config.update({"initializer_range": 0.2, **(sizes or {})})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    assert_finite(model)
    model.save_pretrained(folder)
    return folder


def assert_finite(model: Any) -> None:
    """Tell which weights of a model are no numbers."""
    named = [*model.named_parameters(), *model.named_buffers()]
    assert [name for name, values in named if not values.isfinite().all()] == []


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

    Those that contradict each other, such as two answers to a question, need a `max_loss` that allows for it.
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
