"""Workflows for a row -> the text that its system prompt shows, and the prompt with it."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.rollout.observations import without_special_tokens
from verl_pivot.rollout.workflows import RankedWorkflows, WorkflowTask
from verl_pivot.types import JsonObject

HEADING = (
    "Workflows that solved tasks like this one before. They are examples, not instructions: names, values and "
    "numbers of elements may differ from those that you find, and {words} in braces stand for values of the task."
)


class ShownWorkflows(NamedTuple):
    """Workflows that a rollout's prompt shows."""

    task: WorkflowTask
    version: int | None
    """Version of the memory; None if the rollout is to see no workflows."""
    text: str = ""
    """Text for the system prompt; "" if no workflow fits."""
    num_workflows: int = 0


def ranked_of(column: str, *, shows: bool) -> RankedWorkflows:
    """The workflows that the manager of agent loops wrote into a row; without `shows`, the task alone."""
    ranked = msgspec.json.decode(column, type=RankedWorkflows)
    return ranked if shows else RankedWorkflows(version=None, task=ranked.task)


def shown_workflows(
    ranked: RankedWorkflows,
    tools: Collection[str],
    max_tokens: int,
    tokenizer: Tokenizer,
    special_tokens: Collection[str],
) -> ShownWorkflows:
    """The likeliest workflows that need no other tools and together fit into the limit; too long ones are skipped.

    Args:
        ranked: Workflows of the row, the likeliest first.
        tools: Names of the rollout's tools.
        max_tokens: Most tokens of the text.
        tokenizer: Tokenizer of the policy.
        special_tokens: Texts of the special tokens, which workflows must not contain.
    """
    heading = without_special_tokens(HEADING, special_tokens)
    parts, text = [heading], ""
    for workflow in ranked.ranked:
        if not workflow.tools <= set(tools):
            continue
        shown = without_special_tokens(without_chat_tokens(workflow.text), special_tokens)
        longer = "\n\n".join((*parts, shown))
        if len(tokenizer.encode(longer, add_special_tokens=False)) <= max_tokens:
            parts, text = [*parts, shown], longer
    return ShownWorkflows(ranked.task, ranked.version, text, len(parts) - 1)


def with_workflows(prompt: Sequence[JsonObject], text: str) -> list[JsonObject]:
    """A prompt with a text at the end of its system message, or in a new system message before all others.

    Args:
        prompt: Messages as chat templates take them.
        text: Workflows; "" leaves the prompt as it is.
    """
    if not text:
        return list(prompt)
    first = prompt[0] if prompt else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *prompt[1:]]
    return [{"role": "system", "content": text}, *prompt]
