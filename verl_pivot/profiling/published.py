"""Scores that were published with trajectories -> lines of a profile, which `verl-pivot select --profile` reads."""

from pathlib import Path

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.turns import turns
from verl_pivot.profiling.profiles import KIND, VERSION, PublishedSettings, profile_as_dict
from verl_pivot.types import Sample, Trajectory, TurnProfile, Verdict

REASON = "published"
"""Reason of every verdict in a profile of published scores."""


def published_profile_path(trajectories: Path) -> Path:
    """Path of the profile with the published scores of a trajectories file."""
    return trajectories.with_suffix(".published-profile.jsonl")


def published_profile_header(input_sha256: str) -> str:
    """First line of the profile; it has the same length for every digest, so that the digest can be filled in later."""
    settings = PublishedSettings(input_sha256=input_sha256)
    return encode_json({"kind": KIND, "version": VERSION, "settings": settings.as_dict()})


def published_profile_line(trajectory: Trajectory, scores: tuple[float, ...]) -> str:
    """Line of the trajectory's last turn. The samples have empty texts of 0 tokens, as only scores were published.

    Args:
        trajectory: Trajectory with at least one turn.
        scores: [num_samples] scores in [0, 1], at least one.
    """
    assert scores, trajectory.id
    samples = (Sample(text="", verdict=Verdict(score=score, reason=REASON), num_tokens=0) for score in scores)
    profile = TurnProfile(
        trajectory_id=trajectory.id,
        index=turns(trajectory)[-1].index,
        samples=tuple(samples),
        num_prompt_tokens=None,
    )
    return encode_json(profile_as_dict(profile))
