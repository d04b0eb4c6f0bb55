"""ProfileJob -> TurnCounts: reads the whole input before a server starts, and refuses input that cannot be profiled."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path

from verl_pivot.errors import ConfigError, DataError, OptionsError, StateRefusedError
from verl_pivot.profiling.job import ProfileJob, TurnCounts
from verl_pivot.profiling.line_index import LineIndex
from verl_pivot.profiling.profiles import ProfileSettings, TurnKey
from verl_pivot.types import Turn
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.tool_call import takes_any_text

_NUM_RENDERED = 5_000
"""Number of prompts that are checked; the job starts even if all of them are too long."""


def count_turns(job: ProfileJob, done: LineIndex) -> TurnCounts:
    """Read every turn of a job.

    Args:
        job: Trajectories and settings of the run.
        done: Turns that the profile already holds.

    Raises:
        DataError: If a line is broken, two trajectories of one id hold the same turn, or there is no turn to measure.
        ConfigError: If a verifier is not known, or trajectories call tools but have no schemas.
        OptionsError: If the verifier options of every turn are invalid. If only those of some turns are, the samples
            of these turns are undecided.
    """
    num_turns = num_left = num_messages = num_bad = 0
    without_tools: dict[str, None] = {}
    bad_options: OptionsError | None = None
    for turn in _once_each(job.turns(), job.trajectories):
        num_turns += 1
        num_left += TurnKey(turn.trajectory_id, turn.index) not in done
        try:
            get_verifier(turn.verifier, turn.verifier_options)
        except OptionsError as error:
            num_bad, bad_options = num_bad + 1, error
            continue
        if turn.expert.tool_calls:
            if not turn.tools:
                without_tools[turn.trajectory_id] = None
        else:
            num_messages += takes_any_text(turn.verifier, turn.verifier_options)
    if bad_options is not None and num_bad == num_turns:
        raise bad_options
    if without_tools and not job.allow_no_tools:
        raise ConfigError(
            f"{len(without_tools)} trajectories, such as {next(iter(without_tools))!r}, call tools but have no "
            "schemas, so the policy would not know the tools; import them again with --tools FILE, or go on with "
            "--allow-no-tools"
        )
    if not num_turns:
        what = "all turns are messages without calls, which --turns calls leaves out"
        reason = what if job.settings.turns == "calls" else "the file has no turns"
        raise DataError(f"nothing to profile in {job.trajectories}: {reason}")
    return TurnCounts(num_turns=num_turns, num_left=num_left, num_messages=num_messages)


def _once_each(turns: Iterable[Turn], trajectories: Path) -> Iterator[Turn]:
    """The same turns; a DataError at their end if a key was repeated, since a profile finds its turns by key."""
    seen: dict[str, int] = {}
    """{id of a trajectory: sum of 2 ** index over its turns}"""
    repeated: dict[str, None] = {}
    for turn in turns:
        known, bit = seen.get(turn.trajectory_id, 0), 1 << turn.index
        if known & bit:
            repeated[turn.trajectory_id] = None
        seen[turn.trajectory_id] = known | bit
        yield turn
    if repeated:
        raise shared_ids(trajectories, len(repeated), next(iter(repeated)))


def shared_ids(trajectories: Path, number: int, example: str) -> DataError:
    """The error for a file in which several trajectories have one id and hold the same turn.

    Args:
        trajectories: The file.
        number: Number of such ids.
        example: One of them.
    """
    return DataError(
        f"in {trajectories}, {number} ids, such as {example!r}, belong to several trajectories with the same turns, as "
        "where the outputs of two imports were joined; import all rows together, with one `verl-pivot import`"
    )


def check_context(settings: ProfileSettings, context_tokens: int | None) -> None:
    """Refuse lengths beyond the model's context, at which a server would refuse the first prompt that is long enough.

    Args:
        settings: Settings of the profile.
        context_tokens: Maximum tokens of prompt and answer together that the model takes; None if it is not known.

    Raises:
        ConfigError: If prompt and answer may together be longer.
    """
    prompt, answer = settings.max_prompt_tokens, settings.sampling.max_new_tokens
    if context_tokens is not None and prompt + answer > context_tokens:
        raise ConfigError(
            f"--max-prompt-tokens {prompt} and --max-new-tokens {answer} are more than the {context_tokens} tokens of "
            "the model's context; lower one of them, here and in training"
        )


def refuse_overlong(turns: Iterable[Turn], num_tokens: Callable[[Turn], int], limit: int) -> None:
    """Refuse a job without a prompt that can be sampled; checks at most 5000 turns, and stops at the first that fits.

    Args:
        turns: Every turn of the job, in the order of each trajectory.
        num_tokens: Function that returns the number of tokens of a turn's prompt.
        limit: Length of the longest prompt that is sampled, in tokens.

    Raises:
        ConfigError: If every prompt is longer; the message has the length that would keep 95 % of them.
        StateRefusedError: If the chat template refuses every state.
    """
    lengths: list[int] = []
    refusals: list[StateRefusedError] = []
    for number, turn in enumerate(turns):
        if number == _NUM_RENDERED:
            return
        try:
            length = num_tokens(turn)
        except StateRefusedError as error:
            refusals.append(error)
            continue
        if length <= limit:
            return
        lengths.append(length)
    if not lengths:
        raise refusals[0]
    raise all_overlong(lengths, limit)


def all_overlong(lengths: Sequence[int], limit: int) -> ConfigError:
    """The error for a job in which every prompt is longer than the limit."""
    enough = sorted(lengths)[ceil(0.95 * len(lengths)) - 1]
    return ConfigError(
        f"all {len(lengths)} prompts are longer than --max-prompt-tokens {limit}; {enough} would keep 95 % of them "
        f"(set data.max_prompt_length in training to the same value)"
    )
