"""Tools file (YAML) -> a Toolset, and a row -> the tools of one rollout."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from verl_pivot.data.json_values import as_object, decode_json, encode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools, schemas_by_name
from verl_pivot.errors import ConfigError, DataError, PivotError
from verl_pivot.extras import require
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.contract import CallPolicy, Tool
from verl_pivot.tools.environments import EnvironmentKind, EnvironmentSource, OpenedEnvironment
from verl_pivot.tools.functions import BackendTool, FunctionTool
from verl_pivot.tools.registry import known_frameworks, known_tools, make_source, make_tool
from verl_pivot.tools.replay import ReplayTool, parse_recording
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.tool_server import ToolServer, ToolServerEntry
from verl_pivot.tools.tools_file import EnvironmentEntry, FunctionEntry, RowsEntry, read_entries
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject
from verl_pivot.user_modules import load_object
from verl_pivot.validation import validated

if TYPE_CHECKING:
    from verl_pivot.tools.mcp_servers import McpServer

RowBackend: TypeAlias = Callable[[Mapping[str, Any]], Callable[[JsonObject], Tool]]
"""A function of a row, which returns a function that makes a Tool of each schema that only the row brings."""

OpenEnvironment: TypeAlias = Callable[[JsonObject, Mapping[str, Any]], OpenedEnvironment]
"""A function of a row's decoded column `metadata` and of the row, which makes the environment of one rollout."""

ROW_COLUMNS = {
    "metadata": "JSON object: what environments are made from, `Workspace.metadata` of functions, and the values of "
    "placeholders such as `{metadata.seed}` in entries of MCP servers; `sandbox_root` in it names the root file system "
    "of the row's session",
    "tools": "JSON list of schemas of tools that only this row has, in OpenAI's form",
    "recording": 'JSON list of `{"name", "arguments", "result"}`, from which `- rows: replay` answers',
}
"""{column of a row that the tools read: what its text holds}; docs/api.md lists them."""


