"""Turn -> prompt token ids, and sampled token ids -> ActionText, both exactly as in training."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from verl_pivot.engines.engine import ActionText
from verl_pivot.errors import ConfigError, StateRefusedError
from verl_pivot.local.environment import activate_shims
from verl_pivot.types import Json, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptRenderer:
    """Renders states with verl's continuous token builder, as verl's agent loops do (`ct_build_initial_tokens`).

    Only one thread may render prompts at a time: rendering changes the settings of Hugging Face's fast tokenizer, which
    fails while another thread uses it. After the first prompt, another thread may decode while this one renders.
    """

    def __init__(self, model_dir: str, chat_template_kwargs: Mapping[str, Json] | None = None) -> None:
        """Load the tokenizer.

        Args:
            model_dir: Folder of the policy's checkpoint, or its Hugging Face name.
            chat_template_kwargs: Variables of the chat template, as verl's `data.apply_chat_template_kwargs` takes
                them: {"enable_thinking": False}.

        Raises:
            ConfigError: If the checkpoint has no tokenizer, the tokenizer has no chat template, or verl renders prompts
                of such models with a processor of images.
        """
        activate_shims()
        from transformers import AutoConfig
        from verl.utils.tokenizer import hf_tokenizer
        from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

        try:
            self.tokenizer = hf_tokenizer(model_dir)
            model_type = AutoConfig.from_pretrained(model_dir).model_type
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model {model_dir!r} cannot be loaded by transformers: {error}") from error
        if not self.tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer in {model_dir!r} has no chat template: add chat_template.jinja, or use "
                "the instruct version of the model"
            )
        self.end_token_ids = end_token_ids(model_dir, self.tokenizer)
        try:
            self._builder = create_continuous_token_builder(
                self.tokenizer, hf_model_type=model_type, chat_template_kwargs=dict(chat_template_kwargs or {})
            )
        except ValueError as error:
            raise ConfigError(
                f"prompts of {model_dir!r} cannot be rendered without a processor of images, since verl renders those "
                f"of model_type {model_type!r} with one; choose a model of text ({error})"
            ) from error

    def prompt_ids(self, turn: Turn) -> list[int]:
        """[num_prompt_tokens] token ids of the turn's state, up to where the assistant begins to write.

        Raises:
            StateRefusedError: If the chat template refuses the state.
        """
        try:
            ids: list[int] = self._builder.build_initial_tokens(
                [message.as_dict() for message in turn.state], tools=list(turn.tools) or None
            )
        except TemplateError as error:
            raise StateRefusedError(
                f"turn {turn.id}: the model's chat template refuses its state ({error}); repair the "
                "trajectory or leave it out",
                why=str(error),
            ) from error
        return ids

    def num_tokens(self, text: str) -> int:
        """Number of tokens of a text, without the special tokens of the chat template."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def action_text(self, token_ids: Sequence[int]) -> ActionText:
        """Text of one sampled turn."""
        return action_text(token_ids, self.tokenizer, self.end_token_ids)


def action_text(
    token_ids: Sequence[int], tokenizer: "PreTrainedTokenizerBase", end_token_ids: Collection[int]
) -> ActionText:
    """Text of one sampled turn, which ended by itself if and only if its last token is an end-of-turn token."""
    ended = len(token_ids) > 0 and token_ids[-1] in end_token_ids
    body = list(token_ids[:-1] if ended else token_ids)
    text = tokenizer.decode(body, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return ActionText(str(text), ended)


def end_token_ids(model_dir: str, tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """End-of-turn token ids at which SGLang stops: from the tokenizer, the model's config and its generation config."""
    return _configured_end_ids(model_dir) | _as_ids(tokenizer.eos_token_id)


@cache
def _configured_end_ids(model_dir: str) -> frozenset[int]:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(model_dir)
    ids: frozenset[int] = frozenset()
    for each in (config, config.get_text_config()):  # a composite checkpoint may name them in text_config alone
        ids |= _as_ids(getattr(each, "eos_token_id", None))
    with suppress(OSError):  # a checkpoint may have no generation_config.json
        ids |= _as_ids(GenerationConfig.from_pretrained(model_dir).eos_token_id)
    return ids


def _as_ids(source: int | list[int] | None) -> frozenset[int]:
    return frozenset(source if isinstance(source, list) else [] if source is None else [source])
