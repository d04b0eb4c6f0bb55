"""Calls that a cell makes of functions of the host -> the caller's function -> replies, in the client."""

import asyncio
from collections.abc import Sequence

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json, is_too_deep
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.host_functions import AnswerCall, CallLimits, HostCall, HostReply
from verl_pivot.sandbox.lane.answers import MAX_CALL_BYTES
from verl_pivot.sandbox.wire import ReplyBody, encode
from verl_pivot.types import JsonObject


class HostFailureError(Exception):
    """A call could not be answered, which ends its cell."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
        """Exception that the caller's function raised, or that was raised for its reply."""


class CallAnswering:
    """Answers the calls of one cell, one at a time."""

    def __init__(self, answer: AnswerCall, limits: CallLimits, names: Sequence[str], deadline: asyncio.Timeout) -> None:
        """Begin.

        Args:
            answer: The caller's function.
            limits: Limits of the calls.
            names: Names of the session's functions.
            deadline: Deadline of the whole request; it is paused while a call is answered.
        """
        self._answer = answer
        self._limits = limits
        self._names = names
        self._deadline = deadline

    async def reply(self, call: HostCall) -> bytes:
        """Message with the reply to one call.

        Raises:
            HostFailureError: If the call cannot be answered, which is not the cell's fault.
        """
        loop = asyncio.get_running_loop()
        began, when = loop.time(), self._deadline.when()
        self._deadline.reschedule(None)
        try:
            reply = await self._reply(call)
        except Exception as error:  # the caller's function, which may raise anything
            raise HostFailureError(error) from error
        finally:
            self._deadline.reschedule(None if when is None else when + loop.time() - began)
        return encode(reply)

    async def _reply(self, call: HostCall) -> ReplyBody:
        if call.name not in self._names:
            raise SandboxError(f"the service passed on a call of {call.name!r}, but the session has no such function")
        try:
            arguments = self._arguments(call)
        except BadRowError as error:
            return ReplyBody(number=call.number, error=f"the arguments of {call.name}() are not valid: {error}")
        seconds = self._limits.reply_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                reply = await self._answer(call.name, arguments)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise SandboxError(f"function {call.name} of the host gave no reply within {seconds:g} s") from error
        return _encoded(call, reply)

    def _arguments(self, call: HostCall) -> JsonObject:
        """Arguments of a call.

        Raises:
            BadRowError: If the cell sent anything but a JSON object.
        """
        arguments = as_object(decode_json(call.arguments, what="they"), "they")
        if is_too_deep(arguments):
            raise BadRowError("not_json", "they are nested too deeply")
        return arguments


def _encoded(call: HostCall, reply: HostReply) -> ReplyBody:
    """The reply in the form in which it is sent to the cell.

    Raises:
        BadRowError: If the value cannot be written as JSON.
    """
    if reply.error is not None:
        error = reply.error.encode("utf-8", "backslashreplace")[:MAX_CALL_BYTES].decode("utf-8", "ignore")
        return ReplyBody(number=call.number, error=error)
    text = encode_json(reply.value)
    num_bytes = len(text.encode())
    if num_bytes > MAX_CALL_BYTES:
        error = f"the result of {call.name}() has {num_bytes} bytes as JSON; at most {MAX_CALL_BYTES} can be returned"
        return ReplyBody(number=call.number, error=error)
    return ReplyBody(number=call.number, value=text)
