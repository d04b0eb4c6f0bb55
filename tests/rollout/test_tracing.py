"""rollout.tracing: spans of verl's trace backends for rollouts, turns and tool calls, where the user has them on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr

from tests.support.scripted_engine import call, make_loop, row
from verl_pivot.rollout.tool_loop import ToolLoop

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
        """Name of the span, followed by those of its children."""
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
    """verl's trace configuration with the backend mlflow, which is the fake."""
    fake = FakeMlflow()
    monkeypatch.setitem(__import__("sys").modules, "mlflow", fake)
    RolloutTraceConfig.reset()
    config = RolloutTraceConfig.get_instance()
    config.backend, config.experiment_name, config._initialized = "mlflow", "tests", True
    yield fake
    RolloutTraceConfig.reset()


def two_turns(folder: Path) -> ToolLoop:
    tools = folder / "tools.yaml"
    tools.write_text(f"- function: {FUNCTIONS}:add\n")
    loop: ToolLoop = make_loop([call("add", a=2, b=3) + call("nothing"), "It is 5."], f"pivot.rollout.tools={tools}")
    return loop


async def run_as_verl_does(loop: ToolLoop, **columns: Any) -> None:
    """verl's default trainer turns tracing off around every agent loop."""
    with rollout_trace_attr(step=3, sample_index=7, rollout_n=0, trace=False):
        await loop.run({"temperature": 1.0}, **row(index=7, global_steps=3, session_id=0, **columns))


async def test_a_rollout_has_a_span_for_each_turn_and_each_tool_call(mlflow: FakeMlflow, tmp_path: Path) -> None:
    await run_as_verl_does(two_turns(tmp_path), uid="a")

    (rollout,) = mlflow.root.children
    assert rollout.names() == ["agent_loop", ["turn"], ["tool add"], ["tool nothing"], ["turn"]]
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
