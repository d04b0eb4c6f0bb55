"""Verifier `tool_call`: an action is right if its calls do the same as the expert's, by one of several rules."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from verl_pivot.data.json_values import equal, is_too_deep
from verl_pivot.data.messages import parse_message
from verl_pivot.off_loop import run_off_loop, size_of_message
from verl_pivot.types import JsonObject, Message, ToolCall, Turn, Verdict
from verl_pivot.verifiers import tool_call_bfcl, tool_call_nemo_gym, tool_call_toolrl
from verl_pivot.verifiers.registry import get_verifier, register
from verl_pivot.verifiers.tool_call_arguments import ArgumentVerifiers
from verl_pivot.verifiers.tool_call_functional import Difference, FindDifference, find_difference, match_all
from verl_pivot.verifiers.tool_call_options import ToolCallOptions
from verl_pivot.verifiers.tool_call_schemas import has_at, is_known, parameters_by_name, required_names
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse


@register("tool_call", options=ToolCallOptions)
class ToolCallVerifier:
    """Compares the action's calls with the expert's; the score is 0 or 1, except in modes `toolrl` and `nemo_gym`.

    If the expert writes text, any text is right and a call is wrong, as in PivotRL for conversational tool use
    (section 4). Parallel calls may stand in any order; each is paired with one call of the expert.
    """

    def __init__(self, options: ToolCallOptions) -> None:
        self._options = options
        self._rules = options.rules()
        self._named = tuple(self._rules.named())
        compare: Mapping[str, Callable[[Message, Turn], Verdict]] = {
            "functional": self._functional,
            "strict": _strict,
            "name_only": _name_only,
            "nemo_gym": self._nemo_gym,
            "accepted_values": self._accepted_values,
            "toolrl": _toolrl,
        }
        self._compare = compare[options.mode]
        judge = options.message_judge
        self._judge = None if judge is None else get_verifier("judge", judge)
        self._arguments = ArgumentVerifiers(options.verifiers) if options.verifiers else None
        self._other_experts = [parse_message(each) for each in options.other_experts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        size = size_of_message(action)
        verdict = await run_off_loop(size, self._compare_calls, action, turn)
        if verdict.score == 1.0 and (asked := self._ask(action, turn)) is not None:
            verdict = await asked
        for expert in self._other_experts:
            if verdict.score == 1.0:
                break
            other_turn = replace(turn, expert=expert)
            other = await run_off_loop(size, self._compare_calls, action, other_turn)
            if other.score == 1.0 and (asked := self._ask(action, other_turn)) is not None:
                other = await asked
            verdict = max(verdict, other, key=_rank)
        return verdict

    def _compare_calls(self, action: Message, turn: Turn) -> Verdict:
        if any(is_too_deep(call.arguments) for call in turn.expert.tool_calls):
            return broken_expert("the expert's arguments are nested too deeply to compare")
        if any(is_too_deep(call.arguments) for call in action.tool_calls):
            return refuse(Reason.TOO_DEEP, _names(action.tool_calls))
        return self._compare(action, turn)

    def _ask(self, action: Message, turn: Turn) -> Awaitable[Verdict] | None:
        """The verdict of the other verifiers on an action that is right so far; None if the options name none."""
        if not turn.expert.tool_calls:
            return None if self._judge is None else self._judge(action, turn)
        if self._arguments is None:
            return None
        return self._arguments.compare(action.tool_calls, turn.expert.tool_calls, turn, self._find(turn))

    def _functional(self, action: Message, turn: Turn) -> Verdict:
        expert_calls = turn.expert.tool_calls
        if (broken := _broken(turn.expert)) is not None:
            return broken
        if unknown := self._unknown_arguments(turn):
            return broken_expert(f"the option {unknown}, which no tool of the row has")
        if (verdict := _call_against_message(action, expert_calls)) is not None:
            return verdict
        return _pair_up(action.tool_calls, expert_calls, self._find(turn))

    def _unknown_arguments(self, turn: Turn) -> str:
        """A rule for an argument of a tool that the expert calls, which no tool's schema has; "" if there is none."""
        parameters = parameters_by_name(turn.tools) if self._named else {}
        for call in turn.expert.tool_calls:
            for option, argument in self._named if call.name in parameters else ():
                path = argument.replace("[]", "")
                is_given = has_at({call.name: call.arguments}, path)
                if path.startswith(f"{call.name}.") and not is_given and not is_known(path, parameters):
                    return f"{option} names {argument}"
        return ""

    def _find(self, turn: Turn) -> FindDifference:
        parameters = parameters_by_name(turn.tools)

        def find(call: ToolCall, expert: ToolCall) -> Difference | None:
            schema = parameters.get(expert.name, {})
            if self._arguments is not None:
                call, expert, _ = self._arguments.split(call, expert, schema)
            return find_difference(call, expert, schema, self._rules)

        return find

    def _nemo_gym(self, action: Message, turn: Turn) -> Verdict:
        calls, expert_calls, options = action.tool_calls, turn.expert.tool_calls, self._options
        if not expert_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, f"called {_names(calls)}") if calls else Verdict.accept()
        if not calls:
            return refuse(Reason.MESSAGE_INSTEAD_OF_CALL, f"the expert calls {_names(expert_calls)}")
        score = tool_call_nemo_gym.calls_score(calls, expert_calls, options.threshold, options.switches)
        if score or len(calls) != len(expert_calls):
            return graded(score, _names(calls)) if score else _wrong_number(calls, len(expert_calls))
        return _pair_up(calls, expert_calls, self._find_nemo_gym)

    def _find_nemo_gym(self, call: ToolCall, expert: ToolCall) -> Difference | None:
        options = self._options
        if call.name != expert.name:
            return Difference(Reason.WRONG_TOOL, f"{call.name}, the expert calls {expert.name}")
        float_threshold = options.switches.floating_point_comparison_threshold
        reason = tool_call_nemo_gym.difference(call.arguments, expert.arguments, options.threshold, float_threshold)
        return None if reason is None else Difference(reason, call.name)

    def _accepted_values(self, action: Message, turn: Turn) -> Verdict:
        calls, accepted = action.tool_calls, self._options.accepted
        if any(map(tool_call_bfcl.is_broken, accepted)):
            return broken_expert("`accepted` must hold {tool: {argument: [value, ...]}} per call, without empty lists")
        if turn.expert.tool_calls and not accepted:
            return broken_expert("`accepted` is empty, but the expert calls a tool")
        if (verdict := _call_against_message(action, accepted)) is not None:
            return verdict
        if len(calls) != len(accepted):
            return _wrong_number(calls, len(accepted))
        parameters = parameters_by_name(turn.tools)

        def is_accepted(values: JsonObject, call: ToolCall) -> bool:
            return tool_call_bfcl.is_accepted(call, values, required_names(parameters.get(call.name, {})))

        partners = match_all(accepted, calls, is_accepted)
        if None not in partners:
            return Verdict.accept()
        is_same = Counter(call.name for call in calls) == Counter(next(iter(each)) for each in accepted)
        return refuse(Reason.WRONG_VALUE if is_same else Reason.WRONG_TOOL, _names(calls))


