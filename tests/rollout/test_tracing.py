"""rollout.tracing: spans of verl's trace backends for rollouts, turns and tool calls, where the user has them on."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr

from tests.support import notebook_loops
from tests.support.fake_notebook import open_fake_notebook
from tests.support.scripted_engine import call, loop_of, make_loop, pivot_config, row
from verl_pivot.data.rollout_records import IS_VALIDATION
from verl_pivot.rollout.pivot_turn import PivotTurnLoop
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.tools.workspace import Workspace

FUNCTIONS = "tests.support.tool_functions"


@dataclass
class Span:
    """One span, as the fake backend was told."""

    name: str
    inputs: Any = None
    outputs: Any = None
    children: "list[Span]" = field(default_factory=list)
    trace_id: str = "trace"

    def set_inputs(self, inputs: Any) -> None:
        self.inputs = inputs

    def set_outputs(self, outputs: Any) -> None:
        json.dumps(outputs)  # mlflow writes spans as JSON
        self.outputs = outputs

    def names(self) -> list[Any]:
        """Name of the span, followed by the names of its children."""
        return [self.name, *([each.names() for each in self.children])]


class FakeMlflow(ModuleType):
    """The functions of mlflow that verl's traces call."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.root = Span("root")
        self.tags: list[tuple[str, str]] = []
        self._open = [self.root]

    @contextmanager
    def start_span(self, name: str) -> Iterator[Span]:
        span = Span(name)
        self._open[-1].children.append(span)
        self._open.append(span)
        yield span
        self._open.pop()

    def set_trace_tag(self, trace_id: str, key: str, value: str) -> None:
        self.tags.append((key, value))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMlflow]:
    """The fake of mlflow, chosen as the backend in verl's trace configuration."""
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    RolloutTraceConfig.reset()
    config = RolloutTraceConfig.get_instance()
    config.backend, config.experiment_name, config._initialized = "mlflow", "tests", True
    yield fake
    RolloutTraceConfig.reset()


class FakeWeave:
    """The parts of weave that verl's traces call, with its client: the call that is open is the next one's parent."""

    def __init__(self) -> None:
        self.root = Span("root")
        self.attributes: ContextVar[dict[str, Any]] = ContextVar("attributes")
        self._open: ContextVar[tuple[Span, ...]] = ContextVar("open", default=(self.root,))

    def modules(self) -> dict[str, ModuleType]:
        names = ("weave", "weave.trace", "weave.trace.context", "weave.trace.context.call_context")
        modules = {name: ModuleType(name) for name in names}
        modules["weave"].attributes = self._with_attributes
        modules["weave.trace.context"].call_context = modules[names[-1]]
        modules[names[-1]].call_attributes = self.attributes
        return modules

    @contextmanager
    def _with_attributes(self, attributes: dict[str, Any]) -> Iterator[None]:
        token = self.attributes.set(attributes)
        yield
        self.attributes.reset(token)

    def create_call(self, op: str, inputs: Any, attributes: dict[str, Any]) -> Span:
        span = Span(op, inputs=inputs, trace_id=str(attributes["step"]))
        self._open.get()[-1].children.append(span)
        self._open.set((*self._open.get(), span))
        return span

    def finish_call(self, call: Span, output: Any = None, exception: Exception | None = None) -> None:
        call.outputs = output if exception is None else exception
        self._open.set(tuple(span for span in self._open.get() if span is not call))


@pytest.fixture
def weave(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeave]:
    """The fake of weave, chosen as the backend in verl's trace configuration."""
    fake = FakeWeave()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    RolloutTraceConfig.reset()
    config = RolloutTraceConfig.get_instance()
    config.backend, config.client, config.experiment_name, config._initialized = "weave", fake, "tests", True
    yield fake
    RolloutTraceConfig.reset()


def two_turns(folder: Path) -> ToolLoop:
    tools = folder / "tools.yaml"
    tools.write_text(f"- function: {FUNCTIONS}:add\n")
    loop: ToolLoop = make_loop([call("add", a=2, b=3) + call("nothing"), "It is 5."], f"pivot.rollout.tools={tools}")
    return loop