class Toolset:
    """All tools of a tools file; read once per process and shared by all rollouts.

    Example:
        toolset = load_toolset("configs/tools/python.yaml")
        async with toolset.open(row, parallel_calls=True) as tools:
            outcomes = await tools.toolbox.run(calls)
    """

    def __init__(self, place: str, *, meets_frozen: bool = True) -> None:
        """Start without tools.

        Args:
            place: Path of the tools file.
            meets_frozen: Whether MCP servers must offer exactly the tools that `verl-pivot mcp freeze` wrote beside the
                file, if it was run.
        """
        self._place, self._meets_frozen = place, meets_frozen
        self.built_in: set[str] = set()
        """Names of the built-in tools in the file, as `- tool:` gives them."""
        self._tools: dict[str, Tool] = {}
        self._environments: list[OpenEnvironment] = []
        self._kinds: list[EnvironmentKind] = []
        """Environment classes in the file."""
        self._schemas_of_environments: list[JsonObject] = []
        self._source: EnvironmentSource | None = None
        """Environment of another framework, whose rewards are the outcome; None if no entry names one."""
        self._num_servers = 0
        """Number of entries of MCP servers so far, also those that cannot be used."""
        self.servers: list[McpServer] = []
        """MCP servers among the entries."""
        self._tool_servers: list[ToolServer] = []
        self._row_backend: RowBackend | None = None
        self._names: set[str] = set()
        """Names of all tools that do not depend on a row."""

    def add_entry(self, entry: object) -> None:
        """Add the tools of one entry of a tools file.

        Raises:
            ConfigError: If the entry breaks its format, its tool cannot be loaded, or a name is taken.
        """
        match entry:
            case {"tool": str(name), **options}:
                self.built_in.add(name)
                self._add_tool(make_tool(name, options))  # type: ignore[arg-type]  # checked by the tool's options
            case {"function": _}:
                self._add_tool(_function_tool(validated(FunctionEntry, entry, "")))
            case {"mcp": _}:
                self._add_server(entry)
            case {"tool_server": _}:
                self._tool_servers.append(ToolServer(validated(ToolServerEntry, entry, "")))
                self._add_tool(self._tool_servers[-1].tool)
            case {"environment": _}:
                self._add_environment(entry)
            case {"rows": _}:
                self._row_backend = _row_backend(validated(RowsEntry, entry, ""))
            case _:
                raise ConfigError(
                    f"must have one of the keys tool ({', '.join(known_tools())}), function, mcp, tool_server, "
                    f"environment or rows, got {entry!r}"
                )

    def _add_environment(self, entry: object) -> None:
        options = as_object(entry, "an entry")  # type: ignore[arg-type]  # of YAML
        framework, _, rest = str(options["environment"]).partition(":")
        if framework in known_frameworks():
            self._add_source(framework, {**options, "environment": rest})
            return
        kind = _environment_kind(validated(EnvironmentEntry, entry, ""))
        for signature in kind.signatures:
            self._claim(signature.name)
        self._schemas_of_environments += [signature.schema for signature in kind.signatures]
        self._kinds.append(kind)
        self._environments.append(lambda metadata, row: kind.open(metadata))

    def _add_source(self, framework: str, options: JsonObject) -> None:
        if self._source is not None:
            raise ConfigError("the environment of another entry already gives the reward; leave one of the two out")
        self._source = source = make_source(framework, options)
        for schema in source.tools:
            self._claim(name_of(schema))
        self._schemas_of_environments += source.tools
        self._environments.append(source.open)

    def _add_server(self, entry: object) -> None:
        require("mcp", "mcp")
        from verl_pivot.tools.mcp_entries import McpEntry
        from verl_pivot.tools.mcp_frozen import check_frozen
        from verl_pivot.tools.mcp_servers import McpServer

        self._num_servers += 1
        server = McpServer(validated(McpEntry, entry, ""))
        if self._meets_frozen:
            check_frozen(self._place, self._num_servers - 1, server.entry.label, server.offered)
        for tool in server.tools:
            name = name_of(tool.schema)
            if name in self._names:
                raise ConfigError(
                    f"MCP server {server.entry.label}: another tool is called {name!r}, too; write `prefix: ...` to "
                    "rename the server's tools, or `only: [...]` to leave this one out"
                )
            self._add_tool(tool)
        self.servers.append(server)

    def _add_tool(self, tool: Tool) -> None:
        name = name_of(tool.schema)
        self._claim(name)
        self._tools[name] = tool

    def _claim(self, name: str) -> None:
        if name in self._names:
            raise ConfigError(f"two tools are called {name!r}; rename one of them")
        self._names.add(name)

    def check_paid_once(self, section: str) -> None:
        """Refuse an environment's rewards on turns together with a key of `pivot` that pays for a rollout itself.

        Raises:
            ConfigError: If an environment's rewards are paid on their turns.
        """
        if self._source is not None and self._source.pays_by_turn:
            raise ConfigError(
                f"{self._place}: `reward: turns` cannot be used with pivot.{section}, which pays for rollouts "
                "itself; write `reward: sum`"
            )

    def check_search(self, *, by_progress: bool) -> None:
        """Refuse tools whose state a search over turns cannot copy or rebuild, or that do not score the state.

        Args:
            by_progress: Whether states are scored by `progress`; otherwise by the outcome.

        Raises:
            ConfigError: If there are such tools; the message names the entry, or the method that is missing.
        """
        source = self._source
        others = [
            *(f"`- tool: {name}`" for name in sorted(self.built_in)),
            *(f"`- mcp:` ({server.entry.label})" for server in self.servers),
            *("`- tool_server:`" for _ in self._tool_servers),
            *(["an environment of a server"] if source is not None and not source.can_branch else []),
        ]
        if others:
            raise ConfigError(
                f"{self._place} has {others[0]}, which cannot be copied for each branch of pivot.tree_search; use only "
                "environment classes, environments of Gymnasium, and functions"
            )
        if source is not None or any(kind.gives_progress if by_progress else kind.gives_score for kind in self._kinds):
            return
        method = "progress" if by_progress else "score"
        scored_by, other = ("progress", "outcome") if by_progress else ("outcome", "progress")
        raise ConfigError(
            f"{self._place} has no environment with a method `{method}`, which pivot.tree_search.scored_by="
            f"{scored_by} needs: write one, or set scored_by={other}"
        )

    @property
    def schemas(self) -> list[JsonObject]:
        """Schemas of all tools that do not depend on a row."""
        return [*(tool.schema for tool in self._tools.values()), *self._schemas_of_environments]

    def check_argument(self, tool: str, argument: str) -> None:
        """Refuse a pair of tags whose tool or argument does not exist, unless a row may bring the tool.

        Raises:
            ConfigError: If the tool or the argument does not exist; the message lists the tools that do.
        """
        if self._environments or self._row_backend is not None:
            return
        if tool not in self._tools:
            raise ConfigError(
                f"pivot.rollout.tags: {self._place} has no tool {tool!r}, only {', '.join(self._tools) or 'none'}"
            )
        if not schemas_by_name(encode_json([self._tools[tool].schema]))[tool].knows(argument):
            raise ConfigError(f"pivot.rollout.tags: tool {tool!r} has no argument {argument!r}")

    def drawn_seed(self, row: Mapping[str, Any]) -> int | None:
        """Seed that the row's environment draws from the prompt and `extra_info.index`; None if none is drawn.

        Raises:
            DataError: If the row's column `metadata` cannot be read.
        """
        return None if self._source is None else self._source.drawn_seed(_metadata_of(row), row)

    def open(
        self, row: Mapping[str, Any], *, max_calls_per_turn: int = 16, parallel_calls: bool = False
    ) -> RolloutTools:
        """The tools of one rollout; use the result as an asynchronous context manager.

        An error that follows the making of an environment is raised when the result is entered, which closes the
        environment.

        Args:
            row: Columns as verl hands them over, of which `tools`, `metadata` and `recording` are read, all JSON texts.
            max_calls_per_turn: Most calls of one turn that are run; for each further call the policy reads an error.
            parallel_calls: Whether the calls of one turn run at once, instead of one after the other.

        Raises:
            DataError: If the row brings tools that nothing can run, lacks values that an MCP server needs to start, or
                has columns that cannot be read.
            UserCodeError: If an environment cannot be created.
        """
        decoded = _metadata_of(row)
        for server in self.servers:
            server.check_row(decoded)
        tools: dict[str, Tool] = {}
        environments: list[OpenedEnvironment] = []
        failure: PivotError | None = None
        try:
            for open_environment in self._environments:
                environments.append(open_environment(decoded, row))
            tools = self._tools_of(row, environments)
        except PivotError as error:
            if not environments:
                raise
            failure = error
        toolbox = Toolbox(
            tools=tools,
            workspace=Workspace(decoded),
            max_calls_per_turn=max_calls_per_turn,
            parallel_calls=parallel_calls,
        )
        return RolloutTools(toolbox, environments, [*self.servers, *self._tool_servers], failure=failure)

    def _tools_of(self, row: Mapping[str, Any], environments: Sequence[OpenedEnvironment]) -> dict[str, Tool]:
        """{name: tool} of the file, of the environments, and of the row."""
        tools = dict(self._tools)
        for tool in (tool for environment in environments for tool in environment.tools):
            name = name_of(tool.schema)
            if name in tools:
                raise ConfigError(f"{self._place}: two tools are called {name!r}; rename one of them")
            tools[name] = tool
        tools.update(self._row_tools(row, tools))
        return tools

    def _row_tools(self, row: Mapping[str, Any], known: Mapping[str, Tool]) -> Iterator[tuple[str, Tool]]:
        """Tools that only the row brings; a schema under the name of a known tool is left to that tool."""
        schemas = parse_tools(row["tools"]) if isinstance(row.get("tools"), str) else ()
        unknown = [schema for schema in schemas if name_of(schema) not in known]
        if not unknown:
            return
        if self._row_backend is None:
            raise DataError(
                f"the row brings tool {name_of(unknown[0])!r}, but no entry of {self._place} can run it: add the tool "
                "there, or `- rows: replay` for recorded results"
            )
        make = self._row_backend(row)
        for schema in unknown:
            yield name_of(schema), make(schema)


