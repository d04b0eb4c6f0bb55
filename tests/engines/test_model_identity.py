"""Digests of a checkpoint: what they tell apart, and what changes nothing in them."""

import json
import random
import shutil
from pathlib import Path

import pytest

from verl_pivot.engines.model_identity import template_digest, text_digest, weights_digest

SIZE = 700_000
"""Bytes of each file of weights; most of them lie between the blocks that the digest reads."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    for part in (1, 2):
        (folder / f"model-{part}.safetensors").write_bytes(random.Random(part).randbytes(SIZE))
    return folder


def test_a_checkpoint_has_the_same_digest_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    for name in ("README.md", "training_args.bin", "pytorch_model.bin"):
        (copy / name).write_text("beside the weights that are loaded")

    assert weights_digest(str(copy)) == weights_digest(str(model))
    assert weights_digest("no-one/no-model") is None


@pytest.mark.parametrize("part", [1, 2])
def test_trained_weights_have_another_digest(model: Path, part: int) -> None:
    """Training changes every weight, so that reading some blocks of each file is enough."""
    before = weights_digest(str(model))
    path = model / f"model-{part}.safetensors"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))

    assert weights_digest(str(model)) != before


@pytest.mark.parametrize("place", [0, SIZE - 1])
def test_the_first_and_the_last_bytes_are_read_and_the_size_counts(model: Path, place: int) -> None:
    before = weights_digest(str(model))
    path = model / "model-1.safetensors"
    weights = bytearray(path.read_bytes())
    weights[place] ^= 1
    path.write_bytes(weights)

    assert weights_digest(str(model)) != before
    path.write_bytes(bytes(weights) + b"\0")
    assert weights_digest(str(model)) != before


def test_weights_in_the_older_form_count_where_there_are_no_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"a")
    before = weights_digest(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"b")

    assert weights_digest(str(tmp_path)) != before


def test_another_config_and_a_missing_part_change_the_digest(model: Path) -> None:
    whole = weights_digest(str(model))
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    other = weights_digest(str(model))
    (model / "model-2.safetensors").unlink()

    assert len({whole, other, weights_digest(str(model))}) == 3


def test_a_template_of_its_own_file_goes_before_that_of_the_tokenizers_config(model: Path) -> None:
    assert template_digest(str(model)) is None
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "first {{ messages }}"}))
    assert template_digest(str(model)) == text_digest("first {{ messages }}")
    (model / "chat_template.jinja").write_text("second {{ messages }}")
    assert template_digest(str(model)) == text_digest("second {{ messages }}")


def test_several_templates_with_names_count_together_and_a_broken_file_counts_as_none(model: Path) -> None:
    config = model / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "a"}]}))
    one = template_digest(str(model))
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "b"}]}))

    assert None not in (one, template_digest(str(model)))
    assert one != template_digest(str(model))
    config.write_text("{")
    assert template_digest(str(model)) is None


@pytest.mark.parametrize("path", ["hdfs://cluster/a/model", "/nowhere/model", "./nowhere"])
def test_a_path_that_is_not_on_this_machine_has_no_digests(path: str) -> None:
    assert (weights_digest(path), template_digest(path)) == (None, None)


def test_the_digest_is_that_of_the_template_that_a_tokenizer_uses(tmp_path: Path) -> None:
    """If this fails transformers keeps templates in other files: read engines/model_identity.py."""
    from transformers import AutoTokenizer

    from tests.support.tiny_model import write_model

    folder = write_model(tmp_path / "tiny")

    assert template_digest(str(folder)) == text_digest(AutoTokenizer.from_pretrained(folder).chat_template)
