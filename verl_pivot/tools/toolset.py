"""A tools file (YAML) -> a Toolset, and a row -> the Toolbox of one trajectory."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from verl_pivot.data.arguments import tool_schemas
from verl_pivot.data.storage import as_object, decode_json, encode_json
from verl_pivot.data.tools import name_of, parse_tools
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.loading import load_object
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.code_tools import Bash, CodeOptions, JupyterCell, PythonProgram
from verl_pivot.tools.contract import Environment, Tool
from verl_pivot.tools.environments import EnvironmentTool, HeldEnvironment
from verl_pivot.tools.functions import BackendTool, FunctionTool
from verl_pivot.tools.replay import ReplayTool, parse_recording
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject

_CODE: Mapping[str, Callable[[CodeOptions], Tool]] = {
    "python_code_with_standard_io": PythonProgram,
    "jupyter_code": JupyterCell,
    "bash": Bash,
}


class CodeEntry(CodeOptions):
    """`- tool: jupyter_code`, with options of the sandbox."""

    tool: Literal["python_code_with_standard_io", "jupyter_code", "bash"]


class SqlEntry(BaseModel):
    """`- tool: sql`: read a database that the row names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: Literal["sql"]
    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    folder: Path | None = None
    """Of the databases that rows name in metadata.database; None: rows bring metadata.script."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    max_rows: Annotated[int, Field(ge=1, le=10_000)] = 50


class SearchEntry(BaseModel):
    """`- tool: search`: BM25 over an index that `verl-pivot index` made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: Literal["search"]
    index: Path
    num_documents: Annotated[int, Field(ge=1, le=100)] = 3


class FunctionEntry(BaseModel):
    """`- function: package.module:name`, or `folder/file.py:name`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: str
    name: str | None = None
    description: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    tells_timeouts: bool = False
    """Whether the policy reads of a timeout and goes on, since its arguments decide how long the function takes."""
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    """Only for functions that do no harm when they run twice."""


class EnvironmentEntry(BaseModel):
    """`- environment: package.module:Class`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: str
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0


class RowsEntry(BaseModel):
    """`- rows: replay`, or `- rows: package.module:backend`: what answers for tools whose schemas come with the row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: str
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0


def _kind(entry: object) -> str | None:
    """Which entry a mapping is: by its leading key, and of `tool` by its value."""
    if not isinstance(entry, Mapping):
        return None
    if "tool" in entry:
        return "code" if entry["tool"] in _CODE else str(entry["tool"])
    return next((key for key in ("function", "environment", "rows") if key in entry), None)


Entry: TypeAlias = Annotated[
    Annotated[CodeEntry, Tag("code")]
    | Annotated[SqlEntry, Tag("sql")]
    | Annotated[SearchEntry, Tag("search")]
    | Annotated[FunctionEntry, Tag("function")]
    | Annotated[EnvironmentEntry, Tag("environment")]
    | Annotated[RowsEntry, Tag("rows")],
    Discriminator(_kind),
]
_ENTRIES: TypeAdapter[list[Entry]] = TypeAdapter(list[Entry])


class Toolset:
    """What trajectories may call; made once per process, shared by all of them.

    Example:
        toolset = load_toolset("configs/tools/python.yaml")
        async with toolset.open(row) as trajectory:
            outcomes = await trajectory.toolbox.run(calls)
    """

    def __init__(self, entries: list[Entry], place: str) -> None:
        """Raises ConfigError if a function, class or index cannot be loaded, or two tools have one name."""
        self._tools: dict[str, Tool] = {}
        self._environments: list[tuple[type[Environment], float]] = []
        self._place = place
        self._of_rows: Callable[[JsonObject, str], Tool] | Literal["replay"] | None = None
        for entry in entries:
            if isinstance(entry, EnvironmentEntry):
                environment = load_object(entry.environment, "environment")
                if not isinstance(environment, type) or not issubclass(environment, Environment):
                    raise ConfigError(f"{place}: {entry.environment} is no subclass of Environment")
                self._environments.append((environment, entry.timeout_seconds))
            elif isinstance(entry, RowsEntry):
                self._of_rows = "replay" if entry.rows == "replay" else _backend(entry)
            else:
                _add(self._tools, _make(entry), place)

    def check_argument(self, tool: str, argument: str) -> None:
        """Refuse a tag pair whose tool or argument there is not, as far as that can be known before a row is.

        Raises:
            ConfigError: Naming it, and what there is.
        """
        if self._environments or self._of_rows is not None:
            return
        if tool not in self._tools:
            raise ConfigError(
                f"pivot.rollout.tags: {self._place} has no tool {tool!r}, only {', '.join(self._tools) or 'none'}"
            )
        if not tool_schemas(encode_json([self._tools[tool].schema]))[tool].names(argument):
            raise ConfigError(f"pivot.rollout.tags: tool {tool!r} has no argument {argument!r}")

    def open(self, row: Mapping[str, Any]) -> "TrajectoryTools":
        """The tools of one trajectory; use it as an asynchronous context manager.

        Args:
            row: Columns as verl hands them over; `tools` (JSON), `metadata` (JSON) and `recording` (JSON) are read.

        Raises:
            DataError: If the row brings tools that nothing answers for, or its columns cannot be read.
        """
        metadata = row.get("metadata")
        decoded = as_object(decode_json(metadata), "metadata") if isinstance(metadata, str) else {}
        workspace = Workspace(decoded)
        tools = dict(self._tools)
        held = [HeldEnvironment(environment(decoded), seconds) for environment, seconds in self._environments]
        for environment in held:
            for schema in environment.schemas:
                _add(tools, EnvironmentTool(schema, environment), self._place)
        tools.update(self._row_tools(row, tools))
        return TrajectoryTools(tools, workspace, held)

    def _row_tools(self, row: Mapping[str, Any], known: Mapping[str, Tool]) -> Iterator[tuple[str, Tool]]:
        """The row's own tools, those with a name that is known already left out: what is known answers for them."""
        schemas = parse_tools(row["tools"]) if isinstance(row.get("tools"), str) else ()
        strangers = [schema for schema in schemas if name_of(schema) not in known]
        if not strangers:
            return
        if self._of_rows is None:
            raise DataError(
                f"the row brings tool {name_of(strangers[0])!r}, and nothing in {self._place} answers for it: add "
                "it there, or `- rows: replay`"
            )
        make = self._of_rows
        if make == "replay":
            make = partial(ReplayTool, recording=parse_recording(str(row.get("recording") or "[]")))
        for schema in strangers:
            yield name_of(schema), make(schema, name_of(schema))


