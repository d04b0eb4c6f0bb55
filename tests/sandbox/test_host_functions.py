"""Host functions: calls from cells, answers by the caller of the session, and the limits and errors of both."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, service
from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Result, Status, Terminal
from verl_pivot.sandbox.host_functions import (
    MAX_FUNCTIONS,
    CallLimits,
    HostFunction,
    HostReply,
    check_functions,
)
from verl_pivot.sandbox.lane.answers import MAX_CALL_BYTES
from verl_pivot.sandbox.lane.host_calls import docstring_of, host_function, signature_of
from verl_pivot.sandbox.session import Session
from verl_pivot.types import Json, JsonObject

LIMITS = Limits(wall_seconds=2.0, memory_bytes=256 * MIB)
SEARCH_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "k": {"type": "integer", "default": 3, "description": "Number of documents."},
        "query": {"type": "string"},
    },
    "required": ["query"],
}
SEARCH = HostFunction(name="search", description="Search the documents.", parameters=SEARCH_SCHEMA)
SUBMIT = HostFunction(
    name="submit",
    description="Give the answer.",
    parameters={"type": "object", "properties": {"answer": {}}, "required": ["answer"]},
)


class Host:
    """Host that keeps each call, and by default answers it with the call's name and arguments."""

    def __init__(self, reply: Callable[[str, JsonObject], HostReply] | None = None, seconds: float = 0.0) -> None:
        self.calls: list[tuple[str, JsonObject]] = []
        self._reply = reply or (lambda name, arguments: HostReply(value=[name, arguments]))
        self._seconds = seconds

    async def __call__(self, name: str, arguments: JsonObject) -> HostReply:
        self.calls.append((name, arguments))
        await asyncio.sleep(self._seconds)
        return self._reply(name, arguments)


def in_notebook(
    body: Callable[[Session], Awaitable[None]],
    functions: tuple[HostFunction, ...] = (SEARCH, SUBMIT),
    kind: Kind = Kind.ZYGOTE,
    **options: Any,
) -> None:
    """Run `body` with a fresh session that has these functions."""

    async def main() -> None:
        async with (
            service(kind).client() as sandbox,
            await sandbox.open(limits=LIMITS, functions=functions, **options) as session,
        ):
            await body(session)

    asyncio.run(main())


def last_line(result: Result) -> str:
    return (result.error or "").strip().splitlines()[-1]


def test_a_signature_is_that_of_the_schema_with_required_arguments_first() -> None:
    assert str(signature_of(SEARCH_SCHEMA)) == "(query: str, k: int = 3)"
    assert str(signature_of({})) == "()"
    assert str(signature_of({"properties": {"a": {"type": ["string", "null"]}, "b": {"type": "object"}}})) == (
        "(a=..., b: dict = ...)"
    )


def test_an_argument_whose_name_is_none_in_python_is_given_by_two_stars() -> None:
    taken: list[JsonObject] = []
    function = host_function(
        {"name": "f", "description": "", "parameters": {"properties": {"x": {}, "from": {}}, "required": ["x"]}},
        lambda name, arguments: taken.append(arguments),
    )

    function(1, **{"from": 2})

    assert taken == [{"x": 1, "from": 2}]


def test_a_docstring_has_the_description_and_those_of_the_arguments() -> None:
    text = docstring_of({"name": "search", "description": "Search the documents.", "parameters": SEARCH_SCHEMA})

    assert text == "Search the documents.\n\nArgs:\n    k: Number of documents."
    assert docstring_of({"name": "f", "description": "Do.", "parameters": {}}) == "Do."


