"""WorkflowMemory: workflows that were found -> the workflows that are kept, with a version number (AWM, ECHO)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.rollout.workflows import Workflow, WorkflowTask, step_of

MAX_CHARACTERS = 8000
"""Most characters of a workflow's text, since a policy may fill in a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """How many workflows a memory keeps."""

    per_template: int = 2
    """Most workflows of one site with the same tools and names of arguments in the same order."""
    max_workflows: int = 500
    """Most workflows in total; the oldest are dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SucceededRollout:
    """A trajectory that reached its goal."""

    task: WorkflowTask
    calls: Sequence[CallRecord]
    source: str
    """Name of the trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowMemory:
    """Workflows of one version.

    Agent Workflow Memory (arXiv:2409.07429) keeps some workflows of each template of actions. Of two workflows for the
    same goal, the one with the shorter text stays, as in ECHO (arXiv:2510.10304); of equally long ones, the earlier.
    """

    workflows: tuple[Workflow, ...] = ()
    version: int = 0
    """Number of times that the workflows changed."""

    def with_found(self, found: Iterable[Workflow], rule: MemoryRule) -> "WorkflowMemory":
        """The memory after these workflows are added in order; the same object if they change nothing."""
        kept = {each.key: each for each in self.workflows}
        counts = Counter((each.site, each.template) for each in self.workflows)
        for workflow in found:
            place = (workflow.site, workflow.template)
            other = kept.get(workflow.key)
            if other is not None:
                if len(workflow.text) >= len(other.text):
                    continue
                counts[other.site, other.template] -= 1
            if counts[place] >= rule.per_template:
                if other is not None:
                    counts[other.site, other.template] += 1
                continue
            counts[place] += 1
            kept.pop(workflow.key, None)  # else the new one would stand at the old one's place, among the oldest
            kept[workflow.key] = workflow
        workflows = tuple(kept.values())[-rule.max_workflows :]
        if workflows == self.workflows:
            return self
        return WorkflowMemory(workflows=workflows, version=self.version + 1)


def latest_workflows(workflows: Sequence[Workflow], steps: Mapping[str, int], number: int) -> list[Workflow]:
    """The workflows of the latest steps, in the order of their steps; those of one step stay in the given order.

    Args:
        workflows: Workflows, of which the first ones of a step are kept.
        steps: {source of a workflow: training step of that trajectory}
        number: Most workflows that are kept.
    """
    latest_first = sorted(workflows, key=lambda each: steps[each.source], reverse=True)
    return sorted(latest_first[:number], key=lambda each: steps[each.source])


def workflow_by_rule(rollout: SucceededRollout) -> Workflow | None:
    """The calls of a trajectory that succeeded, as a workflow; None if it has no goal, or nothing that can be kept.

    Failed calls, and calls that repeat the previous one, are left out. As in AWM's rule, no value becomes a variable. A
    workflow that is too long for a prompt, or that JSON cannot hold, is not kept.
    """
    try:
        steps = [
            step_of(call.name, call.arguments)
            for call in rollout.calls
            if call.status is CallStatus.OK and call.name and call.arguments is not None
        ]
    except ValueError:  # the policy made up values that cannot be stored
        return None
    different = [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]
    if not different or not rollout.task.goal.strip():
        return None
    goal = rollout.task.goal.encode(errors="replace").decode()
    site = rollout.task.site.encode(errors="replace").decode()
    workflow = Workflow(goal=goal, steps=tuple(different), site=site, source=rollout.source)
    return workflow if len(workflow.text) <= MAX_CHARACTERS else None


def workflows_by_rule(rollouts: Iterable[SucceededRollout]) -> list[Workflow]:
    """Workflows of trajectories, the shortest first, so that the order does not depend on which one ends first."""
    found = [workflow for rollout in rollouts if (workflow := workflow_by_rule(rollout)) is not None]
    return sorted(found, key=lambda each: (len(each.text), each.text, each.site, each.source))
