"""Name of a model -> nothing, or an early error that its folder or its Hugging Face model does not exist."""

from pathlib import Path

from verl_pivot.errors import ConfigError

_HUB_SECONDS = 10.0


def check_model(model: str) -> None:
    """Refuse a model that cannot be loaded, before anything slow is imported or started.

    Args:
        model: Folder of a checkpoint, or a model name of the Hugging Face hub.

    Raises:
        ConfigError: If there is no such checkpoint.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        return
    if folder.is_dir():
        raise ConfigError(
            f"--model {model!r} has no config.json: give the folder of a checkpoint in Hugging Face format"
        )
    if folder.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model {model!r} does not exist: give the folder of a checkpoint")
    _check_hub(model)


def _check_hub(model: str) -> None:
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    try:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return
        get_hf_file_metadata(hf_hub_url(model, "config.json"), timeout=_HUB_SECONDS)
    except (httpx.HTTPError, OSError, ValueError) as error:
        what = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"--model {model!r} is neither a folder here nor available on the Hugging Face hub ({what[0]}): give "
            "the folder of a checkpoint"
        ) from error