def _metadata_of(row: Mapping[str, Any]) -> JsonObject:
    """The column `metadata` of a row, decoded, once the types of all columns that the tools read are checked."""
    for name in ROW_COLUMNS:
        if not isinstance(row.get(name), str | None):
            kind = type(row[name]).__name__
            raise DataError(f"column {name!r} of a row must be JSON as a text, as json.dumps gives it, got {kind}")
    metadata = row.get("metadata")
    return {} if metadata is None else as_object(decode_json(metadata), "metadata")


@cache
def load_toolset(path: str) -> Toolset:
    """The toolset of a YAML file; read once per process.

    Raises:
        ConfigError: If the file is missing or breaks its format; the message names the entry.
    """
    toolset = Toolset(path)
    for number, entry in enumerate(read_entries(path)):
        try:
            toolset.add_entry(entry)
        except ConfigError as error:
            raise ConfigError(f"{path}, entry {number}: {error}") from error
    return toolset


def _function_tool(entry: FunctionEntry) -> FunctionTool:
    return FunctionTool(
        load_object(entry.function, "tool"),
        name=entry.name,
        description=entry.description,
        policy=CallPolicy(timeout_seconds=entry.timeout_seconds, retries=entry.retries, on_timeout=entry.on_timeout),
    )


def _environment_kind(entry: EnvironmentEntry) -> EnvironmentKind:
    policy = CallPolicy(timeout_seconds=entry.timeout_seconds)
    kind = EnvironmentKind.read(load_object(entry.environment, "environment"), entry.environment, policy)
    if kind.environment.has_own_limits and "timeout_seconds" in entry.model_fields_set:
        raise ConfigError(
            f"timeout_seconds does nothing for {entry.environment}, whose calls have limits of their own: leave it out"
        )
    return kind


def _row_backend(entry: RowsEntry) -> RowBackend:
    if entry.rows == "replay":
        return lambda row: partial(ReplayTool, recording=parse_recording(str(row.get("recording") or "[]")))
    backend, policy = load_object(entry.rows, "tool"), CallPolicy(timeout_seconds=entry.timeout_seconds)
    return lambda row: partial(BackendTool, backend=backend, policy=policy)
