"""Agent loop `pivot_tools`: the policy and its tools, for as many turns as they need."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.workers.rollout.utils import get_max_position_embeddings

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.conversation import Conversation
from verl_pivot.rollout.rendering import end_token_ids
from verl_pivot.rollout.settings import parse_settings
from verl_pivot.rollout.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.turn_sampler import LoopParts
from verl_pivot.rollout.verl_parsers import make_parser
from verl_pivot.tools.toolset import load_toolset


class ToolLoop(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Lets the policy call tools until it answers or a limit ends it; each trajectory has its own state.

    What the policy got wrong it is told. What the system got wrong masks the trajectory: its reward is undecided, and
    our replay buffer leaves it out; without a single sampled token it is absent, as verl allows.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises ConfigError if `pivot.rollout` or its tools file is wrong."""
        super().__init__(*args, **kwargs)
        settings = parse_settings(self.config)
        parser = make_parser(settings, self.tokenizer)
        _check_stop(parser.stop, self.rollout_config)
        model_dir = self.config.actor_rollout_ref.model.path
        self._parts = LoopParts(
            loop=self,
            settings=settings,
            parser=parser,
            end_token_ids=end_token_ids(model_dir, self.tokenizer) | set(parser.stop_token_ids),
            special_tokens=tuple(
                token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special
            ),
            max_model_len=self.rollout_config.max_model_len or _context_length(model_dir),
        )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> TurnRewardOutput | list[TurnRewardOutput]:
        """One trajectory.

        Raises:
            DataError: If the row's columns cannot be read, or its prompt does not fit.
        """
        settings = self._parts.settings
        async with load_toolset(settings.tools).open(row) as tools:
            tools.toolbox.max_calls_per_turn = settings.max_calls_per_turn
            tools.toolbox.parallel = settings.parallel_calls
            conversation = Conversation(self._parts, tools, list(row["raw_prompt"]), sampling_params)
            await conversation.begin()
            await conversation.play()
            return await conversation.output()


@cache
def _context_length(model_dir: str) -> int:
    return int(get_max_position_embeddings(AutoConfig.from_pretrained(model_dir)))


def _check_stop(stops: Sequence[str], rollout_config: Any) -> None:
    """Raises ConfigError if the engine cannot stop at texts."""
    if stops and rollout_config.name == "sglang" and rollout_config.get("skip_tokenizer_init", True):
        raise ConfigError(
            "pivot.rollout.parser=tags stops at texts, for which SGLang needs its tokenizer: add "
            "actor_rollout_ref.rollout.skip_tokenizer_init=False"
        )
