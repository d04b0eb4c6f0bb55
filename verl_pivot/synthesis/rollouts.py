"""Task and policy -> a played conversation and its trajectory, with the loop of `verl-pivot play`, without verl."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from verl_pivot.data.json_values import as_object, decode_json
from verl_pivot.data.turns import with_split_key
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ConfigError, UserCodeError
from verl_pivot.playing.endpoint_player import first_turn, read_answer, sent_message
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.playing.player import PlayerTurn
from verl_pivot.playing.problems import problem_of_row
from verl_pivot.playing.rewarding import load_reward_function
from verl_pivot.playing.running import PlayingJob, play_problem
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Message, Trajectory
from verl_pivot.validation import Options

POLICY = "policy"
"""Role of the model that plays rollouts."""


class RolloutOptions(Options):
    """Options of played conversations; the limits have the names and defaults of pivot.rollout."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the policy."""
    max_turns: int = Field(default=10, ge=1)
    """Maximum number of assistant turns."""
    max_turn_tokens: int | None = Field(default=1024, ge=1)
    """Maximum number of tokens of one turn, which the budget reserves; None allows the rest of the response."""
    max_response_tokens: int = Field(default=8192, ge=1)
    """Maximum number of tokens after the prompt, including observations."""
    max_observation_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one observation; 4 characters count as one token."""
    max_wall_seconds: float = Field(default=1800.0, gt=0.0)
    """Seconds after which a conversation ends."""
    max_calls_per_turn: int = Field(default=16, ge=1)
    """Maximum number of calls of one turn that are run."""
    parallel_calls: bool = False
    """Whether the calls of one turn run at once, but for those of an environment."""
    reward_function: str | None = None
    """Reward function in verl's format, given as file.py:name, for tasks that no environment decides."""

    def limits(self) -> RolloutLimits:
        return RolloutLimits(
            max_response_tokens=self.max_response_tokens,
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            max_observation_tokens=self.max_observation_tokens,
            max_wall_seconds=self.max_wall_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkshopPlayer:
    """The policy as a player: each turn is a question of the workshop, seeded by the rollout and the turn."""

    workshop: Workshop
    temperature: float

    @property
    def name(self) -> str:
        return self.workshop.writer(POLICY).name

    async def take_turn(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], max_tokens: int, *, sample: int
    ) -> PlayerTurn:
        sent = tuple(sent_message(message) for message in messages)

        async def ask(number: int) -> ChatAnswer:
            question = WriterQuestion(
                messages=sent,
                seed=self.workshop.seed(sample, len(sent), number),
                max_tokens=max_tokens,
                temperature=self.temperature,
                tools=tuple(tools),
            )
            return await self.workshop.answer(question, POLICY)

        return await first_turn(ask, read_answer)

    async def take_step(self, messages: Sequence[Message], max_tokens: int, *, sample: int) -> PlayerTurn:
        raise ConfigError("synthesis cannot play conversations in a notebook, only conversations with tool calls")

    async def close(self) -> None:
        """Do nothing: the run closes its writers."""


async def play_task(
    task: JsonObject, workshop: Workshop, options: RolloutOptions, *, name: str, number: int
) -> PlayedProblem:
    """Let the policy play one conversation about a task.

    Args:
        task: Columns of a row as training reads them.
        workshop: Workshop with the tools and the policy.
        options: Options of the rollout.
        name: Id of the task.
        number: Number of the rollout among those of the task, from which its seeds derive.

    Returns:
        The conversation. If the user's own code failed in it, it is masked, and the caller decides with `check_code`.

    Raises:
        ConfigError: If there are no tools, or nothing decides the outcome.
        DataError: If the row has no prompt, or no tool supports its content.
        UserCodeError: If an environment cannot be created.
        EngineError: If the endpoint cannot be reached or keeps failing.
    """
    toolset = workshop.toolset("plays rollouts")
    problem = problem_of_row(task, name, f"task {name}")
    reward = None if options.reward_function is None else load_reward_function(options.reward_function)
    job = PlayingJob(
        toolset=toolset,
        problems=(problem,),
        limits=options.limits(),
        max_calls_per_turn=options.max_calls_per_turn,
        parallel_calls=options.parallel_calls,
        reward_function=reward,
    )
    player = WorkshopPlayer(workshop=workshop, temperature=options.temperature)
    ended: list[PlayedProblem] = []
    outcome = await play_problem(job, player, problem, number, lambda message: None, ended.append)
    if outcome.by == "nobody" and outcome.reason == "not_scored":
        raise ConfigError(
            f"task {name}: nothing decides the outcome of a rollout; give an environment with `score` as --tools, or "
            f"set reward_function of step {workshop.step}, such as verl.utils.reward_score:default_compute_score"
        )
    return ended[0]


def check_code(rollouts: Sequence[PlayedProblem]) -> None:
    """Refuse rollouts of a task in one of which the user's own code failed, unless it worked in another one.

    Raises:
        UserCodeError: If the code failed, and each rollout is masked.
    """
    fault = next((each for each in rollouts if each.outcome.is_fault_of_code), None)
    if fault is not None and all(each.outcome.is_masked for each in rollouts):
        raise UserCodeError(f"{fault.problem.place}: {fault.outcome.detail}")


def has_action(played: PlayedProblem) -> bool:
    """Whether the policy ended a turn by itself that can be read and holds a call or an answer."""
    return bool(played.played.action_turns)


def trajectory_of(played: PlayedProblem, draft: Draft) -> Trajectory:
    """The conversation as a trajectory; all trajectories of a task are in the same split (training or validation).

    Turns of the policy that were cut off, or have calls that cannot be read, are not the expert's.
    """
    row = played.problem.columns
    metadata = row.get("metadata") or {}
    given = as_object(decode_json(metadata) if isinstance(metadata, str) else metadata, "metadata")
    verifier = {name: row[name] for name in ("verifier", "verifier_options") if row.get(name) is not None}
    if isinstance(options := verifier.get("verifier_options"), str):
        verifier["verifier_options"] = as_object(decode_json(options), "verifier_options")
    return Trajectory(
        id=draft.id,
        messages=played.played.messages,
        tools=played.tools,
        passed=played.outcome.passed,
        metadata=with_split_key(given, draft.item),
        expert_turns=played.played.expert_turns or "all",
        **verifier,
    )
