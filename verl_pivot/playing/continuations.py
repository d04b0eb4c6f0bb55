"""Turns of rollouts -> labels: the mean outcome of several continuations that a policy plays after each turn."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from statistics import fmean, pstdev

import msgspec

from verl_pivot.data.messages import parse_message
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.errors import ConfigError, SandboxError, ToolFailureError, UserCodeError
from verl_pivot.playing.conversation import BegunConversation, PlayedConversation, play_conversation
from verl_pivot.playing.player import Player
from verl_pivot.playing.problems import Problem
from verl_pivot.playing.recorded_turns import NotReplayed, begins_as_recorded, begun_conversation, replay
from verl_pivot.playing.rewarding import Outcome, RewardFunction, check_reward_columns, outcome_of, outcome_of_failure
from verl_pivot.playing.running import drawn_seed, open_tools, run_workers
from verl_pivot.playing.turn_form import MessageForm, SameMessageForm
from verl_pivot.rewards.dumped_turns import DumpedJudgedTurn
from verl_pivot.rewards.labelled_turns import LabelledTurn
from verl_pivot.rewards.principles import Fit, PrincipleSet, turn_question
from verl_pivot.rewards.turn_labelling import Labels
from verl_pivot.rewards.written_answers import plain_answer
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import JsonObject, Message

_MAX_DETAIL = 160
_READ_COLUMNS = ("metadata", "tools", "recording", "data_source", "reward_model", "extra_info", "expert")
"""Columns of a row from which tools and outcomes are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationJob:
    """Settings of the continuations."""

    toolset: Toolset
    form: MessageForm | SameMessageForm
    limits: RolloutLimits
    num_samples: int
    """Number of continuations after each turn."""
    concurrency: int
    """Number of concurrent continuations."""
    identity: JsonObject
    """Everything else that outcomes depend on, such as the model; a resumed job reuses outcomes of equal identity."""
    replays: bool = True
    """Whether the calls up to the turn are run again in fresh tools, which must give the same answers."""
    max_calls_per_turn: int = 16
    parallel_calls: bool = False
    reward_function: RewardFunction | None = None


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome and cost of one continuation of a rollout."""

    score: float | None
    """Outcome in [0, 1]; None if it is undecided."""
    num_prompt_tokens: int = 0
    """Prompt tokens that the endpoint read for the new turns."""
    num_tokens: int = 0
    """Tokens of the new turns."""


class _LeftOutError(Exception):
    """A turn cannot be labelled; the message is the reason under which the turn is counted."""


@dataclass(slots=True, kw_only=True)
class _State:
    """The conversation up to a turn, which is continued; several rollouts may share it."""

    name: str
    """Digest of everything that the outcomes depend on."""
    turn: DumpedJudgedTurn
    problem: Problem
    prompt: tuple[Message, ...]
    """The prompt that the policy read, with first observations and workflows; the row's where the dump has none."""
    begun: BegunConversation
    ended: list[Continuation] = field(default_factory=list)
    left_out: str = ""
    """Reason why the turn gets no label; "" if none is known."""


def problems_by_prompt(problems: Iterable[Problem], toolset: Toolset) -> dict[str, Problem | None]:
    """{prompt_id: the problem}; None where rows with the same prompt have different tools or outcomes.

    Raises:
        DataError: If an environment draws a seed, and the columns of a row cannot be read.
    """
    found: dict[str, Problem | None] = {}
    columns: dict[str, str] = {}
    for problem in problems:
        own = _read_columns(problem, toolset)
        is_other = columns.setdefault(problem.prompt_id, own) != own
        found[problem.prompt_id] = None if is_other else found.get(problem.prompt_id, problem)
    return found


def _read_columns(problem: Problem, toolset: Toolset) -> str:
    """The columns from which tools and outcomes are made, as text for comparison.

    The row number is left out, unless an environment draws its seed from it.
    """
    columns = problem.columns
    read = {name: columns[name] for name in _READ_COLUMNS if columns.get(name) is not None}
    if (seed := drawn_seed(toolset, problem)) is not None:
        read["drawn_seed"] = seed
    if isinstance(info := read.get("extra_info"), dict):
        read["extra_info"] = {name: value for name, value in info.items() if name != "index"}
    return json.dumps(read, sort_keys=True, default=repr)


