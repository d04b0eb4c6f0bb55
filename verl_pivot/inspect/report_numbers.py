"""Numbers of a report about trainings, which its page shows and its JSON file holds."""

import json

import msgspec

from verl_pivot.runs.run import RunPart


class PartSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts of one part of a run."""

    part: RunPart
    num_rollouts: int
    num_prompts: int
    """Number of prompts that the dumps name."""
    num_undecided: int
    """Number of rollouts without a score."""
    num_masked: int
    """Number of rollouts that failed through the system's fault."""
    num_kept: int | None
    """Number of rollouts that the update saw; None for validation, and if the dumps do not say."""
    mean_score: float | None
    mean_tokens: float | None
    """Mean number of tokens that the policy sampled per rollout."""
    mean_calls: float
    scores: dict[int, float]
    """{step: mean score of its rollouts}"""


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    """Shortest end of its path that no other run of the report has."""
    path: str
    method: str | None
    versions: dict[str, str]
    """{package: version} of those that the run's files name."""
    checkpoints: list[int]
    settings: dict[str, str]
    """{key with dots: value as JSON}, without values of secrets"""
    metrics: dict[str, list[tuple[int, float]]]
    """{metric: [num_points] step and value}"""
    parts: list[PartSummary]


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How often rollouts of a part of a run had each reason, each end or each kind of error."""

    run: int
    """Number of the run, from 0."""
    part: RunPart
    what: str
    counts: dict[str, dict[int, int]]
    """{value: {step: rollouts}}, the most frequent value first."""
    others: dict[int, int]
    """{step: rollouts} of all rarer values together."""


class PromptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a run minus those of the first run, on the prompts that both have."""

    run: int
    """Number of the run, from 1."""
    part: RunPart
    steps: list[int]
    """Steps that both runs have, whose rollouts are compared; in validation only the last of them."""
    num_shared: int
    """Number of prompts of these steps that have a score in both runs."""
    num_paired: int = 0
    """Number of prompts that are compared: all, or the first 10,000 by their digest."""
    num_higher: int = 0
    """Number of prompts on which the run scores higher than the first run."""
    num_lower: int = 0
    first_mean: float | None = None
    mean: float | None = None
    difference: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval of a bootstrap over prompts; None if fewer than 10 prompts are compared."""
    high: float | None = None


class ChosenRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One of the best or worst rollouts of a run."""

    run: int
    is_best: bool
    part: RunPart
    file: str
    """Path of its dump below the run's folder."""
    line: int
    step: int | None
    uid: str | None
    prompt_id: str | None
    score: float
    reason: str | None
    detail: str | None
    """The first 200 characters of the explanation."""
    stop_reason: str | None
    num_turns: int | None
    num_calls: int
    num_errors: int
    sampled_tokens: int | None


class ProfiledPivot(msgspec.Struct, frozen=True, kw_only=True):
    """One mixed turn of a profile, and its scores in training."""

    turn: str
    verifier: str
    mean_score: float
    """Mean score of the profile's samples; with early stopping an estimate of it."""
    num_samples: int
    reasons: dict[str, int]
    """{reason: samples}, the most frequent first."""
    scores: list[dict[int, float]]
    """[num_runs] {step: mean score of the turn's rollouts in training}"""


class ReportedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of turns by the policy before training."""

    path: str
    outcomes: dict[str, int]
    """{outcome: turns}"""
    pivots: list[ProfiledPivot]


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a report."""

    version: str
    """Version of verl-pivot that wrote the report."""
    runs: list[ReportedRun]
    differing_settings: dict[str, list[str | None]]
    """{key: [num_runs] values} of the settings that are not the same in all runs; None where a run has no such key."""
    outcomes: list[OutcomeCounts]
    differences: list[PromptDifference]
    rollouts: list[ChosenRollout]
    profile: ReportedProfile | None = None
    problems: list[str]
    """Sentences about what could not be read."""

    def as_json(self) -> str:
        """All numbers as one JSON object."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True), allow_nan=False, indent=2)
