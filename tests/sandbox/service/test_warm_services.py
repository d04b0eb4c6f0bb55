"""Warm-ups in a user's languages file, and their effect on programs and sessions of a running service."""

from pathlib import Path

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, start_service

pytestmark = needs_sandbox


def languages(folder: Path, text: str) -> tuple[str, str]:
    """Write a languages file that every user may read; the options of a service that name the file."""
    for readable in (folder, *folder.parents):
        if readable.owner() == folder.owner():
            readable.chmod(readable.stat().st_mode | 0o055)
    file = folder / "warm.yaml"
    file.write_text(text)
    file.chmod(0o644)
    return "--languages", str(file)


async def test_programs_and_sessions_find_what_a_warm_up_has_loaded(tmp_path: Path) -> None:
    warm_up = (
        "import colorsys; colorsys.LOADED = [str(path) for path in __import__('zipapp').MAIN_TEMPLATE.split()[:1]]"
    )
    named = languages(tmp_path, f'python: {{warm: {{sympy: null, colorsys: "{warm_up}"}}}}')
    service = start_service(Kind.ZYGOTE, *named, "--preload", "numpy,sympy", lanes=1)
    code = "import colorsys, sys\nprint(colorsys.LOADED, 'zipapp' in sys.modules, 'sympy.combinatorics' in sys.modules)"
    try:
        async with service.client() as sandbox:
            program = await sandbox.run(code)
            async with await sandbox.open() as session:
                cell = await session.run(code)
    finally:
        service.stop()

    assert (program.stdout, program.stderr) == ("['#'] True False\n", "")
    assert cell.stdout == program.stdout


@pytest.mark.parametrize(
    ("warm_up", "reason"),
    [
        ("import colorsys; colorsys.nothing", "failed: it raised AttributeError: module 'colorsys' has no attribute"),
        ("import os; os.kill(os.getpid(), 9)", "ended the interpreter"),
    ],
)
def test_a_service_whose_warm_up_fails_does_not_start(tmp_path: Path, warm_up: str, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"a zygote did not start: the warm-up 'colorsys' {reason}") as caught:
        start_service(Kind.ZYGOTE, *languages(tmp_path, f'python: {{warm: {{colorsys: "{warm_up}"}}}}'), lanes=1)

    assert "Traceback" not in str(caught.value)
