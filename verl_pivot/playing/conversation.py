"""Prompt and player -> PlayedConversation: the loop of a rollout with tools, over messages instead of tokens."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, StopReason
from verl_pivot.playing.player import Player, PlayerTurn
from verl_pivot.playing.shown_texts import CHARACTERS_PER_TOKEN, CharacterTokenizer
from verl_pivot.playing.turn_form import MessageForm, TurnForm
from verl_pivot.rollout.limits import RolloutLimits
from verl_pivot.rollout.observed_turn import (
    ObservationForm,
    ObservedTurn,
    observe,
    retry_message_in,
    unread_mistake,
)
from verl_pivot.tools.calls import Toolbox
from verl_pivot.types import ErrorKind, Message, Role

OnMessage = Callable[[Message], None]
"""Function that gets each message of a conversation as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunConversation:
    """Earlier turns with their observations, after which a conversation is continued."""

    messages: tuple[Message, ...] = ()
    """The messages after the prompt."""
    turns: tuple[PlayerTurn, ...] = ()
    observed: tuple[ObservedTurn, ...] = ()
    """[num_turns] observations; their `num_tokens` count characters, as everywhere in this module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedConversation:
    """One conversation, from its prompt to its end."""

    stop_reason: StopReason
    messages: tuple[Message, ...]
    """All messages, beginning with the prompt."""
    num_prompt_messages: int
    turns: tuple[PlayerTurn, ...]
    observed: tuple[ObservedTurn, ...]
    """[num_turns or num_turns - 1] observations after each turn; the last turn may have none."""
    seconds: float
    """Seconds spent waiting for the player."""
    failure: str
    """Description of the failure that masks the conversation; "" if none does."""
    num_empty_answers: int
    """Number of answers of the endpoint without a token."""
    unread: ErrorKind | None = None
    """Mistake of a last turn that nothing was run after; None if there is none."""
    answer: str | None = None
    """Answer that was submitted in a notebook; None if none was submitted, or there is no notebook."""
    num_trims: int = 0
    """Number of times that the context of a notebook was trimmed."""

    @property
    def is_bug(self) -> bool:
        """Whether the failure is a bug in a tool's own code."""
        return bool(self.observed) and self.observed[-1].is_bug

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, including the tool schemas; 0 if the endpoint does not count them."""
        return self.turns[0].num_prompt_tokens if self.turns else 0

    @property
    def num_response_tokens(self) -> int:
        """Tokens after the prompt up to the end of the last turn; tokens of turns alone if a context was trimmed."""
        if self.num_trims:
            return sum(turn.num_tokens for turn in self.turns)
        return _num_response_tokens(self.turns)

    @property
    def action_turns(self) -> tuple[int, ...]:
        """Positions among `turns` of the actions: turns that ended, could be read, and hold a call or an answer."""
        retried = {call.turn for each in self.observed for call in each.calls if call.error_kind is ErrorKind.NO_ACTION}
        last = len(self.turns) - 1
        return tuple(
            index
            for index, turn in enumerate(self.turns)
            if turn.ended and turn.is_readable and index not in retried and not (index == last and self.unread)
        )

    @property
    def expert_turns(self) -> tuple[int, ...] | Literal["all"]:
        """Positions among the assistant messages from which actions can be learned: those of the prompt, and actions.

        A message that holds several turns (Search-R1) is left out unless all of them are actions.
        """
        actions = self.action_turns
        if len(actions) == len(self.turns):
            return "all"
        begin, num_written = (
            sum(message.role is Role.ASSISTANT for message in messages)
            for messages in (self.messages[: self.num_prompt_messages], self.messages[self.num_prompt_messages :])
        )
        is_turn_by_turn = num_written == len(self.turns)
        return (*range(begin), *(begin + index for index in actions if is_turn_by_turn))

    def record(self, prompt_id: str) -> RolloutRecord:
        """The rollout record that training keeps; tokens of observations are estimated from their characters."""
        return RolloutRecord(
            prompt_id=prompt_id,
            stop_reason=self.stop_reason,
            calls=tuple(_in_tokens(call) for each in self.observed for call in each.calls),
            turn_tokens=tuple(turn.num_tokens for turn in self.turns),
            prompt_tokens=self.num_prompt_tokens,
            response_tokens=self.num_response_tokens,
            generate_seconds=round(self.seconds, 6),
            tool_seconds=round(sum(each.seconds for each in self.observed), 6),
            num_empty_answers=self.num_empty_answers,
            is_cut_off=bool(self.turns) and not self.turns[-1].ended,
            unread=self.unread,
            failure=self.failure,
            answer=self.answer,
            num_trims=self.num_trims,
            retry_message=retry_message_in(self.observed),
        )


def unbegun_conversation(prompt: Sequence[Message], failure: str) -> PlayedConversation:
    """A conversation that ended before its first turn, because its tools failed."""
    return PlayedConversation(
        stop_reason=StopReason.TOOL_FAILURE, messages=tuple(prompt), num_prompt_messages=len(prompt), turns=(),
        observed=(), seconds=0.0, failure=failure, num_empty_answers=0,
    )  # fmt: skip


async def play_conversation(
    player: Player,
    toolbox: Toolbox,
    prompt: Sequence[Message],
    limits: RolloutLimits,
    *,
    sample: int = 0,
    on_message: OnMessage = lambda message: None,
    form: TurnForm = MessageForm(),  # noqa: B008  never changes
    begun: BegunConversation = BegunConversation(),
) -> PlayedConversation:
    """Alternate the player's turns and the tools' observations until a stop reason of training applies.

    Args:
        player: Model or person that takes the assistant's turns.
        toolbox: Tools of the conversation.
        prompt: Messages before the first turn.
        limits: Limits of the conversation. Tokens of the response are limited only if the endpoint counts them.
        sample: Number of the conversation among those with the same prompt.
        on_message: Called with each new message.
        form: How turns and observations become messages.
        begun: Earlier turns after which the conversation goes on.

    Raises:
        EngineError: If the endpoint cannot be reached or keeps failing.
    """
    deadline = time.monotonic() + limits.max_wall_seconds
    messages = [*prompt, *begun.messages]
    turns, observed = list(begun.turns), list(begun.observed)
    seconds, num_empty_answers, failure, unread = 0.0, 0, "", None
    while True:
        budget = limits.turn_budget(_num_response_tokens(turns) + _num_unread_tokens(observed))
        if (stop := _limit_reached(budget, deadline)) is not None:
            break
        began = time.monotonic()
        turn = await player.take_turn(messages, toolbox.schemas, budget, sample=sample)
        seconds, num_empty_answers = seconds + time.monotonic() - began, num_empty_answers + turn.num_empty_answers
        if turn.failure:
            stop, failure = StopReason.ENGINE_FAILURE, turn.failure
            break
        turns.append(turn.with_ids(len(turns)))
        messages = form.with_turn(messages, turns[-1])
        on_message(messages[-1])
        if (stop := _stop_after(turns, limits, form, is_late=time.monotonic() > deadline)) is not None:
            unread = _unread(turns[-1], form)
            break
        observed.append(await _observed(turns[-1], toolbox, len(turns) - 1, limits, form, deadline))
        if failure := observed[-1].failure:
            stop = StopReason.TOOL_FAILURE
            break
        num_messages, messages = len(messages), _with_observations(messages, turns[-1], observed[-1].texts, form)
        for message in messages[num_messages:]:
            on_message(message)
        if (stop := observed[-1].end) is not None:
            break
    return PlayedConversation(
        stop_reason=stop, messages=tuple(messages), num_prompt_messages=len(prompt), turns=tuple(turns),
        observed=tuple(observed), seconds=seconds, failure=failure, num_empty_answers=num_empty_answers,
        unread=unread,
    )  # fmt: skip


def _num_response_tokens(turns: Sequence[PlayerTurn]) -> int:
    """Tokens after the prompt, up to the end of the last turn; each turn's prompt holds all messages before it."""
    return turns[-1].num_prompt_tokens + turns[-1].num_tokens - turns[0].num_prompt_tokens if turns else 0