async def run_as_verl_does(loop: Any, **columns: Any) -> None:
    """Run an agent loop with tracing turned off around it, as verl's default trainer does."""
    with rollout_trace_attr(step=3, sample_index=7, rollout_n=0, trace=False):
        await loop.run({"temperature": 1.0}, **row(index=7, global_steps=3, session_id=0, **columns))


async def test_a_rollout_has_a_span_for_each_turn_and_each_tool_call(mlflow: FakeMlflow, tmp_path: Path) -> None:
    await run_as_verl_does(two_turns(tmp_path), uid="a")

    (agent_loop,) = mlflow.root.children
    assert agent_loop.names() == ["agent_loop", ["rollout", ["turn"], ["tool add"], ["tool nothing"], ["turn"]]]
    (rollout,) = agent_loop.children
    assert rollout.inputs["inputs"]["prompt"][-1]["role"] == "user"
    assert rollout.outputs.endswith("It is 5.<|im_end|>")
    first, add, unknown, last = rollout.children
    assert add.inputs == {"inputs": {"name": "add", "arguments": {"a": 2, "b": 3}, "id": None}}
    assert add.outputs == {"observation": "5", "error": None, "failure": ""}
    assert unknown.outputs["error"] == "unknown_tool"
    assert (first.inputs, last.outputs) == ({"inputs": {"index": 0}}, "It is 5.<|im_end|>")
    assert ("step", "3") in mlflow.tags
    assert ("sample_index", "7") in mlflow.tags


async def test_only_the_chosen_number_of_prompts_is_traced_in_a_step(mlflow: FakeMlflow, tmp_path: Path) -> None:
    RolloutTraceConfig.get_instance().max_samples_per_step_per_worker = 2

    for uid in ("a", "a", "b", "c", "a"):
        await run_as_verl_does(two_turns(tmp_path), uid=uid)

    assert [span.name for span in mlflow.root.children] == ["agent_loop"] * 4


async def test_without_a_backend_nothing_is_traced(mlflow: FakeMlflow, tmp_path: Path) -> None:
    RolloutTraceConfig.get_instance().backend = None

    await run_as_verl_does(two_turns(tmp_path), uid="a")

    assert mlflow.root.children == []


async def test_each_of_the_rollouts_that_run_at_once_is_a_trace_of_its_own_in_weave(
    weave: FakeWeave, tmp_path: Path
) -> None:
    await asyncio.gather(*(run_as_verl_does(two_turns(tmp_path), uid=uid) for uid in "ab"))

    tree = ["rollout", ["turn"], ["tool add"], ["tool nothing"], ["turn"]]
    assert [rollout.names() for rollout in weave.root.children] == [tree, tree]
    assert [rollout.trace_id for rollout in weave.root.children] == ["3", "3"]


async def test_a_single_turn_is_a_rollout_with_one_turn(weave: FakeWeave) -> None:
    loop = loop_of(PivotTurnLoop, pivot_config(), ["It is 5."])

    with rollout_trace_attr(step=3, sample_index=7, rollout_n=0, trace=False):
        await loop.run({"temperature": 1.0}, **row(global_steps=3, tools="[]"))

    (rollout,) = weave.root.children
    assert rollout.names() == ["rollout", ["turn"]]
    assert rollout.outputs == rollout.children[0].outputs == "It is 5.<|im_end|>"


async def test_a_step_in_a_notebook_has_spans_for_its_cell_and_the_calls_of_the_cell(
    mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Workspace, "open_session", open_fake_notebook)
    script = [notebook_loops.step("print(add(2))"), notebook_loops.step("submit_final_answer('5')")]

    await run_as_verl_does(notebook_loops.make_loop(script, tmp_path), uid="a", **{IS_VALIDATION: False})

    (agent_loop,) = mlflow.root.children
    (rollout,) = agent_loop.children
    assert rollout.names() == ["rollout", ["turn"], ["cell", ["tool add"]], ["turn"], ["cell"]]
    assert rollout.children[1].inputs == {"inputs": {"code": "print(add(2))"}}
    assert rollout.children[1].outputs == "3"