async def labels_by_continuations(
    turns: Sequence[DumpedJudgedTurn],
    problems: Mapping[str, Problem | None],
    job: ContinuationJob,
    player: Player,
    cache: AnswerCache,
    *,
    principle_set: PrincipleSet,
    fit: Fit,
    on_continuations: Callable[[int], object],
) -> Labels:
    """Continue each turn several times, to the end, and label it by the mean outcome.

    Turns of the same task with the same text and the same earlier turns share their continuations. A turn is left out
    if its row or its record does not allow a continuation, or if the system fails in one of its continuations.

    Args:
        turns: Turns of dumped rollouts.
        problems: {prompt_id: the row of the prompt}, from `problems_by_prompt`.
        job: Settings of the continuations.
        player: The policy; closed at the end.
        cache: Outcomes of earlier continuations, to which each new one is added when it ends.
        principle_set: Principles and answer form of the labelled questions.
        fit: Function that cuts the texts of a question to a limit.
        on_continuations: Called with the number of continuations since the last call; num_turns * num_samples in all.

    Raises:
        EngineError: If the endpoint cannot be reached or keeps failing, or the cache cannot be written.
        ConfigError: If nothing decides the outcome of a row, or the endpoint refuses every request.
        DataError: If the columns of a row cannot be read.
        UserCodeError: If the user's own code fails before any continuation has worked.
    """
    placed = [_state_of(turn, problems.get(_prompt_id(turn)), job) for turn in turns]
    states = {state.name: state for state in placed if isinstance(state, _State)}
    if job.reward_function is not None:
        check_reward_columns(state.problem for state in states.values())
    num_equal = Counter(state.name for state in placed if isinstance(state, _State))
    on_continuations(job.num_samples * (len(placed) - num_equal.total()))
    labels = Labels()
    continuing = _Continuing(job, player, cache, labels, lambda name: on_continuations(num_equal[name]))
    await continuing.run(list(states.values()))
    for turn, place in zip(turns, placed, strict=True):
        if isinstance(place, str):
            labels.left_out[place] += 1
        else:
            _add(labels, turn, states[place.name], principle_set, fit)
    return labels


def _prompt_id(turn: DumpedJudgedTurn) -> str:
    assert turn.rollout.record is not None, turn.judged.id
    return turn.rollout.record.prompt_id


def _state_of(turn: DumpedJudgedTurn, problem: Problem | None, job: ContinuationJob) -> _State | str:
    """The conversation to continue, or the reason why it cannot be continued."""
    if problem is None:
        return "rows with the same prompt have different tools or outcomes"
    if problem.columns.get("expert") is not None:
        return "row of a pivot, of which only the first turn is scored"
    if turn.number + 1 >= job.limits.max_turns:
        return "no turn is left within --max-turns: raise it"
    begun = begun_conversation(turn.rollout, turn.number, job.form)
    if isinstance(begun, NotReplayed):
        return begun.value
    recorded = turn.rollout.prompt
    prompt = problem.prompt if recorded is None else tuple(map(parse_message, recorded))
    shown = [[message.role.value, message.content] for message in (*prompt, *begun.messages)]
    columns = _read_columns(problem, job.toolset)
    digest = sha256(json.dumps([job.identity, shown, columns], sort_keys=True).encode()).hexdigest()
    return _State(name=digest, turn=turn, problem=problem, prompt=prompt, begun=begun)


def _add(labels: Labels, turn: DumpedJudgedTurn, state: _State, principle_set: PrincipleSet, fit: Fit) -> None:
    """Add a turn with its label, or the reason why it has none."""
    outcomes = [each.score for each in state.ended if each.score is not None]
    if state.left_out:
        labels.left_out[state.left_out] += 1
    elif not outcomes:
        labels.left_out["no continuation with a decided outcome"] += 1
    else:
        judged, label = turn.judged, fmean(outcomes)
        labelled = LabelledTurn(
            judged=judged,
            label=label,
            spread=pstdev(outcomes),
            num_samples=len(state.ended),
            num_valid=len(outcomes),
            labelled_by="continuations",
            answer=plain_answer(label, judged.turn.text, principle_set),
        )
        labels.turns.append(labelled)
        labels.questions.append(turn_question(judged.task, judged.earlier, judged.turn, principle_set, fit))


