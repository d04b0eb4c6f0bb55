"""Call of a method of unittest or pytest -> the equivalent assert, or the error that the call expects."""

import ast
from collections.abc import Mapping, Sequence

_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual"), "({}) == ({})"),
    **dict.fromkeys(("assertSetEqual", "assertSequenceEqual", "assertMultiLineEqual"), "({}) == ({})"),
    "assertCountEqual": "Counter({}) == Counter({})",
    "assertNotEqual": "({}) != ({})",
    "assertIn": "({}) in ({})",
    "assertNotIn": "({}) not in ({})",
    "assertIs": "({}) is ({})",
    "assertIsNot": "({}) is not ({})",
    "assertGreater": "({}) > ({})",
    "assertGreaterEqual": "({}) >= ({})",
    "assertLess": "({}) < ({})",
    "assertLessEqual": "({}) <= ({})",
    "assertTrue": "({})",
    "assertFalse": "not ({})",
    "assertIsNone": "({}) is None",
    "assertIsNotNone": "({}) is not None",
    "assertIsInstance": "isinstance({}, {})",
}
"""{method of unittest: template of the equivalent assert}"""


def assert_of_unittest(call: ast.Call) -> ast.expr | None:
    """The condition that `self.assertEqual(f(2), 4)` or a similar call tests; None for other calls.

    Raises:
        ValueError: If the method gets arguments that it does not take.
    """
    name = _method(call)
    if name != "assertAlmostEqual" and name not in _METHODS:
        return None
    arguments = [ast.unparse(each) for each in call.args]
    named = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg != "msg"}
    form = _almost_equal(arguments, named) if name == "assertAlmostEqual" else _METHODS[name]
    is_known = name == "assertAlmostEqual" or not named
    if form is None or not is_known or len(arguments) < form.count("{}"):
        raise ValueError(f"the tests have {ast.unparse(call)[:100]!r}, whose arguments the method does not take")
    return ast.parse(form.format(*arguments), mode="eval").body


def expected_error(call: ast.Call) -> Sequence[ast.expr] | None:
    """Kind of error that `pytest.raises(...)` or `self.assertRaises(...)` expects, and the pattern of its text.

    The pattern may be missing. None for other calls, and for arguments that cannot be checked outside the sandbox.
    """
    name = _method(call) or ast.unparse(call.func).removeprefix("pytest.")
    named = {each.arg: each.value for each in call.keywords}
    match name, call.args, named:
        case "assertRaises", [kind, *_], _:
            return [kind]
        case "assertRaisesRegex", [kind, pattern], {}:
            return [kind, pattern]
        case "raises", [kind], {"match": pattern} if len(named) == 1:
            return [kind, pattern]
        case "raises", [kind], _ if not named:
            return [kind]
    return None


def _method(call: ast.Call) -> str:
    """Name of the method of the test case that is called; empty for other calls."""
    is_method = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    return call.func.attr if is_method and call.func.value.id == "self" else ""  # type: ignore[attr-defined]


def _almost_equal(arguments: Sequence[str], named: Mapping[str | None, str]) -> str | None:
    """The assert of `assertAlmostEqual(first, second, places=7, msg=None, delta=None)`; None for other arguments."""
    if named.keys() - {"places", "delta"}:
        return None
    if "delta" in named:
        return f"abs(({{}}) - ({{}})) <= {named['delta']}"
    places = arguments[2] if len(arguments) > 2 else named.get("places", "7")
    return f"round(({{}}) - ({{}}), {places}) == 0"
