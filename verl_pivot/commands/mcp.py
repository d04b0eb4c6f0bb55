"""`verl-pivot mcp list`, `freeze` and `scenarios`: a tools file -> what its MCP servers offer, and tasks for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.next_steps import next_override
from verl_pivot.commands.options import json_object, out_of_parquet, refuse_overwriting
from verl_pivot.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from verl_pivot.engines.chat import ChatAnswer, ChatClient
    from verl_pivot.tools.mcp_schemas import OfferedTool
    from verl_pivot.tools.mcp_servers import McpServer
    from verl_pivot.tools.scenarios import ScenarioDraw
    from verl_pivot.types import Json, JsonObject

mcp_app = typer.Typer(help="Look at the MCP servers of a tools file.", no_args_is_help=True)


@mcp_app.callback()
def mcp() -> None:
    """Look at the MCP servers of a tools file."""


@mcp_app.command("list")
def list_command(tools: Annotated[Path, typer.Argument(help="The tools file.")]) -> None:
    """List the tools of each MCP server: signature and description, and why a server cannot be used.

    Every server is started, asked and ended, as at the beginning of a launch. The exit code is 1 if one of them cannot
    be used.

    \b
    Examples:
    verl-pivot mcp list tools.yaml
    verl-pivot mcp list configs/tools/browser.yaml
    """
    _read(tools, meets_frozen=True, on_server=_print_server)


@mcp_app.command("freeze")
def freeze_command(tools: Annotated[Path, typer.Argument(help="The tools file.")]) -> None:
    """Write the tools of each MCP server beside the tools file: tools.mcp.json beside tools.yaml.

    From then on every launch stops if a server offers other tools, another schema or another description, since the
    prompts would change.

    \b
    Examples:
    verl-pivot mcp freeze tools.yaml
    verl-pivot mcp freeze configs/tools/browser.yaml
    """
    servers: list[McpServer] = []
    _read(tools, meets_frozen=False, on_server=servers.append)
    from verl_pivot.tools.mcp_frozen import write_frozen

    path = write_frozen(str(tools), [(server.entry.label, server.offered) for server in servers])
    typer.echo(f"Wrote {path}: {sum(len(server.offered) for server in servers)} tools of {len(servers)} servers.")


@mcp_app.command("scenarios")
def scenarios_command(
    tools: Annotated[Path, typer.Argument(help="The tools file, with tools of any kind.")],
    out: Annotated[Path, typer.Option(callback=out_of_parquet, help="The scenarios.parquet to write.")],
    base_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint of the model that writes the scenarios.")],
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint.")],
    number: Annotated[int, typer.Option(min=1, help="Exact number of scenarios to write.")] = 24,
    api_key_variable: Annotated[
        str | None, typer.Option(help="Environment variable with the endpoint's key, if it needs one.")
    ] = None,
    instructions: Annotated[str, typer.Option(help="Text after each task in the prompt; by default none.")] = "",
    metadata: Annotated[
        str | None,
        typer.Option(help="JSON object for the column metadata of every row, for tools that depend on the row."),
    ] = None,
    answer_format: Annotated[
        Literal["json_schema", "json_object", "text"], typer.Option(help="How the endpoint is told to answer in JSON.")
    ] = "json_schema",
    max_tokens: Annotated[int, typer.Option(min=16, help="Maximum number of tokens of the model's answer.")] = 8192,
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature of the model.")] = 1.0,
    spare_questions: Annotated[
        int, typer.Option(min=0, help="Questions beyond one for every 24 scenarios, to replace refused scenarios.")
    ] = 8,
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Timeout of one answer in seconds.")] = 300.0,
    max_retries: Annotated[
        int,
        typer.Option(min=0, max=20, help="Maximum number of retries of a request while the endpoint is busy or down."),
    ] = 8,
) -> None:
    """Ask a model for tasks that the tools can do, and write them as rows without labels for +method=mcp_rl.

    Tasks that break the form, and near duplicates, are refused, counted and asked for again.

    \b
    Examples:
    verl-pivot mcp scenarios tools.yaml --number 24 --out scenarios.parquet \\
      --base-url http://judge:30000/v1 --model strong
    """
    import asyncio

    from verl_pivot.commands.asked_judge import EndpointOptions
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.engines.chat import ChatClient, response_format
    from verl_pivot.engines.retries import Retries
    from verl_pivot.tools.scenarios import ScenarioAnswer, draw_scenarios, write_scenarios
    from verl_pivot.tools.toolset import load_toolset

    refuse_overwriting([out], [tools])
    endpoint = EndpointOptions(base_url=[base_url], model=model, api_key_variable=api_key_variable)
    endpoint.check("the model")
    toolset = load_toolset(str(tools))
    of_rows = None if metadata is None else json_object(metadata, "--metadata")
    _check_rows(toolset.servers, of_rows or {})
    schemas = toolset.schemas
    if not schemas:
        raise ConfigError(f"{tools} has only tools that depend on a row; a scenario needs at least one other tool")
    parameters: JsonObject = {
        **response_format(answer_format, "scenarios", ScenarioAnswer.model_json_schema()),
        "max_tokens": max_tokens,
        "temperature": temperature,
    }

    async def draw() -> "ScenarioDraw":
        retries = Retries(num_attempts=max_retries + 1, timeout_seconds=timeout_seconds)
        client = ChatClient(base_url, model, endpoint.api_key(), retries, remedy="check --model and --answer-format")
        try:
            with progress_bar("scenarios", number) as on_new:
                return await draw_scenarios(
                    _asker(client, parameters), schemas, number, spare_questions=spare_questions, on_new=on_new
                )
        finally:
            await client.close()

    drawn = asyncio.run(draw())
    write_scenarios(out, drawn.scenarios, instructions, of_rows)
    _print_draw(drawn)
    typer.echo(
        f"Wrote {out}: {len(drawn.scenarios)} rows.\nNext, with a judge behind an endpoint:\n"
        "python -m verl.trainer.main_ppo <your overrides> +method=mcp_rl \\\n"
        f"    {next_override('data.train_files', out)} {next_override('pivot.rollout.tools', tools)} \\\n"
        "    pivot.ruler.base_url=URL pivot.ruler.model=M"
    )


def _check_rows(servers: "Sequence[McpServer]", metadata: "JsonObject") -> None:
    """Refuse rows from which a server could not start, before a model is asked for their tasks."""
    try:
        for server in servers:
            server.check_row(metadata)
    except DataError as error:
        raise ConfigError(f"{error}; give the metadata of every row with --metadata '{{...}}'") from error


def _asker(
    client: "ChatClient", parameters: "JsonObject"
) -> "Callable[[list[JsonObject], int], Awaitable[ChatAnswer]]":
    """Function that asks the model, with another seed for each question."""
    return lambda messages, question: client.ask(messages, {**parameters, "seed": question})


def _print_draw(drawn: "ScenarioDraw") -> None:
    from verl_pivot.commands.tables import counts_table, printable, table_console

    table = counts_table(f"{drawn.num_questions} questions")
    for reason, count in drawn.refused.most_common():
        table.add_row(reason, str(count), printable(drawn.first_refused[reason]))
    table.add_section()
    for difficulty, count in drawn.difficulties.items():
        table.add_row("written", str(count), f"difficulty {difficulty}")
    table_console().print(table)


def _read(tools: Path, *, meets_frozen: bool, on_server: "Callable[[McpServer], None]") -> None:
    """Start and ask every MCP server of a tools file, and raise one error at the end with the problems of all."""
    from verl_pivot.tools.tools_file import read_entries
    from verl_pivot.tools.toolset import Toolset

    toolset = Toolset(str(tools), meets_frozen=meets_frozen)
    numbered = [(number, entry) for number, entry in enumerate(read_entries(str(tools))) if _is_server(entry)]
    if not numbered:
        raise ConfigError(f"{tools} names no MCP server; an entry for one begins with `- mcp:`")
    problems = []
    for number, entry in numbered:
        try:
            toolset.add_entry(entry)
        except ConfigError as error:
            problems.append(f"{tools}, entry {number}: {error}")
        else:
            on_server(toolset.servers[-1])
    if problems:
        raise ConfigError("\n".join(problems))


def _print_server(server: "McpServer") -> None:
    typer.echo(f"{server.entry.label}: {len(server.offered)} tools, session: {server.entry.session.value}")
    for tool in server.offered:
        typer.echo(_shown(tool))


def _is_server(entry: object) -> bool:
    return isinstance(entry, dict) and "mcp" in entry


def _shown(tool: "OfferedTool") -> str:
    """Signature and description of a tool, indented."""
    function = tool.schema["function"]
    assert isinstance(function, dict), tool
    repeated = "  (failed calls are retried)" if tool.may_be_repeated else ""
    about = " ".join(str(function.get("description", "")).split())
    lines = [f"  {function['name']}({_parameters(function.get('parameters'))}){repeated}"]
    return "\n".join([*lines, *([f"      {about}"] if about else [])])


def _parameters(schema: "Json") -> str:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return ""
    names = required if isinstance(required, list) else []
    shown = [f"{name}: {_type(value)}" + ("" if name in names else " = ...") for name, value in properties.items()]
    return ", ".join(shown)


def _type(schema: "Json") -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("anyOf"), list):
        return " | ".join(map(_type, _alternatives(schema)))
    kind = schema.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _alternatives(schema: "JsonObject") -> "list[Json]":
    alternatives = schema["anyOf"]
    assert isinstance(alternatives, list), schema
    return alternatives
