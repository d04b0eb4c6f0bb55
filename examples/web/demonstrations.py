"""Demonstrations of the agent on seen tasks, recorded once for all seeds, and workflows induced from some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.quickstart.run import run
from examples.web.agent import CARELESS, WebHabits
from examples.web.episodes import recorded
from examples.web.rows import episodes_of
from examples.web.tasks import SEEN
from verl_pivot.data.files import replacing
from verl_pivot.data.prompts import prompt_id
from verl_pivot.data.rollout_dumps import DumpedOutcome, encode_line, encode_prompt, encode_transcript
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, StopReason
from verl_pivot.types import JsonObject, Role, Trajectory

_NUM_OF_WORKFLOWS, _NUM_CAREFUL, _NUM_CARELESS = 8, 96, 64
"""Numbers of seeds for each task."""
_FIRST_OF_WORKFLOWS, _FIRST_CAREFUL, _FIRST_CARELESS = 1_000_000, 2_000_000, 3_000_000
PER_TEMPLATE = 16
"""Most workflows with the same order of tools; all tasks of a single click have the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Recorded episodes of the agent, and the workflows from some of them."""

    of_workflows: Sequence[Trajectory]
    careful: Sequence[Trajectory]
    careless: Sequence[Trajectory]
    workflows: Path
    """File that `verl-pivot workflows induce` made from `of_workflows`, whose seeds are used nowhere else."""


def make_demonstrations(folder: Path) -> Demonstrations:
    """Record the demonstrations in the real browser, unless they are there already."""
    folder = folder.resolve()
    of_workflows, careful, careless = (
        recorded(folder / name, episodes_of(SEEN, first, number), habits)
        for name, first, number, habits in (
            ("workflows", _FIRST_OF_WORKFLOWS, _NUM_OF_WORKFLOWS, WebHabits()),
            ("careful", _FIRST_CAREFUL, _NUM_CAREFUL, WebHabits()),
            ("careless", _FIRST_CARELESS, _NUM_CARELESS, CARELESS),
        )
    )
    workflows = folder / "workflows.jsonl"
    if not workflows.is_file():
        dump = folder / "workflows" / "dump.jsonl"
        write_dump(dump, of_workflows)
        run("workflows", "induce", dump, "--out", workflows, "--per-template", str(PER_TEMPLATE))
    return Demonstrations(of_workflows=of_workflows, careful=careful, careless=careless, workflows=workflows)


def goal_of(trajectory: Trajectory) -> str:
    """The sentence of the trajectory's task, which says what to do."""
    return str(trajectory.metadata["sentence"])


def write_dump(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write recorded episodes as a dump of rollouts, which `verl-pivot workflows induce` reads."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(b"".join(_line(each) for each in trajectories))


def _line(trajectory: Trajectory) -> bytes:
    prompt: list[JsonObject] = [{"role": Role.USER.value, "content": goal_of(trajectory)}]
    calls = [
        CallRecord(turn=turn, name=call.name, arguments=call.arguments, status=CallStatus.OK)
        for turn, said in enumerate(each for each in trajectory.messages if each.role is Role.ASSISTANT)
        for call in said.tool_calls
    ]
    record = RolloutRecord(
        prompt_id=prompt_id(prompt),
        stop_reason=StopReason.ENVIRONMENT_TERMINATED,
        calls=tuple(calls),
        turn_tokens=tuple(0 for _ in calls),
        prompt_tokens=0,
        response_tokens=0,
        generate_seconds=0.0,
        tool_seconds=0.0,
    )
    uid = f"{trajectory.id.replace(' ', '-')}_0_0"
    outcome = DumpedOutcome(uid=uid, step=0, score=1.0 if trajectory.passed else -1.0, is_kept=True)
    return encode_line(outcome, encode_transcript({}, record, ()), encode_prompt(prompt))
