"""JSON messages over the byte stream between a lane and its node: framed by length, never longer than agreed."""

import json
import struct
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""A JSON object between two parts of our own; strangers' words are checked where they are read."""

_LENGTH = struct.Struct(">I")
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class FrameError(ValueError):
    """The other side sent what is no frame."""


def encode(message: Message) -> bytes:
    """One frame: its length, then JSON."""
    body = _to_json(message).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Bytes of a stream -> messages, however they are cut."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Raise FrameError for a frame that is longer than agreed or no JSON object."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._max_bytes:
                raise FrameError(f"a frame of {length} bytes is longer than {self._max_bytes}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode_object(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def decode_object(body: bytes) -> Message:
    """Raise FrameError unless `body` is a JSON object."""
    try:
        message = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame must be a JSON object, got {type(message).__name__}")
    return message
