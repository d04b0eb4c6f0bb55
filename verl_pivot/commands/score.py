"""`verl-pivot score`: stored samples of a profile, or one action, and a verifier -> new verdicts, and what changes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import json_object, refuse_given
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.profiling.rescoring import RescoringReport, VerifierChoice
    from verl_pivot.profiling.stored_samples import SampleStore
    from verl_pivot.types import JsonObject, Message


def score_command(
    ctx: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            help="profile.jsonl; a dump, <trainer.rollout_data_dir>/pivot/<step>.jsonl; or trajectories.jsonl, to "
            "score only the experts' actions."
        ),
    ],
    verifier: Annotated[
        str | None, typer.Option(help="Verifier to score with; by default the one that each trajectory names.")
    ] = None,
    verifier_options: Annotated[str, typer.Option(help="JSON object with options of --verifier.")] = "{}",
    verifier_module: Annotated[
        list[str] | None, typer.Option(help="Module or .py file that registers verifiers of your own; repeatable.")
    ] = None,
    trajectories: Annotated[
        Path | None,
        typer.Option(help="Trajectories of the profile, by default those beside it; for a dump also pivots.parquet."),
    ] = None,
    turn: Annotated[
        str | None, typer.Option(help="Score only this turn, such as shop-17:1, and show all of its samples.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="With --turn: score this action, a text or a JSON message; - reads it from stdin."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score only the first N trajectories.")] = None,
    show: Annotated[int, typer.Option(min=0, help="Number of changed verdicts to list.")] = 20,
    concurrency: Annotated[int, typer.Option(min=1, help="Turns to score at the same time.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object instead.")] = False,
) -> None:
    """Score stored samples again, and show which verdicts change and how that changes the selection.

    The samples are those of a profile, or the rollouts of a training step. No file is written.

    \b
    Examples:
      verl-pivot score profile.jsonl --verifier shop --verifier-module shop.py
      verl-pivot score profile.jsonl --turn shop-17:1
      verl-pivot score rollouts/pivot/12.jsonl --trajectories pivots.parquet
      echo "Sent." | verl-pivot score profile.jsonl --turn shop-17:1 --action -
    """
    from verl_pivot.profiling.rescoring import VerifierChoice
    from verl_pivot.profiling.stored_samples import open_samples
    from verl_pivot.verifiers.judge_usage import usage_lines
    from verl_pivot.verifiers.registry import get_verifier, load_verifier_modules

    options = json_object(verifier_options, "--verifier-options")
    _check_options(ctx, verifier, options, turn, action)
    load_verifier_modules(verifier_module or [])
    choice = None if verifier is None else VerifierChoice(verifier, options)
    if choice is not None:
        get_verifier(*choice)
    store = open_samples(source, trajectories)
    try:
        if turn is None:
            _score_all(store, choice, limit=limit, show=show, concurrency=concurrency, as_json=as_json)
        elif action is None:
            _score_turn(store, choice, turn, as_json=as_json)
        else:
            _try_action(store, choice, turn, _read_action(action), as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("Stopped; nothing was written.", err=True)
        raise typer.Exit(130) from None
    for line in usage_lines():
        typer.echo(line, err=as_json)


def _check_options(
    ctx: typer.Context, verifier: str | None, options: "JsonObject", turn: str | None, action: str | None
) -> None:
    if options and verifier is None:
        raise ConfigError("--verifier-options was given without --verifier; name the verifier, too")
    if action is not None and turn is None:
        raise ConfigError("--action was given without --turn; name the turn at which it is scored")
    if turn is not None:
        refuse_given(ctx, ("limit", "show", "concurrency"), "with --turn, which scores one turn")


def _score_all(
    store: "SampleStore",
    choice: "VerifierChoice | None",
    *,
    limit: int | None,
    show: int,
    concurrency: int,
    as_json: bool,
) -> None:
    from verl_pivot.commands.score_display import print_report, report_as_dict

    most_listed = None if as_json else show
    report = _report(store, choice, limit=limit, concurrency=concurrency, most_listed=most_listed)
    if as_json:
        _print_json(report_as_dict(report))
    else:
        print_report(report, is_early_stopped=store.early_stop is not None)
        if store.note:
            typer.echo(store.note)
        if choice is not None:
            typer.echo("Training uses the verifier that rows name: import them with this one, then profile and select.")


def _report(
    store: "SampleStore",
    choice: "VerifierChoice | None",
    *,
    limit: int | None,
    concurrency: int,
    most_listed: int | None,
) -> "RescoringReport":
    import asyncio

    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.profiling.rescoring import rescore

    with progress_bar("turns", store.num_turns if limit is None else None) as on_rows:
        return asyncio.run(
            rescore(
                store.stored_turns(limit),
                choice,
                concurrency=concurrency,
                most_listed=most_listed,
                on_turn=lambda: on_rows(1),
            )
        )


def _score_turn(store: "SampleStore", choice: "VerifierChoice | None", turn_id: str, *, as_json: bool) -> None:
    import asyncio

    from verl_pivot.commands.score_display import print_turn, turn_as_dict
    from verl_pivot.profiling.rescoring import rescore_turn

    rescored = asyncio.run(rescore_turn(store.stored_turn(turn_id), choice))
    if as_json:
        _print_json(turn_as_dict(rescored))
    else:
        print_turn(rescored)


def _try_action(
    store: "SampleStore", choice: "VerifierChoice | None", turn_id: str, action: "str | Message", *, as_json: bool
) -> None:
    import asyncio

    from verl_pivot.commands.score_display import print_verdict, verdict_as_dict
    from verl_pivot.verifiers.scoring import score_completion, score_message

    turn = store.stored_turn(turn_id).turn
    if choice is not None:
        turn = choice.at(turn)
    coming = score_completion(action, True, turn) if isinstance(action, str) else score_message(action, turn)
    verdict = asyncio.run(coming)
    if as_json:
        _print_json({"turn": turn.id, "verifier": turn.verifier, **verdict_as_dict(verdict)})
    else:
        print_verdict(turn, verdict)


def _read_action(given: str) -> "str | Message":
    """The value of --action: a message if the text is the JSON of one, else the text of a completion."""
    from verl_pivot.data.json_values import BadRowError, decode_json
    from verl_pivot.data.messages import parse_message

    try:
        text = sys.stdin.buffer.read().decode() if given == "-" else given
    except UnicodeDecodeError as error:
        raise ConfigError(f"--action - is not UTF-8: {error}") from error
    text = text.removesuffix("\n")
    if not text.strip():
        raise ConfigError("--action is empty; give a text, such as 'It is on its way.', or a JSON message")
    try:
        value = decode_json(text)
    except BadRowError:
        return text
    if not isinstance(value, dict) or not value.keys() & {"role", "content", "tool_calls"}:
        return text
    try:
        message = parse_message({"role": "assistant", **value})
    except BadRowError as error:
        raise ConfigError(f"--action is not a message: {error}") from error
    if message.role.value != "assistant":
        raise ConfigError(f"--action must be a message of the assistant, got role {message.role.value!r}")
    return message


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
