"""Docstrings, fields and signatures of the public interfaces -> docs/api.md; docs/reference.py calls it."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple, TypeAlias

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "verl_pivot"


class Section(NamedTuple):
    """Chapter of docs/api.md: its introduction, and the names that it describes, by the file that defines them."""

    title: str
    about: str
    names: dict[str, str]
    """{file: names in it, with spaces between them}"""


SECTIONS = (
    Section(
        "Messages, turns and verdicts",
        "What a verifier is given and gives back; the other interfaces use the same types.",
        {"types.py": "Role ToolCall Message Turn Verdict Trajectory ErrorKind Json JsonObject"},
    ),
    Section(
        "A verifier",
        "`verl-pivot init verifier NAME` writes one. Commands load it with `--verifier-module`, training with "
        "`pivot.verifier_modules`. [Verifiers](verifiers.md) describes those that exist.",
        {"verifiers/registry.py": "Verifier register", "validation.py": "Options"},
    ),
    Section(
        "A tool",
        "`verl-pivot init tool NAME` writes one. [Tools](tools.md) describes those that exist, and tools files.",
        {
            "tools/functions.py": "FunctionTool",
            "tools/contract.py": "Observation ToolError CallPolicy OnTimeout Tool",
            "tools/workspace.py": "Workspace",
            "tools/registry.py": "register_tool",
            "tools/tools_file.py": "FunctionEntry EnvironmentEntry RowsEntry",
            "tools/mcp_entries.py": "McpEntry McpTarget SessionRule",
        },
    ),
    Section(
        "An environment",
        "`verl-pivot init environment NAME` writes one.",
        {"tools/contract.py": "Environment tool"},
    ),
    Section(
        "An environment of another framework",
        "[Environments](environments.md) describes them.",
        {
            "environments/gymnasium_source.py": "GymnasiumEntry",
            "environments/openenv.py": "OpenenvEntry",
            "environments/nemo_gym.py": "NemoGymEntry",
            "environments/server_address.py": "ServerAddress",
            "environments/stepped.py": "SteppedOptions RewardRule",
            "environments/renderer.py": "EnvironmentRenderer StepResult",
        },
    ),
    Section(
        "A format",
        "`verl-pivot init format NAME` writes one, with a row that it reads. [Formats](formats.md) describes those "
        "that exist.",
        {
            "formats/registry.py": "register_format Detector Reader",
            "formats/conversation.py": "Conversation",
            "data/json_values.py": "BadRowError",
        },
    ),
    Section(
        "A filter of trajectories",
        "`verl-pivot filter --filter-module` loads it. [Quality](quality.md) describes those that exist.",
        {
            "quality/contract.py": "TrajectoryFilter DatasetFilter Finding Ruling Chart FilterOptions",
            "quality/registry.py": "register_filter",
        },
    ),
    Section(
        "A step of synthesis",
        "`verl-pivot synthesize --step-module` loads it. [Synthesis](synthesis.md) describes those that exist.",
        {
            "synthesis/steps.py": "MakeStep CheckStep ChooseStep PreparedStep make_step check_step choose_step",
            "synthesis/drafts.py": "Draft StepTrace",
            "synthesis/workshop.py": "Workshop Inputs",
            "synthesis/writer.py": "WriterQuestion",
            "synthesis/writer_settings.py": "WriterSettings",
        },
    ),
    Section(
        "A routing policy",
        "What [Routing](routing.md) compares; `verl_pivot/routing/settings.py` has their names.",
        {"routing/routing_policy.py": "RoutingPolicy TurnRequest TurnRelease ConversationEnd Placement"},
    ),
    Section(
        "The sandbox",
        "What verifiers and tools run code in; [Sandbox](sandbox.md) says what it stops.",
        {
            "sandbox/client.py": "Sandbox",
            "sandbox/session.py": "Session",
            "sandbox/host_functions.py": "HostFunction HostReply CallLimits",
            "sandbox/execution.py": "Limits Result Status Network",
        },
    ),
    Section(
        "What a profile holds",
        "A line of profile.jsonl, as `verl_pivot.profiling.profiles.read_profiles` reads it.",
        {"types.py": "TurnProfile Sample"},
    ),
)


def api() -> str:
    """The text of docs/api.md."""
    lines = [
        "# Reference",
        "",
        "What your own code is given and gives back, and the columns of files; written by `python docs/reference.py`.",
        "",
        *(f"- [{title}](#{_anchor(title)})" for title in (*(each.title for each in SECTIONS), "Columns of rows")),
    ]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", section.about]
        for file, names in section.names.items():
            found = definitions(file)
            for name in names.split():
                lines += ["", *described(name, found[name], file)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join((*lines, "", *columns()))) + "\n"


def definitions(file: str) -> dict[str, Definition]:
    """{name: definition} at the top of a module."""
    found: dict[str, Definition] = {}
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            found[ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])] = node
    return found


def described(name: str, node: Definition, file: str) -> Iterator[str]:
    """Lines about one class, function or type alias."""
    module = "verl_pivot." + file.removesuffix(".py").replace("/", ".")
    yield from (f"### `{name}`", "", f"`from {module} import {name}`", "")
    source = (PACKAGE / file).read_text().splitlines()
    if isinstance(node, ast.ClassDef):
        yield from prose(ast.get_docstring(node))
        yield from fields(node)
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(method, name):
                yield from ("", *signature(method, source), *prose(ast.get_docstring(method)))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (*signature(node, source), *prose(ast.get_docstring(node)))
    else:
        assert node.value is not None, name
        value = ast.unparse(node.value).strip("'")  # recursive types are quoted
        yield from ("```python", f"{name} = {value}", "```", "", _text_after(node, file))


def _text_after(node: Definition, file: str) -> str:
    """Docstring below a type alias; an empty text if there is none."""
    after = {ast.unparse(one): other for one, other in pairwise(ast.parse((PACKAGE / file).read_text()).body)}
    text = after.get(ast.unparse(node))
    return str(text.value.value) if _is_text(text) else ""


def _is_public(method: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> bool:
    """Whether users call or write the method; the package itself makes objects of some classes."""
    made_by_users = method.name == "__init__" and owner not in ("Session", "Workspace")
    return not method.name.startswith("_") or method.name == "__call__" or made_by_users


def prose(docstring: str | None) -> Iterator[str]:
    """A docstring in Markdown: sections of arguments and errors as lists, an example as code."""
    if not docstring:
        return
    parts = re.split(r"^(Args|Returns|Raises|Example):\n", docstring, flags=re.MULTILINE)
    yield from parts[0].strip().splitlines()
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        text = dedent(body).rstrip()
        if heading == "Example":
            yield from ("", "```python", *text.splitlines(), "```")
            continue
        yield from ("", f"{heading}:", "")
        for entry in re.sub(r"\n +", " ", text).splitlines():
            yield "- " + re.sub(r"^([A-Za-z_.]+)(?=: )", r"`\1`", entry)


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Table of the fields of a dataclass or of the members of an enum; nothing if there are none."""
    about = {id(before): after.value.value for before, after in pairwise(node.body) if _is_text(after)}
    members = [
        each
        for each in node.body
        if isinstance(each, ast.Assign) and any("Enum" in ast.unparse(base) for base in node.bases)
    ]
    declared = [each for each in node.body if isinstance(each, ast.AnnAssign) and ast.unparse(each.target)[0] != "_"]
    if members:
        yield from ("", "| member | value | meaning |", "|---|---|---|")
    for each in members:
        yield f"| {_code(each.targets[0])} | {_code(each.value)} | {_cell(about.get(id(each), ''))} |"
    if declared:
        yield from ("", "| field | type | default | meaning |", "|---|---|---|---|")
    for each in declared:
        cells = (_code(each.target), _code(each.annotation), _default(each), _cell(about.get(id(each), "")))
        yield f"| {' | '.join(cells)} |"


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _default(field: ast.AnnAssign) -> str:
    if field.value is None:
        return ""
    made = re.search(r"default_factory=(\w+)", ast.unparse(field.value))
    return f"`{made[1]}()`" if made else _code(field.value)


