"""Frames: JSON messages over a byte stream."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.sandbox.lane.frames import Decoder, FrameError, encode

MESSAGES = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.booleans()), max_size=5)


@given(MESSAGES, st.lists(st.integers(min_value=1, max_value=50)))
def test_messages_arrive_whole_however_the_stream_is_cut(messages: list[dict[str, object]], cuts: list[int]) -> None:
    stream = b"".join(map(encode, messages))
    decoder = Decoder(max_bytes=1 << 20)
    arrived: list[dict[str, object]] = []

    for cut in cuts:
        arrived += decoder.feed(stream[:cut])
        stream = stream[cut:]
    arrived += decoder.feed(stream)

    assert arrived == messages


def test_a_frame_longer_than_agreed_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="a frame of 1001 bytes is longer than 1000"):
        Decoder(max_bytes=1000).feed(struct.pack(">I", 1001))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x80\x04N.", "must be JSON"),  # a pickle
        (b"[1]", "must be a JSON object, got list"),
        (b"{", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"\xff", "must be JSON"),
    ],
)
def test_a_frame_that_is_no_json_object_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        Decoder(max_bytes=1 << 20).feed(struct.pack(">I", len(body)) + body)
