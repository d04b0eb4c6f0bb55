"""Problems -> PlayedProblems: several conversations at once, each with its own tools; each is saved when it ends."""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import as_object, decode_json, encode_json
from verl_pivot.data.messages import parse_message
from verl_pivot.errors import ConfigError, DataError, SandboxError, ToolFailureError, UserCodeError
from verl_pivot.playing.conversation import OnMessage, PlayedConversation, play_conversation, unbegun_conversation
from verl_pivot.playing.notebook_play import NotebookRules, notebook_prompt, play_notebook
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.playing.player import Player
from verl_pivot.playing.problems import Problem
from verl_pivot.playing.rewarding import Outcome, RewardFunction, check_reward_columns, outcome_of, outcome_of_failure
from verl_pivot.playing.shown_texts import shown_to_player
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.rollout.observations import with_opening
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayingJob:
    """Settings of a run that plays problems; rows that its reward function could not be given are refused.

    Example:
        PlayingJob(toolset=toolset, problems=problems, limits=RolloutLimits(max_response_tokens=8192))
    """

    toolset: Toolset
    problems: Sequence[Problem]
    limits: RolloutLimits
    num_samples: int = 1
    """Number of conversations about each problem."""
    concurrency: int = 1
    """Number of concurrent conversations."""
    max_calls_per_turn: int = 16
    parallel_calls: bool = False
    notebook: NotebookRules | None = None
    """Limits of conversations in a notebook; None for conversations with tool calls."""
    reward_function: RewardFunction | None = None
    """verl's reward function, for problems that neither an environment nor a verifier decides."""

    def __post_init__(self) -> None:
        if self.reward_function is not None:
            check_reward_columns(self.problems)

    @property
    def num_conversations(self) -> int:
        return len(self.problems) * self.num_samples


@dataclass(slots=True)
class PlayedTotals:
    """Counts of the conversations that have ended."""

    num_played: int = 0
    num_masked: int = 0
    rewards: list[float] = field(default_factory=list)
    """[num_rewarded] rewards; undecided conversations are left out."""
    reasons: Counter[str] = field(default_factory=Counter)
    """{reason of the outcome: number of conversations}"""
    stop_reasons: Counter[str] = field(default_factory=Counter)
    num_calls: int = 0
    num_tool_errors: int = 0
    max_prompt_tokens: int = 0
    """Tokens of the longest prompt."""
    max_response_tokens: int = 0
    """Tokens of the longest response, including observations."""
    last_failure: str = ""
    """Description of the failure in the last masked conversation."""

    def add(self, played: PlayedProblem) -> None:
        record = played.played.record("")
        self.num_played += 1
        if played.outcome.is_masked:
            self.num_masked += 1
            self.last_failure = played.outcome.detail
        if played.outcome.reward is not None:
            self.rewards.append(played.outcome.reward)
        self.reasons[played.outcome.reason] += 1
        self.stop_reasons[record.stop_reason.value] += 1
        self.num_calls += record.num_calls
        self.num_tool_errors += record.num_tool_errors
        self.max_prompt_tokens = max(self.max_prompt_tokens, record.prompt_tokens)
        self.max_response_tokens = max(self.max_response_tokens, record.response_tokens)


def open_toolset(source: str) -> Toolset:
    """The toolset of a tools file, or of an environment that is given as `path/to/file.py:Class`.

    Raises:
        ConfigError: If the file is missing or breaks its format, or there is no such environment.
    """
    if source.endswith(".py"):
        raise ConfigError(f"{source} is a Python file; name the environment in it as {source}:Class")
    if ":" not in source or Path(source).suffix in (".yaml", ".yml"):
        return load_toolset(source)
    toolset = Toolset(source)
    toolset.add_entry({"environment": source})
    return toolset


def open_tools(toolset: Toolset, problem: Problem, *, max_calls_per_turn: int, parallel_calls: bool) -> RolloutTools:
    """The tools of one conversation about a problem.

    Raises:
        DataError: If the row's columns cannot be read, or no tool supports their content; the message names the row.
        UserCodeError: If an environment cannot be created.
    """
    try:
        opened = toolset.open(problem.columns, max_calls_per_turn=max_calls_per_turn, parallel_calls=parallel_calls)
    except (DataError, UserCodeError) as error:
        raise _with_place(error, problem) from error
    if isinstance(opened.failure, DataError | UserCodeError):
        opened.failure = _with_place(opened.failure, problem)
    return opened


def _with_place(error: DataError | UserCodeError, problem: Problem) -> DataError | UserCodeError:
    text = f"{problem.place}: {error}"
    return DataError(text) if isinstance(error, DataError) else UserCodeError(text)


def drawn_seed(toolset: Toolset, problem: Problem) -> int | None:
    """Seed that the environment of a problem draws from its prompt and `extra_info.index`; None if it draws none.

    Raises:
        DataError: If the row's columns cannot be read; the message names the row.
    """
    try:
        return toolset.drawn_seed(problem.columns)
    except DataError as error:
        raise _with_place(error, problem) from error


