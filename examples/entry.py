"""Name of an example -> its command, in a supervised child that alone imports its libraries."""

from importlib import import_module

from verl_pivot.interrupts import INTERRUPTED, ended_by_interrupt, stop


def run_example(name: str, module: str = "run") -> None:
    """Run `start` of an example's module; however this process is killed, all processes of the example end with it.

    Its libraries are imported in the child alone: some open CUDA while they are imported, and a process that is forked
    after that cannot use the GPU.

    Args:
        name: Package in `examples`.
        module: Module of this package.

    Raises:
        SystemExit: With the exit code of the example; after Ctrl-C, once its processes have ended, 130.
    """
    with ended_by_interrupt(name):
        from verl_pivot.local.supervision import run_supervised
    try:
        run_supervised(lambda: import_module(f"examples.{name}.{module}").start())
    except SystemExit as ended:
        raise SystemExit(stop(name) if ended.code == INTERRUPTED else ended.code) from ended
