"""pivot.rollout.workflows and checklists in a launch: settings without effect and files that are missing stop it."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.launch_checks.process import check_process
from verl_pivot.launch_checks.void_settings import check_void_settings
from verl_pivot.launch_checks.workflows import check_workflows

JUDGE = ("pivot.process.base_url=http://judge:30000/v1", "pivot.process.model=Shepherd")
EVERY = "pivot.rollout.workflows.every_steps=5"


def composed(*overrides: str, method: str = "tool_rollout") -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"+method={method}", *overrides])


def test_workflows_are_off_by_default_and_pass_with_a_file_or_steps(tmp_path: Path) -> None:
    path = tmp_path / "workflows.jsonl"
    path.write_text(json.dumps({"goal": "Add.", "steps": [{"tool": "add", "arguments": {}}]}) + "\n")
    for overrides in ((), (EVERY,), (f"pivot.rollout.workflows.file={path}",)):
        check_workflows(composed(*overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (EVERY, "pivot.rollout.workflows.max_tokens=2048"),
            "leaves no room for a task in data.max_prompt_length=2048",
        ),
        ((EVERY, "pivot.rollout.workflows.validation=both"), "val_kwargs.n=1 is odd: set it to 2"),
        ((EVERY, "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null"), "needs a manager of agent loops"),
    ],
)
def test_what_would_show_nothing_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_workflows(composed(*overrides))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"there is no file none\.jsonl"):
        check_workflows(composed("pivot.rollout.workflows.file=none.jsonl"))


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("tool_rollout", ("pivot.rollout.workflows.max_tokens=64",), "without file and every_steps"),
        ("tool_rollout", ("pivot.rollout.workflows.file=a", "pivot.rollout.workflows.min_score=2"), "every_steps=null"),
        ("l0", (EVERY,), "+method=l0, whose policy works in a notebook"),
        ("ppr", ("pivot.process.samples=2",), "a pivot.process.form without a checklist"),
        (
            "ppr",
            ("pivot.process.form=checklist", "pivot.process.max_added_principles=1"),
            "replaces the principles",
        ),
        (
            "ppr",
            ("pivot.process.form=checklist", "pivot.process.reward=gain", "pivot.process.invalid=zero"),
            "without a valid answer gains 0",
        ),
        (
            "ppr",
            ("pivot.process.form=checklist_released", "pivot.process.answer_format=text"),
            "where the judge answers in lines",
        ),
    ],
)
def test_a_key_that_does_nothing_is_refused(method: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_void_settings(composed(*overrides, *(JUDGE if method == "ppr" else ()), method=method), overrides)
    assert message in str(caught.value)


def test_a_checklist_needs_no_principles_and_gains_none_of_renorm() -> None:
    check_process(composed(*JUDGE, "pivot.process.form=checklist", "pivot.process.principles=none.yaml", method="ppr"))
    with pytest.raises(ConfigError, match="reward=gain does not go together with mode=renorm"):
        check_process(composed(*JUDGE, "pivot.process.form=checklist", "pivot.process.reward=gain", method="ppr"))
