"""trajectories.jsonl and profile.jsonl -> pivots.parquet, its validation split, its report and its picture."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from verl_pivot.data.pivots import turn_to_row, writing_pivots
from verl_pivot.data.storage import replacing
from verl_pivot.data.turns import fingerprint, split_key, split_of, turns
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.profiling.profiles import TurnKey, file_sha256, iter_profiles, read_settings
from verl_pivot.selection.decisions import Candidate, Decision, Selection, SelectionReport, SelectionRule
from verl_pivot.selection.plots import draw_pass_rates
from verl_pivot.types import Sample, Trajectory, Turn, TurnProfile, Verdict
from verl_pivot.verifiers.registry import get_verifier

_NUM_AT_ONCE = 256
"""Turns whose experts are asked about at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSource:
    """Where the numbers of a candidate come from."""

    profiles: dict[TurnKey, TurnProfile] | None
    """None: nothing was profiled."""
    count_prompt_tokens: Callable[[Turn], int] | None
    """For turns without a profile; None: not counted."""
    check_verifier: bool
    """Whether to ask each turn's verifier about the expert's own action."""
    seed: int
    validation_share: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.validation_share < 1.0:
            raise ConfigError(f"--validation-share must lie in [0, 1), got {self.validation_share}")


def profiles_of(path: Path, trajectories: Path) -> dict[TurnKey, TurnProfile]:
    """The profile at `path`, which must have been measured on the file `trajectories`; without the sampled texts.

    Raises:
        DataError: If it was measured on other trajectories.
    """
    if read_settings(path).input_sha256 != file_sha256(trajectories):
        raise DataError(
            f"{path} was measured on another file than {trajectories}, or on what was in it before; "
            "profile these trajectories anew, to another --out"
        )
    return {TurnKey(profile.trajectory_id, profile.index): _without_texts(profile) for profile in iter_profiles(path)}


def _without_texts(profile: TurnProfile) -> TurnProfile:
    """Only the numbers are needed, and the texts of a large profile would not fit into memory."""
    verdicts = (Verdict(score=sample.verdict.score, reason="") for sample in profile.samples)
    samples = tuple(Sample(text="", verdict=verdict, num_tokens=0) for verdict in verdicts)
    return replace(profile, samples=samples)


def gather_candidates(trajectories: Iterable[Trajectory], source: CandidateSource) -> list[Candidate]:
    """One candidate per turn of the expert's, in the order of the trajectories.

    Raises:
        DataError: If there is a profile and it lacks turns.
    """
    candidates = asyncio.run(_gather(trajectories, source))
    num_missing = sum(candidate.profile is None for candidate in candidates)
    if source.profiles is not None and num_missing:
        raise DataError(
            f"the profile lacks {num_missing} of {len(candidates)} turns; run the same "
            "`verl-pivot profile` command again, without --limit: it goes on with what is missing"
        )
    return candidates


async def _gather(trajectories: Iterable[Trajectory], source: CandidateSource) -> list[Candidate]:
    candidates: list[Candidate] = []
    every_turn = (turn for trajectory in trajectories for turn in turns(trajectory))
    # Many together, since a verifier may wait for a sandbox or a judge.
    while batch := list(islice(every_turn, _NUM_AT_ONCE)):
        candidates += await asyncio.gather(*(_candidate(turn, source) for turn in batch))
    return candidates


