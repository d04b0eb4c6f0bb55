"""Arguments of calls -> verdicts of the verifiers that the row names for them, such as `shell` for a command."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from verl_pivot.errors import ConfigError
from verl_pivot.types import Message, Role, ToolCall, Turn, Verdict
from verl_pivot.validation import ToolArgument
from verl_pivot.verifiers.composition import VerifierPart
from verl_pivot.verifiers.registry import get_verifier, parsed_options
from verl_pivot.verifiers.tool_call_functional import FindDifference, best_partners
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse


class ArgumentVerifiers:
    """Verifiers of single arguments, by argument.

    A verifier with an option `argument`, such as `shell`, is shown a call with that argument alone; any other verifier
    is shown the text of the argument as a message.
    """

    def __init__(self, parts: Mapping[ToolArgument, VerifierPart]) -> None:
        """Make the verifiers.

        Raises:
            ConfigError: If one of them is unknown, or does not take its options.
        """
        self._parts = {}
        for argument, part in parts.items():
            if part.name == "tool_call":
                raise ConfigError(f"verifiers.{argument}: tool_call accepts any text; name a text verifier")
            options = parsed_options(part.name, part.options)
            takes_call = options is not None and "argument" in type(options).model_fields
            given = {**part.options, "argument": str(argument)} if takes_call else part.options
            self._parts[argument] = (get_verifier(part.name, given), takes_call)

    async def compare(
        self, calls: Sequence[ToolCall], expert_calls: Sequence[ToolCall], turn: Turn, find: FindDifference
    ) -> Verdict:
        """The lowest verdict over all pairs of calls, paired so that they fit best.

        Args:
            calls: [num_calls] calls of the policy, as many as the expert's.
            expert_calls: [num_calls] calls of the expert.
            turn: Turn that the calls were made at.
            find: Finds the difference between two calls in all other arguments.
        """
        verdicts = await asyncio.gather(
            *(self._pair(call, expert, turn, find) for expert in expert_calls for call in calls)
        )
        rows = [verdicts[start : start + len(calls)] for start in range(0, len(verdicts), len(calls))]
        partners = best_partners([[1.0 if each.score is None else each.score for each in row] for row in rows])
        return lowest(row[partner] for row, partner in zip(rows, partners, strict=True) if partner is not None)

    async def _pair(self, call: ToolCall, expert: ToolCall, turn: Turn, find: FindDifference) -> Verdict:
        if (difference := find(call, expert)) is not None:
            return refuse(*difference)
        of_tool = [argument for argument in self._parts if argument.tool == expert.name]
        verdicts = [await self._argument(argument, call, expert, turn) for argument in of_tool]
        return lowest([Verdict.accept(), *verdicts])

    async def _argument(self, argument: ToolArgument, call: ToolCall, expert: ToolCall, turn: Turn) -> Verdict:
        name = argument.argument
        if name not in expert.arguments:
            return refuse(Reason.EXTRA_ARGUMENT, str(argument)) if name in call.arguments else Verdict.accept()
        if name not in call.arguments:
            return refuse(Reason.MISSING_ARGUMENT, str(argument))
        verifier, takes_call = self._parts[argument]
        shown, expert_shown = (_shown(each, name, takes_call) for each in (call, expert))
        if expert_shown is None:
            return broken_expert(f"the expert's {argument} is not a text")
        if shown is None:
            return refuse(Reason.WRONG_TYPE, str(argument))
        return await verifier(shown, replace(turn, expert=expert_shown))


def lowest(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict with the lowest score: a refusal if there is one, else an undecided verdict if there is one."""
    return min(
        verdicts, key=lambda verdict: (1, 0.0) if verdict.score is None else (2 * bool(verdict.score), verdict.score)
    )


def _shown(call: ToolCall, name: str, takes_call: bool) -> Message | None:
    """Message that shows one argument to a verifier; None if the verifier reads text and the argument is no text."""
    value = call.arguments[name]
    if takes_call:
        return Message(role=Role.ASSISTANT, tool_calls=(replace(call, arguments={name: value}),))
    return Message(role=Role.ASSISTANT, content=value) if isinstance(value, str) else None
