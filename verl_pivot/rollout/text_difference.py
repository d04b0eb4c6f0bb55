"""Messages and tokens of a rollout -> whether the chat template renders the messages differently from the tokens."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer.chat_template import apply_chat_template

from verl_pivot.types import JsonObject


def text_differs(
    loop: AgentLoopBase, messages: Sequence[JsonObject], token_ids: Sequence[int], schemas: Sequence[JsonObject] = ()
) -> bool:
    """Whether the rendered messages do not begin with the text of the tokens, which the policy has read and written.

    True also if the chat template refuses the messages, as strict ones do where a tool's message follows a turn that
    holds its calls as text alone: such a template does not render the tokens either.

    Args:
        loop: verl's agent loop.
        messages: All messages of the rollout.
        token_ids: All tokens of the rollout.
        schemas: Schemas of the tools that the chat template shows.
    """
    variables = loop.apply_chat_template_kwargs
    try:
        text: Any = apply_chat_template(
            loop.tokenizer, list(messages), tools=list(schemas) or None, tokenize=False, **variables
        )
    except (TemplateError, TypeError):  # verl tries a refused text again, behind a list that few templates can join
        return True
    return not str(text).startswith(loop.tokenizer.decode(list(token_ids), skip_special_tokens=False))
