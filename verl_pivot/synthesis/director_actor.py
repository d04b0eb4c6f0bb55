"""Step `director_actor`: a task's goals in order -> a conversation that a director leads, with calls of real tools.

IBSEN (ACL 2024, and its released code): a director writes an outline, a script of five lines, and before each line an
instruction for the actor of that line. The released code drops the instruction before the actor reads it, and counts a
goal as reached after its eighth turn. Here the actor reads it, and a draft whose goal is not reached by then is
rejected.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice, pairwise
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, encode_json
from verl_pivot.data.turns import with_split_key
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ToolFailureError
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.playing.problems import problem_of_row
from verl_pivot.synthesis.caller_turns import read_action, read_text
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import first_good, good
from verl_pivot.synthesis.magnet_cast import USER
from verl_pivot.synthesis.rollouts import POLICY
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import JsonObject, Malformed, Message, Role, Trajectory
from verl_pivot.validation import Options

_ASSISTANT = (
    "You play an assistant with tools in a conversation that a director leads. Call tools where the user wants "
    "something that takes them, read the results, and then say your next line. Take every value from the conversation, "
    "and never make one up. The director's instruction for your next line: {instruction}"
)
DIRECTOR = "director"
"""Role of the writer that directs; the roles `user` and `policy` are the actors."""
Speaker = Literal["user", "assistant"]


class DirectorActorOptions(Options):
    """Options of `director_actor`; the default numbers of lines are IBSEN's."""

    script_lines: int = Field(default=5, ge=1)
    """Maximum number of lines of a script; after them, the director writes another script."""
    min_turns: int = Field(default=5, ge=1)
    """Number of lines for a goal after which the director is first asked whether the goal is reached."""
    max_turns: int = Field(default=8, ge=1)
    """Maximum number of lines for a goal; if it is not reached by then, the draft is rejected."""
    max_calls: int = Field(default=5, ge=0)
    """Maximum number of turns with calls that the assistant takes before one line."""
    attempts: int = Field(default=2, ge=1)
    """Maximum number of draws of a script, an instruction or a user's line; the first without a problem is used."""
    temperature: float = Field(default=0.6, ge=0.0)
    """Sampling temperature of all texts."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        if self.min_turns > self.max_turns:
            raise ValueError(f"min_turns must not exceed max_turns, which is {self.max_turns}, got {self.min_turns}")
        return self


class ScriptLine(Options):
    speaker: Speaker
    line: str = Field(min_length=1)


class Script(Options):
    """The director's plan: an outline and the next lines."""

    outline: str = Field(min_length=1)
    lines: tuple[ScriptLine, ...] = Field(min_length=1)


class GoalCheck(Options):
    """The director's answer to the question whether a goal is reached."""

    reason: str
    completed: bool