def _rank(verdict: Verdict) -> tuple[int, float]:
    """Rank of a verdict among those for several experts: acceptance first, then undecided, then refusals by score."""
    return (1, 0.0) if verdict.score is None else (2 * (verdict.score == 1.0), verdict.score)


def _broken(expert: Message) -> Verdict | None:
    """An undecided verdict if the expert's action cannot be compared; None if it can."""
    if _is_empty(expert):
        return broken_expert("the expert's action has neither a call nor text")
    if not all(equal(call.arguments, call.arguments) for call in expert.tool_calls):
        return broken_expert("the expert's arguments contain NaN, which does not equal itself")
    return None


def _strict(action: Message, turn: Turn) -> Verdict:
    expert = turn.expert
    if (broken := _broken(expert)) is not None:
        return broken
    is_same = [(call.name, _exact(call.arguments)) for call in action.tool_calls] == [
        (call.name, _exact(call.arguments)) for call in expert.tool_calls
    ]
    if is_same and (expert.tool_calls or action.content.strip() == expert.content.strip()):
        return Verdict.accept()
    return refuse(Reason.NOT_IDENTICAL)


def _exact(value: object) -> object:
    """A value to compare exactly: equal for values written alike, whatever the order of keys; 1 is not 1.0."""
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    return (type(value).__name__, value)


