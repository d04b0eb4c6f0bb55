"""Settings of the suite: some tests on demand only, tests of one file in one process, at most two launches at once."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.composing_once import compose_once
from tests.support.paths import ROOT
from verl_pivot.local.environment import activate_shims

# Without shims, a test file that imports transformers fails alone, and passes after a file that activates them.
activate_shims()

# No test needs a model hub, and without a network each request to one takes half a minute.
os.environ["HF_HUB_OFFLINE"] = "1"

# Two threads of torch wait for each other in a busy loop where other processes use the cores too.
os.environ["OMP_NUM_THREADS"] = "1"

# Background jobs of a shell ignore Ctrl-C, and jobs of nohup ignore hangups. Commands of tests would inherit both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# On a busy machine, examples miss Hypothesis' deadline whatever the code does.
settings.register_profile("suite", deadline=None, derandomize=True)  # `make soak` draws other examples each time
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile("suite")

compose_once()

LAUNCHES = (
    (
        "tests/data/test_curriculum_training.py",
        "tests/rollout/test_tool_training.py",
        "tests/rewards/test_judge_training.py",
        "tests/smoke/test_smoke_training.py",
        "tests/synthesis/test_ray_running.py",
        "tests/commands/test_judge.py",
        "tests/engines/test_server.py",
        "tests/rewards/test_rubrics_training.py",
    ),
    (
        "tests/rollout/test_notebook_training.py",
        "tests/rollout/test_pivot_training.py",
        "tests/rewards/test_ppr_training.py",
        "tests/environments/test_framework_training.py",
        "tests/rollout/test_web_training.py",
        "tests/profiling/test_ray_running.py",
        "tests/workers/test_ray_workers.py",
        "tests/sandbox/cluster/test_ray_supervisor.py",
        "tests/resampling/test_roc_replay_buffer.py",
        "tests/resampling/test_step_replay_buffer.py",
        "tests/routing/test_router_actor.py",
        "tests/commands/test_doctor.py",
        "tests/examples/test_quickstart_training.py",
    ),
)
"""Test files that start the stock trainer, SGLang or Ray, in two groups that take about equally long.

Each group runs in one process, so that two launches run at once: one launch does not fill two cores, and each takes
gigabytes of memory.
"""
_GROUPS = {file: f"launches {number}" for number, files in enumerate(LAUNCHES) for file in files}

ON_DEMAND = ("soak", "cluster")
"""Markers of tests that run only where `-m` names them."""

LONGEST = (
    "tests/hostile/test_sandbox_failures.py",
    "tests/verifiers/test_shell_execution.py",
    "tests/launch_checks/test_checks.py",
    "tests/profiling/test_profiles.py",
    "tests/commands/test_plan.py",
    "tests/sandbox/lane/test_scheduler.py",
    "tests/hostile/test_math_attacks.py",
    "tests/hostile/test_sandbox_isolation.py",
    "tests/local/test_supervision.py",
    "tests/launch_checks/test_void_settings.py",
    "tests/routing/test_place_desk.py",
    "tests/inspect/test_page.py",
)
"""The slowest of the other test files. They begin early, since all processes would wait for one that began last."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, folder, ROOT], check=True)
    (path,) = folder.glob("verl_pivot-*.whl")
    return path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests on demand, and order the others: groups of launches, the slowest other files, then all others.

    Thousands of tests start processes on a machine that others use too, so a test that fails runs once more, and the
    summary names it. A failure that hypothesis finds occurs again, since it draws the same examples.
    """
    on_demand = [
        item
        for name in ON_DEMAND
        if name not in config.option.markexpr
        for item in items
        if item.get_closest_marker(name)
    ]
    if on_demand:
        items[:] = [item for item in items if item not in on_demand]
        config.hook.pytest_deselected(items=on_demand)
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1))
    ranks = {group: rank for rank, group in enumerate(dict.fromkeys((*_GROUPS.values(), *LONGEST)))}
    items.sort(key=lambda item: ranks.get(_group(item.nodeid), len(ranks)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what the test files have imported out of every later garbage collection: each would go through all of it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let Python free at its end what was taken out, as libraries that count their objects expect."""
    gc.unfreeze()


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
    return _GROUPS.get(file, file)
