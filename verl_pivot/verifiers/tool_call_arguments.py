"""Arguments of calls -> verdicts of the verifiers that the row names for them, such as `shell` for a command."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from verl_pivot.all_at_once import all_at_once
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.validation import ToolArgument
from verl_pivot.verifiers.composition import VerifierPart
from verl_pivot.verifiers.registry import get_verifier, parsed_options
from verl_pivot.verifiers.tool_call_functional import FindDifference, best_partners
from verl_pivot.verifiers.tool_call_schemas import may_have, parameters_by_name, value_at
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse


class VerifiedArgument(NamedTuple):
    """An argument of two calls that a verifier compares."""

    argument: ToolArgument
    value: Json
    expert: Json


class SplitCalls(NamedTuple):
    """Two calls without the arguments that verifiers compare, and these arguments."""

    call: ToolCall
    expert: ToolCall
    verified: tuple[VerifiedArgument, ...]


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
        verdicts = await all_at_once(self._pair(call, expert, turn, find) for expert in expert_calls for call in calls)
        rows = [verdicts[start : start + len(calls)] for start in range(0, len(verdicts), len(calls))]
        partners = best_partners([[1.0 if each.score is None else each.score for each in row] for row in rows])
        return lowest(row[partner] for row, partner in zip(rows, partners, strict=True) if partner is not None)

    async def _pair(self, call: ToolCall, expert: ToolCall, turn: Turn, find: FindDifference) -> Verdict:
        if (difference := find(call, expert)) is not None:
            return refuse(*difference)
        parameters = parameters_by_name(turn.tools)
        if (unknown := self._unknown(expert, parameters)) is not None:
            return broken_expert(f"the option verifiers names {unknown}, which no tool of the row has")
        split = self.split(call, expert, parameters.get(expert.name, {}))
        return lowest([Verdict.accept(), *[await self._argument(each, turn) for each in split.verified]])

    def split(self, call: ToolCall, expert: ToolCall, schema: JsonObject) -> SplitCalls:
        """Both calls without the arguments that verifiers compare: those that the expert gives, and the call has, too.

        Whatever stands elsewhere in one of the calls is left there, so that it is compared as any other argument.

        Args:
            call: Call of the policy.
            expert: Call of the expert.
            schema: JSON schema of the tool's arguments; an argument may be left out where it is the default.
        """
        verified = []
        for argument in self._parts if call.name == expert.name else ():
            path = argument.path_in(expert.name)
            keys = None if path is None else _keys_at(expert.arguments, path)
            if keys is None or (given := value_at(call.arguments, keys, schema)) is None:
                continue
            by_expert = value_at(expert.arguments, keys, schema)
            assert by_expert is not None, keys
            verified.append(VerifiedArgument(argument, given.value, by_expert.value))
            call, expert = (replace(each, arguments=_without(each.arguments, keys)) for each in (call, expert))
        return SplitCalls(call, expert, tuple(verified))

    def _unknown(self, expert: ToolCall, parameters: Mapping[str, JsonObject]) -> ToolArgument | None:
        """An argument of a verifier that should be in the expert's call by its name, but is in no tool's schema."""
        for argument in self._parts:
            path = argument.path_in(expert.name)
            if expert.name in parameters and path is not None and _keys_at(expert.arguments, path) is None:
                paths = ((argument.path_in(tool), schema) for tool, schema in parameters.items())
                if not any(path is not None and may_have(path, schema, schema) for path, schema in paths):
                    return argument
        return None

    async def _argument(self, verified: VerifiedArgument, turn: Turn) -> Verdict:
        argument = verified.argument
        verifier, takes_call = self._parts[argument]
        shown, expert_shown = (_shown(argument, value, takes_call) for value in (verified.value, verified.expert))
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


def _keys_at(arguments: Mapping[str, Json], path: str) -> tuple[str, ...] | None:
    """The keys that lead to a path such as "key.key", within objects; None if nothing is there."""
    if path in arguments:
        return (path,)
    for name, value in arguments.items():
        if isinstance(value, dict) and path.startswith(f"{name}."):
            inner = _keys_at(value, path[len(name) + 1 :])
            if inner is not None:
                return (name, *inner)
    return None


def _without(arguments: JsonObject, keys: Sequence[str]) -> JsonObject:
    """The arguments without the value at some keys within objects, if it is there."""
    first, *rest = keys
    if not rest:
        return {name: value for name, value in arguments.items() if name != first}
    inner = arguments.get(first)
    return {**arguments, first: _without(inner, rest)} if isinstance(inner, dict) else arguments


def _shown(argument: ToolArgument, value: Json, takes_call: bool) -> Message | None:
    """Message that shows one argument to a verifier; None if the verifier reads text and the argument is no text."""
    if takes_call:
        call = ToolCall(name=argument.tool, arguments={argument.argument: value})
        return Message(role=Role.ASSISTANT, tool_calls=(call,))
    return Message(role=Role.ASSISTANT, content=value) if isinstance(value, str) else None
