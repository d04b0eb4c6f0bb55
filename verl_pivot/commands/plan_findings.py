"""Findings of `verl-pivot plan`: a survey of the trajectories, their lengths, and a trial on some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from verl_pivot.commands.plan_stages import StageRunner, drawn_rows, import_files_once, rejected_rows, survey_file
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.data.files import RawRow
    from verl_pivot.engines.model_facts import ModelFacts
    from verl_pivot.planning.estimates import EngineSpeed
    from verl_pivot.planning.lengths import Lengths, MeasuredTurns
    from verl_pivot.planning.plan import Plan
    from verl_pivot.planning.plan_commands import PlanRequest
    from verl_pivot.planning.plan_file import PlanState
    from verl_pivot.planning.survey import Survey
    from verl_pivot.planning.trial import Trial
    from verl_pivot.validation import ToolArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Options of `verl-pivot plan` that say how the plan is made."""

    num_profiled: int
    """Trajectories to draw."""
    max_prompt_tokens: int | None
    """Limit that the user gave; None chooses the limit by the drawn trajectories."""
    max_new_tokens: int | None
    tokens_per_second: float | None
    """Speed that the user gave; None measures it, or takes it from a table."""


def find_out(request: "PlanRequest", facts: "ModelFacts", options: TrialOptions, runner: StageRunner) -> "Plan":
    """Import, survey, measure and profile a part; all that is written is a part of the printed commands' output.

    Raises:
        PivotError: If the trajectories, the model or the options do not allow a plan.
        typer.Exit: If a command fails.
    """
    from verl_pivot.data.files import num_rows
    from verl_pivot.planning.plan import PlanFindings, make_plan
    from verl_pivot.planning.plan_commands import profile_words
    from verl_pivot.planning.plan_file import read_state, write_state
    from verl_pivot.planning.problems import find_problems
    from verl_pivot.profiling.job import drawn_ids
    from verl_pivot.profiling.running import FinishedProfile

    path = request.folder / "plan.json"
    state = read_state(path)
    imported = import_files_once(request, runner, state)
    state = replace(state, imported=imported)
    write_state(path, state, {})
    survey = survey_file(request.trajectories)
    named = _named_arguments(survey)
    rows = drawn_rows(request.trajectories, drawn_ids(survey.trajectory_ids, options.num_profiled, request.seed))
    measured = _measure(request, rows)
    lengths = _lengths(measured, facts, options)
    drawn = ("--draw", str(options.num_profiled))
    finished = runner.run_as_part([*profile_words(request, lengths), *drawn])
    assert isinstance(finished, FinishedProfile), finished
    state = state.with_trial(finished.totals.num_tokens, finished.seconds)
    write_state(path, state, {})
    trial = _trial(request, rows, lengths)
    found = PlanFindings(
        request=request,
        facts=facts,
        survey=survey,
        measured=measured,
        lengths=lengths,
        trial=trial,
        speed=_speed(request, facts, options, state),
        num_profiled=(num_rows(request.profile) or 1) - 1,
    )
    plan = make_plan(found, find_problems(survey, lengths, trial, named=named, rejected=rejected_rows(request)))
    write_state(path, state, plan.as_dict())
    return plan


def _named_arguments(survey: "Survey") -> "list[ToolArgument]":
    """Arguments of tools that options of the verifiers name; unknown verifiers and options are refused."""
    from verl_pivot.data.json_values import as_object, decode_json
    from verl_pivot.planning.survey import named_arguments
    from verl_pivot.verifiers.registry import parsed_options

    found: list[ToolArgument] = []
    for name, options in survey.verifiers:
        found += named_arguments(parsed_options(name, as_object(decode_json(options), "verifier_options")))
    return found


def _measure(request: "PlanRequest", rows: "Sequence[RawRow]") -> "MeasuredTurns":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.data.trajectories import read_trajectory
    from verl_pivot.data.turns import turns
    from verl_pivot.engines.rendering import PromptRenderer
    from verl_pivot.planning.measuring import measure_turns

    renderer = PromptRenderer(request.model, request.chat_template_kwargs)
    found = [turn for row in rows for turn in turns(read_trajectory(row))]
    with progress_bar("prompts", len(found)) as on_turn:
        return measure_turns(found, renderer, on_turn)


def _lengths(measured: "MeasuredTurns", facts: "ModelFacts", options: TrialOptions) -> "Lengths":
    """Limits on tokens, which must let some prompt through and fit into the model's context.

    Raises:
        ConfigError: If the limits do not.
    """
    from verl_pivot.planning.lengths import choose_lengths

    lengths = choose_lengths(
        measured,
        context_tokens=facts.context_tokens,
        max_prompt_tokens=options.max_prompt_tokens,
        max_new_tokens=options.max_new_tokens,
    )
    if lengths.exceed_context:
        raise ConfigError(
            f"--max-prompt-tokens {lengths.max_prompt_tokens} and --max-new-tokens {lengths.max_new_tokens} are more "
            f"than the {lengths.context_tokens} tokens of the model's context; lower one of them"
        )
    if not lengths.prompt_share:
        raise ConfigError(
            f"every prompt is overlong: the shortest of {len(measured.prompts)} has {lengths.shortest_prompt} tokens, "
            f"the limit is {lengths.max_prompt_tokens}"
            + (f" (context of the model: {lengths.context_tokens})" if lengths.context_tokens else "")
            + f"; --max-prompt-tokens {lengths.prompt_for_95_percent} would keep 95 %"
        )
    return lengths


def _trial(request: "PlanRequest", rows: "Sequence[RawRow]", lengths: "Lengths") -> "Trial":
    from verl_pivot.planning.plan import VALIDATION_SHARE
    from verl_pivot.planning.trial import read_trial
    from verl_pivot.selection.candidates import CandidateSettings
    from verl_pivot.selection.decisions import SelectionRule

    settings = CandidateSettings(
        model=None, check_verifier=True, seed=request.seed, validation_share=VALIDATION_SHARE, split_by="task"
    )
    rule = SelectionRule(max_prompt_tokens=lengths.max_prompt_tokens)
    return read_trial(rows, request.profile, rule, settings)


def _speed(
    request: "PlanRequest", facts: "ModelFacts", options: TrialOptions, state: "PlanState"
) -> "EngineSpeed | None":
    """Speed of one GPU: as given, else as measured if the trial may have used GPUs, else from a table."""
    from verl_pivot.local.environment import has_accelerator
    from verl_pivot.planning.estimates import given_speed, tabulated_speed

    gpus = request.num_gpus
    if options.tokens_per_second is not None:
        rate = options.tokens_per_second
        return given_speed(rate, gpus, f"{rate:,.0f} tokens/s of {gpus} GPUs, as given")
    is_remote = "--openai" in request.engine_words or "--endpoint" in request.engine_words
    if state.seconds and (is_remote or has_accelerator()):
        rate = state.num_tokens / state.seconds
        return given_speed(
            rate, gpus, f"{rate:,.0f} tokens/s of {gpus} GPUs, as in the trial ({state.num_tokens:,} tokens)"
        )
    return None if facts.active_billions is None else tabulated_speed(facts.active_billions)
