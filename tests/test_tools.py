"""Tools files, functions as tools, replay and search: what a call gives back, and what a wrong file says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tool_functions
from tests.factories import FIND_ORDER
from tests.launching import cli
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.contract import Environment, ErrorKind, Observation
from verl_pivot.tools.functions import FunctionTool
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, Malformed, Message, ToolCall, Verdict

FUNCTIONS = "tests.tool_functions"


class Counter(Environment):
    """Counts; one of its calls breaks."""

    closed: list["Counter"] = []  # noqa: RUF012

    def __init__(self, metadata: JsonObject) -> None:
        self.count = int(str(metadata.get("start", 0)))

    @property
    def tools(self) -> list[JsonObject]:
        return [
            {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
            for name in ("increment", "explode", "answer_with_bytes")
        ]

    async def call(self, call: ToolCall) -> str | Observation:
        if call.name == "explode":
            raise OSError("boom")
        if call.name == "answer_with_bytes":
            return b"1"  # type: ignore[return-value]
        self.count += 1
        return str(self.count)

    async def score(self, answer: Message | None) -> Verdict:
        return Verdict(score=float(answer is not None), reason="counted")

    async def close(self) -> None:
        Counter.closed.append(self)


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


def test_a_functions_schema_is_its_signature() -> None:
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


def test_the_workspace_is_no_argument_of_the_policys() -> None:
    function = FunctionTool(tool_functions.note).schema["function"]

    assert isinstance(function, dict)
    assert function["parameters"]["properties"] == {"text": {"type": "string"}}  # type: ignore[call-overload,index]


def unhinted(a):  # type: ignore[no-untyped-def]
    return a


def greedy(*values: int) -> int:
    return sum(values)


@pytest.mark.parametrize(
    ("function", "message"),
    [(unhinted, "parameter 'a' needs a type hint"), (greedy, "'values' cannot be given by name")],
)
def test_a_function_without_a_schema_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FunctionTool(function)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("- tool: pyhton", "entry 0 must begin with tool"),
        ("- {}", "entry 0 must begin with tool"),
        ("tool: bash", "valid list"),
        ("- tool: bash\n  seconds: 3", "entry 0, seconds: Extra inputs are not permitted"),
        ("- tool: bash\n  wall_seconds: 0", "entry 0, wall_seconds: Input should be greater than 0"),
        ("- function: no_such_module:f", "tool module 'no_such_module' cannot be imported"),
        (f"- function: {FUNCTIONS}:nobody", "has no 'nobody'"),
        ("- function: add", r"must be 'package\.module:name'"),
        (f"- environment: {FUNCTIONS}:add", "is no subclass of Environment"),
        (f"- function: {FUNCTIONS}:add\n- function: {FUNCTIONS}:add", "two tools are called 'add'"),
        ("- tool: search\n  index: nowhere", "nowhere holds no search index"),
        ("- [", "is no YAML"),
    ],
)
def test_a_wrong_tools_file_names_the_entry_and_the_remedy(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        toolset(tmp_path, yaml)


def test_a_missing_tools_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_toolset(str(tmp_path / "nowhere.yaml"))


def test_a_function_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def hello(name: str) -> str:\n    """Greet."""\n    return f"Hello {name}"\n')

    tools = toolset(tmp_path, f"- function: {tmp_path}/mine.py:hello\n  name: greet\n  description: Say hello.")

    assert list(tools.open({}).toolbox.tools) == ["greet"]


@pytest.mark.parametrize("name", ["python", "bash", "replay"])
def test_the_shipped_tools_files_load(name: str) -> None:
    from verl_pivot.configuration import configs_dir

    load_toolset(str(configs_dir() / "tools" / f"{name}.yaml"))


async def test_an_environment_has_its_own_state_and_is_closed_once(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- environment: tests.test_tools:Counter")
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
        ("explode", "environment Counter raised OSError: boom"),
        ("answer_with_bytes", "environment Counter returned bytes, not text or an Observation"),
    ],
)
async def test_an_environment_that_breaks_is_a_failure_of_the_system(tmp_path: Path, name: str, failure: str) -> None:
    tools = toolset(tmp_path, "- environment: tests.test_tools:Counter")

    outcome = await one_call(tools, ToolCall(name=name, arguments={}))

    assert (outcome.observation, outcome.failure) == (None, failure)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"a": float("nan")}, "no JSON form"),
        ({"a": 1, "b": "\ud800"}, "no JSON form"),
        ({"a": deep(5000)}, "nested too deeply"),
        ({"a": 10**400}, "cannot be applied to them"),
        ({"a": True}, "not of type 'integer'"),
    ],
)
async def test_arguments_meant_to_break_the_check_are_the_policys_mistake(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    """Were they failures of the system, a policy could mask what it does badly."""
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:add_halves")

    outcome = await one_call(tools, ToolCall(name="add_halves", arguments=arguments))

    assert kind(outcome) is ErrorKind.INVALID_ARGUMENT
    assert told in text(outcome)


async def test_a_timeout_is_told_where_the_arguments_decide(tmp_path: Path) -> None:
    options = "  timeout_seconds: 0.1\n  tells_timeouts: True"
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:sleep\n{options}")

    outcome = await one_call(tools, ToolCall(name="sleep", arguments={"seconds": 1e9}))

    assert kind(outcome) is ErrorKind.TIME_LIMIT
    assert "tool sleep did not answer within 0.1 s" in text(outcome)


async def test_after_a_failure_the_other_calls_of_the_turn_are_not_begun(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- environment: tests.test_tools:Counter")

    async with tools.open({}) as trajectory:
        outcomes = await trajectory.toolbox.run(
            [ToolCall(name=name, arguments={}) for name in ("explode", "increment")]
        )

    assert len(outcomes) == 1


RECORDING = json.dumps(
    [
        {"name": "find_order", "arguments": {"order_id": 17}, "result": '{"status": "sent"}'},
        {"name": "find_order", "arguments": {"order_id": 18}, "result": '{"status": "lost"}'},
    ]
)
REPLAY = {"tools": json.dumps([FIND_ORDER]), "recording": RECORDING}


async def test_replay_gives_the_recorded_result_of_a_call_that_does_the_same(tmp_path: Path) -> None:
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


async def test_a_function_may_answer_for_the_tools_of_rows(tmp_path: Path) -> None:
    tools = toolset(tmp_path, "- rows: tests.test_tools:echo")
    row = {"tools": json.dumps([FIND_ORDER]), "metadata": '{"shop": 1}'}

    found = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 18}), **row)
    refused = await one_call(tools, ToolCall(name="find_order", arguments={"order_id": 0}), **row)

    assert text(found) == "find_order {'order_id': 18} {'shop': 1}"
    assert kind(refused) is ErrorKind.REFUSED


def test_a_row_whose_tools_nobody_answers_for_is_refused(tmp_path: Path) -> None:
    tools = toolset(tmp_path, f"- function: {FUNCTIONS}:add")

    with pytest.raises(DataError, match=r"the row brings tool 'find_order', and nothing in .* answers for it"):
        tools.open({"tools": json.dumps([FIND_ORDER])})


@pytest.mark.parametrize("recording", ["[1]", '[{"name": "a"}]', "{}", "no JSON"])
def test_a_broken_recording_is_refused(tmp_path: Path, recording: str) -> None:
    tools = toolset(tmp_path, "- rows: replay")

    with pytest.raises(DataError):
        tools.open({"tools": json.dumps([FIND_ORDER]), "recording": recording})


async def test_a_schema_without_properties_takes_what_it_is_given(tmp_path: Path) -> None:
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
    assert text(found) == "Doc 1 (title: Paris): The capital of France."
    nothing = await one_call(tools, ToolCall(name="search", arguments={"query": "volcano"}))
    assert text(nothing) == "no document has these words"
    empty = await one_call(tools, ToolCall(name="search", arguments={"query": " the "}))
    assert kind(empty) is ErrorKind.REFUSED


def test_an_index_is_replaced_whole_and_nothing_else_ever_is(tmp_path: Path) -> None:
    documents, mine = tmp_path / "documents.jsonl", tmp_path / "mine"
    documents.write_text('{"text": "one"}\n{"text": "two"}\n')
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")

    done = [cli("index", documents, "--out", folder) for folder in (tmp_path / "index", tmp_path / "index", mine)]

    assert [each.returncode for each in done] == [0, 0, 1]
    assert "holds no search index: give another --out" in done[2].stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.jsonl", "index", "mine"]
    assert (mine / "thesis.txt").read_text() == "years of work"


class Stuck(Counter):
    """Cannot be closed."""

    @property
    def tools(self) -> list[JsonObject]:
        return []

    async def close(self) -> None:
        raise OSError("stuck")


async def test_an_environment_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    both = "- environment: tests.test_tools:Counter\n- environment: tests.test_tools:Stuck\n"
    Counter.closed.clear()

    with pytest.raises(OSError, match="stuck"):
        async with toolset(tmp_path, both).open({}):
            pass

    assert len(Counter.closed) == 1


def test_documents_without_text_are_named_by_their_line(tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"text": "good"}\n{"title": "bad"}\n')

    done = cli("index", documents, "--out", tmp_path / "index")

    assert done.returncode == 1
    assert 'line 2: a document needs "text"' in done.stderr
    assert not (tmp_path / "index").exists()


async def test_state_is_made_once_per_trajectory() -> None:
    first, second = Workspace(), Workspace()

    assert first.state(tool_functions.Notes) is first.state(tool_functions.Notes)
    assert first.state(tool_functions.Notes) is not second.state(tool_functions.Notes)
