"""HTTP bodies <-> Programs, Results and Failures: JSON with base64 for bytes; unknown fields are refused."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import Limits, Network, Output, Program, Result, SessionState, Terminal
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.host_functions import CallLimits, HostCall, HostFunction, check_functions
from verl_pivot.sandbox.lane.answers import MAX_CALL_BYTES

MAX_ITEMS = 64
"""Most programs of one batch."""
MAX_BODY_BYTES = 32 * 1024**2
MAX_ID_LENGTH = 64
MAX_DEADLINE_SECONDS = 86_400.0
LOAD_HEADER = "X-Sandbox-Load"
"""Response header: requests that wait or run when a batch arrives, the batch's own included."""
HEARTBEAT_SECONDS = 5.0
"""Seconds without a line after which the service sends an empty one, so that each side sees that the other lives."""
MAX_CELL_BYTES = 64 * 1024
"""Most bytes of a cell on a WebSocket, of which many may be open; a larger cell is sent by POST."""
MAX_CALL_MESSAGE_BYTES = 3 * MAX_CALL_BYTES
"""Most bytes of a message on the WebSocket of a session with functions of the host: a reply, or a cell with calls."""

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One program of a batch, decoded."""

    id: str
    program: Program
    deadline_seconds: float
    num_bytes: int
    """Length of the item's JSON."""
    fingerprint: int
    """Hash of the program's JSON, which shows when two different programs have the same id."""


class RefusedItem(NamedTuple):
    """An item of a batch that is not run."""

    id: str | None
    """The item's id; None if it has no usable one."""
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Body of POST /v1/run, decoded."""

    client: str
    items: tuple[BatchItem, ...]
    refused: tuple[RefusedItem, ...]


class Line(msgspec.Struct, frozen=True):
    """One line of the answer; exactly one of call, output, result, session and failure is set."""

    id: str | None = None
    call: HostCall | None = None
    """Call of a function of the host by a cell that runs; more lines with its id follow."""
    output: Output | None = None
    """Output of a request that runs; more lines with its id follow."""
    result: Result | None = None
    session: SessionState | None = None
    failure: Failure | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /healthz."""

    status: str
    """"ok" or "draining"."""
    tier: str
    """Isolation tier, such as "T2"."""
    backend: str
    slots: int
    """Programs that may run at once."""
    queued: int
    """Requests that wait."""
    in_flight: int
    """Requests that run."""
    version: str
    """Version of verl-pivot."""


def _strict(cls: type, **types: object) -> type[msgspec.Struct]:
    """Struct with the fields of the dataclass `cls`; it refuses unknown fields, which a dataclass would let pass.

    A field with a default may be absent, so that the default is stated once, in `cls`. `types` maps fields to types
    that replace those of `cls`.
    """
    hints = get_type_hints(cls) | types
    described: list[Any] = []
    for item in fields(cls):
        optional = item.default is not MISSING or item.default_factory is not MISSING
        hint = hints[item.name]
        described.append((item.name, hint | msgspec.UnsetType, msgspec.UNSET) if optional else (item.name, hint))
    return msgspec.defstruct(cls.__name__, described, kw_only=True, forbid_unknown_fields=True)


def _given(struct: msgspec.Struct) -> dict[str, Any]:
    """{field: value} of the fields that were present."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


_WireLimits = _strict(Limits)
_WireTerminal = _strict(Terminal)
_WireFunction = _strict(HostFunction, parameters=dict[str, Any])
_WireCallLimits = _strict(CallLimits)
_decode_program = msgspec.json.Decoder(_strict(Program, limits=_WireLimits, terminal=_WireTerminal | None)).decode


class _ItemBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    program: msgspec.Raw
    deadline_seconds: float


class _IdBody(msgspec.Struct):
    id: str


class _BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    client: str
    requests: list[msgspec.Raw]


class CancelBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Body of POST /v1/cancel."""

    client: str
    ids: list[str]


class OpenBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Body of POST /v1/sessions; the client chooses the session's id, so that a retry opens no second session."""

    client: str
    id: str
    deadline_seconds: float
    limits: msgspec.Raw = msgspec.Raw(b"{}")
    network: Network = Network.NONE
    root: str = ""
    environment: dict[str, str] = {}
    folder: str = ""
    terminal: msgspec.Raw = msgspec.Raw(b"null")
    functions: msgspec.Raw = msgspec.Raw(b"[]")


class CellBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Body of POST /v1/sessions/{id}/run, and of a message on a session's WebSocket."""

    client: str
    id: str
    """Id of this request, not of the session."""
    deadline_seconds: float
    epoch: int
    code: str
    wall_seconds: float
    files: dict[str, bytes] = {}
    fetch: tuple[str, ...] = ()
    calls: msgspec.Raw = msgspec.Raw(b"null")
    """Limits of calls of the host's functions; null for a cell that may make none. Calls need the WebSocket: during the
    cell, each comes as a Line, and a ReplyBody goes back."""


class ReplyBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Reply to a call of a running cell; a message on the session's WebSocket."""

    number: int
    value: str | None = None
    """JSON of the value that the call returns."""
    error: str | None = None


class StreamBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Body of POST /v1/stream: one program, whose output comes while it runs."""

    client: str
    id: str
    deadline_seconds: float
    program: msgspec.Raw


class TypeBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Body of POST /v1/type: keys for the terminal of a program of POST /v1/stream."""

    client: str
    id: str
    """Id of the program's request."""
    text: str


class Typed(msgspec.Struct, frozen=True):
    """Answer of POST /v1/type."""

    typed: bool
    """Whether the program runs."""


class ForkBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Body of POST /v1/sessions/{id}/fork."""

    client: str
    id: str
    """Id of the new session."""
    deadline_seconds: float
    epoch: int


def decode(body: bytes, kind: type[ValueT], what: str) -> ValueT:
    """Decode JSON as a `kind`.

    Raises:
        SandboxRequestError: If the body is no such JSON; the message begins with `what` and says where the mistake is.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise SandboxRequestError(f"{what} is refused: {error}") from error


def decode_limits(raw: msgspec.Raw) -> Limits:
    """Decode limits; raises SandboxRequestError if one is unknown or out of range."""
    return Limits(**_given(decode(bytes(raw), _WireLimits, "the field limits")))


def decode_terminal(raw: msgspec.Raw) -> Terminal | None:
    """Decode the terminal of a session; raises SandboxRequestError if it is not usable."""
    given = decode(bytes(raw), _WireTerminal | None, "the field terminal")  # type: ignore[arg-type]  # it is a union
    return None if given is None else Terminal(**_given(given))


def decode_functions(raw: msgspec.Raw) -> tuple[HostFunction, ...]:
    """Decode the functions of a session; raises SandboxRequestError if they are not usable."""
    given = decode(bytes(raw), list[_WireFunction], "the field functions")  # type: ignore[valid-type]
    functions = tuple(HostFunction(**_given(each)) for each in given)
    check_functions(functions)
    return functions


def decode_call_limits(raw: msgspec.Raw) -> CallLimits | None:
    """Decode limits of calls; raises SandboxRequestError if they are not usable."""
    given = decode(bytes(raw), _WireCallLimits | None, "the field calls")  # type: ignore[arg-type]  # it is a union
    return None if given is None else CallLimits(**_given(given))


def check_envelope(client: str, request_id: str, deadline_seconds: float) -> None:
    """Check the fields that all requests share; raises SandboxRequestError if one is not usable."""
    for name, value in (("client", client), ("id", request_id)):
        if not 0 < len(value) <= MAX_ID_LENGTH or not value.isascii():
            raise SandboxRequestError(f"{name} must be 1 to {MAX_ID_LENGTH} ASCII characters, got {value[:80]!r}")
    if not (math.isfinite(deadline_seconds) and 0.0 < deadline_seconds <= MAX_DEADLINE_SECONDS):
        raise SandboxRequestError(
            f"deadline_seconds must be in (0, {MAX_DEADLINE_SECONDS:.0f}], got {deadline_seconds}"
        )


