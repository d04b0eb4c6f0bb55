"""Honest programs beside each known attack: how many results are wrong, and p99 time relative to an idle sandbox.

Run by `make bench-neighbours`. If root runs it, the sandbox gives each program a control group where the machine has
them (tier T1); for another user it measures tier T2.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bench.hostile import BOMBS, HONEST, LIMITS, HonestCalls, bombing, honest_calls
from verl_pivot.sandbox.bench.report import median, number
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.local_service import acquire, release

RAMP_SECONDS = 1.0
"""Seconds until the hostile program runs at full strength."""

_LIBC = "import ctypes, os, socket, time\nlibc = ctypes.CDLL(None, use_errno=True)\nheld = []\n"
_TREE = f"{_LIBC}for _ in range(20):\n    if os.fork() == 0: break\n"
_UNTIL_REFUSED = "    while True: {attack}\nexcept (OSError, ValueError): pass\ntime.sleep(10)\n"
ATTACKS = {
    "H1 page tables": f"""{_LIBC}
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(80 << 30), 1, 0x4022, -1, ctypes.c_long(0))
libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(80 << 30), 15)
for offset in range(0, 80 << 30, 2 << 20): ctypes.c_char.from_address(start + offset).value
time.sleep(10)
""",
    "H1 buffers of sockets": f"""{_TREE}
try:
    while True:
        held.append(socket.socketpair())
        held[-1][0].setblocking(False)
        try:
            while True: held[-1][0].send(bytes(65536))
        except BlockingIOError: pass
except OSError: pass
time.sleep(10)
""",
    "H1 fragmented address space": f"""{_TREE}
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(60_000 << 12), 0, 0x4022, -1, ctypes.c_long(0))
for page in range(0, 60_000, 2): libc.mprotect(ctypes.c_void_p(start + (page << 12)), ctypes.c_size_t(4096), 1)
time.sleep(10)
""",
    "H1 input kept by descriptors": f"{_TREE}try:\n{_UNTIL_REFUSED.format(attack='held.append(os.dup(0))')}",
    "H2 H7 all terminals": f"{_TREE}try:\n{_UNTIL_REFUSED.format(attack='held.append(os.openpty())')}",
    "H7 descriptors in flight": f"""{_TREE}
try:
    while True:
        held.append(socket.socketpair())
        for _ in range(200): socket.send_fds(held[-1][0], [b"x"], [0])
except OSError: pass
time.sleep(10)
""",
    "H7 large pipes": f"""{_TREE}import fcntl
try:
    while True:
        held.append(os.pipe())
        fcntl.fcntl(held[-1][1], 1031, 1 << 20)
except OSError: pass
try:
    while True: held.append(os.pipe())
except OSError: pass
time.sleep(10)
""",
    "H7 queued signals": f"""{_TREE}import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
while libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0: pass
time.sleep(10)
""",
    "H7 timers": f"""{_TREE}
timer = ctypes.c_int()
while libc.timer_create(1, None, ctypes.byref(timer)) == 0: pass
time.sleep(10)
""",
    "H10 children that send it SIGCONT": """
import mmap, os, signal, time
held = mmap.mmap(-1, 240 << 20)
for _ in range(2):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
            os.setpgid(0, 0); os.kill(-1, signal.SIGCONT); time.sleep(0.0007)
while True:
    held.seek(0)
    for _ in range(240): held.write(bytes(1 << 20))
""",
    "H11 all ports": f"""{_LIBC}
for port in range(1024, 65536):
    ours = socket.socket()
    try: ours.bind(("0.0.0.0", port)); held.append(ours)
    except OSError: break
time.sleep(10)
""",
    "H13 signals that stand for limits": "import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)",
    "H18 output as fast as possible": "import fcntl, os\nfcntl.fcntl(1, 1031, 1 << 20)\n"
    "while True: os.write(1, bytes(1 << 20))",
    "H20 a session of its own that computes": "import os\nos.fork() and os._exit(0)\nos.setsid()\nwhile True: pass",
    "H20 32 sessions that compute": """
import os, time
for _ in range(31):
    if os.fork() == 0:
        os.setsid()
        while True: pass
