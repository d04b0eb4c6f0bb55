"""Host name in the ClientHello, the first message of TLS: read from OpenSSL's own messages and from changed ones."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tls_server import server_context
from verl_pivot.sandbox.egress.client_hello import (
    MAX_BYTES_BEFORE,
    HelloError,
    asks_for_retry,
    before_second_hello,
    hello_message,
    server_name,
)


def client_context() -> ssl.SSLContext:
    """Context of a client that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def client_hello(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """First bytes that OpenSSL's client sends: its ClientHello."""
    context = client_context()
    context.minimum_version = context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def name_in(data: bytes) -> str | None:
    hello = hello_message(data)
    return None if hello is None else server_name(hello.body)


@pytest.fixture(scope="module")
def retry(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """(answer of OpenSSL's server that asks for a second ClientHello, what OpenSSL's client sends then).

    The client begins with a key for X25519 alone, and the server takes only keys of P-521.
    """
    server = server_context(tmp_path_factory.mktemp("certificate"))
    server.set_ecdh_curve("secp521r1")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(to_client, to_server, server_hostname="web.test")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        theirs.do_handshake()
    answer = to_client.read()
    to_client.write(answer)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return answer, to_server.read()


EARLY_DATA = b"\x17\x03\x03\x00\x03abc"
NO_MEANING = b"\x14\x03\x03\x00\x01\x01"


def in_records(data: bytes, length: int) -> bytes:
    """The message of `data`, in records with at most `length` bytes of it each."""
    message = data[5:]
    parts = [message[start : start + length] for start in range(0, len(message), length)]
    return b"".join(data[:3] + len(part).to_bytes(2) + part for part in parts)


def with_extension(data: bytes, kind: int, content: bytes) -> bytes:
    """The message of `data` with one more extension at its end."""
    body = data[9:]
    at = 34
    for size in (1, 2, 1):
        at += size + int.from_bytes(body[at : at + size])
    extensions = body[at + 2 :] + kind.to_bytes(2) + len(content).to_bytes(2) + content
    body = body[:at] + len(extensions).to_bytes(2) + extensions
    message = b"\x01" + len(body).to_bytes(3) + body
    return data[:3] + len(message).to_bytes(2) + message


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_that_openssl_writes_is_read(version: ssl.TLSVersion) -> None:
    assert name_in(client_hello("files.example.org", version)) == "files.example.org"
    assert name_in(client_hello("Files.Example.org", version)) == "files.example.org"


@given(st.integers(1, 700), st.integers(0, 700))
def test_messages_in_pieces_are_read_when_they_are_whole(length: int, end: int) -> None:
    data = in_records(client_hello("example.org"), length)
    assert name_in(data) == "example.org"
    assert name_in(data[: min(end, len(data) - 1)]) is None


def test_what_follows_in_records_of_their_own_is_not_looked_at() -> None:
    assert name_in(client_hello("example.org") + b"\x14\x03\x03\x00\x01\x01") == "example.org"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "does not begin with TLS"),
        (b"G", "does not begin with TLS"),
        (b"\x80\x2e\x01\x03\x01", "does not begin with TLS"),  # hello of SSL 2
        (b"\x16\x03\x01\x00\x00", "does not begin with TLS"),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "no ClientHello"),
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", "longer than"),
        (client_hello(None), "does not name its host"),
        (with_extension(client_hello("example.org"), 0, b"\x00\x0b\x00\x00\x08evil.org"), "occurs twice"),
        (with_extension(client_hello("example.org"), 0xFE0D, b"x"), "hides the name"),
        (with_extension(client_hello("example.org"), 0xFFCE, b"x"), "hides the name"),
        (with_extension(client_hello(None), 0, b"\x00\x16\x00\x00\x08good.org\x00\x00\x08evil.org"), "follows the end"),
        (with_extension(client_hello(None), 0, b"\x00\x0b\x00\x00\x08evil.org!"), "follows the end"),
        (with_extension(client_hello(None), 0, b"\x00\x0b\x01\x00\x08evil.org"), "is no host"),
        (with_extension(client_hello(None), 0, b"\x00\x0c\x00\x00\x09127.0.0.1"), "is no host"),
        (with_extension(client_hello(None), 0, b"\x00\x0b\x00\x00\x08evi\x00.org"), "is no host"),
        (with_extension(client_hello(None), 0, b""), "cut off"),
        (client_hello("example.org")[:5] + client_hello("example.org")[5:] + b"", None),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(data: bytes, reason: str | None) -> None:
    if reason is None:
        assert name_in(data) == "example.org"
        return
    with pytest.raises(HelloError, match=reason):
        name_in(data)


def test_a_second_message_in_the_record_is_refused() -> None:
    data = client_hello("example.org")
    message = data[5:] + data[5:]
    with pytest.raises(HelloError, match="follows the ClientHello"):
        name_in(data[:3] + len(message).to_bytes(2) + message)


@given(st.binary(max_size=600), st.integers(0, 520), st.binary(max_size=4))
def test_no_bytes_break_the_reader(noise: bytes, at: int, patch: bytes) -> None:
    whole = client_hello("example.org")
    for data in (
        noise,
        b"\x16\x03\x01" + len(noise).to_bytes(2) + noise,
        whole[:at] + patch + whole[at + len(patch) :],
    ):
        try:
            name = name_in(data)
        except HelloError:
            continue
        assert name is None or name.isascii()


def test_a_server_that_asks_for_a_second_hello_is_told_from_others(retry: tuple[bytes, bytes]) -> None:
    answer, second = retry
    assert asks_for_retry(answer)
    assert [asks_for_retry(answer[:end]) for end in (0, 4, 5, 60)] == [None] * 4
    changed = bytearray(answer)
    changed[11] ^= 1  # the first byte of the random number
    assert asks_for_retry(bytes(changed)) is False
    assert asks_for_retry(b"\x15\x03\x03\x00\x02\x02\x28") is False
    at = before_second_hello(second)
    assert at is not None
    assert (second[:at], name_in(second[at:])) == (NO_MEANING, "web.test")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"\x17\x03\x03\x00\x01x",
        b"\x16\x03\x03\x00\x26\x0b" + bytes(37),
        b"\x16\x03\x03\x00\x04\x02\x00\x00\x22",
    ],
    ids=["another protocol", "data", "a certificate", "a part of a message"],
)
def test_an_answer_that_is_no_server_hello_in_its_first_record_is_refused(answer: bytes) -> None:
    with pytest.raises(HelloError):
        asks_for_retry(answer)


def test_early_data_may_come_ahead_of_a_second_hello_and_nothing_else() -> None:
    hello = client_hello("web.test")
    before = NO_MEANING + EARLY_DATA * 3
    assert before_second_hello(before + hello) == len(before)
    assert before_second_hello(before + hello[:20]) is None
    with pytest.raises(HelloError, match="no second ClientHello follows"):
        before_second_hello(before + b"\x15\x03\x03\x00\x02\x02\x28")
    with pytest.raises(HelloError, match=f"more than {MAX_BYTES_BEFORE} bytes"):
        before_second_hello(EARLY_DATA * (MAX_BYTES_BEFORE // len(EARLY_DATA) + 1))
