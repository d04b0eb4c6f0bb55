"""A step and its outcome -> the NotebookContext that the next step follows, trimmed if no step would fit otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from verl_pivot.engines.text_cut import cut_to_tokens
from verl_pivot.errors import DataError
from verl_pivot.rollout.context import ContextWindow, Trim
from verl_pivot.rollout.conversation_tokens import check_texts, prompt_tokens, rendered, with_messages
from verl_pivot.rollout.loop_parts import LoopParts
from verl_pivot.rollout.notebook_prompt import Left, after_step, restarted, trimmed_task
from verl_pivot.rollout.notepad import NotepadReading, Notes
from verl_pivot.rollout.observations import without_special_tokens
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.types import JsonObject

_LONGEST_TEXT = 10**5
"""Characters of a text longer than any Notepad, to count the tokens of the note that replaces its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookParts(LoopParts):
    """Parts of the agent loop with a notebook that all its rollouts share."""

    window: ContextWindow
    max_steps: int
    max_observation_tokens: int
    """Most tokens of a cell's output, and of a Notepad; in a longer text a note replaces the middle."""
    max_wall_seconds: float
    has_notepad: bool
    turn_prefix: str = ""
    """Text with which the chat template begins every turn, such as "<think>"."""
    turn_suffix: tuple[int, ...] = ()
    """Tokens with which the chat template ends a turn, for turns that end without an end-of-turn token."""

    def cut(self, text: str, max_tokens: int) -> str:
        """A text as the policy may read it: without special tokens, and without its middle if it is too long."""
        harmless = without_special_tokens(text, self.special_tokens)
        return cut_to_tokens(harmless, max_tokens, self.loop.tokenizer).text


