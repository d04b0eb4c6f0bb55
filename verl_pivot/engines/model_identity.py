"""Checkpoint -> digests that tell its weights and its chat template from others, read from its files alone."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json
from verl_pivot.types import Json

_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""Files in which transformers looks for a chat template, in its order."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files of weights; the first kind that a folder has counts."""
_BLOCK_BYTES = 65_536
_NUM_BLOCKS = 8
"""Blocks of each file of weights that are read, which takes milliseconds for weights of any size."""


def weights_digest(model: str) -> str | None:
    """Digest of the config and of blocks of the weights, the same wherever the folder lies.

    Args:
        model: Folder of a checkpoint, or a name of the Hugging Face hub.

    Returns:
        None unless the model is a folder on this machine: elsewhere its name has to tell it from others.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    digest = sha256((folder / "config.json").read_bytes())
    for path in next((found for pattern in _WEIGHTS if (found := sorted(folder.glob(pattern)))), []):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for block in range(_NUM_BLOCKS):
                file.seek(max(0, size - _BLOCK_BYTES) * block // (_NUM_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def template_digest(model: str) -> str | None:
    """Digest of the checkpoint's chat template; None if it has none, or its files cannot be had.

    Args:
        model: Folder of a checkpoint, or a name of the Hugging Face hub.
    """
    template = next((found for name in _TEMPLATE_FILES if (found := _template_in(model, name)) is not None), None)
    return None if template is None else text_digest(template)


def text_digest(template: str) -> str:
    """Digest of a chat template's text."""
    return sha256(template.encode()).hexdigest()


def _template_in(model: str, name: str) -> str | None:
    """The template in one file of the checkpoint; None if the file, or the template in it, is not there."""
    path = _file(model, name)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    return text if name.endswith(".jinja") else _as_text(_field(text))


def _file(model: str, name: str) -> Path | None:
    """One file of the checkpoint, which is downloaded if need be; None if it cannot be had."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if model.startswith((".", "/", "~")) or model.count("/") > 1:  # a path elsewhere, such as hdfs://cluster/model
        return None
    found: object = try_to_load_from_cache(model, name)
    if found is None:  # nothing is known of the file, not even that there is none
        with suppress(OSError):
            found = hf_hub_download(model, name)
    return Path(found) if isinstance(found, str) else None


def _field(text: str) -> Json:
    try:
        return as_object(decode_json(text), "the file").get("chat_template")
    except BadRowError:  # the tokenizer says so when it is loaded
        return None


def _as_text(template: Json) -> str | None:
    """A template, or several with their names, as one text."""
    return template if template is None or isinstance(template, str) else encode_json(template)
