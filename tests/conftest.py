"""Settings of the suite: soaks on demand only, tests of one file in one process, all launches one after the other."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.paths import ROOT

# Hypothesis' deadline for one example would fail on a busy machine, whatever the code does.
settings.register_profile("suite", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile("suite")

LAUNCHES = (
    "tests/data/test_curriculum_training.py",
    "tests/local/test_trial.py",
    "tests/rollout/test_pivot_training.py",
    "tests/rollout/test_tool_training.py",
    "tests/examples/test_quickstart_training.py",
    "tests/engines/test_server.py",
    "tests/profiling/test_ray_workers.py",
    "tests/sandbox/cluster/test_ray_supervisor.py",
    "tests/routing/test_router_actor.py",
    "tests/resampling/test_roc_replay_buffer.py",
    "tests/commands/test_doctor.py",
)
"""Files that start the stock trainer, SGLang or Ray: each of them wants both cores, so one process takes them all."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, folder, ROOT], check=True)
    (path,) = folder.glob("verl_pivot-*.whl")
    return path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Launches come first, since they take longest and run one after the other."""
    if "soak" not in config.option.markexpr:
        soaks = [item for item in items if item.get_closest_marker("soak") is not None]
        items[:] = [item for item in items if item not in soaks]
        config.hook.pytest_deselected(items=soaks)
    items.sort(key=lambda item: _group(item.nodeid) != "launches")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand whole groups to the processes of pytest-xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist may be absent
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return GroupScheduling(config, log)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "launches" if file in LAUNCHES else file