@given(
    st.dictionaries(st.sampled_from(["a", "b", "class", "x-y", "c"]), st.sampled_from([{}, {"type": "string"}, True])),
    st.data(),
)
def test_arguments_by_name_arrive_as_they_were_given_and_others_are_not_sent(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    required = data.draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    given_names = {*required, *(name for name in properties if data.draw(st.booleans()))}
    taken: list[JsonObject] = []
    fields: Any = {"name": "f", "description": "", "parameters": {"properties": properties, "required": required}}
    function = host_function(fields, lambda name, arguments: taken.append(arguments))

    function(**dict.fromkeys(given_names, 1))

    assert taken == [dict.fromkeys(given_names, 1)]


@pytest.mark.parametrize("name", ["", "1a", "a-b", "class", "a b", "a.b"])
def test_a_function_needs_a_name_of_python(name: str) -> None:
    with pytest.raises(SandboxRequestError, match="not a valid Python identifier"):
        HostFunction(name=name)


@pytest.mark.parametrize("parameters", [{"properties": []}, {"required": "query"}])
def test_a_function_needs_parameters_of_an_object(parameters: JsonObject) -> None:
    with pytest.raises(SandboxRequestError, match="JSON schema of an object"):
        HostFunction(name="f", parameters=parameters)


def test_the_functions_of_a_session_are_bounded_and_have_different_names() -> None:
    check_functions([HostFunction(name=f"f{number}") for number in range(MAX_FUNCTIONS)])

    with pytest.raises(SandboxRequestError, match="at most 64 host functions"):
        check_functions([HostFunction(name=f"f{number}") for number in range(MAX_FUNCTIONS + 1)])
    with pytest.raises(SandboxRequestError, match="two host functions have the name search"):
        check_functions([SEARCH, SUBMIT, SEARCH])
    with pytest.raises(SandboxRequestError, match="at most 262144 are allowed"):
        check_functions([HostFunction(name="f", description="x" * 262144)])


@pytest.mark.parametrize("limits", [{"max_calls": 0}, {"reply_seconds": 0.0}, {"reply_seconds": float("inf")}])
def test_limits_of_calls_are_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(SandboxRequestError, match="limits of calls"):
        CallLimits(**limits)


@needs_sandbox
def test_a_cell_calls_functions_by_place_and_by_name_and_finds_signature_and_docstring() -> None:
    host = Host()

    async def body(session: Session) -> None:
        code = "import inspect\nprint(inspect.signature(search), search.__name__)\nprint(search.__doc__)\nhelp(submit)"
        shown = await session.run(code)
        assert shown.stdout.startswith("(query: str, k: int = 3) search\nSearch the documents.\n\nArgs:\n    k: Number")
        assert shown.stdout.endswith("submit(answer)\n    Give the answer.\n\n")
        assert (await session.run("search('a')", answer_call=host)).value == "['search', {'query': 'a'}]"
        result = await session.run("[search('b', 1), search(k=2, query='c'), submit(None)][1:]", answer_call=host)
        assert result.value == "[['search', {'query': 'c', 'k': 2}], ['submit', {'answer': None}]]"

    in_notebook(body)
    assert host.calls == [
        ("search", {"query": "a"}),
        ("search", {"query": "b", "k": 1}),
        ("search", {"k": 2, "query": "c"}),
        ("submit", {"answer": None}),
    ]


VALUES: list[Json] = [
    *(None, True, False, 0, -(2**63), 2**70, 0.1, 1e300, "", "ü\u20ac\U0001f600\n\0", [], {}),
    *({"a": [1, {"b": [None]}], "": 2}, "x" * 100_000, [[[[[]]]]]),
]


@needs_sandbox
def test_every_json_value_arrives_and_comes_back_as_it_was() -> None:
    host = Host(lambda name, arguments: HostReply(value=arguments["answer"]))

    async def body(session: Session) -> None:
        for value in VALUES:
            result = await session.run(f"value = {value!r}\nsubmit(value) == value", answer_call=host)
            assert result.value == "True", result.error

    in_notebook(body)
    assert [arguments["answer"] for _, arguments in host.calls] == VALUES


MISTAKES = {
    "search()": "TypeError: search() missing a required argument: 'query'; its signature is search(query: str, k",
    "search('a', 1, 2)": "TypeError: search() too many positional arguments; its signature is ",
    "search('a', page=2)": "TypeError: search() got an unexpected keyword argument 'page'; its signature is ",
    "search({1, 2})": "TypeError: the arguments of search() must be JSON values: Object of type set is not JSON",
    "search('a', float('nan'))": "TypeError: the arguments of search() must be JSON values: Out of range float values",
    "search('x' * 2**20)": "ValueError: the arguments of search() are 1048589 bytes of JSON, more than 1048576",
    "a = []\na.append(a)\nsearch(a)": "TypeError: the arguments of search() must be JSON values: Circular reference",
    "search('too large')": "RuntimeError: the result of search() has 1048579 bytes as JSON; at most 1048576 can",
    "search('wrong')": "RuntimeError: there is nothing about that",
    "search('\\ud800')": "RuntimeError: lone",
}


def reply_of(name: str, arguments: JsonObject) -> HostReply:
    texts = {"wrong": HostReply(error="there is nothing about that"), "\ud800": HostReply(error="lone")}
    return texts.get(str(arguments["query"]), HostReply(value="x" * (MAX_CALL_BYTES + 1)))


@needs_sandbox
@pytest.mark.parametrize("code", MISTAKES)
def test_what_the_policy_got_wrong_is_an_exception_in_the_cell(code: str) -> None:
    async def body(session: Session) -> None:
        result = await session.run(code, answer_call=Host(reply_of))
        assert (result.status, session.epoch) == (Status.ERROR, 1)
        assert last_line(result).startswith(MISTAKES[code])
        assert "verl_pivot" not in (result.error or "")  # the traceback has only the cell's frames
        caught = "try:\n    search('wrong')\nexcept Exception as error:\n    print(error)\n7"
        result = await session.run(caught, answer_call=Host(reply_of))
        assert (result.stdout, result.value) == ("there is nothing about that\n", "7")

    in_notebook(body)


@needs_sandbox
def test_a_megabyte_each_way_goes_through() -> None:
    async def body(session: Session) -> None:
        num_characters = MAX_CALL_BYTES - len('{"answer": ""}')
        code = f"text = 'x' * {num_characters}\nsubmit(text) == text"
        host = Host(lambda name, arguments: HostReply(value=arguments["answer"]))
        assert (await session.run(code, answer_call=host)).value == "True"

    in_notebook(body)


@needs_sandbox
def test_a_cell_without_anyone_who_answers_can_make_no_call() -> None:
    async def body(session: Session) -> None:
        result = await session.run("search('a')")
        assert (
            last_line(result)
            == "RuntimeError: search() cannot be called: this cell was run without a handler for function calls"
        )
        assert (await session.run("search('a')", answer_call=Host())).status == Status.OK

    in_notebook(body)


@needs_sandbox
def test_waiting_for_a_reply_counts_as_no_time_of_the_cell() -> None:
    async def body(session: Session) -> None:
        code = "import time\nfor _ in range(3):\n    search('a')\n    time.sleep(0.05)"
        began = time.monotonic()
        result = await session.run(code, wall_seconds=0.6, answer_call=Host(seconds=0.5))
        assert result.status == Status.OK
        assert 0.15 <= result.timing.wall_seconds < 0.6
        assert time.monotonic() - began > 1.5
        late = await session.run("search('a')\ntime.sleep(5)", wall_seconds=0.6, answer_call=Host(seconds=0.5))
        assert late.status == Status.TIMEOUT

    in_notebook(body)


@needs_sandbox
def test_waiting_for_a_reply_moves_the_deadline_of_the_call() -> None:
    async def body(session: Session) -> None:
        result = await session.run("search('a')", deadline_seconds=2.0, answer_call=Host(seconds=3.0))
        assert result.status == Status.OK

    in_notebook(body)


@needs_sandbox
def test_a_fresh_interpreter_a_branch_and_a_terminal_have_the_functions() -> None:
    async def body(session: Session) -> None:
        lost = await session.run("import os\nos._exit(3)", answer_call=Host())
        assert (lost.status, session.epoch) == (Status.SESSION_KILLED, 2)
        assert (await session.run("search('a')[0]", answer_call=Host())).value == "'search'"
        async with await session.fork() as branch:
            assert (await branch.run("search('b')[1]", answer_call=Host())).value == "{'query': 'b'}"
            async with await branch.fork() as second:
                assert (await second.run("submit(1)", answer_call=Host())).value == "['submit', {'answer': 1}]"
        assert (await session.run("search('c')[1]", answer_call=Host())).value == "{'query': 'c'}"

    in_notebook(body)

    async def shown(session: Session) -> None:
        assert (await session.run("print(search('a')[0])", answer_call=Host())).stdout == "search\r\n"

    in_notebook(shown, terminal=Terminal())


@needs_sandbox
def test_a_snapshot_leaves_the_functions_to_the_next_session() -> None:
    async def main() -> None:
        async with service().client() as sandbox:
            async with await sandbox.open(limits=LIMITS, functions=[SEARCH]) as session:
                await session.run("x = 5\nfound = search('a')", answer_call=Host())
                snapshot = await session.snapshot()
            assert snapshot.lost == ()
            async with await sandbox.open(limits=LIMITS, functions=[SEARCH], snapshot=snapshot.content) as session:
                result = await session.run("x, found[0], search('b')[1]", answer_call=Host())
                assert result.value == "(5, 'search', {'query': 'b'})"

    asyncio.run(main())


@needs_sandbox
def test_a_session_opens_without_functions_too_and_knows_no_names() -> None:
    async def body(session: Session) -> None:
        result = await session.run("search('a')", answer_call=Host())
        assert last_line(result) == "NameError: name 'search' is not defined"

    in_notebook(body, functions=())


@needs_sandbox
def test_a_backend_without_sessions_says_so() -> None:
    async def main() -> None:
        async with service(Kind.BWRAP_EXEC).client() as sandbox:
            with pytest.raises(SandboxRequestError, match="does not support sessions: use the backend zygote"):
                await sandbox.open(functions=[SEARCH])

    asyncio.run(main())


class BrokenIndexError(OSError):
    pass


@needs_sandbox
@pytest.mark.parametrize("error", [BrokenIndexError("no index"), TimeoutError("of the index"), ValueError("no")])
def test_a_function_that_raises_ends_the_cell_and_is_raised_by_run(error: Exception) -> None:
    async def fails(name: str, arguments: JsonObject) -> HostReply:
        raise error

    async def body(session: Session) -> None:
        with pytest.raises(type(error)) as raised:
            await session.run("try:\n    search('a')\nfinally:\n    open('after', 'w')", answer_call=fails)
        assert raised.value is error

    in_notebook(body)


@needs_sandbox
def test_a_reply_that_is_no_json_is_the_hosts_mistake() -> None:
    async def body(session: Session) -> None:
        with pytest.raises(ValueError, match="Object of type set"):
            await session.run("search('a')", answer_call=Host(lambda *_: HostReply(value={1})))  # type: ignore[arg-type]

    in_notebook(body)


@needs_sandbox
def test_a_function_that_hangs_is_given_up_after_the_time_for_a_reply() -> None:
    was_cancelled = []

    async def hangs(name: str, arguments: JsonObject) -> HostReply:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.append(name)
            raise
        raise AssertionError

    async def body(session: Session) -> None:
        began = time.monotonic()
        with pytest.raises(SandboxError, match=r"function search of the host gave no reply within 0\.3 s"):
            await session.run("search('a')", answer_call=hangs, call_limits=CallLimits(reply_seconds=0.3))
        assert time.monotonic() - began < 5.0

    in_notebook(body)
    assert was_cancelled == ["search"]


@needs_sandbox
def test_a_caller_that_waits_no_more_ends_the_function_and_the_cell() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits(name: str, arguments: JsonObject) -> HostReply:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def body(session: Session) -> None:
        running = asyncio.create_task(session.run("search('a')", answer_call=waits))
        await began.wait()
        running.cancel()
        await asyncio.wait_for(ended.wait(), 5.0)

    in_notebook(body)


@needs_sandbox
def test_files_go_with_a_cell_that_calls_and_one_that_is_too_large_is_refused() -> None:
    async def body(session: Session) -> None:
        result = await session.run(
            "len(search(open('in').read())[1]['query'])",
            files={"in": b"a" * 100_000},
            fetch=("in",),
            answer_call=Host(),
        )
        assert result.value == "100000"
        assert result.files == {"in": b"a" * 100_000}
        with pytest.raises(SandboxRequestError, match="pass data by write_file"):
            await session.run("search('a')", files={"in": bytes(3 * MIB)}, answer_call=Host())
        await session.write_file("in", b"small")
        assert (await session.run("search(open('in').read())[1]", answer_call=Host())).value == "{'query': 'small'}"

    in_notebook(body)
