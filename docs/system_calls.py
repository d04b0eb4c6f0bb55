"""Programs, traced with strace -> verl_pivot/sandbox/lane/system_calls.py: numbers of calls, and calls that they made.

`python docs/system_calls.py` needs strace, gcc and the headers of the kernel; a program that is not installed is left
out, and the file says which were there.
"""

# ruff: noqa: E501, SIM905  the programs that are traced stand as they are written, and names of calls as in manuals

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "verl_pivot" / "sandbox" / "lane" / "system_calls.py"
X86_64_HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC_OPTIONS = ("__BITS_PER_LONG=64", "__ARCH_WANT_NEW_STAT", "__ARCH_WANT_RENAMEAT", "__ARCH_WANT_SET_GET_RLIMIT",
                   "__ARCH_WANT_SYS_CLONE3", "__ARCH_WANT_MEMFD_SECRET")  # fmt: skip
"""Definitions with which the kernel compiles asm-generic/unistd.h for aarch64."""
NOT_CALLS = {"syscalls", "arch_specific_syscall"}
NEWER = {
    **{name: (451 + place,) * 2 for place, name in enumerate((
        "cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr "
        "lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat open_tree_attr "
        "file_getattr file_setattr listns"
    ).split())},
    "uretprobe": (335, None),
}  # fmt: skip
"""Calls that are newer than the headers of many machines; since Linux 5.1 new calls have one number everywhere."""
DEFINITION = re.compile(r"#define (__NR\w*) (\S+)")
APART = ["bwrap", "--unshare-pid", "--unshare-net", "--dev-bind", "/", "/", "--proc", "/proc", "--die-with-parent"]
"""Prefix of a command, which separates its processes and its network from those of the machine."""
LIMITS = ["prlimit", f"--data={2 << 30}", "--cpu=60"]
CALL = re.compile(r"^\d+\s+(\w+)\(", re.MULTILINE)
SCIENCE = {
    "numpy": "import numpy\nprint(numpy.linalg.solve(numpy.random.rand(9, 9), numpy.ones(9)).sum())\n"
    "numpy.save('a.npy', numpy.ones(9)); print(numpy.load('a.npy', mmap_mode='r').sum())\n",
    "sympy": "from sympy import *\nx = symbols('x')\nprint(factor(x**2 - 4), solve(x**2 - 4), integrate(sin(x)))\n",
    "pandas": "import pandas\nf = pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})\nf.to_csv('a.csv')\n"
    "print(pandas.read_csv('a.csv').groupby('b').sum())\n",
    "scipy": "from scipy import optimize\nprint(optimize.minimize(lambda x: (x - 1) ** 2, 0.0).x)\n",
    "matplotlib": "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as p\np.plot([1, 2]); p.savefig('a.png')\n",
    "duckdb": "import duckdb\nprint(duckdb.sql('select sum(i) from range(100000) t(i)').fetchall())\n",
    "sqlite": "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t(a)'); c.commit(); c.execute('vacuum')\n",
    "processes": "import concurrent.futures as c, multiprocessing as m, subprocess, threading\n"
    "if __name__ == '__main__':\n"
    "    for method in ('fork', 'spawn', 'forkserver'):\n"
    "        with m.get_context(method).Pool(2) as pool: print(pool.map(abs, [-1, 2]))\n"
    "    with c.ThreadPoolExecutor() as pool: print(list(pool.map(abs, [-1])))\n"
    "    print(subprocess.run(['cat'], input=b'x', capture_output=True))\n",
    "network": "import asyncio, socket\nasync def serve(r, w):\n    w.write(await r.read(9)); w.close()\n"
    "async def main():\n    s = await asyncio.start_server(serve, '127.0.0.1', 0)\n"
    "    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())\n"
    "    w.write(b'x'); w.write_eof(); print(await r.read())\n"
    "    p = await asyncio.create_subprocess_exec('true'); await p.wait()\nasyncio.run(main())\n"
    "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); socket.recv_fds(b, 9, 9)\n",
}
C = '#include <stdio.h>\n#include <math.h>\nint main(void) { FILE *f = tmpfile(); fprintf(f, "%f", sqrt(2)); puts("x"); }\n'
CPP = "#include <iostream>\n#include <thread>\nint main() { std::thread([]{ std::cout << 1; }).join(); }\n"
JAVASCRIPT = (
    "const fs = require('fs'), net = require('net'), cp = require('child_process');\n"
    "fs.writeFileSync('a.txt', 'x'); fs.mkdirSync('d/e', {recursive: true}); fs.rmSync('d', {recursive: true});\n"
    "console.log(fs.readFileSync('a.txt', 'utf8'), cp.execSync('echo hello').toString(), fs.readdirSync('.'));\n"
    "fs.promises.readFile('a.txt').then(text => console.log(text.length));\n"
    "new (require('worker_threads').Worker)('1 + 1', {eval: true});\n"
    "const s = net.createServer(c => c.end('x')).listen(0, '127.0.0.1', () =>\n"
    "  net.connect(s.address().port, '127.0.0.1').on('data', () => s.close()));\n"
    "setTimeout(() => {}, 20); require('crypto').randomBytes(8); require('zlib').gzipSync('x');\n"
)
SHELL = r"""
set -u; mkdir -p a/b; echo one > a/x; printf 'b\na\n' | sort | uniq -c; cp -a a c; mv c/x c/y; ln -s x a/l; ln a/x a/h
ls -la a; find . -name 'x' -exec cat {} +; grep -rn one .; sed -i s/one/two/ a/x; awk '{print $1}' a/x; wc a/x; du -sh .; df .
tar czf t.tgz a; tar tzf t.tgz; gzip -k a/x; zcat a/x.gz; xz -k a/x; head -c9 /dev/urandom | od -c; tail -n1 a/x; tee z < a/x
touch -d 2000-01-01 a/x; stat a/x; chmod 600 a/x; truncate -s 9 z; dd if=/dev/zero of=y bs=1k count=4; cmp y y; diff -r a c
( sleep 0.01 & wait ); trap 'echo trapped' USR1; kill -USR1 $$; timeout 5 true; nice -n 1 true; nohup true; mkfifo f
(cat f &) ; echo fifo > f; read -t 1 v < a/x; ulimit -a; umask; id; uname -a; hostname; date; env; which sh; seq 3 | xargs -P2 -n1 echo
mktemp; readlink -f a/l; rm -rf a c; test -e a; type cd; time true; exec 3<>z; flock 3 true; git init -q g; cd g; echo x > x
git add x; git -c user.name=a -c user.email=a@b commit -qm x; git log; git status; git diff HEAD; cd ..; perl -e 'print 1'; bc <<< 1+1
ps; free; nproc; script -qc 'tty; stty -a' /dev/null; setsid true; chrt -p 0; prlimit; sync z; rmdir g; split -b 2 z; shuf -n1 z
"""
PYTEST = "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n, tmp_path, capfd): (tmp_path / 'a').write_text(str(n))\n"