def _code(node: ast.expr) -> str:
    return f"`{_cell(ast.unparse(node))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, source: list[str]) -> Iterator[str]:
    """The signature of a function as its file has it, as a block of code."""
    marks = [f"@{ast.unparse(each)}" for each in function.decorator_list]
    head = source[function.lineno - 1 : max(function.lineno, function.body[0].lineno - 1)]
    head = [re.sub(r"  # noqa.*", "", line) for line in head]
    yield from ("```python", *marks, *dedent("\n".join(head).rpartition(":")[0]).splitlines(), "```", "")


def columns() -> Iterator[str]:
    """The chapter about columns, from the table in `data/pivots.py`."""
    heading = ("| column | type | holds |", "|---|---|---|")
    yield from ("## Columns of rows", "", "Of pivots.parquet, as `verl-pivot select` writes it:", "", *heading)
    table = definitions("data/pivots.py")["COLUMNS"]
    assert isinstance(table, ast.Assign)
    assert isinstance(table.value, ast.Dict)
    for key, call in zip(table.value.keys, table.value.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(call, ast.Call)
        kind = ast.unparse(call.args[0]).removeprefix("pyarrow.").removesuffix("()")
        optional = ", or nothing" if call.keywords else ""
        yield f"| `{key.value}` | {kind}{optional} | {_cell(ast.literal_eval(call.args[1]))} |"
    yield from ("", "Of rows for rollouts with tools, beside verl's own `data_source`, `prompt`, `reward_model` and")
    yield from ("`extra_info`; each may be missing:", "", *heading)
    rows = definitions("tools/toolset.py")["ROW_COLUMNS"]
    assert isinstance(rows, ast.Assign)
    yield from (f"| `{name}` | string | {_cell(about)} |" for name, about in ast.literal_eval(rows.value).items())


def write() -> None:
    (ROOT / "docs" / "api.md").write_text(api())


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
