"""Tools files, functions, environments, replay and search: observations of calls, and messages about wrong files."""

import asyncio
import json
import math
import re
import time
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import numpy
import pytest
from pydantic import Field

from tests.support import tool_functions
from tests.support.factories import FIND_ORDER
from tests.support.launching import cli
from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import ConfigError, DataError, ToolFailureError, UserCodeError
from verl_pivot.tools import environments
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.contract import CallPolicy, Environment, Observation, ToolError, tool
from verl_pivot.tools.functions import FunctionTool
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, Json, JsonObject, Malformed, Message, ToolCall, Verdict

FUNCTIONS = "tests.support.tool_functions"


class Counter(Environment):
    """Counts up; two of its tools fail."""

    closed: list["Counter"] = []  # noqa: RUF012

    def __init__(self, metadata: JsonObject) -> None:
        self.count = int(str(metadata.get("start", 0)))

    @tool
    async def increment(self) -> str:
        """Count up."""
        self.count += 1
        return str(self.count)

    @tool
    async def explode(self) -> str:
        raise OSError("boom")

    @tool
    def answer_with_bytes(self) -> bytes:
        return b"1"

    async def score(self, answer: Message | None) -> Verdict:
        return Verdict(score=float(answer is not None), reason="counted")

    async def close(self) -> None:
        Counter.closed.append(self)


class Shelf(Environment):
    """An environment with blocking methods, which records how many of them ran at once."""

    def __init__(self, metadata: JsonObject) -> None:
        self.items: list[str] = []
        self.num_running = self.max_running = 0

    @tool
    def put(
        self, item: str, workspace: Workspace, amount: Annotated[int, Field(ge=1, description="How many.")] = 1
    ) -> dict[str, int]:
        """Put items on the shelf.

        The policy does not read this paragraph.
        """
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        time.sleep(0.1)
        self.num_running -= 1
        self.items += [item] * amount
        return {name: self.items.count(name) for name in {*self.items, *workspace.metadata}}

    @tool
    def max_running_at_once(self) -> int:
        return self.max_running


class LabelledShelf(Shelf):
    @tool
    def label(self, text: str) -> Observation:
        raise ToolError(f"no room for {text}", ErrorKind.EXECUTION_ERROR)


class Menu(Environment):
    """An environment whose tools are named in the row."""

    def __init__(self, metadata: JsonObject) -> None:
        self.dishes = metadata["dishes"]

    @property
    def tools(self) -> list[JsonObject]:
        assert isinstance(self.dishes, list)
        return [
            {"type": "function", "function": {"name": str(dish), "description": "", "parameters": {"type": "object"}}}
            for dish in self.dishes
        ]

    async def call(self, call: ToolCall) -> str:
        return f"{call.name} {call.arguments}"


class WithoutTypeHint(Environment):
    @tool
    def look(self, place) -> str:  # type: ignore[no-untyped-def]
        return str(place)


def toolset(folder: Path, text: str) -> Toolset:
    path = folder / "tools.yaml"
    path.write_text(text)
    return load_toolset(str(path))


async def one_call(toolset: Toolset, call: ToolCall | Malformed, **row: Any) -> CallOutcome:
    async with toolset.open(row) as trajectory:
        (outcome,) = await trajectory.toolbox.run([call])
    return outcome


def text(outcome: CallOutcome) -> str:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


def kind(outcome: CallOutcome) -> ErrorKind | None:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.error


def test_the_schema_of_a_function_comes_from_its_signature() -> None:
    tool = FunctionTool(tool_functions.add)

    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "integer", "default": 1, "description": "The other one."},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


def test_the_schema_leaves_the_workspace_out() -> None:
    function = FunctionTool(tool_functions.note).schema["function"]

    assert isinstance(function, dict)
    assert function["parameters"]["properties"] == {"text": {"type": "string"}}  # type: ignore[call-overload,index]


def no_type_hint(a):  # type: ignore[no-untyped-def]
    return a


def variadic(*values: int) -> int:
    return sum(values)


def no_json_schema(place: Path, lock: Lock) -> str:
    return f"{place} {lock}"


