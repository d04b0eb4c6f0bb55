"""First bytes of a TLS connection -> the host's name in them (SNI), read strictly: anything unusual is refused.

A server may read an unusual message differently, so a name counts only if there is only one way to read it. In TLS 1.3
a server may ask for a second ClientHello (RFC 8446, 4.1.4), which is read as strictly as the first.
"""

import hashlib
from typing import NamedTuple

from verl_pivot.sandbox.egress.listed_hosts import host_name

MAX_HELLO_BYTES = 16 * 1024
MAX_BYTES_BEFORE = 64 * 1024
"""Maximum bytes ahead of a second ClientHello; servers take 16 KiB of early data."""
_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION_DATA = 20, 21, 22, 23
_CLIENT_HELLO, _SERVER_HELLO, _HOST_NAME = 1, 2, 0
_RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
"""Random number of a ServerHello that asks for a second ClientHello."""
_SERVER_NAME = 0x0000
_ENCRYPTED_NAMES = (0xFE0D, 0xFFCE)
"""Extensions that hide the name of the host that is meant: Encrypted Client Hello, and the draft before it."""
_RECORD_HEADER, _MESSAGE_HEADER, _RANDOM_BYTES = 5, 4, 32
_MAX_RECORD_BYTES = 16384


class HelloError(ValueError):
    """The bytes are no ClientHello from which a name can be read with certainty."""


class ClientHello(NamedTuple):
    """A whole first message of a client."""

    body: bytes
    num_bytes: int
    """Bytes of the connection up to its end, headers of records included."""


def hello_message(data: bytes) -> ClientHello | None:
    """The ClientHello at the beginning of a connection; None if more bytes have to come.

    Raises:
        HelloError: If the connection does not begin with a ClientHello in whole records.
    """
    message, at = b"", 0
    while (record := _record(data, at)) is not None:
        if record.kind != _HANDSHAKE:
            raise HelloError("it does not begin with TLS")
        message += record.content
        at = record.end
        if (body := _body_of(message)) is not None:
            return ClientHello(body, at)
    if data and data[0] != _HANDSHAKE:
        raise HelloError("it does not begin with TLS")
    if len(data) > MAX_HELLO_BYTES:
        raise HelloError(f"its first message is longer than {MAX_HELLO_BYTES} bytes")
    return None


def asks_for_retry(data: bytes) -> bool | None:
    """Whether the server's first bytes ask for a second ClientHello; None if more bytes have to come.

    Raises:
        HelloError: If they are no answer to a ClientHello.
    """
    record = _record(data, 0)
    if record is None:
        return None
    if record.kind == _ALERT:
        return False
    begin = _MESSAGE_HEADER + 2
    if record.kind != _HANDSHAKE or record.content[0] != _SERVER_HELLO or len(record.content) < begin + _RANDOM_BYTES:
        raise HelloError("its server does not answer with a ServerHello")
    return record.content[begin : begin + _RANDOM_BYTES] == _RETRY


def before_second_hello(data: bytes) -> int | None:
    """Number of bytes in the records ahead of a client's second ClientHello; None if more bytes have to come.

    These records are early data and a record without meaning (ChangeCipherSpec). A server that asked for a second
    ClientHello drops them.

    Raises:
        HelloError: If a record is of another kind, or there are too many.
    """
    at = 0
    while (record := _record(data, at)) is not None:
        if record.kind == _HANDSHAKE:
            return at
        if record.kind not in (_CHANGE_CIPHER_SPEC, _APPLICATION_DATA):
            raise HelloError("no second ClientHello follows")
        at = record.end
    if len(data) > MAX_BYTES_BEFORE:
        raise HelloError(f"more than {MAX_BYTES_BEFORE} bytes come ahead of its second ClientHello")
    return None


class _Record(NamedTuple):
    """One record of TLS."""

    kind: int
    content: bytes
    end: int
    """Bytes of the connection up to its end."""


def _record(data: bytes, at: int) -> _Record | None:
    """The record that begins at `at`; None if it is not yet whole."""
    begin = at + _RECORD_HEADER
    if len(data) < begin:
        return None
    length = int.from_bytes(data[begin - 2 : begin])
    if data[at + 1] != 3 or not 0 < length <= _MAX_RECORD_BYTES:
        raise HelloError("it does not begin with TLS")
    if len(data) < begin + length:
        return None
    return _Record(data[at], data[begin : begin + length], begin + length)


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
        """The bytes after a length field of `size` bytes, as many as the length says."""
        return self.take(self.number(size))

    def end(self) -> None:
        if self.has_more:
            raise HelloError("something follows the end of a part of its ClientHello")
