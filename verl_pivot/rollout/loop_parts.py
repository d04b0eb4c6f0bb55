"""LoopParts: an agent loop of verl -> the parts that all its rollouts share, such as end-of-turn tokens, stop texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.workers.rollout.utils import get_max_position_embeddings

from verl_pivot.engines.rendering import end_token_ids
from verl_pivot.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """Parts of one agent loop that all its rollouts share."""

    loop: AgentLoopBase
    """verl's agent loop, for its tokenizer, its continuous tokens and its client of the engines."""
    end_token_ids: frozenset[int]
    """Tokens that end a turn."""
    special_tokens: tuple[str, ...]
    """Texts of the tokenizer's special tokens."""
    max_model_len: int
    """Most tokens that an engine accepts, prompt and response together."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn, besides the end-of-turn token."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn, besides the end-of-turn token."""

    @classmethod
    def of(
        cls, loop: AgentLoopBase, stop: Sequence[str] = (), stop_token_ids: Sequence[int] = (), **others: Any
    ) -> Self:
        """The parts of a loop; `others` are fields of a subclass.

        Raises:
            ConfigError: If turns end at texts and the engine cannot stop at texts.
        """
        _check_stop(stop, loop.rollout_config)
        model_dir = loop.config.actor_rollout_ref.model.path
        special = [token.content for token in loop.tokenizer.added_tokens_decoder.values() if token.special]
        return cls(
            loop=loop,
            end_token_ids=end_token_ids(model_dir, loop.tokenizer) | set(stop_token_ids),
            special_tokens=tuple(special),
            max_model_len=loop.rollout_config.max_model_len or _context_length(model_dir),
            stop=tuple(stop),
            stop_token_ids=tuple(stop_token_ids),
            **others,
        )

    def encode(self, text: str) -> list[int]:
        """Tokens of a text without any mark of the chat template."""
        return list(self.loop.tokenizer.encode(text, add_special_tokens=False)) if text else []


def _check_stop(stops: Sequence[str], rollout_config: Any) -> None:
    if stops and rollout_config.name == "sglang" and rollout_config.get("skip_tokenizer_init", True):
        raise ConfigError(
            f"the agent loop ends turns at the texts {', '.join(stops)}, for which SGLang needs its tokenizer: add "
            "actor_rollout_ref.rollout.skip_tokenizer_init=False to the command"
        )


@cache
def _context_length(model_dir: str) -> int:
    return int(get_max_position_embeddings(AutoConfig.from_pretrained(model_dir)))