def decode_batch(body: bytes) -> Batch:
    """Decode the body of POST /v1/run; a wrong item is refused and does not stop the others.

    Raises:
        SandboxRequestError: If the body as a whole cannot be used.
    """
    envelope = decode(body, _BatchBody, "the body")
    if not 0 < len(envelope.requests) <= MAX_ITEMS:
        raise SandboxRequestError(f"a batch holds 1 to {MAX_ITEMS} requests, got {len(envelope.requests)}")
    check_envelope(envelope.client, "batch", 1.0)
    ids = [_id_of(bytes(raw)) for raw in envelope.requests]
    items, refused = [], []
    for index, (item_id, raw) in enumerate(zip(ids, envelope.requests, strict=True)):
        if ids.count(item_id) > 1 and item_id is not None:
            continue
        try:
            items.append(_decode_item(raw, f"requests[{index}]", envelope.client))
        except SandboxRequestError as error:
            refused.append(RefusedItem(item_id, Failure(kind=FailureKind.INVALID_REQUEST, message=str(error))))
    refused += [
        RefusedItem(item_id, _duplicate(item_id, times))
        for item_id, times in Counter(ids).items()
        if item_id and times > 1
    ]
    return Batch(client=envelope.client, items=tuple(items), refused=tuple(refused))


def _duplicate(item_id: str, times: int) -> Failure:
    message = f"id {item_id!r} occurs {times} times in one batch; give each request its own id"
    return Failure(kind=FailureKind.INVALID_REQUEST, message=message)


def _id_of(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=_IdBody).id[:MAX_ID_LENGTH]
    except (ValueError, RecursionError):
        return None


def _decode_item(raw: msgspec.Raw, where: str, client: str) -> BatchItem:
    num_bytes = len(memoryview(raw))
    item = decode(bytes(raw), _ItemBody, where)
    check_envelope(client, item.id, item.deadline_seconds)
    text = bytes(item.program)
    return BatchItem(
        id=item.id,
        program=decode_program(text, where),
        deadline_seconds=item.deadline_seconds,
        num_bytes=num_bytes,
        fingerprint=hash(text),
    )


def decode_program(text: bytes, where: str) -> Program:
    """Decode a Program from JSON.

    Raises:
        SandboxRequestError: If the text is no Program; the message begins with `where`, its place in the request.
    """
    try:
        values = _given(_decode_program(text))
        if "limits" in values:
            values["limits"] = Limits(**_given(values["limits"]))
        if values.get("terminal") is not None:
            values["terminal"] = Terminal(**_given(values["terminal"]))
        return Program(**values)
    except (ValueError, RecursionError) as error:
        raise SandboxRequestError(f"{where}: {error}") from error


def encode(value: object) -> bytes:
    """Encode as JSON; raises SandboxRequestError if a text holds a lone surrogate, which UTF-8 cannot carry."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise SandboxRequestError(f"a text holds a lone surrogate ({error}); encode it as UTF-8 first") from error


def encode_item(item_id: str, program: bytes, deadline_seconds: float) -> bytes:
    """Encode one element of `requests`; `program` is JSON already, encoded once for all attempts."""
    return encode(_ItemBody(id=item_id, program=msgspec.Raw(program), deadline_seconds=deadline_seconds))


def encode_batch(client: str, items: Sequence[bytes]) -> bytes:
    return encode(_BatchBody(client=client, requests=[msgspec.Raw(item) for item in items]))


def encode_output(item_id: str, output: Output) -> bytes:
    """Encode the line of an answer that holds output of a request that runs, with its newline."""
    return msgspec.json.encode({"id": item_id, "output": output}) + b"\n"


def encode_call(item_id: str, call: HostCall) -> bytes:
    """Encode the line of an answer that holds a call of a cell that runs."""
    return msgspec.json.encode({"id": item_id, "call": call})


def encode_line(item_id: str | None, outcome: Result | SessionState | Failure) -> bytes:
    """Encode one line of an answer, with its newline."""
    line: Mapping[str, object]
    if isinstance(outcome, Failure):
        failure = {"kind": outcome.kind, "message": outcome.message, "retryable": outcome.kind.is_retryable}
        line = {"id": item_id, "failure": {**failure, "retry_after_seconds": outcome.retry_after_seconds}}
    else:
        line = {"id": item_id, "result" if isinstance(outcome, Result) else "session": outcome}
    return msgspec.json.encode(line) + b"\n"


decode_line = msgspec.json.Decoder(Line).decode
"""Decode one line of an answer; raises ValueError if the bytes are no such line."""
decode_health = msgspec.json.Decoder(Health).decode
"""Decode an answer of /healthz; raises ValueError if the bytes are no such answer."""
