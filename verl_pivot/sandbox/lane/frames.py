"""JSON messages over the byte stream between the service and a lane, each framed by its length."""

import json
import struct
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

MessageT = TypeVar("MessageT")

READY_NUMBER = 0
"""Number of a lane's first answer, which belongs to no request: it says that every zygote is ready to fork."""

_LENGTH = struct.Struct(">I")
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class FrameError(ValueError):
    """Error for bytes from the other side that are not a frame."""


def encode(message: Mapping[str, object]) -> bytes:
    """One frame: the length in bytes, then the message as JSON."""
    body = _to_json(message).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder(Generic[MessageT]):
    """Bytes of a stream -> messages, however the stream is cut.

    Both ends are trusted code: a message is checked to be a JSON object, its fields are not checked.

    Example:
        decoder: Decoder[RequestFrame] = Decoder(max_bytes=1024)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """Messages that `data` completes.

        Raises:
            FrameError: If a frame is longer than `max_bytes`, or does not hold a JSON object.
        """
        self._buffer += data
        messages: list[Any] = []
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


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        FrameError: If it holds anything else.
    """
    try:
        message = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame must be JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame must be a JSON object, got {type(message).__name__}")
    return message