class ContextStep(NamedTuple):
    """A step that a context holds, with what the policy read after it."""

    token_ids: list[int]
    messages: list[JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookContext:
    """Context that the next step of the policy follows."""

    tokens: TokenRecord
    """All tokens; their prompt is the context with which this stretch began."""
    head: list[JsonObject]
    """Messages before all steps, the last of which is the task."""
    steps: tuple[ContextStep, ...] = ()
    """Steps in the context; those that a trim kept come first."""
    notepad: str
    """The Notepad as it was shown last."""
    first_step: int = 0
    """Index within the trajectory of the first step that is sampled in this stretch."""

    @property
    def messages(self) -> list[JsonObject]:
        return [*self.head, *(message for step in self.steps for message in step.messages)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedStep:
    """End of a step after which the policy goes on."""

    index: int
    """Index of the step within the trajectory, from 0."""
    message: JsonObject
    """The policy's turn as a chat message."""
    tokens: TokenRecord
    """Tokens of the context, followed by those of the turn and the end of its message."""
    output: str | None
    """Output of the cell; None if nothing was run."""
    mistake: str
    """What was wrong with the turn; "" if nothing was."""
    restart: str
    """Notice that the notebook was restarted; "" if it was not."""
    notepad: str
    """The Notepad as the policy reads it; "" without one."""


class ContextBuilder:
    """Builds the contexts of one rollout. Its attributes never change."""

    def __init__(self, parts: NotebookParts, system: str, prompt: Sequence[JsonObject]) -> None:
        """Keep the prompt.

        Args:
            parts: The agent loop.
            system: System prompt of the scaffold, which is put before that of the row.
            prompt: Messages of the row, of which the last one is the task.

        Raises:
            DataError: If a message holds anything but text.
        """
        check_texts(prompt)
        self._parts = parts
        self._window = parts.window
        systems = [system, *(str(each.get("content") or "") for each in prompt if each["role"] == "system")]
        others = [dict(each) for each in prompt if each["role"] != "system"]
        self._head: list[JsonObject] = [{"role": "system", "content": "\n\n".join(systems)}, *others]

    async def begin(self) -> NotebookContext:
        """The context of the first step.

        Raises:
            DataError: If the task, with the notice that a trim adds, is too long, or holds anything but text.
        """
        tokens = await prompt_tokens(self._parts, self._head)
        note = self._parts.cut("x" * _LONGEST_TEXT, 1)
        left = Left(num_steps=self._parts.max_steps, num_tokens=self._window.max_tokens)
        trimmed = await rendered(self._parts, self._trimmed_head(note, restarted(has_notepad=True), left, num_kept=1))
        if self._window.room(max(tokens.num_prompt_tokens, trimmed.num_prompt_tokens)) < 0:
            raise DataError(
                f"a task of {tokens.num_prompt_tokens} tokens, the system prompt included, takes up to "
                f"{trimmed.num_prompt_tokens} in a trimmed context, which leaves no room for a step of "
                f"{self._window.max_step_tokens} within pivot.notebook.max_context_tokens={self._window.max_tokens}: "
                "raise that limit, or remove the row"
            )
        shown = NotepadReading(Notes()).shown() if self._parts.has_notepad else ""
        return NotebookContext(tokens=tokens, head=self._head, notepad=shown)

    async def after(self, context: NotebookContext, end: EndedStep) -> NotebookContext:
        """The context of the next step: extended by the step and its outcome, or trimmed if no step would fit then."""
        news = "" if end.notepad == context.notepad else end.notepad
        observed = await self._observed(end.tokens, context.messages, end, news)
        step = _newest(observed, end, len(context.tokens.token_ids))
        if self._window.room(len(observed.tokens.token_ids)) >= 0:
            return replace(context, tokens=observed.tokens, steps=(*context.steps, step), notepad=end.notepad)
        return await self._trimmed(context, end, len(step.token_ids))

    async def _trimmed(self, context: NotebookContext, end: EndedStep, num_newest: int) -> NotebookContext:
        """The context without old steps.

        Args:
            context: The context that the step has followed.
            end: End of the step.
            num_newest: Number of tokens of the step with what the policy would read after it.
        """
        bare = await rendered(self._parts, self._trimmed_head("", end.restart, None, num_kept=1))
        notepad = self._parts.cut(end.notepad, max(1, self._window.room(bare.num_prompt_tokens) // 2))
        head = self._trimmed_head(notepad, end.restart, None, num_kept=1)
        first = await rendered(self._parts, head)
        lengths = [*(len(step.token_ids) for step in context.steps), num_newest]
        for num_kept in range(self._window.num_kept_steps(lengths, first.num_prompt_tokens), 0, -1):
            older = context.steps[len(context.steps) - (num_kept - 1) :]
            turn_ids = end.tokens.token_ids[len(context.tokens.token_ids) :]
            ids = [*first.token_ids, *(each for step in older for each in step.token_ids)]
            messages = [*head, *(message for step in older for message in step.messages)]
            observed = await self._observed(TokenRecord.of_prompt([*ids, *turn_ids]), messages, end, "")
            if self._window.room(len(observed.tokens.token_ids)) >= 0:
                steps = (*older, _newest(observed, end, len(ids)))
                return _stretch(observed.tokens, head, steps, end)
        left = self._left(first.num_prompt_tokens, end.index)
        head = self._trimmed_head(notepad, end.restart, left, num_kept=0)
        return _stretch(await rendered(self._parts, head), head, (), end)

    def _trimmed_head(self, notepad: str, restart: str, left: Left | None, *, num_kept: int) -> list[JsonObject]:
        """Messages before the steps of a trimmed context."""
        trim = self._window.trim if num_kept else Trim.HARD
        task = trimmed_task(str(self._head[-1]["content"]), trim, restart, notepad, left)
        return [*self._head[:-1], {**self._head[-1], "content": task}]

    async def _observed(
        self, tokens: TokenRecord, messages: Sequence[JsonObject], end: EndedStep, notepad: str
    ) -> "_Observed":
        """Tokens followed by what the policy reads after a step.

        Args:
            tokens: Tokens through the end of the step's message.
            messages: Messages before it.
            end: End of the step.
            notepad: The Notepad, if it changed; "" if it did not.
        """
        output = None if end.output is None else self._parts.cut(end.output, self._parts.max_observation_tokens)
        news = self._parts.cut(notepad, self._parts.max_observation_tokens)
        notices = [notice for notice in (end.mistake, end.restart) if notice]
        text = after_step(output, notices, news)
        left = self._left(len(tokens.token_ids) + len(self._parts.encode(text)), end.index)
        message: JsonObject = {"role": "user", "content": f"{text}\n{left.shown()}".strip()}
        grown = await with_messages(self._parts, tokens, [*messages, end.message], [message])
        return _Observed(grown, message)

    def _left(self, num_tokens: int, index: int) -> Left:
        return Left(num_steps=self._parts.max_steps - index - 1, num_tokens=self._window.room(num_tokens))


class _Observed(NamedTuple):
    """Tokens through what the policy reads after a step, and the message that it reads."""

    tokens: TokenRecord
    message: JsonObject


def _newest(observed: _Observed, end: EndedStep, num_before: int) -> ContextStep:
    """The step that has just ended, as part of a context in which it follows `num_before` tokens."""
    return ContextStep(observed.tokens.token_ids[num_before:], [end.message, observed.message])


def _stretch(
    tokens: TokenRecord, head: list[JsonObject], steps: tuple[ContextStep, ...], end: EndedStep
) -> NotebookContext:
    """A context with which a new stretch begins: all of it is prompt."""
    return NotebookContext(
        tokens=TokenRecord.of_prompt(tokens.token_ids), head=head, steps=steps, notepad=end.notepad,
        first_step=end.index + 1,
    )  # fmt: skip
