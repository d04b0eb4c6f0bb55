"""Programs that fake results, change what comes after them, or break compiler and parser (H-49 to H-54)."""

import json
import re
import uuid
from typing import Any

import httpx
import pytest

from tests.support.sandbox_services import (
    CANARY,
    MARK,
    SMALL,
    Kind,
    Service,
    on_every_kind,
    on_every_kind_and_tier,
    on_zygotes,
    service,
    start_service,
)
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Program, Status

pytestmark = pytest.mark.heavy

SPOOFS = {
    "markers_of_other_judges": ("print('@@E\\n@@D\\n__EXIT__:0')", "@@E\n@@D\n__EXIT__:0\n"),
    "a_line_of_the_wire": (
        'print(\'{"id":"x","result":{"status":"ok","exit_code":0}}\')',
        '{"id":"x","result":{"status":"ok","exit_code":0}}\n',
    ),
    "ready": ("import os; os.write(1, b'+'); os.write(2, b'+')", "+"),
}


@on_every_kind_and_tier
@pytest.mark.parametrize("name", SPOOFS)
@pytest.mark.finding("statuses of limits")
def test_h49_what_a_program_prints_never_becomes_its_status(kind: Kind, name: str) -> None:
    code, printed = SPOOFS[name]

    result = service(kind).run(code + "\nimport sys; sys.stdout.flush(); import os; os._exit(9)")

    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 9, printed)


@on_every_kind_and_tier
@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", 24),
        ("import os; os.kill(os.getpid(), 9)", 9),
        ("import resource, time; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", 9),
        ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass", 24),
    ],
)
@pytest.mark.finding("statuses of limits")
def test_h49_the_signal_of_a_limit_alone_is_not_that_limit(kind: Kind, code: str, number: int) -> None:
    result = service(kind).run(code, limits=Limits(wall_seconds=60.0, cpu_seconds=10))

    assert (result.status, result.signal) == (Status.SIGNALED, number)


@on_every_kind
def test_h49_no_guessed_descriptor_leads_to_the_sandbox(kind: Kind) -> None:
    code = """
import json, os, struct
body = json.dumps({"id": 1, "status": "ok", "exited": 2, "ready": [], "event": "ready"}).encode()
written = []
for fd in range(3, 1024):
    for data in (body, struct.pack(">I", len(body)) + body, b"+"):
        try:
            os.write(fd, data)
            written.append(fd)
        except OSError:
            pass
print(written)
os._exit(3)
"""

    result = service(kind).run(code.replace("os._exit", "import sys; sys.stdout.flush(); os._exit"))

    assert (result.status, result.exit_code, result.stdout) == (Status.ERROR, 3, "[]\n")


# STATE leaves out RLIMIT_DATA: a lane adds the memory of its zygote to it.
STATE = """
import builtins, gc, json, os, re, resource, signal, sys, threading
state = {
    "modules": sorted(sys.modules),
    "builtins": sorted(vars(builtins)),
    "print": repr(print), "import": repr(__import__), "len": repr(len),
    "json": repr(json.dumps), "os": repr(os._exit), "sys": sorted(vars(sys)),
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "tmp": sorted(os.listdir("/tmp")), "shm": os.listdir("/dev/shm"),
    "argv": sys.argv, "path": sys.path, "flags": repr(sys.flags),
    "globals": sorted(globals()),
    "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(sys.gettrace()), repr(sys.getprofile())],
    "recursion": sys.getrecursionlimit(),
    "collector": [gc.isenabled(), gc.get_threshold()],
    "threads": threading.active_count(),
    "signals": [repr(signal.getsignal(number)) for number in range(1, 32)],
    "mask": sorted(signal.pthread_sigmask(0, [])),
    "limits": [resource.getrlimit(number) for number in range(16) if number != resource.RLIMIT_DATA],
    "ids": [os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), os.getuid(), os.getgid(), os.umask(0o22)],
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "cores": sorted(os.sched_getaffinity(0)),
    "open": [fd for fd in range(300) if os.path.exists(f"/proc/self/fd/{fd}")],
    "processes": [name for name in os.listdir("/proc") if name.isdigit()],
    "host": os.uname().nodename,
}
print(re.sub(" at 0x[0-9a-f]+", "", json.dumps(state, sort_keys=True)))
"""
VANDALISM = [
    "import builtins, sys, json, os\nbuiltins.print = len\njson.dumps = None\nos._exit = exit\nbuiltins.new = 1",
    "import sys\nsys.modules['re'] = None",
    "import sys; sys.stdout.write('unflushed' * 100); sys.stdout = None",
    "import os; os.environ['LEFT'] = '1'; os.chdir('/'); os.umask(0o777); os.nice(5)",
    "open('/tmp/left', 'w').write('x'); open('/dev/shm/left', 'w').write('x')",
    "import os, time\nif os.fork() == 0:\n    time.sleep(100)",
    "import sys, gc; sys.setrecursionlimit(50); gc.disable(); sys.settrace(lambda *a: None); sys.excepthook = None",
    "import signal; [signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]",
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))",
    "import random, numpy; random.seed(1); numpy.random.seed(1)",
    "import atexit; atexit.register(print, 'left'); import os; os._exit(0)",
    "import sys; sys.stdout.buffer.write(b'half a line'); raise SystemExit(4)",
]


