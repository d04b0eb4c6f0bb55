"""Survey, Lengths and Trial -> Problems: what will go wrong with these trajectories, each with its remedy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from verl_pivot.data.json_values import as_object, decode_json
from verl_pivot.planning.lengths import Lengths
from verl_pivot.planning.survey import Survey
from verl_pivot.planning.trial import Trial
from verl_pivot.profiling.summary import TurnOutcome
from verl_pivot.selection.decisions import Decision
from verl_pivot.validation import ToolArgument
from verl_pivot.verifiers.tool_call import takes_any_text

_MANY_TRUNCATED = 0.05
_MANY_OVERLONG = 0.05
_MANY_WRONG = 0.8
_TOOLS = "; give schemas for rows that call tools with --tools"
_NUM_NAMED = 3
"""Maximum number of arguments or reasons that a message names."""


class PlanProblem(NamedTuple):
    """One thing that will go wrong."""

    text: str
    is_fatal: bool = False
    """Whether it leaves nothing to train on."""


def find_problems(
    survey: Survey, lengths: Lengths, trial: Trial, *, named: Sequence[ToolArgument], rejected: Mapping[str, int]
) -> tuple[PlanProblem, ...]:
    """Everything that these numbers show, the fatal problems first.

    Args:
        survey: Counts over the whole file.
        lengths: Limits on tokens.
        trial: Results of the drawn trajectories.
        named: Arguments of tools that options of verifiers name.
        rejected: {reason: rows that the import rejected}.
    """
    found = [
        *_no_pivots(trial, lengths),
        *_about_rejected(survey, rejected),
        *_about_rows(survey),
        *_about_options(survey, named),
        *_about_lengths(lengths, trial),
        *_about_experts(trial),
        *_about_scores(trial),
    ]
    return tuple(sorted(found, key=lambda problem: not problem.is_fatal))


def _no_pivots(trial: Trial, lengths: Lengths) -> Iterator[PlanProblem]:
    counts = trial.report.num_by_decision
    if counts[Decision.KEPT]:
        return
    dropped = {decision: count for decision, count in counts.items() if count}
    most = max(dropped, key=dropped.__getitem__)
    listed = ", ".join(f"{count} {decision.value.replace('_', ' ')}" for decision, count in dropped.items())
    remedy = _longer(lengths) if most is Decision.OVERLONG else _REMEDIES[most]
    yield PlanProblem(f"No turn of the trial is a pivot ({listed}): {remedy}", is_fatal=True)


_REMEDIES = {
    Decision.UNDECIDED: "the samples in profile.jsonl say why the verifier could not decide",
    Decision.EXPERT_REFUSED: "give the --verifier and --verifier-options that fit these actions",
    Decision.DUPLICATE: "these trajectories repeat each other",
    Decision.ALWAYS_RIGHT: "this policy does all that these experts do; harder trajectories are needed",
    Decision.ALWAYS_WRONG: "this policy never does what these experts do; train it on them by SFT first",
    Decision.TOO_EASY: "harder trajectories are needed",
    Decision.OVER_CAP: "raise --max-per-trajectory",
}


def _about_rejected(survey: Survey, rejected: Mapping[str, int]) -> Iterator[PlanProblem]:
    if number := sum(rejected.values()):
        reasons = ", ".join(
            f"{count:,} {reason}" for reason, count in sorted(rejected.items(), key=lambda each: -each[1])
        )
        yield PlanProblem(
            f"{number:,} rows were rejected ({reasons}) and {survey.num_rows:,} kept; trajectories.jsonl."
            f"rejected.jsonl has the reason for each{_TOOLS if rejected.get('no_tools') else ''}"
        )


def _about_rows(survey: Survey) -> Iterator[PlanProblem]:
    if survey.num_without_schemas:
        yield PlanProblem(
            f"{survey.num_without_schemas:,} of {survey.num_rows:,} rows call tools but have no tool schemas: the "
            "policy is not told which tools there are; give them with --tools"
        )
    num_paid = sum(
        number
        for (name, options), number in survey.message_turns.items()
        if takes_any_text(name, as_object(decode_json(options), "verifier_options"))
    )
    if num_paid and num_paid == survey.num_turns:
        yield PlanProblem(
            "Every turn is a message: no expert calls a tool. tool_call accepts any text, so choose a verifier that "
            "reads it, such as judge, qa or math"
        )
    elif num_paid:
        yield PlanProblem(
            f"{num_paid:,} of {survey.num_turns:,} turns are messages, for which tool_call accepts any text and "
            "refuses calls; with its option message_judge a judge scores them"
        )


def unknown_arguments(survey: Survey, named: Sequence[ToolArgument]) -> list[str]:
    """Named arguments that no tool schema has; a value within an object belongs to the argument that is the object."""
    known = tuple(f"{argument}." for argument in survey.arguments)
    return sorted({str(argument) for argument in named if known and not f"{argument}.".startswith(known)})


def _about_options(survey: Survey, named: Sequence[ToolArgument]) -> Iterator[PlanProblem]:
    if unknown := unknown_arguments(survey, named):
        shown = ", ".join(unknown[:_NUM_NAMED]) + (", ..." if len(unknown) > _NUM_NAMED else "")
        yield PlanProblem(
            f"Options of the verifier name arguments that no tool schema has: {shown}; check their spelling"
        )


def _about_lengths(lengths: Lengths, trial: Trial) -> Iterator[PlanProblem]:
    if 1.0 - lengths.prompt_share > _MANY_OVERLONG:
        yield PlanProblem(
            f"{1.0 - lengths.prompt_share:.1%} of the turns have more than {lengths.max_prompt_tokens:,} prompt tokens "
            f"and are left out; {_longer(lengths)}"
        )
    if lengths.expert_share < 1.0:
        yield PlanProblem(
            f"{1.0 - lengths.expert_share:.1%} of the experts' own actions have more than {lengths.max_new_tokens:,} "
            "tokens: the policy cannot repeat them; raise --max-new-tokens"
        )
    samples = trial.samples
    if samples.num_truncated > _MANY_TRUNCATED * samples.num_samples:
        yield PlanProblem(
            f"{samples.num_truncated / samples.num_samples:.1%} of the samples were cut off at "
            f"{lengths.max_new_tokens:,} new tokens and score 0: raise --max-new-tokens (in a new --out)"
        )


def _longer(lengths: Lengths) -> str:
    enough = f"{lengths.prompt_for_95_percent:,} would keep 95 %"
    if not lengths.fill_context:
        return f"--max-prompt-tokens {enough.replace(',', '')}"
    return f"{enough}, but the model's context ends at {lengths.context_tokens:,}: shorten the trajectories"


def _about_experts(trial: Trial) -> Iterator[PlanProblem]:
    for reason, count in trial.report.num_refused_experts.items():
        yield PlanProblem(
            f"{count} of {trial.report.num_candidates} turns of the trial are left out, since their verifier does not "
            f"accept the expert's own action ({reason}; {trial.report.refused_expert_examples[reason]})"
        )


def _about_scores(trial: Trial) -> Iterator[PlanProblem]:
    outcomes = trial.report.num_by_outcome
    num_sampled = sum(outcomes.values()) - outcomes[TurnOutcome.OVERLONG]
    if num_sampled and outcomes[TurnOutcome.ALWAYS_WRONG] >= _MANY_WRONG * num_sampled:
        reasons = ", ".join(f"{reason} {count}" for reason, count in trial.samples.reasons.most_common(_NUM_NAMED))
        yield PlanProblem(
            f"{outcomes[TurnOutcome.ALWAYS_WRONG]} of {num_sampled} sampled turns are always wrong ({reasons}): look "
            "at some with `verl-pivot score profile.jsonl --turn ID`; a policy that never succeeds needs SFT first"
        )
    if outcomes[TurnOutcome.UNDECIDED]:
        yield PlanProblem(
            f"{outcomes[TurnOutcome.UNDECIDED]} of {num_sampled} sampled turns could not be decided by their verifier"
        )