def unknown_type(place: "Plaace") -> str:  # type: ignore[name-defined]  # noqa: F821
    return str(place)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_type_hint, "tool no_type_hint: parameter 'a' needs a type hint"),
        (variadic, "tool variadic: parameter 'values' cannot be given by name"),
        (no_json_schema, "tool no_json_schema: parameter 'lock' has a type without a JSON schema: Unable to generate"),
        (unknown_type, "tool unknown_type: a type hint cannot be resolved: name 'Plaace' is not defined"),
    ],
)
def test_a_function_without_a_schema_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FunctionTool(function)


def test_the_tool_decorator_refuses_anything_but_a_method() -> None:
    with pytest.raises(ConfigError, match="@tool must stand directly above a method, got a property"):
        tool(property(lambda self: 1))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("- tool: pyhton", r"tools\.yaml, entry 0: unknown tool 'pyhton'; known: bash, jupyter_code, python_code_with"),
        (
            "- {}",
            r"entry 0: must have one of the keys tool \(bash, .*\), function, mcp, tool_server, environment or rows",
        ),
        ("tool: bash", "must be a list of tools, each beginning with `- `, got dict"),
        ("- tool: bash\n  seconds: 3", "entry 0: tool bash.seconds: unknown key; known: max_characters, memory_mib"),
        ("- tool: bash\n  wall_seconds: 0", "entry 0: tool bash.wall_seconds: Input should be greater than 0"),
        ("- function: no_such_module:f", "tool module 'no_such_module' cannot be imported"),
        (f"- function: {FUNCTIONS}:nobody", "has no 'nobody'"),
        ("- function: add", r"must be 'package\.module:name'"),
        (
            f"- environment: {FUNCTIONS}:add",
            f"entry 0: {FUNCTIONS}:add is not a subclass of verl_pivot.tools.contract.Environment",
        ),
        (
            f"- environment: {__name__}:WithoutTypeHint",
            "environment WithoutTypeHint, tool look: parameter 'place' needs a type hint",
        ),
        (f"- environment: {__name__}:Counter\n- environment: {__name__}:Counter", "two tools are called 'increment'"),
        (f"- function: {FUNCTIONS}:add\n- function: {FUNCTIONS}:add", "entry 1: two tools are called 'add'"),
        (f"- function: {FUNCTIONS}:add\n  tells_timeouts: True", "entry 0: .*write `on_timeout: tell_policy` for True"),
        (
            f"- function: {FUNCTIONS}:add\n  on_timeout: shrug",
            "entry 0: on_timeout: Input should be 'mask' or",
        ),
        ("- tool: search\n  index: nowhere", "nowhere holds no search index"),
        ("- [", "is not valid YAML"),
    ],
)
def test_a_wrong_tools_file_names_the_entry_and_the_remedy(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toolset(tmp_path, yaml)


def test_a_missing_tools_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_toolset(str(tmp_path / "nowhere.yaml"))


def test_a_function_may_be_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def hello(name: str) -> str:\n    """Greet."""\n    return f"Hello {name}"\n')

    tools = toolset(tmp_path, f"- function: {tmp_path}/mine.py:hello\n  name: greet\n  description: Say hello.")

    assert list(tools.open({}).toolbox.tools) == ["greet"]


@pytest.mark.parametrize("name", ["python", "bash", "replay"])
def test_the_shipped_tools_files_load(name: str) -> None:
    from verl_pivot.configuration import configs_dir

    load_toolset(str(configs_dir() / "tools" / f"{name}.yaml"))


async def test_an_environment_has_its_own_state_and_is_closed_once(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- environment: tests.tools.test_toolset:Counter")
    Counter.closed.clear()
    increment = ToolCall(name="increment", arguments={})

    async with tools.open({"metadata": '{"start": 4}'}) as first, tools.open({}) as second:
        texts = [text(each) for each in await first.toolbox.run([increment, increment])]
        texts += [text(each) for each in await second.toolbox.run([increment])]

    assert texts == ["5", "6", "1"]
    assert sorted(each.count for each in Counter.closed) == [1, 6]


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("explode", "environment Counter.explode raised OSError: boom"),
        (
            "answer_with_bytes",
            "environment Counter.answer_with_bytes returned bytes (Object of type bytes is not JSON serializable); "
            "return text or a JSON value",
        ),
    ],
)
async def test_an_exception_of_an_environment_is_a_failure_of_the_system(
    tmp_path: Path, name: str, failure: str
) -> None:
    tools = toolset(tmp_path, "- environment: tests.tools.test_toolset:Counter")

    outcome = await one_call(tools, ToolCall(name=name, arguments={}))

    assert (outcome.observation, outcome.failure) == (None, failure)


