"""Messages and tokens of a rollout -> whether the chat template renders the messages differently from the tokens."""

from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer.chat_template import apply_chat_template

from verl_pivot.types import JsonObject


def text_differs(
    loop: AgentLoopBase, messages: Sequence[JsonObject], token_ids: Sequence[int], schemas: Sequence[JsonObject] = ()
) -> bool:
    """Whether the rendered messages do not begin with the text of the tokens, which the policy has read and written.

    Args:
        loop: verl's agent loop.
        messages: All messages of the rollout.
        token_ids: All tokens of the rollout.
        schemas: Schemas of the tools that the chat template shows.
    """
    text: Any = apply_chat_template(
        loop.tokenizer, list(messages), tools=list(schemas) or None, tokenize=False, **loop.apply_chat_template_kwargs
    )
    return not str(text).startswith(loop.tokenizer.decode(list(token_ids), skip_special_tokens=False))
