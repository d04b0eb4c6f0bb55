"""Tiny policies: one that writes the turns it is given after any text, and small ones of other architectures."""

from pathlib import Path

import pytest
import torch

from verl_pivot.errors import ConfigError
from verl_pivot.smoke.tiny_model import write_like, write_tokenizer, write_writing_model

TURNS = ("<search>three</search>", "It is 3.", "It is 4.")


def test_a_writing_model_gives_each_turn_as_often_and_then_ends_whatever_it_read(tmp_path: Path) -> None:
    folder = write_writing_model(tmp_path, turns=TURNS, corpus=[])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    turns = [tokenizer.convert_tokens_to_ids(turn) for turn in TURNS]

    def chances(text: str) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([tokenizer.encode(text)])).logits[0, -1].softmax(-1)

    for text in ("<|im_start|>assistant\n", "\n\n<information>no</information>\n\n", "What? " * 300):
        assert (chances(text)[turns] > 0.2).all()
        for turn in TURNS:
            assert chances(f"{text}{turn}")[tokenizer.eos_token_id] > 0.95
    assert [tokenizer.decode(turn) for turn in turns] == list(TURNS)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Llama", {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}),
        ("Qwen3Moe", {"num_hidden_layers": 48, "num_experts": 128}),
    ],
)
def test_a_model_like_a_large_one_has_its_architecture_and_small_layers(
    name: str, fields: dict[str, int], tmp_path: Path
) -> None:
    write_tokenizer(tmp_path / "large")
    import transformers

    architecture = f"{name}ForCausalLM"
    config = getattr(transformers, f"{name}Config")(architectures=[architecture], **fields)
    config.save_pretrained(tmp_path / "large")

    small = write_like(str(tmp_path / "large"), tmp_path / "small")

    model = transformers.AutoModelForCausalLM.from_pretrained(small)
    assert type(model).__name__ == architecture
    assert (len(model.model.layers), model.config.hidden_size) == (2, 128)
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded by transformers"):
        write_like(str(tmp_path), tmp_path / "small")
