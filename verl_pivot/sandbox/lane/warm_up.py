"""Warm-up programs -> an interpreter that has loaded what programs use first, and is otherwise unchanged.

A zygote runs them before its first fork. They come from the file of languages, so they are as trusted as the packages
that it imports. Their changes to the interpreter are undone here. Their changes inside a library's own modules stay; a
warm-up must undo these itself where a program could observe them.
"""

import _thread
import contextvars
import gc
import os
import resource
import signal
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:  # a zygote imports as little as possible
    from collections.abc import Callable
    from types import CodeType

STARTUP = "session.startup"
"""Name under which the cell that runs ahead of sessions is reported."""
_NAMES_OF_SYS = ("argv", "excepthook", "displayhook", "unraisablehook")
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class WarmUpError(Exception):
    """A warm-up failed; the message says how."""


class InterpreterState:
    """State of an interpreter, outside of its modules, that a program can observe."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._sys = {name: getattr(sys, name) for name in _NAMES_OF_SYS}
        self._registries = {name: dict(registry) for name, registry in _warning_registries().items()}
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._numbers = (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits())
        self._thresholds = gc.get_threshold()
        self._folder = os.getcwd()
        self._mask = os.umask(0)
        os.umask(self._mask)

    def restore(self) -> None:
        """Bring the interpreter back to this state."""
        os.environ.clear()
        os.environ.update(self._environment)
        vars(sys).update(self._sys)
        for name, registry in _warning_registries().items():  # a warning is shown once for each place
            registry.clear()
            registry.update(self._registries.get(name, {}))
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        for timer in _TIMERS:
            signal.setitimer(timer, 0.0)
        recursion_limit, switch_interval, num_digits = self._numbers
        sys.setrecursionlimit(recursion_limit)
        sys.setswitchinterval(switch_interval)
        sys.set_int_max_str_digits(num_digits)
        sys.settrace(None)
        sys.setprofile(None)
        gc.enable()
        gc.set_threshold(*self._thresholds)
        os.chdir(self._folder)
        os.umask(self._mask)


def _warning_registries() -> "dict[str, dict[object, object]]":
    """{module: warnings that it has shown}; under "" those that are shown once for all modules together."""
    found = {"": warnings.onceregistry}  # type: ignore[attr-defined]
    for name, module in tuple(sys.modules.items()):
        registry = getattr(module, "__dict__", {}).get("__warningregistry__")
        if registry is not None:
            found[name] = registry
    return found


def run_warm_ups(
    programs: dict[str, str],
    *,
    startup: "tuple[CodeType, dict[str, object]] | None" = None,
    on_start: "Callable[[str], None]",
    max_data_bytes: int,
) -> None:
    """Run warm-ups in this interpreter, one after the other, without their output.

    Args:
        programs: {name: code} of the warm-ups.
        startup: Cell that runs after them, and the namespace that it fills; None for none.
        on_start: Called with each name before that warm-up runs.
        max_data_bytes: Private memory that this process may have while they run.

    Raises:
        WarmUpError: If a warm-up raises an exception or exits, or leaves a thread or process running.
    """
    state = InterpreterState()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (max_data_bytes, before[1]))
    null = os.open(os.devnull, os.O_RDWR)
    saved = [os.dup(fd) for fd in range(3)]
    for fd in range(3):
        os.dup2(null, fd)
    try:
        for name, code in programs.items():
            on_start(name)
            _run(compile(code, f"<warm-up {name}>", "exec", dont_inherit=True), {"__name__": "__main__"})
        if startup is not None:
            on_start(STARTUP)
            _run(*startup)
    finally:
        for fd, original in enumerate(saved):
            os.dup2(original, fd)
        for fd in (null, *saved):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_DATA, before)
        state.restore()


def _run(code: "CodeType", names: dict[str, object]) -> None:
    try:
        contextvars.copy_context().run(_execute, code, names)
    except BaseException as error:  # a warm-up may raise anything
        raise WarmUpError(f"it raised {type(error).__name__}: {error}") from error
    if _thread._count():
        raise WarmUpError("it left a thread running; threads do not survive the fork of a program")
    if _has_children():
        raise WarmUpError("it left a process running")


def _execute(code: "CodeType", names: dict[str, object]) -> None:
    """Run code in a context of its own, so that its changes to settings of decimal and numpy end with the context."""
    if "decimal" in sys.modules:
        decimal = sys.modules["decimal"]
        decimal.setcontext(decimal.getcontext().copy())
    exec(code, names)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
