"""The quickstart's policy: its tokenizer, its short SFT and its evaluation."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Qwen2Tokenizer  # noqa: E402
from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder  # noqa: E402

from examples.quickstart.evaluate import evaluate  # noqa: E402
from examples.quickstart.policy import (  # noqa: E402
    END,
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    SftConfig,
    build_tokenizer,
    encode,
    make_policy,
)
from examples.quickstart.shop import EMAIL_PARTS, ITEMS, NAME_PARTS  # noqa: E402
from examples.quickstart.tasks import record_logs  # noqa: E402
from verl_pivot.types import Message, Role, Trajectory  # noqa: E402

TINY = SftConfig(num_logs=40, num_copy_steps=2, num_careful_steps=2, num_careless_steps=2, hidden_size=64, num_layers=1)


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def logs() -> list[Trajectory]:
    return record_logs(range(40), held_out=True)


def render(tokenizer: Qwen2Tokenizer, messages: tuple[Message, ...], log: Trajectory, *, prompt: bool) -> list[int]:
    dicts = [message.as_dict() for message in messages]
    text = tokenizer.apply_chat_template(dicts, tools=list(log.tools), add_generation_prompt=prompt, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


def pieces(tokenizer: Qwen2Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]


def test_newline_and_tags_are_one_token_each(tokenizer: Qwen2Tokenizer) -> None:
    assert pieces(tokenizer, "\n") == ["\n"]
    assert pieces(tokenizer, "<tool_call>\n{") == ["<tool_call>", "\n", "{"]


def test_a_value_has_the_same_tokens_in_every_context(tokenizer: Qwen2Tokenizer) -> None:
    names = [start + end for starts, ends in (NAME_PARTS, EMAIL_PARTS) for start, end in product(starts, ends)]
    for value in (*names, *ITEMS, "48", "417"):
        alone = pieces(tokenizer, value)
        assert all(
            pieces(tokenizer, f"{before}{value}.")[-len(alone) - 1 : -1] == alone for before in (" ", " '", '[["')
        )


def test_a_phrase_between_values_is_one_token(tokenizer: Qwen2Tokenizer) -> None:
    call = '{"name": "refund", "arguments": {"order_id": 417}}'
    assert pieces(tokenizer, call) == ['{"name": "refund", "arguments": {"order_id": ', "41", "7", "}}"]
    assert pieces(tokenizer, "I am Karo. Refund the lamp.") == ["I am ", "Ka", "ro", ".", " Refund the ", "lamp", "."]


def test_any_text_is_decoded_as_it_was_encoded(tokenizer: Qwen2Tokenizer) -> None:
    text = 'x\n\n 12 "\u00e9" \u20ac<|im_end|>'
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_chat_template_writes_the_hermes_format(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> None:
    log = next(log for log in logs if log.metadata["family"] == "refund_order")
    user = log.messages[1].content
    call = log.messages[2].tool_calls[0]
    text = tokenizer.decode(render(tokenizer, log.messages[:4], log, prompt=True))
    assert text.endswith(
        f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
        f'{{"name": "refund", "arguments": {json.dumps(call.arguments)}}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>user\n<tool_response>\n{log.messages[3].content}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_prompts_and_actions_fit_into_training(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> None:
    for prompt, action in recall(tokenizer, logs).items():
        assert len(prompt) <= MAX_PROMPT_TOKENS
        assert len(action) <= MAX_NEW_TOKENS


def test_verls_continuous_tokens_equal_the_whole_rendering(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> None:
    builder = QwenContinuousTokenBuilder(tokenizer)
    for log in logs[:10]:
        tools = list(log.tools)
        dicts = [message.as_dict() for message in log.messages]
        tokens = builder.build_initial_tokens(dicts[:2], tools=tools)
        for index in range(2, len(dicts) - 1, 2):  # one action, one result
            turn = render(tokenizer, log.messages[: index + 1], log, prompt=False)[len(tokens) : -1]
            tokens = builder.merge_assistant_tokens(tokens, turn).token_ids
            tokens = builder.merge_context_tokens(dicts[: index + 1], dicts[: index + 2], tokens, tools=tools).token_ids
        assert tokens == render(tokenizer, log.messages[:-1], log, prompt=True)


def test_only_the_assistants_tokens_are_labels(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> None:
    example = encode(tokenizer, logs[0])
    labelled = tokenizer.decode([label for label in example.labels if label != -100])
    actions = [
        tokenizer.decode(
            render(tokenizer, logs[0].messages[: index + 1], logs[0], prompt=False)[
                len(render(tokenizer, logs[0].messages[:index], logs[0], prompt=True)) : -1
            ]
        )
        for index in range(2, len(logs[0].messages), 2)
    ]
    assert labelled == "".join(actions)
    assert all(label in (-100, token) for token, label in zip(example.input_ids, example.labels, strict=True))


@pytest.mark.heavy
def test_a_policy_is_trained_once_per_configuration_and_loads_as_a_checkpoint(
    tmp_path: Path, tokenizer: Qwen2Tokenizer
) -> None:
    folder = make_policy(tmp_path / "policy", TINY)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded.encode("I am Karo. 17") == tokenizer.encode("I am Karo. 17")
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    assert GenerationConfig.from_pretrained(folder).eos_token_id == tokenizer.convert_tokens_to_ids(END)
    make_policy(folder, TINY)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    make_policy(folder, replace(TINY, seed=1))
    assert (folder / "model.safetensors").stat().st_mtime_ns != written


def recall(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> dict[tuple[int, ...], list[int]]:
    """{prompt ids: the expert's completion}, for a policy that acts as the expert did."""
    known = {}
    for log in logs:
        for index, message in enumerate(log.messages):
            if message.role is Role.ASSISTANT:
                prompt = render(tokenizer, log.messages[:index], log, prompt=True)
                whole = render(tokenizer, log.messages[: index + 1], log, prompt=False)
                known[tuple(prompt)] = whole[len(prompt) : -1]  # without the newline after the end token
    return known


async def test_the_experts_actions_solve_every_held_out_task(tokenizer: Qwen2Tokenizer, logs: list[Trajectory]) -> None:
    known = recall(tokenizer, logs)

    async def generate(prompt_ids: list[int]) -> list[int]:
        return known[tuple(prompt_ids)]

    result = await evaluate(generate, tokenizer, num_tasks=20, num_turn_tasks=10)

    assert (result.turns.value, result.tasks.value, len(result.tasks.outcomes)) == (1.0, 1.0, 20)


async def test_a_policy_that_never_ends_its_turn_solves_nothing(tokenizer: Qwen2Tokenizer) -> None:
    async def generate(prompt_ids: list[int]) -> list[int]:
        return tokenizer.encode("Done.", add_special_tokens=False)

    result = await evaluate(generate, tokenizer, num_tasks=5, num_turn_tasks=5)

    assert (result.turns.value, result.tasks.value) == (0.0, 0.0)
