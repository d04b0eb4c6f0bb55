"""A verl that differs from verl 0.9.1: the message, the launches that go on, and what the table of hooks must hold."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.support.launching import MINIMAL
from tests.support.paths import ROOT
from verl_pivot import hook_check
from verl_pivot.errors import ConfigError
from verl_pivot.hook_check import HookDifference, chosen_parts, describe, hook_differences, needed_differences
from verl_pivot.hooks import HOOKS, Hook
from verl_pivot.launch import check_all

PACKAGE = ROOT / "verl_pivot"
CLASSES = {
    "pivotrl": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.pivot_turn"),
    "tool_rollout": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop",
                     "resampling.workflow_manager"),
    "grpo_roc": ("data.dataset", "rewards.manager", "resampling.roc_replay_buffer", "rollout.tool_loop",
                 "resampling.oversampling_manager"),
    "ppr": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop",
            "resampling.workflow_manager"),
    "mcp_rl": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop",
               "resampling.marking_manager"),
    "rubrics": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop",
                "resampling.marking_manager"),
    "tree_search": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop",
                    "resampling.marking_manager"),
    "web_agent": ("data.dataset", "rewards.manager", "resampling.replay_buffer", "rollout.tool_loop"),
    "router": ("routing.router_actor",),
    "local": ("local.callback", "local.platform"),
}  # fmt: skip
"""Modules of the classes that the configs of a method or group name."""


def a_hook(name: str, takes: str | None = None, fields: str = "") -> Hook:
    return Hook("tests.test_hook_check", name, "data/dataset.py", ("pivotrl",), takes=takes, fields=fields)


def called(a: int, b: int = 0, *, c: int = 0) -> int:
    return a + b + c


def demanding(a: int, b: int) -> int:
    return a + b


class Row:
    model_fields = ("x", "y")


@pytest.mark.parametrize(
    ("hook", "difference"),
    [
        (a_hook("called", "a, b, c"), None),
        (a_hook("called", "a, ..."), None),
        (a_hook("called", "a, b"), "takes (a, b, c), not (a, b)"),
        (a_hook("called", "b, ..."), "takes (a, b, c), not (b, ...)"),
        (a_hook("demanding", "a, ..."), "takes (a, b), not (a, ...)"),
        (a_hook("absent"), "is not there"),
        (a_hook("Row.absent"), "is not there"),
        (a_hook("Row", fields="x y"), None),
        (a_hook("Row", fields="x z w"), "has no field w, z"),
        (Hook("verl_nowhere", "a", "x.py", ()), "is not there (No module named 'verl_nowhere')"),
    ],
)
def test_a_hook_differs_by_name_by_parameters_or_by_fields(hook: Hook, difference: str | None) -> None:
    assert hook.difference() == difference


def test_the_sentence_counts_and_lists_what_differs() -> None:
    (one,) = hook_differences([a_hook("called", "a, b, c"), a_hook("absent")])

    assert describe([one], "0.10.0.dev") == (
        f"verl 0.10.0.dev: 1 of {len(HOOKS)} hooks differs: tests.test_hook_check.absent is not there"
    )
    assert describe([one, one], "1").startswith(f"verl 1: 2 of {len(HOOKS)} hooks differ: tests.")
    assert describe([], "0.10.0.dev") == f"verl 0.10.0.dev: all {len(HOOKS)} hooks are as in verl 0.9.1"


@pytest.mark.parametrize(
    ("choices", "stopped"),
    [
        ({"method": "pivotrl", "actor": "dp_actor"}, False),
        ({"method": "tool_rollout"}, True),
        ({"method@_global_": "tool_rollout"}, True),
        ({"method": "grpo_roc", "local": "cpu"}, True),
        ({"method": "pivotrl", "local": "cpu"}, False),
        ({"router": "kv_forecast"}, False),
        ({}, False),
    ],
)
def test_a_launch_is_stopped_only_by_a_hook_that_it_needs(choices: dict[str, str], stopped: bool) -> None:
    (hook,) = (hook for hook in HOOKS if hook.name == "AgentLoopBase.ct_merge_context_msg")
    differences = [HookDifference(hook=hook, what="is not there")]

    assert bool(needed_differences(differences, chosen_parts(choices))) is stopped


def test_a_launch_is_stopped_by_a_hook_that_a_method_needs_which_a_config_of_ones_own_builds_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = next(hook for hook in HOOKS if "grpo_roc" in hook.needed_by)
    monkeypatch.setattr(hook_check, "is_tested_release", lambda: False)
    monkeypatch.setattr(hook_check, "hook_differences", lambda: (HookDifference(hook=hook, what="is not there"),))
    config = OmegaConf.create({"pivot": {"resampling": {}}})

    with pytest.raises(
        ConfigError, match=r"is not there\. \+method=grpo_roc cannot run on it: pip install verl==0\.9\.1"
    ):
        check_all(config, {"method": "mine"}, [])


@pytest.mark.parametrize("part", CLASSES)
def test_the_table_of_hooks_knows_what_each_method_imports(part: str) -> None:
    files = _imported_files([f"verl_pivot.{module}" for module in CLASSES[part]])

    forgotten = [str(hook) for hook in HOOKS if hook.used_by in files and part not in hook.needed_by]

    assert forgotten == []
    assert any(part in hook.needed_by for hook in HOOKS)


def _imported_files(modules: list[str]) -> set[str]:
    """Files of these modules and of all that they import, relative to the package."""
    seen: set[str] = set()
    while modules:
        path = ROOT / (modules.pop().replace(".", "/") + ".py")
        if not path.is_file() or str(path.relative_to(PACKAGE)) in seen:
            continue
        seen.add(str(path.relative_to(PACKAGE)))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verl_pivot"):
                modules += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return seen


CHANGED_VERL = """
import runpy, sys, verl
from verl.experimental.agent_loop.agent_loop import AgentLoopBase
verl.__version__ = "0.10.0.dev"
del AgentLoopBase.ct_merge_context_msg
runpy.run_module("verl.trainer.main_ppo", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_launch_on_a_verl_that_lacks_what_its_method_needs_ends_in_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHANGED_VERL, "+method=tool_rollout", "+local=cpu"],
        cwd=tmp_path, env=MINIMAL, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"verl-pivot: verl 0.10.0.dev: 1 of {len(HOOKS)} hooks differs: "
        "verl.experimental.agent_loop.agent_loop.AgentLoopBase.ct_merge_context_msg is not there. "
        "+method=tool_rollout cannot run on it: pip install verl==0.9.1"
    )
