"""Texts, or the folder of a checkpoint -> a checkpoint with few, small layers and random weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from verl_pivot.errors import ConfigError
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
_NUM_LAYERS = 2
_SMALL = {
    "num_hidden_layers": _NUM_LAYERS, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "max_window_layers": _NUM_LAYERS,
}  # fmt: skip
"""Sizes of a small model, by the names of the fields that Hugging Face's configs have."""
_NUM_LESSONS = 160
_LESSON_TOKENS = 512


def write_tokenizer(folder: Path, corpus: Iterable[str] = (), turns: Sequence[str] = ()) -> Path:
    """Write a tokenizer and config without weights, enough to render prompts.

    Args:
        folder: Folder for the checkpoint.
        corpus: Texts from which the tokenizer learns 4,000 tokens that are longer than a byte.
        turns: Texts that are one token each.
    """
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
    fast.add_tokens([AddedToken(turn, special=False, normalized=False) for turn in turns])
    fast.save_pretrained(folder)
    Qwen2Config(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=_NUM_LAYERS,
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
    write_tokenizer(folder, corpus)
    return _write_weights(folder, seed, {"initializer_range": 0.2, **(sizes or {})})


def _write_weights(folder: Path, seed: int, fields: Mapping[str, Any]) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    config.update(dict(fields))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    assert_finite(model)
    model.save_pretrained(folder)
    return folder


def assert_finite(model: Any) -> None:
    """Assert that all weights of a model are finite; the error names those that are not."""
    named = [*model.named_parameters(), *model.named_buffers()]
    assert [name for name, values in named if not values.isfinite().all()] == []


def without_progress_bars() -> None:
    """Make transformers print no bar while it reads and writes checkpoints."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def write_writing_model(folder: Path, *, turns: Sequence[str], corpus: Sequence[str]) -> Path:
    """Write a checkpoint that answers every prompt with one of the turns, all equally likely, and then ends its turn.

    Args:
        folder: Folder for the checkpoint.
        turns: Texts that it writes; each is a token of its own.
        corpus: Texts of the prompts, for the tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_tokenizer(folder, corpus, turns)
    _write_weights(folder, 0, {"initializer_range": 0.02, "tie_word_embeddings": False})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    written = torch.tensor([tokenizer.convert_tokens_to_ids(turn) for turn in turns])
    for layer in model.model.layers:  # without attention, its output depends only on the last token
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight.requires_grad_(False))
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with one_thread():
        for _ in range(_NUM_LESSONS):
            read = torch.randint(len(tokenizer), (8, _LESSON_TOKENS // 8), generator=generator)
            read[:, ::8] = _drawn(written, read[:, ::8], generator)
            wanted = _drawn(written, read, generator)
            wanted[torch.isin(read, written)] = tokenizer.eos_token_id
            loss = torch.nn.functional.cross_entropy(model(input_ids=read).logits.flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
            optimizer.step()
    model.save_pretrained(folder)
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: at this size, more threads would wait for each other most of the time."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _drawn(choices: Any, like: Any, generator: Any) -> Any:
    import torch

    return choices[torch.randint(len(choices), like.shape, generator=generator)]


def write_like(source: str, folder: Path) -> Path:
    """Write a checkpoint with the architecture and the tokenizer of another one, but few and small layers.

    Args:
        source: Folder of the checkpoint, or its Hugging Face name.
        folder: Folder for the small one.

    Raises:
        ConfigError: If the checkpoint cannot be read, or its architecture cannot be made small.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        config, tokenizer = AutoConfig.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source} cannot be loaded by transformers: {error}") from error
    if hasattr(config, "text_config"):
        raise ConfigError(
            f"{source} is a {config.model_type}, whose config has a part for images: no small model of it can be made; "
            "give a text model of the same family with --model"
        )
    tokenizer.save_pretrained(folder)
    config.update({name: size for name, size in _SMALL.items() if hasattr(config, name)})
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:_NUM_LAYERS]
    config.save_pretrained(folder)
    return _write_weights(folder, 0, {"dtype": "float32"})