class TrajectoryTools:
    """The tools of one trajectory, its workspace and its environments; all is let go of at the end."""

    def __init__(self, tools: dict[str, Tool], workspace: Workspace, environments: list[HeldEnvironment]) -> None:
        self.toolbox = Toolbox(tools=tools, workspace=workspace)
        self.environments = environments

    async def __aenter__(self) -> "TrajectoryTools":
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:  # one that cannot be closed keeps no other open
            stack.push_async_callback(self.toolbox.workspace.close)
            for environment in self.environments:
                stack.push_async_callback(environment.close)


@cache
def load_toolset(path: str) -> Toolset:
    """The toolset of a YAML file; read once per process.

    Raises:
        ConfigError: If it is missing or breaks its format, naming the entry.
    """
    try:
        listed = yaml.safe_load(Path(path).read_text())
        entries = _ENTRIES.validate_python(listed)
    except OSError as error:
        raise ConfigError(f"pivot.rollout.tools: {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first(error)}") from error
    return Toolset(entries, path)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    number, *rest = first["loc"] or ("",)
    if first["type"] == "union_tag_not_found" or first["type"] == "union_tag_invalid":
        known = "tool (python_code_with_standard_io, jupyter_code, bash, sql, search), function, environment or rows"
        return f"entry {number} must begin with {known}"
    place = ".".join(map(str, rest[1:]))
    return f"entry {number}, {place}: {first['msg']}" if place else f"entry {number}: {first['msg']}"


def _make(entry: Entry) -> Tool:
    if isinstance(entry, CodeEntry):
        return _CODE[entry.tool](entry)
    if isinstance(entry, FunctionEntry):
        return FunctionTool(
            load_object(entry.function, "tool"),
            name=entry.name,
            description=entry.description,
            timeout_seconds=entry.timeout_seconds,
            tells_timeouts=entry.tells_timeouts,
            retries=entry.retries,
        )
    assert isinstance(entry, SqlEntry | SearchEntry), entry
    make: Callable[[Any], Tool] = importlib.import_module(f"verl_pivot.tools.{entry.tool}").make_tool
    return make(entry)


def _backend(entry: RowsEntry) -> Callable[[JsonObject, str], Tool]:
    return partial(BackendTool, backend=load_object(entry.rows, "tool"), timeout_seconds=entry.timeout_seconds)


def _add(tools: dict[str, Tool], tool: Tool, place: str) -> None:
    name = name_of(tool.schema)
    if name in tools:
        raise ConfigError(f"{place}: two tools are called {name!r}; rename one with `name`")
    tools[name] = tool
