"""Runs in the sandbox: executes a program, evaluates expressions after it, and writes their values to a file.

The program shares the interpreter and may write anything itself; the values are compared outside the sandbox.
"""

import json

with open("plan.json", encoding="utf-8") as _file:
    _plan = json.load(_file)


def _evaluate(expression: str, names: dict[str, object]) -> dict[str, str]:
    try:
        return {"value": repr(eval(expression, names))}
    except Exception as error:  # noqa: BLE001  the program may raise anything
        return {"error": f"{type(error).__name__}: {error}"}


_names: dict[str, object] = {"__name__": "candidate"}
exec(compile(_plan["code"], "candidate.py", "exec"), _names)
_values = [_evaluate(expression, _names) for expression in _plan["expressions"]]
with open("values.json", "w", encoding="utf-8") as _file:
    json.dump(_values, _file)
