"""How pivots were profiled, and a launch's config -> an error if training would sample their actions differently."""

import sys
from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.sampling_record import SamplingDifference, SamplingRecord
from verl_pivot.engines.model_identity import template_digest, text_digest, weights_digest
from verl_pivot.errors import NOTE, ConfigError
from verl_pivot.rollout.settings import max_turn_tokens

_SWITCH = "pivot.allow_other_sampling=True"
_KEYS = {
    "model": "actor_rollout_ref.model.path",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "top_p": "actor_rollout_ref.rollout.top_p",
    "top_k": "actor_rollout_ref.rollout.top_k",
    "chat_template_kwargs": "data.apply_chat_template_kwargs",
}
"""{field of SamplingRecord: key of the launch that sets it}"""


def check_sampling(config: DictConfig, records: Collection[str | None], places: str) -> None:
    """Refuse pivots whose profile was sampled differently from this launch, since their rewards would differ.

    Args:
        config: verl's whole config.
        records: Values of the column `sampling` of the training files, each once; None where a row has none.
        places: The training files, for messages.

    Raises:
        ConfigError: With each difference, its two values and the remedies.
    """
    if None in records:
        _say(
            f"rows of {places} do not say how they were profiled, so their sampling cannot be compared with that of "
            "this launch"
        )
    known = [_decoded(text, places) for text in records if text is not None]
    found = [difference for record in known for difference in sampling_of(config).differences(record)]
    if not found:
        return
    said = "; ".join(dict.fromkeys(_described(difference, config) for difference in found))
    if not config.pivot.allow_other_sampling:
        raise ConfigError(
            f"data.train_files: the pivots of {places} were profiled with other settings than this launch samples "
            f"with: {said}. Set the launch to the settings of the profile, profile again with those of the launch, or "
            f"add {_SWITCH} to train nevertheless"
        )
    _say(f"{_SWITCH}: {said}")


def _decoded(text: str, places: str) -> SamplingRecord:
    try:
        return SamplingRecord.decoded(text)
    except BadRowError as error:
        raise ConfigError(
            f"data.train_files: {places}: {error}; write the file again with `verl-pivot select`"
        ) from error


def sampling_of(config: DictConfig) -> SamplingRecord:
    """Record of how a launch samples the actions of single turns."""
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    kwargs = OmegaConf.to_container(config.data.get("apply_chat_template_kwargs") or OmegaConf.create({}), resolve=True)
    assert isinstance(kwargs, dict), kwargs
    template = model.get("custom_chat_template")
    tokenizer = str(model.get("tokenizer_path") or model.path)
    return SamplingRecord(
        model=str(model.path),
        model_digest=weights_digest(str(model.path)),
        max_new_tokens=max_turn_tokens(config),
        temperature=float(rollout.temperature),
        top_p=float(rollout.top_p),
        top_k=int(rollout.top_k),
        chat_template_kwargs={str(key): value for key, value in kwargs.items()},
        template_digest=template_digest(tokenizer) if template is None else text_digest(str(template)),
    )


def _described(difference: SamplingDifference, config: DictConfig) -> str:
    name, here, there = difference
    if name == "model_digest":
        return (
            f"the weights in {_KEYS['model']}={config.actor_rollout_ref.model.path} are not those of the profile "
            f"(digest {_short(here)} here, {_short(there)} in the profile)"
        )
    if name == "template_digest":
        return f"the chat template differs (digest {_short(here)} here, {_short(there)} in the profile)"
    is_turn_limit = OmegaConf.select(config, "pivot.max_turn_tokens") is not None
    key = _KEYS.get(name, "pivot.max_turn_tokens" if is_turn_limit else "data.max_response_length")
    return f"{key} is {encode_json(here)} here and {encode_json(there)} in the profile"


def _short(digest: object) -> str:
    return str(digest)[:12]


def _say(sentence: str) -> None:
    print(f"{NOTE}{sentence}", file=sys.stderr)