time.sleep(10)
""",
    **BOMBS,
}
"""{name of an attack, with the numbers of its findings: its program}."""
FORGERY = """
for number in range(3, 64):
    try:
        for _ in range(64): os.write(number, b'{"x":' + b"[" * 65000)
    except OSError: pass
"""
"""Cell that forges its own answers: findings H3 and H5."""
NEIGHBOURS = (
    *HONEST,
    (
        "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\n"
        "print(socket.recv_fds(b, 9, 9)[0])",
        "b'x'\n",
    ),
    ("import os\nos.openpty()\nprint('opened')", "opened\n"),
    ("import os\n_, w = os.pipe()\nos.set_blocking(w, False)\nprint(os.write(w, bytes(65536)))", "65536\n"),
    (
        "import subprocess\nprint(len(subprocess.run(['cat'], input=bytes(300000), capture_output=True).stdout))",
        "300000\n",
    ),
    (f"{_LIBC}timer = ctypes.c_int()\nprint(libc.timer_create(1, None, ctypes.byref(timer)))", "0\n"),
    ("import socket\nprint(socket.socket().bind(('0.0.0.0', 8000)))", "None\n"),
    ("print(len(bytearray(64 << 20)))", f"{64 << 20}\n"),
)
"""(code, expected output) of honest programs; some compute, the others use resources that attacks exhaust."""


def main(
    calls: Annotated[int, typer.Option(min=1, help="Honest programs beside each attack.")] = 200,
    only: Annotated[str, typer.Option(help="Only attacks whose name contains this text.")] = "",
) -> None:
    """Print for each attack how many honest programs went wrong beside it, and their p99 against an idle sandbox."""
    tier, table = asyncio.run(measure(calls, only))
    console = Console(width=170)
    console.print(table)
    console.print(f"tier {tier}")


async def measure(num_calls: int, only: str) -> tuple[str, Table]:
    """Tier of the sandbox, and the table."""
    service = await asyncio.to_thread(acquire, ())
    table = Table("attack", "wrong results", "p50 ms", "p99 ms", "p99 x idle", "how the attack ended", "first problem")
    try:
        async with Sandbox([service.url], service.token) as client:
            tier = (await client.run("pass")).tier
            await honest_calls(client, 2 * len(NEIGHBOURS), programs=NEIGHBOURS)
            idle = await honest_calls(client, num_calls, programs=NEIGHBOURS)
            _add(table, "none", idle, idle, Counter())
            for name in (name for name in (*ATTACKS, "H3 H5 forged answers of cells") if only in name):
                attack = bombing(client, ATTACKS[name], 1) if name in ATTACKS else _forging(client)
                async with attack as ends:
                    await asyncio.sleep(RAMP_SECONDS)
                    honest = await honest_calls(client, num_calls, programs=NEIGHBOURS)
                _add(table, name, honest, idle, ends)
    finally:
        await asyncio.to_thread(release, service)
    return tier, table


@asynccontextmanager
async def _forging(client: Sandbox) -> AsyncIterator[Counter[str]]:
    """Keep running sessions whose cells forge their own answers; yields the count of each status."""
    ends: Counter[str] = Counter()

    async def repeat() -> None:
        while True:
            with contextlib.suppress(SandboxError):
                async with await client.open(limits=LIMITS) as session:
                    ends[(await session.run(FORGERY)).status] += 1

    task = asyncio.create_task(repeat())
    try:
        yield ends
    finally:
        task.cancel()
        await asyncio.wait([task])


def _add(table: Table, name: str, honest: HonestCalls, idle: HonestCalls, ends: Counter[str]) -> None:
    table.add_row(
        name,
        f"{len(honest.problems)} of {len(honest.seconds)}",
        number(median(honest.seconds) * 1000),
        number(honest.p99_ms()),
        f"{honest.p99_ms() / idle.p99_ms():.1f}",
        ", ".join(f"{count} {status}" for status, count in ends.most_common()),
        honest.problems[0][:60] if honest.problems else "",
    )


if __name__ == "__main__":
    typer.run(main)