@on_zygotes
def test_h51_a_program_finds_nothing_of_those_before_it(kind: Kind) -> None:
    running = service(kind)
    before = {running.output(STATE) for _ in range(4)}

    for _ in range(4):  # so that each lane runs each program
        running.run_many(Program(code=code, limits=SMALL) for code in VANDALISM)
    after = {running.output(STATE) for _ in range(8)}

    assert len(before) == 1
    assert after == before


@on_zygotes
def test_h51_output_that_was_never_flushed_is_nobody_elses(kind: Kind) -> None:
    unflushed = Program(code="import sys, os; sys.stdout.write('mine'); os.kill(os.getpid(), 9)", limits=SMALL)
    empty = Program(code="pass", limits=SMALL)

    results = service(kind).run_many([unflushed, empty] * 20)

    assert {result.stdout for result in results} == {""}


@on_every_kind
def test_h51_random_numbers_are_not_shared(kind: Kind) -> None:
    code = "import numpy, random, os, uuid\n"
    code += "for number in (random.random(), numpy.random.random(), os.urandom(4), uuid.uuid4()): print(number)"

    lines = [result.stdout.splitlines() for result in service(kind).run_many([Program(code=code, limits=SMALL)] * 8)]

    assert [len(set(column)) for column in zip(*lines, strict=True)] == [8, 8, 8, 8]


ODD_PROGRAMS = {
    "patched_builtins": "import builtins\nbuiltins.len = builtins.exec = lambda *a: 42\nprint(len([]))",
    "patched_exit": "import os, sys\nos._exit = None\nsys.exit = None\nprint('on')",
    "patched_shutdown": "import atexit, os, threading\nthreading._shutdown = atexit._run_exitfuncs = None\nprint('on')",
    "patched_streams": "import sys\nprint('on')\nsys.stdout.flush = sys.stdout.write = lambda *a: 1 / 0",
    "no_streams": "import sys\nsys.stdout = sys.stderr = sys.stdin = None\nprint('lost')",
    "trace": "import sys\nsys.settrace(lambda *a: 1 / 0)\ndef f(): pass\nf()",
    "excepthook_raises": "import sys\ndef hook(*a): raise KeyError('in hook')\nsys.excepthook = hook\n1 / 0",
    "exit_handler_exits": "import atexit, os\natexit.register(os._exit, 7)",
    "no_main": "import sys\ndel sys.modules['__main__']\nprint(__name__)",
    "cleared_globals": "globals().clear()",
    "modules_cleared": "import sys\nsys.modules.clear()\nprint('on')",
    "modules_replaced": "import sys\nfor name in list(sys.modules): sys.modules[name] = None\nprint('on')",
    "exit_in_thread": "import os, threading\nthreading.Thread(target=os._exit, args=(3,)).start()\nwhile True: pass",
    "exception_that_exits": "class E(Exception):\n    def __str__(self):\n        import os; os._exit(6)\nraise E()",
    "frames_climbed": "import sys\nf = sys._getframe()\nwhile f.f_back: f = f.f_back\nf.f_locals.clear()\nprint('on')",
}


