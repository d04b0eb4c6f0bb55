"""Warm-ups in a real interpreter: what stays, what is undone, and how a failing warm-up is reported."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from verl_pivot.sandbox.lane import zygote_handle
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.zygotes import STANDARD_MODULES

MANY_SECONDS = 60.0
REMEDY = "correct it in the languages file, or set it to null there"
STATE = """
import gc, os, signal, sys, threading, time, warnings
import numpy
def umask():
    found = os.umask(0)
    os.umask(found)
    return found
def state():
    context = __import__("decimal").getcontext()
    return [
        dict(os.environ), os.getcwd(), umask(), sys.argv, str(sys.excepthook),
        [str(signal.getsignal(number)) for number in (2, 10, 14, 15)], signal.getitimer(signal.ITIMER_REAL),
        sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits(),
        gc.isenabled(), gc.get_threshold(), context.prec, str(sys.gettrace()), str(sys.getprofile()),
        os.fstat(1).st_ino, os.fstat(2).st_ino, warnings.onceregistry, numpy.geterr(), numpy.get_printoptions(),
    ]
"""
DISTURBING = """
import decimal, gc, os, signal, sys, warnings
import numpy
print("a warm-up prints this"); sys.stderr.write("and that"); os.write(1, b"and more")
os.environ["LEFT"] = "1"; del os.environ["PATH"]; os.chdir("/"); os.umask(0o77)
sys.argv = ["left"]; sys.excepthook = sys.displayhook = print
signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1000.0)
sys.setrecursionlimit(5000); sys.setswitchinterval(0.5); sys.set_int_max_str_digits(0)
gc.disable(); gc.set_threshold(9, 9, 9); decimal.getcontext().prec = 3
sys.setprofile(lambda *a: None)
numpy.seterr(all="ignore"); numpy.set_printoptions(precision=2)
warnings.onceregistry["left"] = 1
"""


def outcome(code: str) -> str:
    """Output of a fresh interpreter that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=MANY_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_warm_up_leaves_the_interpreter_as_it_was_and_prints_nothing() -> None:
    code = f"""
import numpy
from verl_pivot.sandbox.lane.warm_up import run_warm_ups
{STATE}
before = state()
names = []
run_warm_ups({{"numpy": {DISTURBING!r}}}, on_start=names.append, max_data_bytes=1 << 40)
after = state()
assert names == ["numpy"]
assert before == after, [pair for pair in zip(before, after) if pair[0] != pair[1]]
print("same")
"""
    assert outcome(code) == "same\n"


def test_a_warning_that_a_warm_up_has_seen_is_shown_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text("import warnings\ndef warn(): warnings.warn('once per place')\n")
    code = f"""
import sys, warnings
sys.path.insert(0, {str(tmp_path)!r})
import library
from verl_pivot.sandbox.lane.warm_up import run_warm_ups
run_warm_ups({{"library": "import library; library.warn()"}}, on_start=print, max_data_bytes=1 << 40)
shown = []
warnings.showwarning = lambda message, *a: shown.append(str(message))
library.warn(); library.warn()
print(shown)
"""
    assert outcome(code).splitlines()[-1] == "['once per place']"


def reasons_of(warm_up: str) -> list[str]:
    """Reasons why a zygote with this warm-up does not get ready, or "ready"."""
    reasons: list[str] = []
    loop = EventLoop()
    handle = ZygoteHandle(
        loop,
        {"modules": ["json"], "warm_ups": {"json": warm_up}, "import_from": [], "startup": ""},
        outer_proc=None,
        max_forks=1,
        on_ready=lambda: reasons.append("ready"),
        on_broken=reasons.append,
    )
    while not reasons:
        loop.run_once(1.0)
    os.waitpid(handle.pid, 0)
    return reasons


@pytest.mark.parametrize(
    ("warm_up", "reason"),
    [
        ("1 / 0", "failed: it raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit()", "failed: it raised SystemExit: "),
        ("import no_such_module", "failed: it raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = bytearray(3 << 30)", "failed: it raised MemoryError: "),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "failed: it left a thread running; threads do not survive the fork of a program",
        ),
        ("import subprocess; subprocess.Popen(['sleep', '5'])", "failed: it left a process running"),
        ("import os; os._exit(0)", "ended the interpreter"),
        ("import os; os.kill(os.getpid(), 9)", "ended the interpreter"),
        ("raise ValueError('x' * 9999)", "failed: it raised ValueError: " + "x" * 478),
    ],
)
def test_a_warm_up_that_fails_is_named_with_the_reason(warm_up: str, reason: str) -> None:
    assert reasons_of(warm_up) == [f"a zygote did not start: the warm-up 'json' {reason}; {REMEDY}"]


def test_a_warm_up_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_handle, "WARM_UP_SECONDS", 0.2)

    assert reasons_of("import time; time.sleep(1000)") == [
        "a zygote did not start: the warm-up 'json' did not end within 0.2 s; " + REMEDY
    ]


def test_the_documentation_lists_every_module_that_the_shipped_warm_ups_add() -> None:
    listed = re.search(r"<!-- modules of warm-ups -->\n(.*?)\n<!--", (ROOT / "docs/sandbox.md").read_text(), re.S)
    assert listed is not None
    families = tuple(re.findall(r"`([\w.]+)`", listed[1]))
    preloaded = BackendSettings().preload
    added = {*added_modules(STANDARD_MODULES), *added_modules((*STANDARD_MODULES, *preloaded))}

    assert [name for name in sorted(added) if not is_of(name, families)] == []
    assert [family for family in families if not any(is_of(name, (family,)) for name in added)] == []


def added_modules(imported: tuple[str, ...]) -> list[str]:
    """Modules that the shipped warm-ups add in a zygote that has imported the modules `imported`."""
    warm = yaml.safe_load((ROOT / "configs" / "languages.yaml").read_text())["python"]["warm"]
    code = f"""
import contextvars, importlib, json, sys
for name in {imported!r}:
    importlib.import_module(name)
from verl_pivot.sandbox.lane.zygote import reseed
reseed()
from verl_pivot.sandbox.lane.warm_up import run_warm_ups
before = set(sys.modules)
programs = { ({name: code for name, code in warm.items() if name in imported})!r}
run_warm_ups(programs, on_start=lambda name: None, max_data_bytes=1 << 40)
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    return list(json.loads(outcome(code)))


def is_of(name: str, families: tuple[str, ...]) -> bool:
    """Whether a module is one of the packages or modules `families`, or lies in one of them."""
    return any(name == family or name.startswith(f"{family}.") for family in families)
