"""The quickstart's policy: its tokenizer, and a tiny Qwen2 brought to partial skill by a short SFT on logs."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import Progress
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from examples.quickstart.shop import EMAIL_PARTS, ITEMS, NAME_PARTS
from examples.quickstart.tasks import record_logs
from verl_pivot.types import Trajectory

IGNORED = -100
_CONTEXT_TOKENS = 1024
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_VALUES = (
    *(half for sides in (NAME_PARTS, EMAIL_PARTS) for side in sides for half in side),
    *ITEMS,
    *(f"{number:02}" for number in range(100)),
)
"""Texts that are one token each; names, e-mails and longer numbers consist of two of these."""


def _either(words: Sequence[str]) -> str:
    return f"(?:{'|'.join(words)})"


_BETWEEN_PHRASES = re.compile(
    rf"<[^>]*>|\n|(?<=[.?])(?= )|\d+|{_either(ITEMS)}"
    rf"|{_either(NAME_PARTS[0])}{_either(NAME_PARTS[1])}|{_either(EMAIL_PARTS[0])}{_either(EMAIL_PARTS[1])}(?=@)"
)
END = "<|im_end|>"
MAX_PROMPT_TOKENS = 256
"""Most tokens of a state, in profile, training and evaluation."""
MAX_NEW_TOKENS = 32
"""Most tokens of one action, in profile, training and evaluation."""
CHAT_TEMPLATE = """\
{%- macro call(tool_call) %}
{%- set function = tool_call.function if tool_call.function else tool_call %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
{{- 'Tools:' }}
{%- for tool in tools %}
{{- ' ' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for tool_call in message.tool_calls or [] %}
{{- ('\\n' if message.content or not loop.first else '') + call(tool_call) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """Settings of the base policy and its SFT; a saved policy is used again only with equal settings."""

    seed: int = 0
    num_logs: int = 4096
    num_copy_steps: int = 140
    num_far_copy_steps: int = 0
    """Steps of copying over longer distances, after the others; a policy that reads long pages needs them."""
    num_careful_steps: int = 600
    num_careless_steps: int = 300
    part_size: int = 4
    learning_rate: float = 3e-3
    carelessness: float = 0.65
    hidden_size: int = 128
    head_size: int = 64
    num_layers: int = 3
    rope_theta: float = 10_000.0


class Lessons(NamedTuple):
    """Tokenizer and logs from which a base policy is trained."""

    tokenizer: Qwen2Tokenizer
    careful: Sequence[Trajectory]
    """Logs of good work, which SFT uses first."""
    careless: Sequence[Trajectory]
    """Logs with bad habits, which SFT uses last."""
    observed: re.Pattern[str] | None = None
    """Pattern, with one group, of text that tools wrote within the assistant's messages; None if there is none."""


class Example(NamedTuple):
    """One trajectory as the loss sees it."""

    input_ids: list[int]
    labels: list[int]
    """[num_tokens] the token itself where the assistant wrote it, -100 elsewhere."""


class Batch(NamedTuple):
    """Input ids and labels, [num_examples, num_tokens] each, padded on the right."""

    input_ids: torch.Tensor
    labels: torch.Tensor


def build_tokenizer() -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, the shop's values, and the phrases between values in the shop's logs."""
    return learn_tokenizer(record_logs(range(300)), _VALUES, _BETWEEN_PHRASES)


def learn_tokenizer(
    logs: Sequence[Trajectory], values: Sequence[str], between_phrases: re.Pattern[str]
) -> Qwen2Tokenizer:
    """A tokenizer whose tokens are bytes, the values, and the phrases between values in the logs."""
    plain = _make_tokenizer(values)
    text = "".join(_render(plain, log) for log in logs)
    return _make_tokenizer([*values, *sorted(set(between_phrases.split(text)) - {""})])


def _make_tokenizer(words: Sequence[str]) -> Qwen2Tokenizer:
    tokenizer = Qwen2Tokenizer(
        vocab={byte: number for number, byte in enumerate(sorted(ByteLevel.alphabet()))},
        merges=[],
        eos_token=END,
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_PROMPT_TOKENS + MAX_NEW_TOKENS,
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*_TAGS, *words)])
    return tokenizer


def _render(tokenizer: Qwen2Tokenizer, trajectory: Trajectory) -> str:
    messages = [message.as_dict() for message in trajectory.messages]
    text = tokenizer.apply_chat_template(messages, tools=list(trajectory.tools), tokenize=False)
    assert isinstance(text, str), type(text)
    return text


def encode(tokenizer: Qwen2Tokenizer, trajectory: Trajectory, observed: re.Pattern[str] | None = None) -> Example:
    """Tokens of a whole trajectory; only the expert's turns have labels, each including its end token.

    Args:
        tokenizer: Tokenizer of the policy.
        trajectory: The messages.
        observed: Pattern, with one group, of text that tools wrote within the assistant's messages. No token crosses
            the ends of this text, as in the agent loop. The text has labels too: names recur in it, so it teaches the
            model to copy them.
    """
    text = _render(tokenizer, trajectory)
    parts = [text] if observed is None else observed.split(text)
    input_ids = [id for part in parts for id in tokenizer.encode(part, add_special_tokens=False)]
    header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids(END)
    labels = [IGNORED] * len(input_ids)
    position, turn = 0, 0
    while position < len(input_ids):
        if input_ids[position : position + len(header)] != header:
            position += 1
            continue
        position += len(header)
        stop = input_ids.index(end, position) + 1
        if turn in trajectory.expert_indices:
            labels[position:stop] = input_ids[position:stop]
        position, turn = stop, turn + 1
    return Example(input_ids, labels)


def build_model(tokenizer: Qwen2Tokenizer, config: SftConfig) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights, but head n of its first layer, counted from 1, attends to the token n back."""
    torch.manual_seed(config.seed)
    num_heads = config.hidden_size // config.head_size
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=3 * config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=num_heads,
            max_position_embeddings=_CONTEXT_TOKENS,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    for head in range(num_heads):
        _look_back(model, head, config)
    return model


@torch.no_grad()
def _look_back(model: Qwen2ForCausalLM, head: int, config: SftConfig) -> None:
    """Set the biases of a head in the first layer so that, through RoPE, it attends to the token `head + 1` back.

    Copying needs such heads, which training alone finds only after some hundred steps.
    """
    attention = model.model.layers[0].self_attn
    half = config.head_size // 2
    angle = (head + 1) * config.rope_theta ** -(torch.arange(half) / half)
    start = head * config.head_size
    attention.q_proj.bias[start : start + half] = 2.0
    attention.k_proj.bias[start : start + half] = 2.0 * angle.cos()
    attention.k_proj.bias[start + half : start + 2 * half] = 2.0 * angle.sin()


def train(model: Qwen2ForCausalLM, careful: list[Example], careless: list[Example], config: SftConfig) -> None:
    """Train the model in place: first to copy random tokens, then by SFT on careful and then on careless logs.

    Copying comes first because the model learns it in seconds on short random sequences, and far later on logs.
    """
    batches = _batches(careful, careless, model.config.vocab_size, model.config.pad_token_id, config)
    with _one_thread():
        train_on(model, batches, config.learning_rate, "Teaching the base policy", partial(_summed_loss, model))


def train_on(
    model: PreTrainedModel,
    batches: list[list[Batch]],
    learning_rate: float,
    description: str,
    summed_loss: Callable[[Batch], torch.Tensor],
) -> None:
    """Train a model in place with AdamW: the rate grows over 20 steps, and falls as a cosine to a twentieth.

    Args:
        model: The model.
        batches: One batch for each step, in parts that fit into memory; its loss is the mean over labels of all parts.
        learning_rate: Highest learning rate.
        description: Text beside the progress bar.
        summed_loss: Function of a part that gives the sum of the loss over its labels.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_up_then_decay(len(batches)))
    model.train()
    with Progress() as progress:
        for batch in progress.track(batches, description=description):
            num_labels = sum(int((part.labels[:, 1:] != IGNORED).sum()) for part in batch)
            for part in batch:
                loss = summed_loss(part) / num_labels
                loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    model.eval()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: results do not depend on the number of cores, and it is no slower at this size."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _summed_loss(model: Qwen2ForCausalLM, part: Batch) -> torch.Tensor:
    """Summed cross entropy; logits are computed only for tokens with a label."""
    labels = part.labels[:, 1:].to(model.device)
    kept = labels != IGNORED
    # Padding is on the right, which a causal model does not attend to: no mask is needed.
    states = model.model(input_ids=part.input_ids.to(model.device)).last_hidden_state[:, :-1][kept]
    return torch.nn.functional.cross_entropy(model.lm_head(states), labels[kept], reduction="sum")


def _warm_up_then_decay(num_steps: int) -> Callable[[int], float]:
    """Factor of the learning rate by step: linear over 20 steps, then a cosine down to a twentieth."""
    return lambda step: min((step + 1) / 20, 0.525 + 0.475 * math.cos(math.pi * step / num_steps))


def _copy_batch(vocab_size: int, generator: torch.Generator, length: int = 48) -> Batch:
    """Rows of random tokens, each repeated after its own random period, so that a model must copy to predict them.

    Batches of all lengths have about the same number of tokens; the longest period is half of the length.
    """
    num_rows = 1920 // length
    position = torch.arange(length).unsqueeze(0)
    period = torch.randint(6, length // 2 + 1, (num_rows, 1), generator=generator)
    input_ids = torch.randint(0, vocab_size, (num_rows, length // 2), generator=generator).gather(1, position % period)
    return Batch(input_ids, input_ids.masked_fill(position <= period, IGNORED))


def sft_batch(examples: list[Example], pad_id: int, part_size: int) -> list[Batch]:
    """A batch in parts of examples with similar lengths, so that little is padded."""
    by_length = sorted(examples, key=lambda example: len(example.input_ids))
    return [_pad(by_length[start : start + part_size], pad_id) for start in range(0, len(by_length), part_size)]


def _batches(
    careful: list[Example], careless: list[Example], vocab_size: int, pad_id: int, config: SftConfig
) -> list[list[Batch]]:
    """All batches in order: copying, then careful logs, then careless logs."""
    generator, rng = torch.Generator().manual_seed(config.seed), random.Random(config.seed)
    num_far = config.num_far_copy_steps
    lengths = [48] * config.num_copy_steps + [96] * (num_far // 2) + [192] * (num_far - num_far // 2)
    copying = [[_copy_batch(vocab_size, generator, length)] for length in lengths]
    logs = [
        sft_batch(rng.sample(examples, 3 * config.part_size), pad_id, config.part_size)
        for examples, num_steps in ((careful, config.num_careful_steps), (careless, config.num_careless_steps))
        for _ in range(num_steps)
    ]
    return [*copying, *logs]


def _pad(examples: list[Example], pad_id: int) -> Batch:
    length = max(len(example.input_ids) for example in examples)
    gaps = [length - len(example.input_ids) for example in examples]
    pairs = list(zip(examples, gaps, strict=True))
    return Batch(
        torch.tensor([example.input_ids + [pad_id] * gap for example, gap in pairs]),
        torch.tensor([example.labels + [IGNORED] * gap for example, gap in pairs]),
    )


def make_policy(folder: Path, config: SftConfig) -> Path:
    """Train the base policy into `folder`, unless it is there already with the same configuration."""
    return teach_policy(folder, config, _shop_lessons)


def _shop_lessons(config: SftConfig) -> Lessons:
    careful, careless = (
        record_logs(range(config.num_logs), carelessness=carelessness) for carelessness in (0.0, config.carelessness)
    )
    return Lessons(build_tokenizer(), careful, careless)


def teach_policy(
    folder: Path, config: SftConfig, make_lessons: Callable[[SftConfig], Lessons], device: str = "cpu"
) -> Path:
    """Train a policy on the lessons that `make_lessons` makes, unless `folder` has it with the same configuration."""
    stamp = folder / "sft.json"
    settings = json.dumps(asdict(config))
    if stamp.is_file() and stamp.read_text() == settings:
        return folder
    stamp.unlink(missing_ok=True)
    lessons = make_lessons(config)
    tokenizer = lessons.tokenizer
    careful, careless = (
        [encode(tokenizer, log, lessons.observed) for log in logs] for logs in (lessons.careful, lessons.careless)
    )
    model = build_model(tokenizer, config).to(device)
    train(model, careful, careless, config)
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stamp.write_text(settings)  # last, so that a run that was killed starts over
    return folder
