"""`verl-pivot doctor`: checks what a launch needs on this machine, and prints a remedy for each failure."""

import importlib.util
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from verl_pivot.diagnosis.diagnosis import Diagnosis


def examine(say: Callable[[str], None]) -> Iterator[Diagnosis]:
    """Run every check, the quick ones first; a failure does not hide the rest.

    Args:
        say: Called before each check that takes more than a moment, with the name of what is checked.
    """
    from verl_pivot.diagnosis import machine
    from verl_pivot.diagnosis.installation import check_versions

    yield check_versions()
    if importlib.util.find_spec("verl") is None:  # a node that only runs sandboxes
        say("the sandbox")
        yield machine.check_sandbox()
        return
    yield machine.check_open_files()
    yield machine.check_addresses()
    yield from _examine_trainer(say)


def _examine_trainer(say: Callable[[str], None]) -> Iterator[Diagnosis]:
    """Checks of a machine that trains; a Ray worker and the engines start while this process looks at verl."""
    from verl_pivot.diagnosis import installation, machine
    from verl_pivot.diagnosis.installation import diagnose_import
    from verl_pivot.local.environment import activate_shims

    say("torch and the GPUs")
    torch = diagnose_import("torch")
    if not torch.passed:  # every other check would fail for the same reason
        yield torch
        return
    activate_shims()
    logging.disable(logging.WARNING)  # verl warns of a missing GPU, which is one of the checks
    ray_worker, engines = installation.start_ray_worker(), installation.start_engines()
    try:
        yield machine.check_accelerator()
        yield machine.check_flash_attention()
        yield machine.check_shared_memory()
        say("the sandbox")
        yield machine.check_sandbox()
        say("verl: its plugin, its hooks and its configs")
        verl = diagnose_import("verl.trainer.main_ppo")
        if verl.passed:
            yield installation.check_plugin()
            yield installation.check_hook_differences()
            yield installation.check_configs()
        else:
            yield verl
        say("a Ray worker")
        yield installation.diagnose_ray_worker(ray_worker.answer())
        say("the rollout engine")
        yield installation.diagnose_engines({name: program.answer() for name, program in engines.items()})
    finally:
        logging.disable(logging.NOTSET)
        for program in (ray_worker, *engines.values()):
            program.stop()


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Check what a launch needs on this machine; exit code 1 if anything is missing.

    Examples:

      verl-pivot doctor

      verl-pivot doctor --json > machine.json
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    found = []
    with Console(stderr=True).status("looking at the packages ...") as status:
        for diagnosis in examine(lambda what: status.update(f"looking at {what} ...")):
            found.append(diagnosis)
            if as_json:
                continue
            mark = Text("ok  ", "green") if diagnosis.passed else Text("FAIL", "red")
            console.print(mark, f"{diagnosis.name}: {diagnosis.detail}")
            if not diagnosis.passed:
                console.print(f"     remedy: {diagnosis.remedy}")
    passed = all(diagnosis.passed for diagnosis in found)
    if as_json:
        print(json.dumps({"passed": passed, "checks": [asdict(diagnosis) for diagnosis in found]}, indent=2))
    if not passed:
        raise typer.Exit(1)