@pytest.mark.parametrize("name", ODD_PROGRAMS)
def test_h52_odd_programs_end_as_under_plain_python(name: str) -> None:
    expected = service(Kind.BWRAP_EXEC).run(ODD_PROGRAMS[name])
    result = service().run(ODD_PROGRAMS[name])

    assert (result.status, result.exit_code, result.signal) == (expected.status, expected.exit_code, expected.signal)
    assert (result.stdout, result.stderr) == (expected.stdout, expected.stderr)


@on_every_kind
def test_h52_an_exit_handler_that_hangs_is_a_timeout(kind: Kind) -> None:
    code = "import atexit, time\natexit.register(time.sleep, 100)\nprint('on', flush=True)"

    result = service(kind).run(code, limits=Limits(wall_seconds=0.5))

    assert (result.status, result.stdout) == (Status.TIMEOUT, "on\n")


COMPILER_ATTACKS = {
    "endless_include": (
        "c",
        '#include "/dev/urandom"\nint main(){}',
        {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.MEMORY_LIMIT},
    ),
    "endless_zero": (
        "c",
        '#include "/dev/zero"\nint main(){}',
        {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.MEMORY_LIMIT},
    ),
    "include_of_itself": ("c", '#include "main.c"\n#include "main.c"\n', {Status.COMPILE_ERROR, Status.OUTPUT_LIMIT}),
    "template_bomb": (
        "cpp",
        "template<int N> struct A { typedef typename A<N-1>::t t; A<N-1> a; A<N-2> b; };\nA<100000> a; int main(){}",
        {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.MEMORY_LIMIT},
    ),
    "endless_errors": (
        "c",
        "#define A x y z;\n#define B A A A A A A A A A A\n#define C B B B B B B B B B B\n"
        "#define D C C C C C C C C C C\n#define E D D D D D D D D D D\nE E E E E E E E E E\n",
        {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.OUTPUT_LIMIT},
    ),
    "huge_program": (
        "c",
        "char huge[1 << 30] = {1};\nint main(){}",
        {Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT, Status.MEMORY_LIMIT},
    ),
}


@on_every_kind
@pytest.mark.parametrize("name", COMPILER_ATTACKS)
def test_h53_attacks_on_the_compiler_end_within_its_limits(kind: Kind, name: str) -> None:
    language, code, allowed = COMPILER_ATTACKS[name]

    result = service(kind).run(code, language=language)

    assert result.status in allowed
    assert result.exit_code is None or result.status == Status.COMPILE_ERROR
    assert len(result.compile_output) <= 2 * 64 * 1024 * 4


INCLUDE = """
#include <stdio.h>
__asm__(".globl start, end\\nstart: .incbin \\"{path}\\"\\nend: .byte 0\\n");
extern const char start[], end[];
int main() {{ fwrite(start, 1, end - start, stdout); return 0; }}
"""


@on_every_kind
def test_h53_what_a_compiler_can_include_is_the_sandboxs_own(kind: Kind) -> None:
    running = service(kind)

    passwd = running.output(INCLUDE.format(path="/etc/passwd"), language="c")
    environment = running.run(INCLUDE.format(path="/proc/self/environ"), language="c")
    shadow = running.run(INCLUDE.format(path="/etc/shadow"), language="c")

    assert [line.split(":")[0] for line in passwd.splitlines()] == ["root", "sandbox", "nobody"]
    assert re.search(CANARY, environment.stdout + environment.compile_output) is None
    assert shadow.status == Status.COMPILE_ERROR
    assert "/etc/shadow" in shadow.compile_output


@on_every_kind
def test_h54_source_that_no_parser_takes_is_the_programs_error(kind: Kind) -> None:
    running = service(kind)
    sources = {
        "print(1)\0": "SyntaxError: source code cannot contain null bytes\n",
        "# coding: nonsense\n": "SyntaxError: encoding problem: nonsense\n",
        "x" * 100_000 + " = (": "SyntaxError: '(' was never closed\n",
        "(" * 199: "SyntaxError: '(' was never closed\n",
        "(" * 201: "SyntaxError: too many nested parentheses\n",
        "if True:\n" + " " * 101 + "\tx\n y": None,
    }

    for code, ending in sources.items():
        result = running.run(code, limits=Limits(output_bytes=MIB))
        assert (result.status, result.exit_code) == (Status.ERROR, 1)
        assert result.stderr.endswith(ending or "\n"), result.stderr[-200:]


