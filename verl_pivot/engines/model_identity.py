"""Checkpoint -> digests that identify its weights and its chat template, read from its files alone."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json
from verl_pivot.types import Json

_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""Files in which transformers looks for a chat template, in the same order."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of weight files; the first pattern with a match in the folder is used."""
_BLOCK_BYTES = 65_536
_NUM_BLOCKS = 8
"""Number of blocks that are read from each weight file, so that a file of any size takes milliseconds."""


def weights_digest(model: str) -> str | None:
    """Digest of the config and of blocks of the weights; it does not depend on the folder's path.

    Args:
        model: Folder of a checkpoint, or a model name of the Hugging Face hub.

    Returns:
        The digest, or None if the model is no folder on this machine; only its name can identify it then.
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
    """Digest of the checkpoint's chat template; None if it has none, or its files cannot be read or downloaded.

    Args:
        model: Folder of a checkpoint, or a model name of the Hugging Face hub.
    """
    template = next((found for name in _TEMPLATE_FILES if (found := _template_in(model, name)) is not None), None)
    return None if template is None else text_digest(template)


def text_digest(template: str) -> str:
    """Digest of a chat template's text."""
    return sha256(template.encode()).hexdigest()


def _template_in(model: str, name: str) -> str | None:
    """The chat template in one file of the checkpoint; None if there is no such file, or no template in it."""
    path = _file(model, name)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    return text if name.endswith(".jinja") else _as_text(_field(text))


def _file(model: str, name: str) -> Path | None:
    """Path of one file of the checkpoint, downloaded if necessary; None if there is no such file."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if model.startswith((".", "/", "~")) or model.count("/") > 1:  # a path elsewhere, such as hdfs://cluster/model
        return None
    found: object = try_to_load_from_cache(model, name)
    if found is None:  # neither the file nor a record that it does not exist is in the cache
        with suppress(OSError):
            found = hf_hub_download(model, name)
    return Path(found) if isinstance(found, str) else None


def _field(text: str) -> Json:
    try:
        return as_object(decode_json(text), "the file").get("chat_template")
    except BadRowError:  # loading the tokenizer reports the broken file
        return None


def _as_text(template: Json) -> str | None:
    """The text of a template, or several named templates encoded as one JSON text."""
    return template if template is None or isinstance(template, str) else encode_json(template)