def numbers() -> dict[str, tuple[int | None, int | None]]:
    """{call: (number on x86-64, number on aarch64)}; None where a machine does not have the call."""
    x86_64 = _defined(X86_64_HEADER.read_text())
    options = [word for name in GENERIC_OPTIONS for word in ("-D", name)]
    expanded = subprocess.run(
        ["gcc", "-E", "-dM", *options, "-x", "c", "-"],
        input="#include <asm-generic/unistd.h>\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    aarch64 = _defined(expanded.stdout)
    return {name: (x86_64.get(name), aarch64.get(name)) for name in {**x86_64, **aarch64}} | NEWER


def _defined(header: str) -> dict[str, int]:
    definitions = dict(DEFINITION.findall(header))

    def number(value: str) -> int | None:
        while value in definitions:
            value = definitions[value]
        return int(value) if value.isdigit() else None

    named = {name.removeprefix("__NR_"): number(value) for name, value in definitions.items() if "3264" not in name}
    return {name: found for name, found in named.items() if found is not None and name not in NOT_CALLS}


def calls_of(folder: Path, command: list[str], stdin: str = "") -> set[str]:
    """Names of the calls that a command and its children make in a folder."""
    trace = folder / ".trace"
    subprocess.run(
        [*APART, "--", *LIMITS, "strace", "-f", "-qq", "-o", str(trace), *command],
        cwd=folder, input=stdin.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False,
    )  # fmt: skip
    return set(CALL.findall(trace.read_text(errors="replace")))


def _with_file(name: str, text: str, *commands: list[str], stdin: str = "") -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(text)
        return set().union(*(calls_of(Path(folder), command, stdin) for command in commands))


def _conformance() -> set[str]:
    sys.path.insert(0, str(ROOT))
    from tests.support.conformance_programs import PROGRAMS

    run = [sys.executable, "main.py", "an", "argument"]
    return set().union(*(_with_file("main.py", code, run, stdin="first\nsecond\n") for code in PROGRAMS.values()))


def _python(code: str) -> Callable[[], set[str]]:
    return lambda: _with_file("main.py", code, [sys.executable, "main.py"])


def traced() -> tuple[Mapping[str, set[str]], list[str]]:
    """({call: programs that made it}, versions of the programs)."""
    programs: dict[str, tuple[str, Callable[[], set[str]]]] = {
        "conformance": (sys.executable, _conformance),
        **{name: (sys.executable, _python(code)) for name, code in SCIENCE.items()},
        "pytest": (sys.executable, lambda: _with_file("test_a.py", PYTEST, [sys.executable, "-m", "pytest", "-q"])),
        "bash": ("bash", lambda: _with_file("main.sh", SHELL, ["bash", "main.sh"])),
        "node": ("node", lambda: _with_file("main.js", JAVASCRIPT, ["node", "main.js"])),
        "gcc": ("gcc", lambda: _with_file("main.c", C, ["gcc", "-O2", "-o", "main", "main.c", "-lm"], ["./main"])),
        "g++": ("g++", lambda: _with_file("main.cpp", CPP, ["g++", "-O2", "-o", "main", "main.cpp"], ["./main"])),
    }
    found, versions = defaultdict(set), []
    for name, (executable, trace) in programs.items():
        if shutil.which(executable) is None:
            print(f"{name}: {executable} is not installed, left out")
            continue
        for call in trace():
            found[call].add(name)
        print(f"{name}: {sum(name in programs for programs in found.values())} calls")
        versions.append(f"{name} ({_version(executable)})")
    return found, versions


def _version(executable: str) -> str:
    shown = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    return shown.splitlines()[0].replace("(Debian ", "").split(")")[0][:40]


def write() -> None:
    """Trace everything and write the module."""
    known = numbers()
    found, versions = traced()
    lines = [
        '"""Numbers of system calls, and the calls that programs were seen to make; `python docs/system_calls.py` wrote it.',
        "",
        f"Numbers are those of linux-libc-dev {_libc_headers()}, and of the kernel's tables for calls that are newer.",
        "Programs that were traced, outside of the sandbox:",
        "",
        *(f"- {version}" for version in versions),
        '"""',
        "",
        "NUMBERS: dict[str, tuple[int | None, int | None]] = {",
        *(f'    "{name}": {pair},' for name, pair in sorted(known.items())),
        "}",
        '"""{call: (number on x86-64, number on aarch64)}."""',
        "",
        "TRACED = {",
        *(f'    "{name}": "{_listed(found[name], len(versions))}",' for name in sorted(found) if name in known),
        "}",
        '"""{call: programs that made it}."""',
    ]
    TARGET.write_text("\n".join(lines) + "\n")


def _listed(programs: set[str], num_programs: int) -> str:
    return "all" if len(programs) == num_programs else " ".join(sorted(programs))


def _libc_headers() -> str:
    query = ["dpkg-query", "-W", "-f", "${Version}", "linux-libc-dev"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    write()
