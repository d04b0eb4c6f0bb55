"""Source code -> what `python main.py` would do with it, in a process forked from a zygote."""

import _thread
import atexit
import builtins
import gc
import os
import signal
import sys
import types
from importlib.machinery import SourceFileLoader
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:  # a zygote imports as little as possible
    from collections.abc import Callable

INTERRUPTED = -1
"""Value in place of an exit code, for a program that must end by SIGINT, as Python does after KeyboardInterrupt."""
MAIN = "main.py"
MAIN_PATH = "/tmp/main.py"
_FLUSH_FAILED = 120
_PACKAGE = "verl_pivot"
_preloaded: frozenset[str] = frozenset()
"""Names of the modules that every program finds loaded; all others were loaded by the program."""
_num_preloaded_exit_functions = 0
_shutdown: object = None
"""threading._shutdown before any program could replace it."""


def become_fresh() -> None:
    """Bring this interpreter into the state of one that has just started with main.py: its streams and its modules.

    The zygote does this once, and prints and imports nothing afterwards: each child inherits the state.
    """
    global _preloaded, _num_preloaded_exit_functions, _shutdown
    for name in [name for name in sys.modules if name.split(".")[0] == _PACKAGE]:
        del sys.modules[name]
    sys.path[0] = os.path.dirname(MAIN_PATH)
    sys.dont_write_bytecode = False
    _preloaded = frozenset(sys.modules) - {"__main__"}
    _num_preloaded_exit_functions = _num_exit_functions()
    _shutdown = getattr(sys.modules.get("threading"), "_shutdown", None)
    read_end, write_end = os.pipe()
    saved = [os.dup(fd) for fd in range(3)]
    for fd, end in enumerate((read_end, write_end, write_end)):
        os.dup2(end, fd)  # a new stream checks once whether it can seek; programs have pipes, so it must see pipes
    open_standard_streams()
    for fd, original in enumerate(saved):
        os.dup2(original, fd)
    for fd in (read_end, write_end, *saved):
        os.close(fd)


def _num_exit_functions() -> int:
    threading = sys.modules.get("threading")
    return atexit._ncallbacks() + (len(threading._threading_atexits) if threading is not None else 0)


def open_standard_streams() -> None:
    """Open new streams over descriptors 0 to 2, with empty buffers: a fork copies the buffers of its zygote."""
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def new_main_module() -> types.ModuleType:
    """A new `__main__` module.

    A child makes its own unless sessions have a startup cell: the zygote's objects are frozen, so what they hold is
    never collected.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def run_main(code: bytes, args: list[str], *, name: str) -> None:
    """Run `code`, the content of main.py, as the command `python NAME ARGS` would; exit as Python would."""
    sys.argv = [name, *args]
    exit_code = 0
    try:
        exec(_compiled(code), _names_of_main())
    except SystemExit as error:
        exit_code = exit_code_of(error)
    except BaseException as error:  # noqa: BLE001  a program may raise anything
        exit_code = _report(error)
    _end(_finalized(exit_code))


def _names_of_main() -> dict[str, object]:
    names = new_main_module().__dict__
    names.update(__file__=MAIN_PATH, __cached__=None, __loader__=SourceFileLoader("__main__", MAIN_PATH))
    return names


def _compiled(code: bytes) -> types.CodeType:
    try:
        return compile(code, MAIN_PATH, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        if b"\0" in code or b"coding" in b"".join(code.split(b"\n", 2)[:2]):
            # Only the interpreter itself writes the right error for a file that it cannot decode.
            os.execv(sys.executable, [sys.executable, *sys.argv])
        raise


def exit_code_of(error: SystemExit) -> int:
    """Exit code with which Python ends for SystemExit; a code that is no number is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _write_error(f"{error.code}\n")
    return 1


def _report(error: BaseException) -> int:
    """Report an exception through sys.excepthook, which a program may have replaced; returns the exit code."""
    exit_code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    trace = error.__traceback__ = _without_own_frames(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    hook = getattr(sys, "excepthook", _excepthook)
    if not hasattr(sys, "excepthook"):
        _write_error("sys.excepthook is missing\n")
    try:
        hook(type(error), error, trace)
    except SystemExit as leaving:
        return exit_code_of(leaving)
    except BaseException as raised:  # noqa: BLE001  a hook may raise anything
        raised.__context__ = None
        _write_error("Error in sys.excepthook:\n")
        _print(raised)
        _write_error("\nOriginal exception was:\n")
        _print(error)
    return exit_code


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _finalized(exit_code: int) -> int:
    """Shut down as the interpreter does, but keep the modules that the zygote had loaded. Returns the exit code."""
    threading = sys.modules.get("threading")
    if threading is not None:
        _guarded(lambda: _end_threads(threading), threading)
    _guarded(_run_exit_functions, atexit)
    stdout, stderr = sys.stdout, sys.stderr
    _guarded(_drop_modules, sys)
    for stream in (stdout, stderr):
        if stream is not None and not _flushed(stream):
            exit_code = _FLUSH_FAILED
    return exit_code


def _end_threads(threading: types.ModuleType) -> None:
    """Wait for threads as the interpreter does, unless the program could not notice a difference."""
    is_replaced = threading._shutdown is not _shutdown
    if is_replaced or _count_threads() or _num_exit_functions() != _num_preloaded_exit_functions:
        threading._shutdown()


def _drop_modules() -> None:
    """Drop the program's modules, then collect garbage, so that `__del__` still finds its globals."""
    num_new = max(0, len(sys.modules) - len(_preloaded) - 1)
    # The newest modules come last. A look at every name would copy the memory page of each, a megabyte in all.
    for name in ("__main__", *islice(reversed(sys.modules), num_new)):
        if name not in _preloaded:
            sys.modules.pop(name, None)
    sys.last_value = sys.last_traceback = None
    # A full collection also empties the interpreter's free lists, which would copy the memory page of each entry.
    _collect(2 if _living(generation=2) else 1)


def _flushed(stream: object) -> bool:
    """Write the last output; returns whether that was possible."""
    try:
        if not getattr(stream, "closed", False):
            stream.flush()  # type: ignore[attr-defined]
    except BaseException as error:  # noqa: BLE001  a program may have put anything in place of a stream
        if stream is not sys.stderr:
            _print_ignored(error, stream)
        return False
    return True


def _guarded(step: "Callable[[], object]", where: object) -> None:
    """Run one step of the shutdown; an exception in it is printed, as the interpreter would do."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001  objects of a program may raise anything
        _print_ignored(error, where)


def _print_ignored(error: BaseException, where: object) -> None:
    _write_error(f"Exception ignored in: {where!r}\n")
    _print(error)


def _print(error: BaseException) -> None:
    error.__traceback__ = _without_own_frames(error.__traceback__)
    _excepthook(type(error), error, error.__traceback__)


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)


def _end(exit_code: int) -> None:
    if exit_code == INTERRUPTED:
        _signal(signal.SIGINT, signal.SIG_DFL)
        _kill(_getpid(), signal.SIGINT)
    _exit(exit_code)


# Bound before the user's code runs, as a program may replace any name of a module.
_excepthook = sys.__excepthook__
_run_exit_functions = atexit._run_exitfuncs
_count_threads = _thread._count
_collect = gc.collect
_living = gc.get_objects
_signal = signal.signal
_kill = os.kill
_getpid = os.getpid
_exit = os._exit
