"""What is installed from the wheel is whole: no checkout beside it, configs inside, found by the stock trainer."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.launching import MINIMAL

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def install_wheel(folder: Path) -> Path:
    """The unpacked wheel, which Python then finds before the checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, folder / "dist", ROOT], check=True)
    (wheel,) = (folder / "dist").glob("verl_pivot-*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_the_stock_trainer_finds_the_method_of_an_installed_wheel(tmp_path: Path) -> None:
    installed = install_wheel(tmp_path)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+method=pivotrl", "+local=cpu", "--cfg", "job"]

    done = subprocess.run(
        [*command, "--resolve"],
        cwd=tmp_path,
        env={**MINIMAL, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "pkg://verl_pivot.data.dataset" in done.stdout
    assert f"agent_loop_config_path: {installed}/verl_pivot/configs/agent_loops.yaml" in done.stdout
    assert (installed / "verl_pivot" / "local" / "shims" / "sitecustomize.py").is_file()
