"""Answer of a writer -> its action or its text, or Malformed with the reason why it cannot be used."""

from verl_pivot.data.actions import TRUNCATED
from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import HALF_PAIR, BadRowError, encode_json
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.playing.endpoint_player import read_answer
from verl_pivot.types import Malformed, Message


def read_action(answer: ChatAnswer) -> Message | Malformed:
    """The action in an answer, whose calls must all be readable.

    Raises:
        EngineError: If the answer is no message of the assistant.
    """
    turn = read_answer(answer)
    if not turn.ended:
        return TRUNCATED
    unreadable = next((call for call in turn.calls if isinstance(call, Malformed)), None)
    if unreadable is not None:
        return unreadable
    if not turn.calls and not turn.content.strip():
        return Malformed(reason="empty_message", detail="neither a call nor text")
    try:
        encode_json(turn.message.as_dict())
    except BadRowError as error:  # NaN, half of a surrogate pair, or nested too deeply
        return Malformed(reason="malformed_message", detail=str(error))
    return turn.message


def read_text(answer: ChatAnswer, *, reason: str = "bad_text") -> str | Malformed:
    """The text in an answer, which must make no call and have no markers of a chat template.

    Args:
        answer: Answer of a writer.
        reason: Reason of the Malformed result if the answer makes a call, has no text, or has markers.

    Raises:
        EngineError: If the answer is no message of the assistant.
    """
    action = read_action(answer)
    if isinstance(action, Malformed):
        return action
    text = action.content.strip()
    if action.tool_calls or not text or without_chat_tokens(text) != text:
        return Malformed(reason=reason, detail=f"not a text without calls and markers of a chat template: {text!r}")
    return text


def is_plain(text: str) -> bool:
    """Whether a text has no markers of a chat template and no half of a surrogate pair, which is no valid text."""
    return without_chat_tokens(text) == text and not HALF_PAIR.search(text)
