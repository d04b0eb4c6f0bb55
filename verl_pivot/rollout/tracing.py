"""Spans of verl's trace backends (`actor_rollout_ref.rollout.trace`) for rollouts, turns and tool calls."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, TypeVar

from verl.utils import rollout_trace
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.types import Malformed, ToolCall

ResultT = TypeVar("ResultT")

_MAX_STEPS = 16
"""Most training steps whose rollouts may run at the same time."""
_chosen_prompts: dict[Any, set[Any]] = defaultdict(set)
"""{step: uids of the prompts whose rollouts this process traces}"""


async def traced_rollout(row: Mapping[str, Any], work: Awaitable[ResultT], shown: Callable[[ResultT], Any]) -> ResultT:
    """Await one rollout, in a span of its own if the user chose a backend and the rollout is traced.

    Args:
        row: Columns that verl hands to an agent loop.
        work: The rollout, whose turns and tool calls are spans below its own.
        shown: Its result -> the value that the span shows as its output.
    """
    with _tracing(row):
        return await in_span("rollout", {"prompt": list(row["raw_prompt"])}, work, shown)


@contextmanager
def _tracing(row: Mapping[str, Any]) -> Iterator[None]:
    """Turn tracing on for one rollout; verl 0.9.1 turns it off around rollouts."""
    if RolloutTraceConfig.get_backend() is None or rollout_trace._trace_enabled.get() or not _is_chosen(row):
        yield
        return
    token = rollout_trace._trace_enabled.set(True)
    try:
        with rollout_trace_attr(
            sample_index=row.get("index"),
            step=row.get("global_steps"),
            rollout_n=row.get("session_id"),
            name="agent_loop",
        ):
            yield
    finally:
        rollout_trace._trace_enabled.reset(token)


def _is_chosen(row: Mapping[str, Any]) -> bool:
    """Whether the rollout's prompt is among the `max_samples_per_step_per_worker` first ones of its step."""
    limit = RolloutTraceConfig.get_instance().max_samples_per_step_per_worker
    if limit is None:
        return True
    step, uid = row.get("global_steps"), row.get("uid")
    chosen = _chosen_prompts[step]
    if len(_chosen_prompts) > _MAX_STEPS:
        del _chosen_prompts[next(iter(_chosen_prompts))]
    if len(chosen) < limit:
        chosen.add(uid)
    return uid in chosen


def is_traced() -> bool:
    """Whether the rollout that runs now is traced."""
    return RolloutTraceConfig.get_backend() is not None and rollout_trace._trace_enabled.get()


async def in_span(
    name: str, inputs: Mapping[str, Any], work: Awaitable[ResultT], shown: Callable[[ResultT], Any]
) -> ResultT:
    """Await `work` in a span of the backend, if the rollout is traced.

    Args:
        name: Name of the span.
        inputs: Values that the span shows as its inputs.
        work: Part of the rollout.
        shown: Its result -> the value that the span shows as its output.
    """
    if not is_traced():
        return await work
    results: list[ResultT] = []

    async def run(self: None, inputs: Mapping[str, Any]) -> Any:
        results.append(await work)
        return shown(results[0])

    run.__qualname__ = name  # verl names spans after functions
    await rollout_trace_op(run)(None, inputs)
    return results[0]


class TracedToolbox(Toolbox):
    """A toolbox with a span for each call."""

    @classmethod
    def of(cls, toolbox: Toolbox) -> "TracedToolbox":
        return cls(**{field.name: getattr(toolbox, field.name) for field in fields(toolbox)})

    async def run_one(self, call: ToolCall | Malformed, number: int) -> CallOutcome:
        name = f"tool {call.name}" if isinstance(call, ToolCall) else "tool (unreadable call)"
        return await in_span(name, asdict(call), super().run_one(call, number), _shown_outcome)


def _shown_outcome(outcome: CallOutcome) -> dict[str, Any]:
    observation = outcome.observation
    return {
        "observation": None if observation is None else observation.text,
        "error": None if observation is None else observation.error,
        "failure": outcome.failure,
    }
