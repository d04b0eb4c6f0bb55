"""Survey, Lengths, Trial and speeds -> Plan: the commands, pivots and GPU hours to expect, and problems."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verl_pivot.engines.model_facts import ModelFacts
from verl_pivot.planning.estimates import (
    EngineSpeed,
    GpuHours,
    ProfileSize,
    TrainingSize,
    profile_hours,
    training_hours,
)
from verl_pivot.planning.expectation import ExpectedCount, expect_pivots
from verl_pivot.planning.lengths import Lengths, MeasuredTurns
from verl_pivot.planning.plan_commands import (
    PlanRequest,
    TrainingShape,
    import_words,
    launch_words,
    profile_words,
    select_words,
    shape_of,
    typed,
)
from verl_pivot.planning.problems import PlanProblem
from verl_pivot.planning.survey import Survey
from verl_pivot.planning.trial import Trial
from verl_pivot.types import JsonObject

VALIDATION_SHARE = 0.1
"""Share of the pivots that `select` puts into the validation split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFindings:
    """Everything that was found out about the trajectories and the policy."""

    request: PlanRequest
    facts: ModelFacts
    survey: Survey
    measured: MeasuredTurns
    lengths: Lengths
    trial: Trial
    speed: EngineSpeed | None
    """Speed of one GPU; None if neither a speed nor the size of the model is known."""
    num_profiled: int
    """Turns that the profile holds."""
    num_train: int | None = None
    """Pivots in the training split; None if they are not selected yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `verl-pivot plan` prints."""

    findings: PlanFindings
    pivots: ExpectedCount
    shape: TrainingShape
    profile: GpuHours
    training: GpuHours
    problems: tuple[PlanProblem, ...]

    @property
    def commands(self) -> dict[str, list[str]]:
        """{stage: words of its command}, without import for a file that is imported already."""
        request, lengths = self.findings.request, self.findings.lengths
        imported = {} if request.is_imported else {"import": import_words(request)}
        return {
            **imported,
            "profile": profile_words(request, lengths),
            "select": select_words(request, lengths),
            "launch": launch_words(request, lengths, self.shape),
        }

    @property
    def is_fatal(self) -> bool:
        return any(problem.is_fatal for problem in self.problems)

    def as_dict(self) -> JsonObject:
        """The plan as JSON."""
        found = self.findings
        survey = {name: getattr(found.survey, name) for name in _SURVEY_NUMBERS}
        report = found.trial.report
        return {
            "commands": {name: typed(words) for name, words in self.commands.items()},
            "trajectories": survey,
            "lengths": asdict(found.lengths),
            "model": found.facts._asdict(),
            "trial": {
                "num_trajectories": len(found.trial.clusters),
                "num_turns": report.num_candidates,
                "num_by_decision": {decision.value: count for decision, count in report.num_by_decision.items()},
                "num_samples": found.trial.samples.num_samples,
                "num_tokens": found.trial.samples.num_tokens,
                "num_truncated": found.trial.samples.num_truncated,
            },
            "pivots": self.pivots._asdict(),
            "gpu_hours": {
                "speed": None if found.speed is None else found.speed.source,
                "profile": self.profile._asdict(),
                "training": self.training._asdict(),
            },
            "problems": [problem._asdict() for problem in self.problems],
        }


_SURVEY_NUMBERS = ("num_trajectories", "num_turns", "num_message_turns", "num_without_schemas")


def make_plan(found: PlanFindings, problems: Sequence[PlanProblem]) -> Plan:
    """Estimates and commands for what was found."""
    survey, request = found.survey, found.request
    pivots = expect_pivots(found.trial.clusters, num_trajectories=survey.num_trajectories, num_turns=survey.num_turns)
    expected_train = round(pivots.expected * (1.0 - VALIDATION_SHARE))
    shape = shape_of(
        expected_train if found.num_train is None else found.num_train,
        num_epochs=request.num_epochs,
        num_gpus=request.num_gpus,
        tensor_parallel_size=request.tensor_parallel_size,
    )
    samples = found.trial.samples
    tokens_per_sample = samples.num_tokens / samples.num_samples if samples.num_samples else 0.0
    profile = ProfileSize(
        num_turns=round(max(0, survey.num_turns - found.num_profiled) * found.lengths.prompt_share),
        num_samples=request.num_samples,
        tokens_per_sample=tokens_per_sample,
        prompt_tokens_per_turn=_prompt_tokens_per_turn(found),
    )
    training = TrainingSize(
        num_steps=shape.num_steps,
        batch_size=shape.batch_size,
        group_size=shape.group_size,
        prompt_tokens=samples.mean_prompt_tokens,
        tokens_per_sample=tokens_per_sample,
    )
    return Plan(
        findings=found,
        pivots=pivots,
        shape=shape,
        profile=profile_hours(profile, found.speed),
        training=training_hours(training, found.speed, found.facts.active_billions),
        problems=tuple(problems),
    )


def _prompt_tokens_per_turn(found: PlanFindings) -> float:
    limit, measured = found.lengths.max_prompt_tokens, found.measured
    return sum(min(tokens, limit) for tokens in measured.longest_prompts) / len(measured.prompts)