class _Continuing:
    """The continuations of one command, several at once."""

    def __init__(
        self, job: ContinuationJob, player: Player, cache: AnswerCache, labels: Labels, on_done: Callable[[str], object]
    ) -> None:
        self._job, self._player, self._cache, self._labels = job, player, cache, labels
        self._on_done = on_done
        self._has_worked = False

    async def run(self, states: Sequence[_State]) -> None:
        """Add to each state the results of its continuations; the first error ends all of them."""
        waiting = iter([(state, sample) for state in states for sample in range(self._job.num_samples)])

        async def work() -> None:
            for state, sample in waiting:  # all workers share the iterator
                if not state.left_out:
                    await self._continue(state, sample)
                self._on_done(state.name)

        await run_workers(work, self._job.concurrency, self._player)

    async def _continue(self, state: _State, sample: int) -> None:
        key = f"{state.name}:{sample}"
        if (kept := self._cache.get(key)) is not None:
            self._labels.num_asked += 1
            self._labels.num_cached += 1
            state.ended.append(msgspec.json.decode(kept, type=Continuation))
            return
        try:
            ended = await self._ended(state, sample)
        except _LeftOutError as error:
            state.left_out = str(error)
            return
        except (ToolFailureError, SandboxError, OSError) as error:  # while the tools are opened or closed
            state.left_out = _system_failed(str(error))
            return
        self._cache.put(key, msgspec.json.encode(ended))
        self._labels.num_asked += 1
        self._labels.num_prompt_tokens += ended.num_prompt_tokens
        self._labels.num_completion_tokens += ended.num_tokens
        state.ended.append(ended)

    async def _ended(self, state: _State, sample: int) -> Continuation:
        problem = state.problem
        opened = open_tools(
            self._job.toolset,
            problem,
            max_calls_per_turn=self._job.max_calls_per_turn,
            parallel_calls=self._job.parallel_calls,
        )
        try:
            async with opened as tools:
                await self._replay(state, tools)
                played = await play_conversation(
                    self._player,
                    tools.toolbox,
                    state.prompt,
                    self._job.limits,
                    sample=sample,
                    form=self._job.form,
                    begun=state.begun,
                )
                outcome = await outcome_of(played, problem, tools, self._job.reward_function)
        except (ToolFailureError, SandboxError, UserCodeError, OSError) as error:  # while tools are opened or closed
            if error is not opened.failure:
                self._check(outcome_of_failure(error), problem)
            raise
        self._check(outcome, problem)
        if len(played.turns) == len(state.begun.turns):
            raise _LeftOutError("no room for another turn: raise --max-response-tokens")
        return _with_tokens(outcome, played, len(state.begun.turns))

    async def _replay(self, state: _State, tools: RolloutTools) -> None:
        if not begins_as_recorded(state.prompt, tools.opening) and (
            self._job.replays or state.turn.rollout.prompt is None
        ):
            raise _LeftOutError(NotReplayed.OTHER_OPENING.value)
        if not self._job.replays:
            return
        turn, template = state.turn, self._job.form.observation_template
        why = await replay(turn.rollout, turn.number, tools.toolbox, template)
        if why is not None:
            raise _LeftOutError(why.value if isinstance(why, NotReplayed) else _system_failed(why))

    def _check(self, outcome: Outcome, problem: Problem) -> None:
        """Refuse an outcome that is not due to the policy, or that is outside of [0, 1]."""
        if outcome.is_fault_of_code and not self._has_worked:
            raise UserCodeError(f"{problem.place}: {outcome.detail}")
        if outcome.is_masked:
            raise _LeftOutError(_system_failed(outcome.detail))
        if outcome.by == "nobody" and outcome.reason == "not_scored":
            raise ConfigError(
                f"{problem.place}: nothing decides the outcome of a continuation; give an environment with `score` as "
                "--tools, or a --reward-function such as verl.utils.reward_score:default_compute_score"
            )
        self._has_worked = True
        if outcome.reward is not None and not 0.0 <= outcome.reward <= 1.0:
            raise _LeftOutError("outcome outside of [0, 1]")


def _system_failed(detail: str) -> str:
    """Reason under which turns are counted that have no label because of the system."""
    return f"the system failed: {detail[:_MAX_DETAIL]}"


def _with_tokens(outcome: Outcome, played: PlayedConversation, num_begun: int) -> Continuation:
    new = played.turns[num_begun:]
    return Continuation(
        score=outcome.reward,
        num_prompt_tokens=sum(turn.num_prompt_tokens for turn in new),
        num_tokens=sum(turn.num_tokens for turn in new),
    )
