"""Prompt and player -> PlayedConversation: the loop of a rollout in a notebook, over messages instead of tokens."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.playing.conversation import OnMessage, PlayedConversation, num_tokens_of
from verl_pivot.playing.player import Player, PlayerTurn
from verl_pivot.playing.shown_texts import shown_to_player
from verl_pivot.rollout.cell_calls import CellCalls, functions_of
from verl_pivot.rollout.context import ContextWindow, Trim
from verl_pivot.rollout.notebook import Notebook, RanCell, notebook_of
from verl_pivot.rollout.notebook_prompt import Left, after_step, restarted, system_prompt, trimmed_task
from verl_pivot.rollout.notebook_turns import NotebookTurn, read_notebook_turn
from verl_pivot.rollout.notepad import NotepadReading, Notes
from verl_pivot.rollout.observed_turn import ObservedTurn
from verl_pivot.tools.calls import Toolbox
from verl_pivot.types import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRules:
    """Limits of conversations in a notebook, like the settings `pivot.notebook`.

    Example:
        NotebookRules(window=ContextWindow(max_tokens=16384, max_step_tokens=3072))
    """

    window: ContextWindow
    max_steps: int = 10
    max_observation_tokens: int = 1024
    max_wall_seconds: float = 1800.0
    max_calls: int = 16
    """Maximum number of function calls in one cell."""
    has_notepad: bool = True

    def cut(self, text: str) -> str:
        return shown_to_player(text, self.max_observation_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessageContext:
    """The messages that the player reads before its next step."""

    first: tuple[Message, ...]
    """Messages before all steps, as at the beginning of the conversation."""
    head: tuple[Message, ...]
    """Messages before the kept steps: `first` with the notice and the Notepad of the latest trim."""
    steps: tuple[tuple[Message, Message], ...] = ()
    """Kept steps, each with the message that the player read after it."""
    notepad: str = ""
    """Text of the Notepad when it was last shown."""
    num_trims: int = 0

    @property
    def messages(self) -> list[Message]:
        return [*self.head, *(message for step in self.steps for message in step)]


def notebook_prompt(prompt: Sequence[Message], toolbox: Toolbox, rules: NotebookRules) -> tuple[Message, ...]:
    """Messages of a row; the scaffold's system prompt is put before the row's own system messages."""
    functions = functions_of(toolbox.schemas)
    system = system_prompt(functions, max_steps=rules.max_steps, trim=rules.window.trim, has_notepad=rules.has_notepad)
    systems = [system, *(message.content for message in prompt if message.role is Role.SYSTEM)]
    others = [message for message in prompt if message.role is not Role.SYSTEM]
    return (Message(role=Role.SYSTEM, content="\n\n".join(systems)), *others)


async def play_notebook(
    player: Player,
    toolbox: Toolbox,
    prompt: Sequence[Message],
    rules: NotebookRules,
    *,
    sample: int = 0,
    on_message: OnMessage = lambda message: None,
) -> PlayedConversation:
    """Let the player take steps until it has answered or another stop reason of training applies.

    Args:
        player: Model or person that takes the assistant's turns.
        toolbox: Tools, which are functions in the notebook.
        prompt: Messages of `notebook_prompt`.
        rules: Limits of the conversation.
        sample: Number of the conversation among those with the same prompt.
        on_message: Called with each message after the prompt.

    Raises:
        EngineError: If the endpoint cannot be reached or keeps failing.
    """
    async with notebook_of(toolbox, has_notepad=rules.has_notepad, max_calls=rules.max_calls) as notebook:
        return await _NotebookPlay(player, toolbox, notebook, rules, sample, on_message).play(tuple(prompt))


class _NotebookPlay:
    """One conversation. Its attributes never change; its state is in the local variables of `play`."""

    def __init__(
        self,
        player: Player,
        toolbox: Toolbox,
        notebook: Notebook,
        rules: NotebookRules,
        sample: int,
        on_message: OnMessage,
    ) -> None:
        self._player = player
        self._toolbox = toolbox
        self._notebook = notebook
        self._rules = rules
        self._sample = sample
        self._on_message = on_message

    async def play(self, prompt: tuple[Message, ...]) -> PlayedConversation:
        rules = self._rules
        deadline = time.monotonic() + rules.max_wall_seconds
        shown = NotepadReading(Notes()).shown() if rules.has_notepad else ""
        context = _MessageContext(first=prompt, head=prompt, notepad=shown)
        messages = list(prompt)
        turns: list[PlayerTurn] = []
        observed: list[ObservedTurn] = []
        ran, seconds, num_empty_answers, failure = RanCell(), 0.0, 0, ""
        while True:
            began = time.monotonic()
            turn = await self._player.take_step(context.messages, rules.window.max_step_tokens, sample=self._sample)
            seconds, num_empty_answers = seconds + time.monotonic() - began, num_empty_answers + turn.num_empty_answers
            if turn.failure:
                stop, failure = StopReason.ENGINE_FAILURE, turn.failure
                break
            turns.append(turn)
            messages.append(turn.message)
            self._on_message(turn.message)
            read = read_notebook_turn(turn.raw_text, ended=turn.ended, num_tokens=turn.num_tokens)
            ran, cell_seconds = await self._run(read, ran, len(turns) - 1)
            stop_reason, failure = ran.stop_after(len(turns), rules.max_steps, deadline), ran.failure
            if stop_reason is None:
                context = self._after(context, turn, read, ran, len(turns))
                messages.append(context.steps[-1][1] if context.steps else context.head[-1])
                self._on_message(messages[-1])
            observed.append(
                ObservedTurn(
                    texts=[] if stop_reason else [messages[-1].content], calls=list(ran.calls), seconds=cell_seconds,
                    failure=failure, is_bug=ran.is_bug,
                )
            )  # fmt: skip
            if stop_reason is not None:
                stop = stop_reason
                break
        return PlayedConversation(
            stop_reason=stop, messages=tuple(messages), num_prompt_messages=len(prompt), turns=tuple(turns),
            observed=tuple(observed), seconds=seconds, failure=failure, num_empty_answers=num_empty_answers,
            answer=ran.answer, num_trims=context.num_trims,
        )  # fmt: skip

    async def _run(self, turn: NotebookTurn, before: RanCell, index: int) -> tuple[RanCell, float]:
        """Run the cell of a step; returns its result, and the seconds that it took."""
        if turn.code is None:
            return before.without_cell(), 0.0
        began = time.monotonic()
        ran = await self._notebook.run(turn.code, CellCalls(self._toolbox, index, before.answer))
        return ran, time.monotonic() - began

    def _after(
        self, context: _MessageContext, turn: PlayerTurn, read: NotebookTurn, ran: RanCell, num_steps: int
    ) -> _MessageContext:
        """The context of the next step: this step and its result are added; it is trimmed if no further step fits."""
        rules = self._rules
        notepad = ran.notepad.shown() if rules.has_notepad else ""
        restart = restarted(has_notepad=rules.has_notepad) if ran.was_restarted else ""
        output = None if ran.output is None else rules.cut(ran.output.text)
        counted = turn.num_prompt_tokens + turn.num_tokens
        used = counted if turn.num_prompt_tokens else num_tokens_of([*context.messages, turn.message])

        def message(news: str, num_before: int) -> Message:
            text = after_step(output, [notice for notice in (read.mistake, restart) if notice], rules.cut(news))
            left = self._left(num_before + num_tokens_of([Message(role=Role.USER, content=text)]), num_steps)
            return Message(role=Role.USER, content=f"{text}\n{left.shown()}".strip())

        told = message("" if notepad == context.notepad else notepad, used)
        step = (turn.message, told)
        if rules.window.room(used + num_tokens_of([told])) >= 0:
            return replace(context, steps=(*context.steps, step), notepad=notepad)
        shown = shown_to_player(notepad, max(1, rules.window.max_tokens // 4))
        steps = (*context.steps, step)
        bare = _trimmed(context.first, rules.window.trim, restart, shown, None)
        num_kept = rules.window.num_kept_steps([num_tokens_of(each) for each in steps], num_tokens_of(bare))
        left = None if num_kept else self._left(num_tokens_of(bare), num_steps)
        head = _trimmed(context.first, rules.window.trim if num_kept else Trim.HARD, restart, shown, left)
        kept = steps[len(steps) - num_kept :]
        return replace(context, head=head, steps=kept, notepad=notepad, num_trims=context.num_trims + 1)

    def _left(self, num_tokens: int, num_steps: int) -> Left:
        return Left(num_steps=self._rules.max_steps - num_steps, num_tokens=self._rules.window.room(num_tokens))


def _trimmed(
    first: tuple[Message, ...], trim: Trim, restart: str, notepad: str, left: Left | None
) -> tuple[Message, ...]:
    """Messages before the steps of a trimmed context."""
    task = trimmed_task(first[-1].content, trim, restart, notepad, left)
    return (*first[:-1], replace(first[-1], content=task))
