"""Arenas from a program that plays all roles: rows that are kept and played, and tools that go wrong in many ways."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.arena_writer import answer, answering, draft_with_graph, make_graph, make_tool
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.support.workshops import workshop
from verl_pivot.configuration import configs_dir
from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.nodes import URLS_VARIABLE
from verl_pivot.sandbox.pool_settings import POOL_VARIABLE
from verl_pivot.synthesis.arena_tools import ArenaToolsOptions, ArenaToolsStep, WrittenTool, call_problem, other_value
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import SynthesisReport
from verl_pivot.synthesis.question_graph import QuestionGraph
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, WriterQuestion
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import JsonObject, ToolCall, Verdict


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("skipif") is not None:  # needs_sandbox
        use_service(monkeypatch)


def synthesized(folder: Path) -> SynthesisReport:
    job = SynthesisJob(
        recipe=read_recipe("arenas", {"numbers.num": 1, "question_graph.max_hops": 3}),
        inputs=Inputs(),
        writers={"writer": ProgramWriter("tests.support.arena_writer:answer")},
        out=folder / "out",
        identity={},
        limits=BudgetLimits(),
        retries=Retries(num_attempts=1),
        concurrency=2,
    )
    return run_synthesis(job, lambda count: None)


async def played(row: JsonObject, *calls: tuple[str, JsonObject]) -> tuple[list[str], Verdict | None]:
    """Results of calls in the arena of a row, and its verdict."""
    async with load_toolset(str(configs_dir() / "tools" / "arena.yaml")).open(row) as tools:
        outcomes = await tools.toolbox.run([ToolCall(name=name, arguments=arguments) for name, arguments in calls])
        return [each.observation.text for each in outcomes if each.observation], await tools.score(None)


@needs_sandbox
def test_a_request_whose_tools_work_becomes_a_row_that_pays_for_solved_questions(tmp_path: Path) -> None:
    report = synthesized(tmp_path)

    assert (report.num_drafts, report.num_tasks, report.rejected) == (1, 1, {})
    # Five checks, by three judges in two orders: of two questions that depend on others, and three of the whole graph.
    assert report.asked["graph_checks"]["num_calls"] == 5 * 3 * 2
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "tasks.parquet").to_pylist()
    assert row["prompt"] == [{"role": "user", "content": make_graph()["request"]}]
    right: tuple[tuple[str, JsonObject], ...] = (
        ("city_of", {"flight": "KL1234"}),
        ("mayor_of", {"city": "Oslo"}),
        ("birth_year", {"person": "Anne Lindboe"}),
    )
    results, verdict = asyncio.run(played(row, *right))
    assert results == ["Oslo", "Anne Lindboe", "1971"]
    assert verdict == Verdict(score=1.0, reason="accepted", detail="3 of 3 questions solved in 3 calls")
    results, verdict = asyncio.run(played(row, ("city_of", {"flight": "KL1"}), *right[:2], right[0]))
    assert results[0] == "Tool call failure\nreason: error, city_of: no such flight"
    # Precision 2/4 and recall 2/3: 2 * 1/2 * 2/3 / (1/2 + 2/3) = 4/7.
    assert verdict is not None
    assert verdict.score == pytest.approx(4 / 7)
    assert verdict.reason == "partial"


def problem_of(taken: list[str] | None = None, **changes: Any) -> str:
    """Reason for which the second tool of the graph is refused before it runs; "" if it is not."""
    graph = QuestionGraph.model_validate(make_graph())
    written = WrittenTool.model_validate(make_tool("mayor_of", "Oslo", **changes))
    problem = call_problem(written, graph.questions[1], graph, taken or [])
    return "" if problem is None else problem.reason


def test_a_call_needs_values_that_the_policy_can_know_and_one_of_each_earlier_answer() -> None:
    flight = {"type": "object", "properties": {"flight": {"type": "string"}}}
    told = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}

    assert problem_of() == ""
    assert problem_of(["mayor_of"]) == "name_taken"
    assert problem_of(arguments={}) == "bad_arguments"
    assert problem_of(arguments={"city": 3}) == "bad_arguments"
    assert problem_of(arguments={"city": "Oslo", "key": "db_17"}) == "invented_value"
    assert problem_of(parameters=flight, arguments={"flight": "KL1234"}) == "dependency_unused"
    assert problem_of(parameters=told) == "dependency_unused"
    assert problem_of(description="<|im_end|>") == "markers_in_tool"
    for broken, message in (({"properties": 3}, "are not a JSON schema"), ({"title": "\ud800"}, "no JSON form")):
        with pytest.raises(BadRowError, match=message):
            problem_of(parameters={"type": "object", **broken})


def test_a_schema_that_could_take_any_time_outside_of_the_sandbox_is_refused() -> None:
    slow = {"type": "object", "properties": {"city": {"type": "string", "pattern": "(a+)+$"}}}
    twice = {"type": "object", "allOf": [{"$ref": "#"}, {"$ref": "#"}]}

    assert problem_of(parameters=slow) == problem_of(parameters=twice) == "unbounded_schema"


def test_other_values_differ_in_every_leaf() -> None:
    value: JsonObject = {"city": "Oslo", "days": [1, -1, 0.5, -0.5], "round": True, "via": None}

    assert other_value(value, "w") == {"city": "w", "days": [-2, 0, -1.5, 0.5], "round": False, "via": "w"}


MAYOR = "def mayor_of(city):\n"
BROKEN = {
    "hangs": (f"{MAYOR}    while True:\n        pass\n", "time_limit"),
    "hangs at others": (f"{MAYOR}    while city != 'Oslo':\n        pass\n    return 'Anne Lindboe'\n", "time_limit"),
    "forks": (f"import os\n{MAYOR}    while True:\n        os.fork()\n", "runtime_error"),
    "connects": (
        f"import socket\n{MAYOR}    socket.create_connection(('127.0.0.1', 80), timeout=2)\n",
        "runtime_error",
    ),
    "prints": (f"{MAYOR}    print('Anne Lindboe')\n", "other_answer"),
    "leaves": (f"import os\n{MAYOR}    print('Anne Lindboe', flush=True)\n    os._exit(0)\n", "no_result"),
    "ignores": (f"{MAYOR}    return 'Anne Lindboe'\n", "answer_of_other_arguments"),
    "draws": (f"import random\n{MAYOR}    return random.random()\n", "other_answer"),
    "returns a set": (f"{MAYOR}    return {{city}}\n", "runtime_error"),
    "returns half a letter": (f"{MAYOR}    return chr(0xd800)\n", "no_result"),
    "returns 10 MB": (f"{MAYOR}    return 'x' * 10_000_000\n", "no_result"),
    "refuses": (f"{MAYOR}    raise ValueError('no')\n", "call_refused"),
    "has another name": ("def other(city):\n    return 'Anne Lindboe'\n", "runtime_error"),
    "is no Python": ("def mayor_of(city)", "runtime_error"),
}
"""{what the code of a tool does: the code, and the reason for which it is refused}"""


async def made(code: str) -> Draft:
    """The draft of a graph whose second tool has this code."""
    tool = make_tool("mayor_of", "Oslo", code=code)
    own = workshop(answering({"Who is the mayor of Oslo?\nThe call returns": tool}))
    (draft,) = await ArenaToolsStep(ArenaToolsOptions(attempts=1))(draft_with_graph(), own)
    return draft


@needs_sandbox
@pytest.mark.parametrize("what", BROKEN)
async def test_code_that_is_no_tool_ends_as_a_reason(what: str) -> None:
    code, reason = BROKEN[what]
    with pytest.raises(BadRowError, match="question 2: ") as raised:
        await made(code)

    assert raised.value.reason == reason


async def test_a_sandbox_that_cannot_run_tools_ends_the_run_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(URLS_VARIABLE, raising=False)
    monkeypatch.setenv(POOL_VARIABLE, "{protocol: code_judge, urls: ['http://127.0.0.1:9']}")

    with pytest.raises(SandboxRequestError, match="it supports no files"):
        await ArenaToolsStep(ArenaToolsOptions()).prepare(workshop())


@needs_sandbox
async def test_a_tool_is_drawn_again_until_one_works() -> None:
    asked: list[int] = []

    def respond(question: WriterQuestion) -> str:
        asked.append(question.seed)
        return "Sorry." if len(asked) == 1 else answer(question)

    (draft,) = await ArenaToolsStep(ArenaToolsOptions())(draft_with_graph(), workshop(respond))

    assert len(asked) == len({*asked}) == 4
    assert draft.task is not None
    metadata: Any = decode_json(str(draft.task["metadata"]))
    assert [tool["name"] for tool in metadata["arena"]] == ["city_of", "mayor_of", "birth_year"]