def _num_unread_tokens(observed: Sequence[ObservedTurn]) -> int:
    """Tokens of the observations that follow the last turn, which the endpoint has not counted yet."""
    return sum(_in_tokens(call).num_tokens for call in observed[-1].calls) if observed else 0


def _limit_reached(budget: int, deadline: float) -> StopReason | None:
    """The limit that forbids another turn; None if another turn may begin."""
    if time.monotonic() > deadline:
        return StopReason.MAX_WALL_SECONDS
    return StopReason.MAX_RESPONSE_TOKENS if budget <= 0 else None


def _stop_after(
    turns: Sequence[PlayerTurn], limits: RolloutLimits, form: TurnForm, *, is_late: bool
) -> StopReason | None:
    """Why the conversation ends with its last turn; None if it goes on."""
    if not turns[-1].ended:
        return limits.stop_after_cut(turns[-1].num_tokens, len(turns), is_late=is_late)
    return limits.stop_after(len(turns), is_answer=form.is_answer(turns[-1]), is_late=is_late)


def _unread(turn: PlayerTurn, form: TurnForm) -> ErrorKind | None:
    return unread_mistake(turn.calls, is_answer=form.is_answer(turn)) if turn.ended else None


def _with_observations(
    messages: list[Message], turn: PlayerTurn, texts: Sequence[str], form: TurnForm
) -> list[Message]:
    """The messages with the observations added; as they are if some calls of the turn never began."""
    return messages if len(texts) < len(turn.calls) else form.with_observations(messages, turn, texts)


async def _observed(
    turn: PlayerTurn, toolbox: Toolbox, index: int, limits: RolloutLimits, form: TurnForm, deadline: float
) -> ObservedTurn:
    """Run the calls of a turn; a turn without calls that is not the final answer gets the retry message."""
    if not turn.calls:
        call = CallRecord(
            turn=index, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.NO_ACTION,
            num_tokens=len(form.retry_message),
        )  # fmt: skip
        return ObservedTurn(texts=[form.retry_message], calls=[call])
    shown = ObservationForm(
        max_tokens=limits.max_observation_tokens * CHARACTERS_PER_TOKEN,
        tokenizer=CharacterTokenizer(),
        template=form.observation_template,
    )
    return await observe(turn.calls, toolbox, index, shown, deadline)


def in_characters(call: CallRecord) -> CallRecord:
    """The record of a call with the size of its observation in characters instead of training's tokens."""
    return msgspec.structs.replace(call, num_tokens=call.num_tokens * CHARACTERS_PER_TOKEN)


def _in_tokens(call: CallRecord) -> CallRecord:
    return msgspec.structs.replace(call, num_tokens=math.ceil(call.num_tokens / CHARACTERS_PER_TOKEN))


def num_tokens_of(messages: Sequence[Message]) -> int:
    """Tokens of messages, estimated from their characters."""
    return math.ceil(sum(len(message.content) for message in messages) / CHARACTERS_PER_TOKEN)
