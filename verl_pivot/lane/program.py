"""Source code -> what `python main.py` would do with it, in a forked process that never comes back."""

import atexit
import builtins
import os
import signal
import sys
import types

INTERRUPTED = -1
"""In place of an exit code: Python ends an interrupted program by the signal itself."""
MAIN = "main.py"
MAIN_PATH = "/tmp/main.py"
_OURS = "verl_pivot"


def run_main(code: bytes, args: list[str]) -> None:
    """Run `code`, which lies in main.py, and exit as Python would. Never returns."""
    sys.argv = [MAIN, *args]
    main = sys.modules["__main__"]
    exit_code = 0
    try:
        exec(_compiled(code), main.__dict__)
    except SystemExit as error:
        exit_code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001  whatever the program raises
        report_exception(error, MAIN_PATH)
        exit_code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finalize(main, exit_code)


def _compiled(code: bytes) -> types.CodeType:
    if b"\0" in code:  # compile() words it differently than the interpreter does for a file
        raise SyntaxError("source code cannot contain null bytes")
    return compile(code, MAIN_PATH, "exec", dont_inherit=True)


def become_fresh() -> None:
    """Make this interpreter what one that has just started with main.py is: streams, `__main__`, and nothing of ours.

    Done once by the zygote, which prints nothing and imports nothing afterwards: its children find it so.
    """
    open_standard_streams()
    for name in [name for name in sys.modules if name.split(".")[0] == _OURS]:
        del sys.modules[name]
    main = types.ModuleType("__main__")
    names = {"__builtins__": builtins, "__annotations__": {}, "__file__": MAIN_PATH, "__cached__": None}
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    sys.path[0] = os.path.dirname(MAIN_PATH)


def open_standard_streams() -> None:
    """New ones over descriptors 0 to 2, with empty buffers: those of a zygote are copied into every program."""
    stdin = open(0, encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
    stdout = open(1, "w", encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
    stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def report_exception(error: BaseException, path: str) -> None:
    """Through sys.excepthook, which a program may have replaced, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException as raised:  # noqa: BLE001  whatever the hook raises
        _write_error("Error in sys.excepthook:\n")
        raised.__traceback__ = raised.__traceback__ and raised.__traceback__.tb_next
        raised.__context__ = None
        _excepthook(type(raised), raised, raised.__traceback__)
        _write_error("\nOriginal exception was:\n")
        _excepthook(type(error), error, trace)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _write_error(f"{error.code}\n")
    return 1


def finalize(main: types.ModuleType, exit_code: int) -> None:
    """End as the interpreter does, but for the modules that the zygote had loaded: they are never taken down."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        _run_exit_functions()
        _clear(main)
        exit_code = _flush(exit_code)
    finally:
        if exit_code == INTERRUPTED:
            _signal(signal.SIGINT, signal.SIG_DFL)
            _kill(_getpid(), signal.SIGINT)
        _exit(exit_code)


def _clear(module: types.ModuleType) -> None:
    """Drop the globals in the interpreter's order, so that their `__del__` runs."""
    names = module.__dict__
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name.startswith("_") and not name.startswith("__")) == private:
                names[name] = None


def _flush(exit_code: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            exit_code = 120  # as Python does when its last output cannot be written
            if stream is sys.stdout:
                _write_error(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
    return exit_code


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)


# What is called after the user's code is bound before it: a program may replace any name of a module.
_excepthook = sys.__excepthook__
_run_exit_functions = atexit._run_exitfuncs
_signal = signal.signal
_kill = os.kill
_getpid = os.getpid
_exit = os._exit