async def _candidate(turn: Turn, source: CandidateSource) -> Candidate:
    profile = None if source.profiles is None else source.profiles.get(TurnKey(turn.trajectory_id, turn.index))
    if profile is not None:
        num_prompt_tokens: int | None = profile.num_prompt_tokens
    else:
        num_prompt_tokens = None if source.count_prompt_tokens is None else source.count_prompt_tokens(turn)
    expert_verdict = None
    if source.check_verifier:
        expert_verdict = await get_verifier(turn.verifier, turn.verifier_options)(turn.expert, turn)
    return Candidate(
        trajectory_id=turn.trajectory_id,
        index=turn.index,
        fingerprint=fingerprint(turn),
        split=split_of(split_key(turn), seed=source.seed, validation_share=source.validation_share),
        num_prompt_tokens=num_prompt_tokens,
        profile=profile,
        expert_verdict=expert_verdict,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPaths:
    """The files of one selection, all beside the training split."""

    train: Path

    @property
    def validation(self) -> Path:
        return self.train.with_suffix(".validation.parquet")

    @property
    def report(self) -> Path:
        return self.train.with_suffix(".report.json")

    @property
    def picture(self) -> Path:
        return self.train.with_suffix(".png")


def write_selection(
    trajectories: Iterable[Trajectory],
    candidates: Sequence[Candidate],
    selection: Selection,
    paths: OutputPaths,
    report: dict[str, object],
) -> None:
    """Write the kept turns and the report; no file is touched unless all could be written.

    Args:
        trajectories: The same ones, in the same order, that the candidates were gathered from.
        candidates: [num_candidates]
        selection: What `select` made of them.
        paths: Where to.
        report: The content of the report file.

    Raises:
        ConfigError: If an output cannot be written.
    """
    with ExitStack() as outputs:
        report_file, validation, train = (
            outputs.enter_context(replacing(path)) for path in (paths.report, paths.validation, paths.train)
        )
        _write_pivots(trajectories, candidates, selection, train, validation)
        report_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if any(candidate.profile is not None for candidate in candidates):
            draw_pass_rates(candidates, selection.decisions, outputs.enter_context(replacing(paths.picture)))


def _write_pivots(
    trajectories: Iterable[Trajectory],
    candidates: Sequence[Candidate],
    selection: Selection,
    train: Path,
    validation: Path,
) -> None:
    all_turns = (turn for trajectory in trajectories for turn in turns(trajectory))
    with writing_pivots(train) as train_rows, writing_pivots(validation) as validation_rows:
        for turn, candidate, decision in zip(all_turns, candidates, selection.decisions, strict=True):
            if decision is Decision.KEPT:
                row = turn_to_row(
                    turn,
                    split=candidate.split,
                    profile=candidate.profile,
                    num_prompt_tokens=candidate.num_prompt_tokens,
                )
                (train_rows if candidate.split == "train" else validation_rows).append(row)


def require_some(report: SelectionReport, *, validation_share: float) -> None:
    """Refuse a selection without a single training row, or without a validation row where some were asked for.

    Raises:
        DataError: If there is none, naming the filter that took most.
    """
    if report.num_train and not report.num_validation and validation_share > 0:
        raise DataError(
            f"all {report.num_train} kept turns fall into the training split and none is left for validation; raise "
            "--validation-share, or set it to 0 and train with data.val_files of your own"
        )
    if report.num_train:
        return
    if report.num_validation:
        raise DataError(
            f"all {report.num_validation} kept turns fall into the validation split and none is left for "
            "training; lower --validation-share, or give more trajectories"
        )
    refused = {decision: count for decision, count in report.num_by_decision.items() if decision is not Decision.KEPT}
    counts = ", ".join(f"{count} {decision.value}" for decision, count in refused.items() if count) or "there were none"
    remedy = _REMEDIES.get(max(refused, key=refused.__getitem__), "--keep all switches the filters on rewards off")
    raise DataError(f"no pivot is left of {report.num_candidates} candidates ({counts}); {remedy}")


_REMEDIES = {
    Decision.UNDECIDED: "the profile's samples and the report say why the verifier could not decide",
    Decision.EXPERT_REFUSED: "import with the --verifier that fits these actions, or use --no-check-verifier",
    Decision.OVERLONG: "raise --max-prompt-tokens, and data.max_prompt_length in training with it",
    Decision.TOO_EASY: "raise --lambda-diff",
}


def report_of(selection: Selection, rule: SelectionRule, settings: dict[str, object]) -> dict[str, object]:
    """The content of the report file."""
    report = selection.report
    return {
        "num_candidates": report.num_candidates,
        "num_by_decision": {decision.value: count for decision, count in report.num_by_decision.items()},
        "num_by_outcome": {outcome.value: count for outcome, count in report.num_by_outcome.items()},
        "num_train": report.num_train,
        "num_validation": report.num_validation,
        "num_refused_experts": report.num_refused_experts,
        "refused_expert_examples": report.refused_expert_examples,
        "rule": asdict(rule),
        "settings": settings,
    }