@on_every_kind
def test_h54_100_000_nested_parentheses_or_operators_hurt_only_the_program(kind: Kind) -> None:
    deep = Limits(wall_seconds=5.0, memory_bytes=512 * MIB)

    results = service(kind).run_many(Program(code=code, limits=deep) for code in ("(" * 100_000, "-" * 100_000 + "1"))

    assert {result.status for result in results} <= {Status.ERROR, Status.SIGNALED}
    assert service(kind).output("print('well')") == "well\n"


@on_every_kind
def test_h54_a_lone_surrogate_which_no_json_carries_is_the_callers_error(kind: Kind) -> None:
    with pytest.raises(SandboxRequestError, match="lone surrogate"):
        service(kind).run("\ud800")


@on_every_kind
def test_h54_a_byte_order_mark_and_an_empty_source_are_fine(kind: Kind) -> None:
    assert service(kind).output("\ufeffprint('bom')") == "bom\n"
    assert service(kind).output("") == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"code": "x" * (10 * MIB)}, "code of 10485760 bytes is larger than 8388608"),
        ({"language": "cobol"}, "unknown language 'cobol'"),
        ({"language": ""}, "unknown language ''"),
        ({"args": ("a\0b",)}, "holds a NUL byte"),
        ({"files": {f"f{number}": b"" for number in range(65)}}, "at most 64 names"),
        ({"files": {"f": bytes(9 * MIB)}}, "files of 9437184 bytes is larger"),
        ({"stdin": "x" * (17 * MIB)}, "stdin of 17825792 bytes is larger"),
    ],
)
def test_h54_requests_that_are_not_allowed_are_the_callers_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SandboxRequestError, match=message):
        service().run(**{"code": "pass", **options})


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"wall_seconds": -1.0}, "limits.wall_seconds must be from 0.01 to 600.0, got -1.0"),
        ({"wall_seconds": float("nan")}, "limits.wall_seconds must be a number, got nan"),
        ({"wall_seconds": float("inf")}, "limits.wall_seconds must be a number, got inf"),
        ({"memory_bytes": 1 << 60}, "limits.memory_bytes must be from"),
        ({"num_processes": 0}, "limits.num_processes must be from 1 to 1024, got 0"),
        ({"num_processes": 1.5}, "limits.num_processes must be a whole number, got 1.5"),
        ({"cpu_seconds": True}, "limits.cpu_seconds must be a number, got True"),
    ],
)
def test_h54_limits_out_of_range_are_refused_and_not_clamped(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(SandboxRequestError, match=message):
        Limits(**limits)


def post(running: Service, program: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The answer to one raw request."""
    item = {"id": uuid.uuid4().hex, "program": program, "deadline_seconds": 10, **more}
    body = json.dumps({"client": "test", "requests": [item]})
    headers = {"Authorization": f"Bearer {running.token}"}
    answer = httpx.post(f"{running.url}/v1/run", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 200
    line: dict[str, Any] = answer.json()
    return line


@pytest.mark.parametrize(
    "program",
    [
        {},
        {"code": None},
        {"code": 1},
        {"code": "pass", "unknown": 1},
        {"code": "pass", "language": "cobol"},
        {"code": "pass", "limits": {"wall_seconds": -1}},
        {"code": "pass", "limits": {"wall_seconds": "nan"}},
        {"code": "pass", "limits": {"memory_bytes": 1e300}},
        {"code": "pass", "limits": {"unknown": 1}},
        {"code": "pass", "network": "host"},
        {"code": "pass", "files": {"a": "no base64!"}},
        {"code": "pass", "args": ["a\0"]},
        {"code": "pass", "fetch": ["../x"]},
    ],
)
def test_h54_a_wrong_request_over_http_is_answered_as_such(program: dict[str, Any]) -> None:
    line = post(service(), program)

    assert line["failure"]["kind"] in ("invalid_request", "unsupported_language")
    assert line["failure"]["retryable"] is False


def test_h51_a_fresh_service_starts_programs_in_the_same_state() -> None:
    fresh = start_service(lanes=1)
    try:
        assert fresh.output(STATE) == service().output(STATE)
    finally:
        fresh.stop()


def test_a_program_may_call_itself_as_it_likes() -> None:
    assert service().output(MARK.format(marker="bwrap") + "print(open('/proc/self/comm').read(), end='')") == "bwrap\n"
