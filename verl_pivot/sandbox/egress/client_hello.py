"""First bytes of a TLS connection -> the host's name in them (SNI), read strictly: what is unusual is refused.

A server may read an unusual message otherwise than we do, so a name counts only if there is one way to read it.
"""

from verl_pivot.sandbox.egress.listed_hosts import host_name

MAX_HELLO_BYTES = 16 * 1024
_HANDSHAKE, _CLIENT_HELLO, _HOST_NAME = 22, 1, 0
_SERVER_NAME = 0x0000
_ENCRYPTED_NAMES = (0xFE0D, 0xFFCE)
"""Extensions that hide the name of the host that is meant: Encrypted Client Hello, and the draft before it."""
_RECORD_HEADER, _MESSAGE_HEADER, _RANDOM_BYTES = 5, 4, 32
_MAX_RECORD_BYTES = 16384


class HelloError(ValueError):
    """The bytes are no ClientHello from which a name can be read with certainty."""


def hello_message(data: bytes) -> bytes | None:
    """The body of the ClientHello at the beginning of a connection; None if more bytes have to come.

    Raises:
        HelloError: If the connection does not begin with a ClientHello in whole records.
    """
    message, at = b"", 0
    while len(data) - at >= _RECORD_HEADER:
        kind, major, length = data[at], data[at + 1], int.from_bytes(data[at + 3 : at + _RECORD_HEADER])
        if kind != _HANDSHAKE or major != 3 or not 0 < length <= _MAX_RECORD_BYTES:
            raise HelloError("it does not begin with TLS")
        if len(data) - at - _RECORD_HEADER < length:
            break
        message += data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        if (body := _body_of(message)) is not None:
            return body
    if data and data[0] != _HANDSHAKE:
        raise HelloError("it does not begin with TLS")
    if len(data) > MAX_HELLO_BYTES:
        raise HelloError(f"its first message is longer than {MAX_HELLO_BYTES} bytes")
    return None


def _body_of(message: bytes) -> bytes | None:
    """Body of the message if it is complete."""
    if message[0] != _CLIENT_HELLO:
        raise HelloError("its first message is no ClientHello")
    if len(message) < _MESSAGE_HEADER:
        return None
    end = _MESSAGE_HEADER + int.from_bytes(message[1:_MESSAGE_HEADER])
    if end > MAX_HELLO_BYTES:
        raise HelloError(f"its first message is longer than {MAX_HELLO_BYTES} bytes")
    if len(message) > end:
        raise HelloError("something follows the ClientHello in its record")
    return message[_MESSAGE_HEADER:] if len(message) == end else None


def server_name(body: bytes) -> str:
    """The one name of a host in a ClientHello's body.

    Raises:
        HelloError: If it has none, several or a hidden one, or anything in it does not end where it should.
    """
    reader = _HelloReader(body)
    reader.take(2 + _RANDOM_BYTES)
    for size in (1, 2, 1):  # session id, cipher suites, compression methods
        reader.vector(size)
    extensions = _HelloReader(reader.vector(2))
    reader.end()
    found: dict[int, bytes] = {}
    while extensions.has_more:
        kind = extensions.number(2)
        if kind in found:
            raise HelloError(f"extension {kind} occurs twice")
        found[kind] = extensions.vector(2)
    if any(kind in found for kind in _ENCRYPTED_NAMES):
        raise HelloError("it hides the name of the host (Encrypted Client Hello)")
    if _SERVER_NAME not in found:
        raise HelloError("it does not name its host (SNI)")
    return _one_name(found[_SERVER_NAME])


def _one_name(extension: bytes) -> str:
    outer = _HelloReader(extension)
    names = _HelloReader(outer.vector(2))
    outer.end()
    kind, text = names.number(1), names.vector(2)
    names.end()
    name = host_name(text.decode("ascii", "replace"))
    if kind != _HOST_NAME or name is None:
        raise HelloError("what it names is no host (SNI)")
    return name


class _HelloReader:
    """Reads numbers and vectors of TLS from bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) < length:
            raise HelloError("its ClientHello is cut off")
        self._at += length
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """What stands behind its length of `size` bytes."""
        return self.take(self.number(size))

    def end(self) -> None:
        if self.has_more:
            raise HelloError("something follows the end of a part of its ClientHello")
