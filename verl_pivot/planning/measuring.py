"""Drawn trajectories and the policy's tokenizer -> MeasuredTurns: how long their prompts and actions are."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Protocol

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import StateRefusedError
from verl_pivot.planning.lengths import MeasuredTurns
from verl_pivot.types import Message, Turn


class TokenCounter(Protocol):
    """Interface of `engines.rendering.PromptRenderer`, whose import takes seconds."""

    def prompt_ids(self, turn: Turn) -> list[int]: ...

    def num_tokens(self, text: str) -> int: ...


def measure_turns(turns: Iterable[Turn], counter: TokenCounter, on_turn: Callable[[int], object]) -> MeasuredTurns:
    """Count the tokens of every turn whose state the chat template takes.

    Args:
        turns: Turns, those of one trajectory together.
        counter: Tokenizer of the policy with its chat template.
        on_turn: Called with 1 after each turn.

    Raises:
        StateRefusedError: If the chat template refuses every state.
    """
    prompts: list[int] = []
    experts: list[int] = []
    longest: list[int] = []
    refusals: list[StateRefusedError] = []
    for _, found in groupby(turns, key=lambda turn: turn.trajectory_id):
        first = len(prompts)
        for turn in found:
            try:
                prompts.append(len(counter.prompt_ids(turn)))
                experts.append(counter.num_tokens(_text_of(turn.expert)))
            except StateRefusedError as error:
                refusals.append(error)
            on_turn(1)
        if len(prompts) > first:
            longest.append(max(prompts[first:]))
    if not prompts and refusals:
        raise refusals[0]
    return MeasuredTurns(prompts=tuple(prompts), experts=tuple(experts), longest_prompts=tuple(longest))


def _text_of(action: Message) -> str:
    """The action as a policy writes it in the Hermes format, up to white space."""
    calls = (
        f"<tool_call>\n{encode_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        for call in action.tool_calls
    )
    return "\n".join(filter(None, [action.reasoning, action.content, *calls]))