class Odd(Environment):
    """Raises what is hard to catch, as some libraries do."""

    @tool
    async def wait(self) -> str:
        """Wait for a task that is cancelled."""
        task = asyncio.create_task(asyncio.sleep(10))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task
        return ""

    @tool
    def configure(self) -> str:
        """Miss a setting, which is no mistake of the policy."""
        raise ConfigError("the token is missing")

    @tool
    def panic(self) -> str:
        """Panic."""
        raise BaseExceptionGroup("panic", [SystemExit("gone")])

    def score(self, answer: Message | None) -> float:
        raise SystemExit("gone")


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("wait", "environment Odd.wait raised CancelledError"),
        ("configure", "environment Odd.configure raised ConfigError: the token is missing"),
        ("panic", "environment Odd.panic raised BaseExceptionGroup: panic (1 sub-exception)"),
    ],
)
async def test_what_is_no_mistake_of_the_policy_is_a_failure_however_it_is_raised(
    tmp_path: Path, name: str, failure: str
) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Odd")

    async with tools.open({}) as opened:
        (outcome,) = await opened.toolbox.run([ToolCall(name=name, arguments={})])
        with pytest.raises(UserCodeError, match=r"environment Odd\.score raised SystemExit: gone"):
            await opened.score(None)

    assert (outcome.observation, outcome.failure.startswith(failure)) == (None, True)


class Waiting(Environment):
    @tool
    async def wait(self) -> str:
        await asyncio.Event().wait()
        return ""


class Endless(Environment):
    async def score(self, answer: Message | None) -> float:
        await asyncio.Event().wait()
        return 1.0

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_score_and_close_of_an_environment_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "SCORE_SECONDS", 0.05)
    monkeypatch.setattr(environments, "CLOSE_SECONDS", 0.05)
    environment = environments.EnvironmentKind.read(Endless, "Endless", CallPolicy()).open({})

    verdict = await environment.score(None)
    with pytest.raises(UserCodeError, match=r"environment Endless\.close did not end within 0\.05 s"):
        await environment.close()

    assert verdict == Verdict.undecided("environment_failed", "environment Endless.score did not end within 0.05 s")


async def test_a_call_that_is_cancelled_from_outside_stays_cancelled(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Odd")

    async with tools.open({}) as opened:
        calling = asyncio.create_task(opened.toolbox.run([ToolCall(name="wait", arguments={})]))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling


async def test_schemas_of_environment_methods_come_from_their_signatures(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:LabelledShelf")

    async with tools.open({"metadata": '{"cup": 0}'}) as opened:
        schemas = [schema["function"] for schema in opened.toolbox.schemas]
        outcomes = await opened.toolbox.run(
            [
                ToolCall(name="put", arguments={"item": "vase", "amount": 2}),
                ToolCall(name="put", arguments={"item": "vase", "amount": 0}),
                ToolCall(name="label", arguments={"text": "fragile"}),
            ]
        )

    assert [schema["name"] for schema in schemas] == ["put", "max_running_at_once", "label"]  # type: ignore[index,call-overload]
    assert schemas[0] == {
        "name": "put",
        "description": "Put items on the shelf.",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "amount": {"type": "integer", "default": 1, "minimum": 1, "description": "How many."},
            },
            "required": ["item"],
            "additionalProperties": False,
        },
    }
    assert json.loads(text(outcomes[0])) == {"vase": 2, "cup": 0}
    assert kind(outcomes[1]) is ErrorKind.INVALID_ARGUMENT
    assert (kind(outcomes[2]), "no room for fragile" in text(outcomes[2])) == (ErrorKind.EXECUTION_ERROR, True)


