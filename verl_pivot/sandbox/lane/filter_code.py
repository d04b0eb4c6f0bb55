"""Ranges of a number, each with a decision -> classic BPF code of a seccomp filter, as a binary search.

The kernel tries a new filter on each system call number. With a list of comparisons that would take 0.3 ms.
"""

import struct
from collections.abc import Iterable

# linux/bpf_common.h, linux/seccomp.h
_LOAD, _AND, _JUMP, _RETURN = 0x20, 0x54, 0x05, 0x06
_JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_FARTHEST_JUMP = 255
_INSTRUCTION_BYTES = 8


def instruction(code: int, operand: int, *, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, operand)


ALLOW = instruction(_RETURN, _ALLOW)
KILL = instruction(_RETURN, _KILL_PROCESS)


def fail(number: int) -> bytes:
    """Let the call fail with an error number; with 0, let it do nothing and succeed."""
    return instruction(_RETURN, _ERRNO | number)


def by_value(
    offset: int,
    cases: Iterable[tuple[range, bytes]],
    otherwise: bytes,
    *,
    mask: int | None = None,
    bits: int = 0,
    found_bits: bytes = b"",
) -> bytes:
    """Decide by the 32 bits at an offset of struct seccomp_data.

    Args:
        offset: Offset in bytes.
        cases: Ranges that do not overlap, with the code for each.
        otherwise: Code for any other value.
        mask: Bits of the value that count; all by default.
        bits: Bits that are tested before the cases; if any of them is set, `found_bits` decides.
        found_bits: Code for a value with such a bit.
    """
    load = instruction(_LOAD, offset) + (b"" if mask is None else instruction(_AND, mask))
    if bits:
        load += instruction(_JUMP_ANY_BIT, bits, when_false=_length(found_bits)) + found_bits
    return load + _search(_stretches(sorted(cases, key=lambda case: case[0].start), otherwise))


def when_equal(offset: int, value: int, code: bytes, otherwise: bytes) -> bytes:
    """Run `code` if the 32 bits at an offset have this value, and `otherwise` if not."""
    head = instruction(_LOAD, offset)
    return head + instruction(_JUMP_EQUAL, value, when_true=_length(otherwise)) + otherwise + code


def _stretches(cases: list[tuple[range, bytes]], otherwise: bytes) -> list[tuple[int, bytes]]:
    """Split all values from 0 on into stretches with the same code; returns (first value, code) of each."""
    found = [(0, otherwise)]
    for values, code in cases:
        found += [(values.start, code), (values.stop, otherwise)]
    starts = dict(found)
    merged: list[tuple[int, bytes]] = []
    for start, code in sorted(starts.items()):
        if start < 1 << 32 and (not merged or merged[-1][1] != code):
            merged.append((start, code))
    return merged


def _search(stretches: list[tuple[int, bytes]]) -> bytes:
    if len(stretches) == 1:
        return stretches[0][1]
    middle = len(stretches) // 2
    low, high = _search(stretches[:middle]), _search(stretches[middle:])
    start = stretches[middle][0]
    if _length(low) <= _FARTHEST_JUMP:
        return instruction(_JUMP_GREATER_EQUAL, start, when_true=_length(low)) + low + high
    far = instruction(_JUMP_GREATER_EQUAL, start, when_false=1) + instruction(_JUMP, _length(low))
    return far + low + high


def _length(code: bytes) -> int:
    return len(code) // _INSTRUCTION_BYTES
