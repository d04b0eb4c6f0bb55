"""WorkflowMemory: workflows that were found -> those that are kept, with a version that counts up (AWM, ECHO)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.rollout.workflows import Workflow, WorkflowTask, step_of

MAX_CHARACTERS = 8000
"""Characters of a workflow's text at most: a policy may fill in a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """What a memory keeps."""

    per_template: int = 2
    """Workflows of the same tools with the same arguments in the same order, within a site."""
    max_workflows: int = 500
    """Workflows in all; the oldest go first."""


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

    Agent Workflow Memory (arXiv:2409.07429) keeps some workflows of each template of actions. Of two for one goal the
    shorter stays, by the length of its text, as in ECHO (arXiv:2510.10304); of two as long, the one that was first.
    """

    workflows: tuple[Workflow, ...] = ()
    version: int = 0
    """Number of times that the workflows changed."""

    def with_found(self, found: Iterable[Workflow], rule: MemoryRule) -> "WorkflowMemory":
        """The memory after these workflows, in their order; itself if they change nothing."""
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
            kept[workflow.key] = workflow
        workflows = tuple(kept.values())[-rule.max_workflows :]
        if workflows == self.workflows:
            return self
        return WorkflowMemory(workflows=workflows, version=self.version + 1)


def workflow_by_rule(rollout: SucceededRollout) -> Workflow | None:
    """The calls of a trajectory that succeeded, as they were; None if there is none, or no goal, or nothing to keep.

    Calls that the policy got wrong are left out, and so is a call that repeats the one before. As in AWM's rule nothing
    is made a variable. What is too long for a prompt, or no JSON can hold, is not kept.
    """
    try:
        steps = [
            step_of(call.name, call.arguments)
            for call in rollout.calls
            if call.status is CallStatus.OK and call.name and call.arguments is not None
        ]
    except ValueError:  # of one whose values the policy made up so that they cannot be kept
        return None
    different = [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]
    if not different or not rollout.task.goal.strip():
        return None
    goal = rollout.task.goal.encode(errors="replace").decode()
    site = rollout.task.site.encode(errors="replace").decode()
    workflow = Workflow(goal=goal, steps=tuple(different), site=site, source=rollout.source)
    return workflow if len(workflow.text) <= MAX_CHARACTERS else None


def workflows_by_rule(rollouts: Iterable[SucceededRollout]) -> list[Workflow]:
    """Workflows of trajectories, the shortest first, so that their order says nothing about which end first."""
    found = [workflow for rollout in rollouts if (workflow := workflow_by_rule(rollout)) is not None]
    return sorted(found, key=lambda each: (len(each.text), each.text, each.site, each.source))
