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
        exec(compile(code, MAIN_PATH, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        exit_code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001  whatever the program raises
        report_exception(error, MAIN_PATH)
        exit_code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finalize(main, exit_code)


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
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def report_exception(error: BaseException, path: str) -> None:
    """Through sys.excepthook, which a program may have replaced, without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def finalize(main: types.ModuleType, exit_code: int) -> None:
    """End as the interpreter does, but for the modules that the zygote had loaded: they are never taken down."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        _clear(main)
        exit_code = _flush(exit_code)
    finally:
        if exit_code == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(exit_code)


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
        except (OSError, ValueError):
            exit_code = 120  # as Python does when its last output cannot be written
    return exit_code
