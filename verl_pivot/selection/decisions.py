"""Candidates with their profiles -> which of them are pivots, and why each of the others is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.profiling.summary import TurnOutcome

with extra("data"):
    import duckdb


class Decision(StrEnum):
    """Decision on a candidate: the filter that drops it, in the order in which filters are applied, or KEPT."""

    UNDECIDED = "undecided"
    """No sample has a score, or the expert's own action has none: the verifier could not compare."""
    EXPERT_REFUSED = "expert_refused"
    """The expert's own action does not get full score."""
    DUPLICATE = "duplicate"
    """The candidate has the state, tools and action of an earlier one."""
    OVERLONG = "overlong"
    """The prompt has more tokens than training takes; it is never cut."""
    ALWAYS_RIGHT = "always_right"
    ALWAYS_WRONG = "always_wrong"
    TOO_EASY = "too_easy"
    """Mixed, but its mean reward reaches lambda_diff."""
    OVER_CAP = "over_cap"
    """The trajectory has max_per_trajectory pivots of higher reward variance, or of equal variance at earlier turns."""
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRule:
    """Which candidates are pivots: reward_var > 0 and reward_mean < lambda_diff (PivotRL, section 3.1).

    The paper gives no value for lambda_diff; at 1 every mixed turn is a pivot.
    """

    lambda_diff: float = 1.0
    keep: Literal["pivots", "unsolved", "all"] = "pivots"
    """"pivots" is the rule above. "unsolved" drops only turns that every sample got right, as rStar2-Agent's stage 3
    does, and turns without a decided sample. "all" ignores rewards."""
    max_per_trajectory: int | None = None
    """Maximum number of pivots of one trajectory; None keeps all."""
    max_prompt_tokens: int | None = 4096
    """Longest prompt in tokens; None leaves lengths unchecked."""

    def __post_init__(self) -> None:
        if not 0.0 < self.lambda_diff <= 1.0:
            raise ConfigError(f"--lambda-diff must lie in (0, 1], got {self.lambda_diff}: mean rewards are at least 0")
        if self.max_per_trajectory is not None and self.max_per_trajectory < 1:
            raise ConfigError(f"--max-per-trajectory must be at least 1, got {self.max_per_trajectory}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ConfigError(f"--max-prompt-tokens must be 1 or more, or 0 for no limit, got {self.max_prompt_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReport:
    """Counts of a selection: decisions add up to all candidates, outcomes to the profiled ones."""

    num_candidates: int
    num_by_decision: dict[Decision, int]
    num_by_outcome: dict[TurnOutcome, int]
    """Number of turns by the outcome in their profile, before any filter."""
    num_train: int
    num_validation: int
    num_refused_experts: dict[str, int]
    """Number of candidates whose expert the verifier refused or could not judge, by the verifier's reason."""
    refused_expert_examples: dict[str, str]
    """The first such turn with the verifier's detail, by reason."""


_JUDGED = """
create or replace temp view judged as
select candidates.* exclude (num_prompt_tokens), profiles.* exclude (trajectory_id, turn_index, num_prompt_tokens),
    coalesce(profiles.num_prompt_tokens, candidates.num_prompt_tokens) as num_prompt_tokens,
    case when outcome = 'undecided' or (expert_checked and expert_score is null) then 'undecided'
         when expert_score <> 1 then 'expert_refused' end as refusal
from candidates left join profiles using (trajectory_id, turn_index)
"""
_DECISIONS = """
create or replace table decisions as
with numbered as (
    select *, row_number() over (partition by fingerprint, refusal is null order by row, turn_index) as copy from judged
), filtered as (
    select * exclude (copy, refusal), case
        when refusal is not null then refusal
        when copy > 1 then 'duplicate'
        when num_prompt_tokens > $max_prompt_tokens then 'overlong'
        when $keep = 'all' then 'kept'
        when outcome in ('undecided', 'overlong', 'always right') then replace(outcome, ' ', '_')
        when $keep = 'unsolved' then 'kept'
        when outcome = 'always wrong' then 'always_wrong'
        when reward_mean < $lambda_diff then 'kept'
        else 'too_easy' end as decision
    from numbered
), ranked as (
    select *, row_number() over (
        partition by trajectory_id, decision = 'kept' order by coalesce(reward_var, 0) desc, turn_index) as rank
    from filtered
)
select * exclude (decision, rank),
    case when decision = 'kept' and rank > $max_per_trajectory then 'over_cap' else decision end as decision
from ranked
"""
_REFUSED = """
select expert_reason, count(*), arg_min(
    'turn ' || trajectory_id || ':' || turn_index || ': ' || coalesce(nullif(expert_detail, ''), expert_reason),
    {'row': row, 'turn_index': turn_index})
from decisions
where expert_checked and expert_score is distinct from 1 and decision in ('undecided', 'expert_refused')
group by expert_reason order by min({'row': row, 'turn_index': turn_index})
"""


def decide(database: duckdb.DuckDBPyConnection, rule: SelectionRule) -> SelectionReport:
    """Put every candidate through the filters, in the order of `Decision`.

    Args:
        database: Database with the tables `candidates` and `profiles` (`selection.tables`). The table `decisions` is
            added, with every candidate, its profile and its decision.
        rule: Rule that says which candidates are pivots.
    """
    database.execute(_JUDGED)
    database.execute(
        _DECISIONS,
        {
            "keep": rule.keep,
            "lambda_diff": rule.lambda_diff,
            "max_prompt_tokens": rule.max_prompt_tokens,
            "max_per_trajectory": rule.max_per_trajectory,
        },
    )
    decisions = _counts(database, "select decision, count(*) from decisions group by 1")
    outcomes = _counts(database, "select outcome, count(*) from decisions where outcome is not null group by 1")
    splits = _counts(database, "select split, count(*) from decisions where decision = 'kept' group by 1")
    refused = database.execute(_REFUSED).fetchall()
    return SelectionReport(
        num_candidates=sum(decisions.values()),
        num_by_decision={decision: decisions.get(decision, 0) for decision in Decision},
        num_by_outcome={outcome: outcomes.get(outcome, 0) for outcome in TurnOutcome},
        num_train=splits.get("train", 0),
        num_validation=splits.get("validation", 0),
        num_refused_experts={reason: count for reason, count, _ in refused},
        refused_expert_examples={reason: example for reason, _, example in refused},
    )


def _counts(database: duckdb.DuckDBPyConnection, query: str) -> Mapping[str, int]:
    return dict(database.execute(query).fetchall())