def _with_seed(toolset: Toolset, problem: Problem) -> Problem:
    """The problem with the seed that its environment draws, by which the environment can be made without the prompt."""
    seed = drawn_seed(toolset, problem)
    if seed is None:
        return problem
    metadata = as_object(decode_json(problem.columns.get("metadata") or "{}"), "metadata")
    return replace(problem, columns={**problem.columns, "metadata": encode_json({**metadata, "seed": seed})})


async def play_problems(
    job: PlayingJob,
    player: Player,
    *,
    on_begin: Callable[[Problem, int], OnMessage],
    on_end: Callable[[PlayedProblem], None],
) -> None:
    """Play every problem. The first error stops all conversations; `on_end` has been called for the finished ones.

    An error in the user's own code stops all conversations as long as none has worked; later it masks only the
    conversation in which it occurs.

    Args:
        job: Problems and settings of the run.
        player: Model or person that takes the assistant's turns; closed at the end.
        on_begin: Called with problem and sample when a conversation begins; returns the function for its messages.
        on_end: Called with each conversation when it ends.

    Raises:
        PivotError: If the endpoint, a row or the user's own code fails.
    """
    waiting = iter([(problem, sample) for problem in job.problems for sample in range(job.num_samples)])
    has_worked = False

    async def play_waiting() -> None:
        nonlocal has_worked
        for problem, sample in waiting:  # all workers share the iterator
            outcome = await play_problem(job, player, problem, sample, on_begin(problem, sample), on_end)
            if outcome.is_fault_of_code and not has_worked:
                raise UserCodeError(f"{problem.place}: {outcome.detail}")
            has_worked = has_worked or not outcome.is_masked

    await run_workers(play_waiting, min(job.concurrency, job.num_conversations), player)


async def run_workers(work: Callable[[], Coroutine[None, None, None]], number: int, player: Player) -> None:
    """Run the same work in several concurrent tasks, then close the player; the first error ends all tasks."""
    try:
        await all_at_once(work() for _ in range(number))
    finally:
        await player.close()


def _opened(prompt: Sequence[Message], opening: str) -> tuple[Message, ...]:
    """The prompt with the first observations of the environments, inserted as in training."""
    if not opening:
        return tuple(prompt)
    return tuple(map(parse_message, with_opening([message.as_dict() for message in prompt], opening)))


async def _played(
    job: PlayingJob, player: Player, tools: RolloutTools, problem: Problem, sample: int, on_message: OnMessage
) -> PlayedConversation:
    rules, toolbox = job.notebook, tools.toolbox
    most = job.limits.max_observation_tokens if rules is None else rules.max_observation_tokens
    prompt = _opened(problem.prompt, shown_to_player(tools.opening, most))
    if rules is not None:
        prompt = notebook_prompt(prompt, toolbox, rules)
    for message in prompt:
        on_message(message)
    if rules is not None:
        return await play_notebook(player, toolbox, prompt, rules, sample=sample, on_message=on_message)
    return await play_conversation(player, toolbox, prompt, job.limits, sample=sample, on_message=on_message)


async def play_problem(
    job: PlayingJob,
    player: Player,
    problem: Problem,
    sample: int,
    on_message: OnMessage,
    on_end: Callable[[PlayedProblem], None],
) -> Outcome:
    """Play one conversation about a problem, and call `on_end` with it once its tools are closed.

    A failure while the tools are closed masks the conversation, as in training.

    Raises:
        DataError: If the row's columns cannot be read, or no tool supports their content.
        UserCodeError: If an environment cannot be created.
    """
    opened = open_tools(
        job.toolset, problem, max_calls_per_turn=job.max_calls_per_turn, parallel_calls=job.parallel_calls
    )
    problem = _with_seed(job.toolset, problem)
    schemas = tuple(opened.toolbox.schemas)
    ended: PlayedProblem | None = None
    try:
        async with AsyncExitStack() as stack:
            try:
                tools = await stack.enter_async_context(opened)
            except ToolFailureError as error:
                played, outcome = unbegun_conversation(problem.prompt, str(error)), outcome_of_failure(error)
            else:
                played = await _played(job, player, tools, problem, sample, on_message)
                is_notebook = job.notebook is not None
                outcome = await outcome_of(played, problem, tools, job.reward_function, is_notebook=is_notebook)
            ended = PlayedProblem(
                problem=problem, sample=sample, player=player.name, tools=schemas, played=played, outcome=outcome
            )
    except (ToolFailureError, SandboxError, UserCodeError, OSError) as error:
        if ended is None:
            raise
        ended = replace(ended, outcome=outcome_of_failure(error))
    finally:
        if ended is not None:  # also if this task is cancelled while the tools are closed
            on_end(ended)
    assert ended is not None, problem.place
    return ended.outcome
