"""Judges of calls that are written from the published rules alone, for comparison with the verifier's own code.

They try every pairing of calls, in time that grows with the factorial of the number of calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from verl_pivot.types import Json, JsonObject, ToolCall


def toolrl_share(calls: Sequence[ToolCall], expert: Sequence[ToolCall]) -> float:
    """S / S_max of ToolRL (arXiv:2504.13958, section 3.3), for calls of which no two have the same tool.

    r_name is the number of tool names that both sides have, divided by the number of all tool names. Two calls of one
    tool add the same ratio for the names of their arguments, and 1 for each argument with the expert's value. S_max is
    1 for the tool names, plus 1 and the number of arguments for each of the expert's calls.
    """
    names, expert_names = {call.name for call in calls}, {call.name for call in expert}
    total = len(names & expert_names) / len(names | expert_names)
    for wanted in expert:
        for given in calls:
            if given.name == wanted.name:
                every = set(given.arguments) | set(wanted.arguments)
                both = set(given.arguments) & set(wanted.arguments)
                total += len(both) / len(every) if every else 1.0
                total += len([name for name in both if given.arguments[name] == wanted.arguments[name]])
    return total / (1 + sum(1 + len(wanted.arguments) for wanted in expert))


def nemo_gym_accepts(calls: Sequence[ToolCall], expert: Sequence[ToolCall], threshold: float) -> bool:
    """Whether NeMo Gym accepts with its published defaults: each of the expert's calls needs a partner of its own."""
    return any(
        all(_is_same_call(given, wanted, threshold) for given, wanted in zip(chosen, expert, strict=True))
        for chosen in permutations(calls, len(expert))
    )


def _is_same_call(given: ToolCall, wanted: ToolCall, threshold: float) -> bool:
    return given.name == wanted.name and _is_same_value(given.arguments, wanted.arguments, threshold)


def _is_same_value(given: Json, wanted: Json, threshold: float) -> bool:
    """Compare objects by keys, lists by position, and texts of several words by the words that both have."""
    if not isinstance(given, type(wanted)):
        return False
    if isinstance(wanted, dict) and isinstance(given, dict):
        return set(given) == set(wanted) and all(_is_same_value(given[key], wanted[key], threshold) for key in wanted)
    if isinstance(wanted, list) and isinstance(given, list):
        if len(given) != len(wanted):
            return False
        return all(_is_same_value(given[place], wanted[place], threshold) for place in range(len(wanted)))
    return _is_same_leaf(given, wanted, threshold)


def _is_same_leaf(given: Json, wanted: Json, threshold: float) -> bool:
    if isinstance(wanted, float) and isinstance(given, float):
        return abs(given - wanted) < 1e-6
    if isinstance(wanted, str) and isinstance(given, str) and len(given.split()) > 1 and len(wanted.split()) > 1:
        left, num_shared = wanted.lower().split(), 0
        for word in given.lower().split():
            if word in left:
                left.remove(word)
                num_shared += 1
        return num_shared / (len(given.split()) + len(wanted.split())) >= threshold
    return given == wanted


def leaderboard_calls(accepted: JsonObject) -> Iterator[ToolCall]:
    """Every call that the Leaderboard's lists of values allow, for values that are no objects or lists.

    Each argument has one value of its list; an argument whose list has an empty text may be left out.
    """
    ((name, arguments),) = accepted.items()
    assert isinstance(arguments, dict), arguments
    optional = [argument for argument, values in arguments.items() if isinstance(values, list) and "" in values]
    for number in range(len(optional) + 1):
        for left_out in combinations(optional, number):
            given = {argument: values for argument, values in arguments.items() if argument not in left_out}
            for values in _choices(given):
                yield ToolCall(name=name, arguments=values)


def _choices(lists: Mapping[str, Json]) -> Iterator[JsonObject]:
    if not lists:
        yield {}
        return
    (name, values), *rest = lists.items()
    assert isinstance(values, list), values
    for value in values:
        if value != "":
            for others in _choices(dict(rest)):
                yield {name: value, **others}
