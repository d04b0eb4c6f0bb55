"""Plan that bwrap_exec hands to the shim inside its sandbox, by marshal: commands to run, files to read."""

from typing import TypedDict


class ShimStep(TypedDict):
    """One command that the shim runs: a compiler, or the program."""

    argv: list[bytes]
    limits: dict[str, int]
    """{constant of the module resource: value}, such as RLIMIT_CPU."""


class ShimPlan(TypedDict):
    """Everything that the shim does: run `compile`, if there is one, then `run`, then read the files in `fetch`."""

    proxy: tuple[str, int, int] | None
    """Address and port at which the shim listens for the proxy, and number of connections that may wait; None for no
    proxy."""
    environment: dict[bytes, bytes]
    """Variables of the compiler and the program. The shim does not get them: a variable of the linker could take it
    over."""
    folder: bytes
    """Folder below the working directory, made at the start, in which `run` begins; empty for none."""
    compile: ShimStep | None
    run: ShimStep
    fetch: list[bytes]
    max_fetch_bytes: int
    """Maximum bytes of all fetched files together."""