async def test_blocking_methods_run_one_at_a_time_and_delay_no_other_rollout(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Shelf")
    put = ToolCall(name="put", arguments={"item": "vase"})

    async with tools.open({}, parallel_calls=True) as first, tools.open({}, parallel_calls=True) as second:
        began = time.monotonic()
        await asyncio.gather(first.toolbox.run([put] * 5), second.toolbox.run([put] * 5))
        seconds = time.monotonic() - began
        (outcome,) = await first.toolbox.run([ToolCall(name="max_running_at_once", arguments={})])

    assert text(outcome) == "1"
    assert 0.5 <= seconds < 0.9  # calls of one rollout run one after the other, both rollouts at once


async def test_a_call_that_waits_for_others_of_its_environment_keeps_its_time_limit(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Shelf\n  timeout_seconds: 0.5")
    put = ToolCall(name="put", arguments={"item": "vase"})

    async with tools.open({}, parallel_calls=True) as opened:
        outcomes = await opened.toolbox.run([put] * 8)

    assert [json.loads(text(outcome)) for outcome in outcomes] == [{"vase": count} for count in range(1, 9)]


async def test_no_call_of_an_environment_begins_after_one_that_the_system_failed(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Waiting\n  timeout_seconds: 0.1")
    wait, unknown = ToolCall(name="wait", arguments={}), ToolCall(name="walk", arguments={})

    async with tools.open({}, parallel_calls=True) as opened:
        outcomes = await opened.toolbox.run([unknown, *[wait] * 8, unknown])
        waits = opened.toolbox.tools["wait"]

    assert [outcome.failure for outcome in outcomes] == ["", "tool wait did not answer within 0.1 s", ""]
    assert waits.policy == CallPolicy(timeout_seconds=0.1, in_order=True)


async def test_tools_of_an_environment_that_depend_on_the_row_are_run_by_its_method_call(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Menu")

    outcome = await one_call(tools, ToolCall(name="soup", arguments={"salt": 1}), metadata='{"dishes": ["soup"]}')

    assert text(outcome) == "soup {'salt': 1}"
    with pytest.raises(ConfigError, match="two tools are called 'soup'"):
        async with tools.open({"metadata": '{"dishes": ["soup", "soup"]}'}):
            pass


class UnreadableMenu(Environment):
    """An environment that lists what is no schema of a tool, or cannot list its tools."""

    def __init__(self, metadata: JsonObject) -> None:
        self.listed = metadata.get("listed")

    @property
    def tools(self) -> list[JsonObject]:
        if self.listed is None:
            raise KeyError("listed")
        return [{"name": "soup", "parameters": self.listed}]


@pytest.mark.parametrize(
    ("second", "row", "error", "said"),
    [
        ("Scored", {}, UserCodeError, "environment Scored raised KeyError: 'outcome'"),
        ("UnreadableMenu", {}, UserCodeError, "environment UnreadableMenu.tools raised KeyError: 'listed'"),
        (
            "UnreadableMenu",
            {"metadata": '{"listed": "all"}'},
            UserCodeError,
            "environment UnreadableMenu.tools lists what is no schema of a tool: parameters of tool soup must be",
        ),
        ("Menu", {"metadata": '{"dishes": ["increment"]}'}, ConfigError, "two tools are called 'increment'"),
        ("Shelf", {"tools": json.dumps([FIND_ORDER])}, DataError, "the row brings tool 'find_order', but no entry of"),
    ],
)
async def test_an_environment_is_closed_where_what_comes_after_it_cannot_be_opened(
    tmp_path: Path, second: str, row: dict[str, Any], error: type[Exception], said: str
) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Counter\n- environment: {__name__}:{second}")
    Counter.closed.clear()
    opened = tools.open(row)

    with pytest.raises(error, match=re.escape(said)):
        async with opened:
            pass

    assert len(Counter.closed) == 1


async def test_an_environment_that_cannot_be_closed_does_not_hide_why_its_row_cannot_be_opened(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:CannotBeClosed")

    with pytest.raises(DataError, match="the row brings tool 'find_order'"):
        async with tools.open({"tools": json.dumps([FIND_ORDER])}):
            pass


async def test_tools_that_an_environment_lists_may_have_the_flat_form_of_the_responses_api(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:UnreadableMenu")

    async with tools.open({"metadata": '{"listed": {"type": "object"}}'}) as opened:
        assert opened.toolbox.schemas == [
            {"type": "function", "function": {"name": "soup", "parameters": {"type": "object"}}}
        ]


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "observation"),
    [
        ({"a": float("nan")}, "no JSON form"),
        ({"a": 1, "b": "\ud800"}, "no JSON form"),
        ({"a": deep(5000)}, "nested too deeply"),
        ({"a": 10**400}, "cannot be applied to them"),
        ({"a": True}, "not of type 'integer'"),
    ],
)
async def test_arguments_that_break_the_schema_check_are_the_policys_mistake(
    tmp_path: Path, arguments: dict[str, Any], observation: str
) -> None:
    """If they counted as failures of the system, a policy could have its bad rollouts masked."""
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:add_halves")

    outcome = await one_call(tools, ToolCall(name="add_halves", arguments=arguments))

    assert kind(outcome) is ErrorKind.INVALID_ARGUMENT
    assert observation in text(outcome)


async def test_a_timeout_is_an_error_to_the_policy_with_on_timeout_tell_policy(tmp_path: Path) -> None:
    options = "  timeout_seconds: 0.1\n  on_timeout: tell_policy"
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:sleep\n{options}")

    outcome = await one_call(tools, ToolCall(name="sleep", arguments={"seconds": 1e9}))

    assert kind(outcome) is ErrorKind.TIME_LIMIT
    assert "tool sleep did not answer within 0.1 s" in text(outcome)


async def test_no_further_call_of_a_turn_begins_after_a_failure_of_the_system(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- environment: tests.tools.test_toolset:Counter")

    async with tools.open({}) as trajectory:
        outcomes = await trajectory.toolbox.run(
            [ToolCall(name=name, arguments={}) for name in ("explode", "increment")]
        )

    assert len(outcomes) == 1


class Till(Environment):
    """A basket that takes items also after it was paid for."""

    def __init__(self, metadata: JsonObject) -> None:
        self.items: list[str] = []

    @tool
    def add(self, item: str) -> str:
        self.items.append(item)
        return str(len(self.items))

    @tool
    def checkout(self) -> Observation:
        return Observation("Paid.", end=StopReason.ENVIRONMENT_TERMINATED)

    def state(self) -> list[Json]:
        return [*self.items]


@pytest.mark.parametrize("in_parallel", [False, True])
async def test_no_further_call_of_a_turn_begins_after_one_that_ends_the_rollout(
    tmp_path: Path, in_parallel: bool
) -> None:
    tools = toolset(tmp_path, "- environment: tests.tools.test_toolset:Till")
    tea, milk = (ToolCall(name="add", arguments={"item": item}) for item in ("tea", "milk"))
    calls = [tea, ToolCall(name="checkout", arguments={}), milk]

    async with tools.open({}, parallel_calls=in_parallel) as opened:
        outcomes = await opened.toolbox.run(calls)
        states = opened.states()

    assert ([text(outcome) for outcome in outcomes], states) == (["1", "Paid."], [["tea"]])


RECORDING = json.dumps(
    [
        {"name": "find_order", "arguments": {"order_id": 17}, "result": '{"status": "sent"}'},
        {"name": "find_order", "arguments": {"order_id": 18}, "result": '{"status": "lost"}'},
    ]
)
REPLAY = {"tools": json.dumps([FIND_ORDER]), "recording": RECORDING}


async def test_replay_returns_the_recorded_result_of_a_call_with_equal_arguments(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- rows: replay")

    found = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 18}), **REPLAY)
    unknown = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 19}), **REPLAY)

    assert (text(found), kind(found)) == ('{"status": "lost"}', None)
    assert kind(unknown) is ErrorKind.NOT_RECORDED
    assert text(unknown) == "Tool call failure\nreason: error, nothing is recorded for this call"