@make_step("director_actor", options=DirectorActorOptions)
class DirectorActor:
    """Plays a conversation that reaches the goals of a task one after the other; it ends with an assistant's line."""

    def __init__(self, options: DirectorActorOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        if draft.task is None:
            return [draft.rejected("no_task", "there is no task with goals")]
        metadata, goals, system = _read_task(draft.task, draft.item)
        toolset = workshop.toolset("runs the assistant's calls")
        try:
            async with toolset.open(draft.task) as tools:
                if tools.opening:
                    detail = f"the step does not support the environment's opening text {tools.opening!r}"
                    return [draft.rejected("environment_speaks_first", detail)]
                stage = Stage(self._options, workshop, tools, system)
                turns_per_goal = [await stage.reach(goal) for goal in goals]
                verdict = await tools.score(stage.messages[-1])
        except ToolFailureError as error:
            return [draft.rejected("system_failed", str(error))]
        if verdict is not None and verdict.score is None:
            return [draft.rejected(verdict.reason, verdict.detail)]
        if verdict is not None and verdict.score != 1.0:
            return [draft.rejected("not_solved", f"{verdict.reason}: {verdict.detail}")]
        trajectory = Trajectory(
            id=draft.id,
            messages=tuple(stage.messages),
            tools=tuple(stage.schemas),
            passed=None if verdict is None else True,
            metadata=with_split_key(metadata, draft.item),
        )
        return [draft.made(0, trajectory=trajectory).with_values(goals=[*goals], turns_per_goal=[*turns_per_goal])]


class Stage:
    """One conversation under a director.

    Raises:
        BadRowError: From `reach`, if a goal is not reached, or every attempt at an answer has a problem.
        ToolFailureError: From `reach`, if a system that a tool needs fails.
    """

    def __init__(
        self, options: DirectorActorOptions, workshop: Workshop, tools: RolloutTools, system: Sequence[Message]
    ) -> None:
        """Begin the conversation with the system messages.

        Args:
            options: Options of the step.
            workshop: Workshop with the writers.
            tools: Tools that run the assistant's calls.
            system: System messages before the conversation.
        """
        self._options, self._workshop, self._toolbox = options, workshop, tools.toolbox
        self.messages: list[Message] = [*system]
        self.schemas = tools.toolbox.schemas
        self._draws = count()

    async def reach(self, goal: str) -> int:
        """Play lines until the director finds that the goal is reached; returns the number of lines."""
        script: deque[ScriptLine] = deque()
        for number in range(1, self._options.max_turns + 1):
            if not script:
                script.extend(await self._script(goal))
            line = script.popleft()
            await self._act(line, await self._instruction(goal, line))
            may_end = line.speaker == "assistant" and number >= self._options.min_turns
            if may_end and await self._is_reached(goal):
                return number
        raise BadRowError("goal_not_reached", f"goal not reached after {self._options.max_turns} lines: {goal!r}")

    async def _script(self, goal: str) -> tuple[ScriptLine, ...]:
        last = self.messages[-1].role if self.messages else None
        first: Speaker = "assistant" if last is Role.USER else "user"
        prompt = self._asked(
            "Plan what comes next: an outline, and a script of it.",
            f"The goal of this part: {goal}",
            f"The script has at most {self._options.script_lines} lines of the user and the assistant in turn, and the "
            f"{first} has the first one. Write what is said, not the calls, which the assistant makes itself.",
        )

        async def draw(k: int) -> tuple[ScriptLine, ...] | Malformed:
            script = await self._workshop.ask_for(
                Script, prompt, role=DIRECTOR, k=k, max_tokens=self._options.max_tokens,
                temperature=self._options.temperature,
            )  # fmt: skip
            if isinstance(script, Malformed):
                return script
            return _script_problem(script, first, self._options.script_lines) or script.lines

        return good(await first_good(draw, self._numbers()))

    async def _instruction(self, goal: str, line: ScriptLine) -> str:
        prompt = self._asked(
            f"The next line is the {line.speaker}'s, and in the script it is:\n{line.line}",
            f"The goal of this part: {goal}",
            "Write an instruction for who plays it: what the line is about, in one or two sentences, and a few words "
            "on how to say it. Do not give the line itself. Answer with the instruction alone.",
        )

        async def draw(k: int) -> str | Malformed:
            text = read_text(await self._ask(prompt, DIRECTOR, k), reason="bad_instruction")
            if isinstance(text, str) and line.line.casefold() in text.casefold():
                return Malformed(reason="instruction_has_line", detail=f"it contains the line itself: {text!r}")
            return text

        return good(await first_good(draw, self._numbers()))

    async def _act(self, line: ScriptLine, instruction: str) -> None:
        """Let an actor say a line; the assistant may make calls before its line."""
        if line.speaker == "user":
            self.messages.append(Message(role=Role.USER, content=await self._users_line(instruction)))
            return
        for _ in range(self._options.max_calls + 1):
            action = await self._assistants_turn(instruction)
            self.messages.append(action)
            if not action.tool_calls:
                return
            for position, call in enumerate(action.tool_calls):
                text = (await self._toolbox.run_one(call, position)).observed().text
                self.messages.append(Message(role=Role.TOOL, content=text, name=call.name, tool_call_id=call.id))
        raise BadRowError("too_many_calls", f"more than {self._options.max_calls} turns with calls before one line")

    async def _users_line(self, instruction: str) -> str:
        prompt = self._asked(
            "You play the user, who knows no tools.",
            f"The director's instruction for your next line: {instruction}",
            "Answer with that line alone.",
        )

        async def draw(k: int) -> str | Malformed:
            return read_text(await self._ask(prompt, USER, k), reason="bad_line")

        return good(await first_good(draw, self._numbers()))

    async def _assistants_turn(self, instruction: str) -> Message:
        told: JsonObject = {"role": "system", "content": _ASSISTANT.format(instruction=instruction)}
        question = WriterQuestion(
            messages=(told, *map(sent_message, self.messages)),
            seed=self._workshop.seed(next(self._draws)),
            max_tokens=self._options.max_tokens,
            temperature=self._options.temperature,
            tools=tuple(self.schemas),
        )
        action = good(read_action(await self._workshop.answer(question, POLICY)))
        num_turns = sum(message.role is Role.ASSISTANT for message in self.messages)
        calls = [replace(call, id=f"call_{num_turns}_{at}") for at, call in enumerate(action.tool_calls)]
        return replace(action, tool_calls=tuple(calls))

    async def _is_reached(self, goal: str) -> bool:
        prompt = self._asked(
            f"The goal of this part: {goal}",
            "Has the conversation reached it, with the calls that it takes? Answer "
            '{"reason": "...", "completed": true or false}.',
        )
        found = await self._workshop.ask_for(
            GoalCheck, prompt, role=DIRECTOR, k=next(self._draws), max_tokens=self._options.max_tokens, temperature=0.0
        )
        return isinstance(found, GoalCheck) and found.completed

    def _asked(self, *parts: str) -> list[JsonObject]:
        shown = "\n".join(encode_json(sent_message(message)) for message in self.messages) or "Nothing is said yet."
        tools = "\n".join(encode_json(schema["function"]) for schema in self.schemas)
        about = "A director leads a conversation of a user with an assistant that has these tools:"
        text = "\n\n".join((f"{about}\n{tools}", f"The conversation so far, one message a line:\n{shown}", *parts))
        return [{"role": "user", "content": text}]

    async def _ask(self, prompt: Sequence[JsonObject], role: str, k: int) -> ChatAnswer:
        options = self._options
        return await self._workshop.ask(
            prompt, role=role, k=k, max_tokens=options.max_tokens, temperature=options.temperature
        )

    def _numbers(self) -> Iterator[int]:
        """Numbers of the draws for one question, which give their seeds."""
        return islice(self._draws, self._options.attempts)


class _Task(NamedTuple):
    """The parts of a task that a director needs."""

    metadata: JsonObject
    goals: list[str]
    system: list[Message]


def _read_task(task: JsonObject, name: str) -> _Task:
    """The goals in a row's metadata, or the last message of its prompt if there are none.

    Raises:
        BadRowError: If the row has no prompt, or its goals are no texts.
    """
    prompt = problem_of_row(task, name, f"task {name}").prompt
    metadata = task.get("metadata") or {}
    given = as_object(decode_json(metadata) if isinstance(metadata, str) else metadata, "metadata")
    goals = as_list(given.get("goals", [prompt[-1].content]), "goals")
    texts = [goal for goal in goals if isinstance(goal, str) and goal.strip()]
    if not texts or len(texts) < len(goals):
        raise BadRowError("bad_goals", f"metadata.goals must be a list of texts, got {encode_json(goals)}")
    return _Task(given, texts, [message for message in prompt if message.role is Role.SYSTEM])


def _script_problem(script: Script, first: Speaker, max_lines: int) -> Malformed | None:
    """The problem of a script that a program can find; None if there is none."""
    if len(script.lines) > max_lines:
        return Malformed(reason="script_too_long", detail=f"{len(script.lines)} lines, more than {max_lines}")
    speakers = [line.speaker for line in script.lines]
    if speakers[0] != first or any(one == other for one, other in pairwise(speakers)):
        detail = f"the speakers must alternate, beginning with {first}, got {speakers}"
        return Malformed(reason="speakers_not_in_turn", detail=detail)
    return None