def _name_only(action: Message, turn: Turn) -> Verdict:
    expert_calls = turn.expert.tool_calls
    if _is_empty(turn.expert):
        return broken_expert("the expert's action has neither a call nor text")
    if (verdict := _call_against_message(action, expert_calls)) is not None:
        return verdict
    if len(action.tool_calls) != len(expert_calls):
        return _wrong_number(action.tool_calls, len(expert_calls))
    if Counter(call.name for call in action.tool_calls) == Counter(call.name for call in expert_calls):
        return Verdict.accept()
    return refuse(Reason.WRONG_TOOL, f"{_names(action.tool_calls)}, the expert calls {_names(expert_calls)}")


def takes_any_text(verifier: str, options: JsonObject) -> bool:
    """Whether a verifier with these (valid) options accepts any text if the expert writes a message."""
    if verifier != "tool_call":
        return False
    read = ToolCallOptions.model_validate(options)
    return read.message_judge is None and read.mode not in ("strict", "toolrl")


def _toolrl(action: Message, turn: Turn) -> Verdict:
    """Compare by ToolRL's rule; if the expert makes no call, every action has R = 0, which is a score of 0.5."""
    expert_calls = turn.expert.tool_calls
    share = tool_call_toolrl.share(action.tool_calls, expert_calls) if expert_calls else 0.5
    reason = Reason.ACCEPTED if share == 1.0 else Reason.PARTIAL
    return Verdict(score=share, reason=reason, detail=f"R_correct {tool_call_toolrl.reward(share):.3f}")


def _is_empty(expert: Message) -> bool:
    return not expert.tool_calls and not expert.content.strip()


def _call_against_message(action: Message, expert_calls: Sequence[object]) -> Verdict | None:
    """The verdict if the action or the expert makes no call; None if both make calls."""
    if not expert_calls:
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, f"called {_names(action.tool_calls)}")
        return Verdict.accept() if action.content else refuse(Reason.EMPTY_MESSAGE, "neither a call nor text")
    if not action.tool_calls:
        return refuse(Reason.MESSAGE_INSTEAD_OF_CALL, f"the expert makes {len(expert_calls)} calls")
    return None


def _pair_up(calls: Sequence[ToolCall], expert_calls: Sequence[ToolCall], find: FindDifference) -> Verdict:
    """Accept if each of the expert's calls has a partner without a difference."""
    if len(calls) != len(expert_calls):
        return _wrong_number(calls, len(expert_calls))
    partners = match_all(expert_calls, calls, lambda expert, call: find(call, expert) is None)
    if None not in partners:
        return Verdict.accept()
    return refuse(*_nearest_difference(calls, partners, expert_calls[partners.index(None)], find))


def _nearest_difference(
    calls: Sequence[ToolCall], partners: Sequence[int | None], expert: ToolCall, find: FindDifference
) -> Difference:
    """Difference between an expert's call and the nearest call without a partner, of the same tool if there is one.

    Args:
        calls: [num_calls] calls of the policy.
        partners: [num_expert_calls] index of the partner of each of the expert's calls; None if it has none.
        expert: Call of the expert without a partner.
        find: Finds the difference between two calls.
    """
    unpaired = [call for index, call in enumerate(calls) if index not in partners]
    found = find(next((call for call in unpaired if call.name == expert.name), unpaired[0]), expert)
    assert found is not None, unpaired
    return found


def _wrong_number(calls: Sequence[ToolCall], num_expert_calls: int) -> Verdict:
    return refuse(Reason.WRONG_NUMBER_OF_CALLS, f"{len(calls)} calls, the expert makes {num_expert_calls}")


def _names(calls: Sequence[ToolCall]) -> str:
    return ", ".join(call.name for call in calls[:8])[:500]