async def echo(call: ToolCall, workspace: Workspace) -> Observation:
    if call.arguments["order_id"] == 0:
        raise ValueError("there is no order 0")
    return Observation(f"{call.name} {call.arguments} {workspace.metadata}")


async def test_a_function_may_run_the_tools_of_rows(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- rows: tests.tools.test_toolset:echo")
    row = {"tools": json.dumps([FIND_ORDER]), "metadata": '{"shop": 1}'}

    found = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 18}), **row)
    refused = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 0}), **row)

    assert text(found) == "find_order {'order_id': 18} {'shop': 1}"
    assert kind(refused) is ErrorKind.REFUSED


def test_a_row_with_a_tool_that_nothing_can_run_is_refused(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:add")

    with pytest.raises(DataError, match=r"the row brings tool 'find_order', but no entry of .* can run it"):
        tools.open({"tools": json.dumps([FIND_ORDER])})


@pytest.mark.parametrize("recording", ["[1]", '[{"name": "a"}]', "{}", "no JSON"])
def test_a_broken_recording_is_refused(tmp_path: Path, recording: str) -> None:
    tools = toolset(tmp_path, "- rows: replay")

    with pytest.raises(DataError):
        tools.open({"tools": json.dumps([FIND_ORDER]), "recording": recording})


async def test_a_schema_without_parameters_accepts_a_call_without_arguments(tmp_path: Path) -> None:
    bare = {"type": "function", "function": {"name": "ping"}}
    recording = json.dumps([{"name": "ping", "arguments": {}, "result": "pong"}])
    tools = toolset(tmp_path, "- rows: replay")

    outcome = await one_call(tools, ToolCall(name="ping", arguments={}), tools=json.dumps([bare]), recording=recording)

    assert text(outcome) == "pong"


async def test_search_finds_documents_by_their_words(tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    rows: list[dict[str, str]] = [
        {"title": "Paris", "text": "The capital of France."},
        {"text": "Berlin lies on the Spree."},
        {"id": "3", "contents": "Cheese is made of milk."},
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = cli("index", documents, "--out", tmp_path / "index")
    tools = toolset(tmp_path, f"- tool: search\n  index: {tmp_path}/index\n  num_documents: 2")

    assert done.returncode == 0, done.stderr
    assert "3 documents" in done.stdout
    found = await one_call(tools, ToolCall(name="search", arguments={"query": "capital of France"}))
    assert text(found) == "Doc 1(Title: Paris) The capital of France."
    nothing = await one_call(tools, ToolCall(name="search", arguments={"query": "volcano"}))
    assert text(nothing) == "no document has these words"
    empty = await one_call(tools, ToolCall(name="search", arguments={"query": " the "}))
    assert kind(empty) is ErrorKind.REFUSED


async def test_documents_of_search_r1_are_shown_as_its_checkpoints_saw_them(tmp_path: Path) -> None:
    documents = tmp_path / "wiki-18.jsonl"
    rows = [
        {"id": "0", "contents": '"Eiffel Tower"\nThe tower in Paris was built in 1889.'},
        {"id": "1", "contents": '"Louvre"\nA museum in Paris.'},
    ]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert cli("index", documents, "--out", tmp_path / "index").returncode == 0
    tools = toolset(tmp_path, f"- tool: search\n  index: {tmp_path}/index")

    found = await one_call(tools, ToolCall(name="search", arguments={"query": "Paris tower built"}))
    assert text(found) == (
        'Doc 1(Title: "Eiffel Tower") The tower in Paris was built in 1889.\nDoc 2(Title: "Louvre") A museum in Paris.'
    )


@pytest.mark.heavy
def test_an_index_is_replaced_as_a_whole_and_any_other_folder_is_left_alone(tmp_path: Path) -> None:
    documents, mine = tmp_path / "documents.jsonl", tmp_path / "mine"
    documents.write_text('{"text": "one"}\n{"text": "two"}\n')
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")

    done = [cli("index", documents, "--out", folder) for folder in (tmp_path / "index", tmp_path / "index", mine)]

    assert [each.returncode for each in done] == [0, 0, 1]
    assert "holds no search index: give another --out" in done[2].stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.jsonl", "index", "mine"]
    assert (mine / "thesis.txt").read_text() == "years of work"


class CannotBeClosed(Environment):
    """An environment that needs a system at its end, which has failed."""

    async def close(self) -> None:
        raise OSError("stuck")


async def test_environments_are_closed_even_if_closing_another_one_fails(tmp_path: Path) -> None:
    both = "- environment: tests.tools.test_toolset:Counter\n- environment: tests.tools.test_toolset:CannotBeClosed\n"
    Counter.closed.clear()

    with pytest.raises(ToolFailureError, match=r"^environment CannotBeClosed\.close raised OSError: stuck$"):
        async with toolset(tmp_path, both).open({}):
            pass

    assert len(Counter.closed) == 1


def test_the_message_about_a_document_without_text_names_its_line(tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"text": "good"}\n{"title": "bad"}\n')

    done = cli("index", documents, "--out", tmp_path / "index")

    assert done.returncode == 0, done.stderr
    assert "1 rows hold no document and were left out. " in done.stdout
    assert 'line 2: a document needs "text"' in done.stdout


class SlowBasket(list[str]):
    """A basket that takes a moment to make."""

    def __init__(self) -> None:
        time.sleep(0.05)


def fill(item: str, workspace: Workspace) -> None:
    """Put something into the basket."""
    workspace.state(SlowBasket).append(item)


async def test_calls_at_once_share_a_state_that_takes_a_moment_to_make(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- function: tests.tools.test_toolset:fill\n")

    async with tools.open({}, parallel_calls=True) as opened:
        await opened.toolbox.run([ToolCall(name="fill", arguments={"item": item}) for item in "abc"])

        assert sorted(opened.toolbox.workspace.state(SlowBasket)) == ["a", "b", "c"]


async def test_state_is_made_once_per_trajectory() -> None:
    first, second = Workspace(), Workspace()

    assert first.state(tool_functions.Notes) is first.state(tool_functions.Notes)
    assert first.state(tool_functions.Notes) is not second.state(tool_functions.Notes)


@pytest.mark.parametrize("column", ["metadata", "tools", "recording"])
def test_a_column_that_is_no_text_is_refused_and_not_read_as_empty(column: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("[]")

    with pytest.raises(DataError, match=f"column '{column}' of a row must be JSON as a text, .* got dict"):
        load_toolset(str(tmp_path / "tools.yaml")).open({column: {"start": 1}})


class Scored(Environment):
    """An environment whose `score` gives or raises what its row says."""

    def __init__(self, metadata: JsonObject) -> None:
        self.outcome = OUTCOMES[str(metadata["outcome"])]

    async def score(self, answer: Message | None) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


OUTCOMES: dict[str, object] = {
    "verdict": Verdict.refuse("late"), "nothing": None, "number": 0.25, "true": True, "numpy": numpy.float32(0.5),
    "numpy bool": numpy.bool_(False), "two": 2.0, "nan": math.nan, "text": "good",
    "KeyError": KeyError("x"), "OSError": OSError("the disk is full"),
}  # fmt: skip


async def score_of(folder: Path, outcome: str) -> Verdict | None:
    tools = toolset(folder, f"- environment: {__name__}:Scored")
    async with tools.open({"metadata": json.dumps({"outcome": outcome})}) as opened:
        return await opened.score(None)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ("verdict", Verdict.refuse("late")),
        ("nothing", None),
        ("number", Verdict(score=0.25, reason="scored")),
        ("true", Verdict(score=1.0, reason="scored")),
        ("numpy", Verdict(score=0.5, reason="scored")),
        ("numpy bool", Verdict(score=0.0, reason="scored")),
        ("OSError", Verdict.undecided("environment_failed", "OSError: the disk is full")),
    ],
)
async def test_the_score_of_an_environment_is_a_verdict_or_a_number(
    tmp_path: Path, outcome: str, verdict: Verdict | None
) -> None:
    assert await score_of(tmp_path, outcome) == verdict


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("two", "environment Scored.score returned 2.0; it returns Verdict.accept(), "),
        ("nan", "environment Scored.score returned nan; it returns "),
        ("text", "environment Scored.score returned 'good'; it returns "),
        ("KeyError", "environment Scored.score raised KeyError: 'x' ("),
    ],
)
async def test_any_other_score_is_an_error_with_class_and_method(tmp_path: Path, outcome: str, said: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        await score_of(tmp_path, outcome)

    assert str(caught.value).startswith(said)


async def test_an_environment_that_cannot_be_made_is_an_error_with_its_class(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- environment: {__name__}:Scored")

    with pytest.raises(UserCodeError, match=r"environment Scored raised KeyError: 'outcome' \(.*in __init__\)"):
        tools.open({"metadata": "{}"})


@pytest.mark.parametrize(("name", "is_bug"), [("answer_with_bytes", True), ("explode", False)])
async def test_a_bug_of_a_tool_is_told_from_a_failure_of_what_it_needs(tmp_path: Path, name: str, is_bug: bool) -> None:
    tools = toolset(tmp_path, "- environment: tests.tools.test_toolset:Counter")

    outcome = await one_call(tools, ToolCall(name=name, arguments={}))

    assert outcome.is_bug is is_bug
