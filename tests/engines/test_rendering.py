"""Prompts and sampled texts outside the trainer are, token for token, those of verl's agent loop."""

import json
import warnings
from pathlib import Path

import pytest

from tests.support.tiny_model import set_end_tokens, write_tokenizer
from verl_pivot.engines.rendering import PromptRenderer
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Turn

REFUND: JsonObject = {
    "type": "function",
    "function": {
        "name": "refund",
        "description": "Pay money back.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "integer"}}, "required": ["order_id"]},
    },
}
ASKED = (
    Message(role=Role.SYSTEM, content="You run a shop."),
    Message(role=Role.USER, content="Refund order 17."),
)
CALLED = (
    *ASKED,
    Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="refund", arguments={"order_id": 17}, id="c1"),)),
    Message(role=Role.TOOL, content='{"ok": true}', tool_call_id="c1"),
)


def make_turn(state: tuple[Message, ...] = ASKED, tools: tuple[JsonObject, ...] = (REFUND,)) -> Turn:
    return Turn(
        trajectory_id="shop-1",
        index=0,
        state=state,
        expert=Message(role=Role.ASSISTANT, content="Done."),
        tools=tools,
    )


def test_a_prompt_is_the_chat_template_with_the_tools_of_the_turn(tmp_path: Path) -> None:
    renderer = PromptRenderer(str(write_tokenizer(tmp_path)))

    text = renderer.tokenizer.decode(renderer.prompt_ids(make_turn(CALLED)))

    assert text == (
        "<|im_start|>system\nYou run a shop.\n<tools>\n" + json.dumps(REFUND) + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nRefund order 17.<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "refund", "arguments": {"order_id": 17}}\n</tool_call>'
        "<|im_end|>\n"
        '<|im_start|>tool\n{"ok": true}<|im_end|>\n'
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("chat_template_kwargs", [{}, {"enable_thinking": False}])
@pytest.mark.parametrize("tools", [(), (REFUND,)])
@pytest.mark.parametrize("state", [ASKED, CALLED, CALLED[1:]])
async def test_prompt_ids_are_those_of_verls_agent_loop(
    tmp_path: Path, state: tuple[Message, ...], tools: tuple[JsonObject, ...], chat_template_kwargs: JsonObject
) -> None:
    model = str(write_tokenizer(tmp_path))
    turn = make_turn(state, tools)

    in_training = await _agent_loop_prompt_ids(model, turn, chat_template_kwargs)

    assert PromptRenderer(model, chat_template_kwargs).prompt_ids(turn) == in_training


async def _agent_loop_prompt_ids(model: str, turn: Turn, chat_template_kwargs: JsonObject) -> list[int]:
    """Prompt of a turn as verl's AgentLoopBase renders it, with stock configuration."""
    from omegaconf import OmegaConf
    from transformers import AutoConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl imports a part of Ray that Ray has deprecated
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase, DictConfigWrap
    from verl.utils import hf_tokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    class Loop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
        async def run(self, sampling_params: object, **row: object) -> None: ...

    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 4096, "response_length": 64}}})
    data = OmegaConf.create({"apply_chat_template_kwargs": chat_template_kwargs})
    loop = Loop(
        trainer_config=DictConfigWrap(config),
        server_manager=None,
        tokenizer=hf_tokenizer(model),
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(data),
        hf_model_type=AutoConfig.from_pretrained(model).model_type,
    )
    messages = [message.as_dict() for message in turn.state]
    ids: list[int] = await loop.ct_build_initial_tokens(messages, tools=list(turn.tools) or None)
    return ids


def test_a_turn_ended_by_itself_only_if_its_last_token_is_an_end_token(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    set_end_tokens(model, [2, 0])
    renderer = PromptRenderer(str(model))
    body = renderer.tokenizer.encode("Done <tool_call>.")

    assert renderer.end_token_ids == {0, 2}
    assert renderer.action_text([*body, 2]) == ("Done <tool_call>.", True)
    assert renderer.action_text([*body, 0]) == ("Done <tool_call>.", True)
    assert renderer.action_text(body) == ("Done <tool_call>.", False)
    assert renderer.action_text([2, *body]) == ("<|im_end|>Done <tool_call>.", False)
    assert renderer.action_text([2]) == ("", True)
    assert renderer.action_text([]) == ("", False)


def write_config(model: Path, config: JsonObject) -> None:
    (model / "config.json").write_text(json.dumps(config))


def test_end_tokens_that_a_composite_checkpoint_names_for_its_text_alone_are_found(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    write_config(model, {"model_type": "mistral3", "text_config": {"model_type": "mistral", "eos_token_id": 5}})
    renderer = PromptRenderer(str(model))

    assert renderer.end_token_ids == {renderer.tokenizer.eos_token_id, 5}


def test_a_model_whose_prompts_verl_renders_with_an_image_processor_is_refused(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    write_config(model, {"model_type": "qwen3_vl"})

    with pytest.raises(
        ConfigError, match=r"cannot be rendered without a processor of images.*'qwen3_vl'.*choose a model of text"
    ):
        PromptRenderer(str(model))


def test_the_error_names_the_turn_whose_state_the_template_refuses(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    (model / "chat_template.jinja").write_text("{{ raise_exception('tool messages are unknown') }}")

    with pytest.raises(DataError, match=r"turn shop-1:0: .*tool messages are unknown.*leave it out"):
        PromptRenderer(str(model)).prompt_ids(make_turn())


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--model '{tmp_path}' cannot be loaded by transformers"):
        PromptRenderer(str(tmp_path))


def test_a_tokenizer_without_chat_template_is_refused(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    (model / "chat_template.jinja").unlink()

    with pytest.raises(ConfigError, match=r"has no chat template: add chat_template.jinja"):
        PromptRenderer(str(model))
