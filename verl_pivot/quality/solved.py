"""Filter `solved`: drops trajectories if all samples of the reference policy were right at every turn."""

from collections.abc import Sequence

from pydantic import Field

from verl_pivot.quality.contract import DatasetFilter, FilterOptions, Finding, Ruling, require_profile
from verl_pivot.quality.profile_totals import ProfileTotals, totals_for
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import Trajectory


class SolvedOptions(FilterOptions):
    min_samples: int = Field(default=1, ge=1)
    """Minimum number of samples at each turn; a trajectory with fewer at any turn is kept."""


@register_filter("solved", options=SolvedOptions)
class Solved(DatasetFilter[None]):
    """Drops trajectories that the reference policy already solves.

    Source: rStar2-Agent (arXiv:2508.20722, section 4.3), which drops problems with 8 of 8 rollouts right before its
    third stage. Here a problem is a trajectory, and all samples of each turn must be right.
    """

    needs_profile = True

    def __init__(self, options: SolvedOptions) -> None:
        self._options = options

    def feature(self, trajectory: Trajectory) -> None:
        return None

    def decide(self, ids: Sequence[str], features: Sequence[None], profile: ProfileTotals | None) -> Ruling:
        dropped = {}
        for position, totals in enumerate(totals_for(require_profile(profile, "solved"), ids)):
            num_samples = totals.min_samples or 0
            if totals.num_solved_turns == totals.num_turns and num_samples >= self._options.min_samples:
                detail = f"{totals.num_turns} turns, each with all of its {num_samples} or more samples right"
                dropped[position] = Finding(reason="always_right", detail=detail)
        return Ruling(dropped=dropped)
