"""Agent loops that the rows of a launch name -> an error if a loop other than the method's would play them."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from verl_pivot.data.pivots import AGENT_NAME
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.step_settings import NOTEBOOK_LOOP
from verl_pivot.launch_checks.training_files import OUR_DATASET, SplitSize, file_list, read_files
from verl_pivot.rollout.settings import parse_settings

TOOL_LOOP = "pivot_tools"
"""Name of this package's agent loop with tools; it reads `pivot.rollout`, as the loop with a notebook does."""
SEARCH_LOOP = "pivot_tree_search"
_OWN_LOOPS = {"l0": NOTEBOOK_LOOP, "tree_search": SEARCH_LOOP}
"""{method: its agent loop}; every other method with tools has TOOL_LOOP."""
VERLS_TOOL_LOOP = "tool_agent"
LOOPS_OF_ONE_TURN = frozenset({AGENT_NAME, "single_turn_agent"})
_NEEDS_OWN_LOOP = {
    "grpo_roc": "keeps no record of calls, which +method=grpo_roc needs for resampling",
    "mcp_rl": "does not wait for the other rollouts of its prompt, which +method=mcp_rl compares",
    "rubrics": "does not get the judge's rubric scores, which +method=rubrics uses as rewards",
    "l0": "gives steps no returns, which +method=l0 needs for advantages",
    "tree_search": "plays the first sampled turn, where +method=tree_search searches among several",
}
"""{method: why another agent loop does not fit its training rows, as the rest of a sentence about that loop}"""
LOOPS_WITHOUT_OUR_TOOLS = LOOPS_OF_ONE_TURN | {VERLS_TOOL_LOOP}
"""Agent loops of this package and of verl that do not read `pivot.rollout`; a user's own loop may read it."""


def check_agent_loops(config: DictConfig, method: str, splits: Mapping[str, SplitSize]) -> None:
    """Refuse rows that the method's agent loop would not play, and `pivot.rollout` where no loop reads it.

    verl takes the agent loop from a row's column `agent_name`, and `default_agent_loop` for rows without one.

    Args:
        config: verl's whole config.
        method: Name of the method, such as "tool_rollout".
        splits: {key of the command line: contents of its files}.

    Raises:
        ConfigError: Naming the loop and the remedy.
    """
    own_loop = _OWN_LOOPS.get(method, TOOL_LOOP)
    if method != "pivotrl":
        for key, files in splits.items():
            _check_names(key, files, own_loop, _lack_of_others(config, method, key))
    loops = frozenset[str]().union(*(_loops_of(config, files) for files in splits.values()))
    if "rollout" in config.pivot and loops <= LOOPS_WITHOUT_OUR_TOOLS:
        raise ConfigError(
            f"pivot.rollout does nothing, since no agent loop of the rows ({', '.join(sorted(loops))}) reads it: set "
            f"actor_rollout_ref.rollout.agent.default_agent_loop={own_loop} for rows without a column agent_name, "
            f"or write {own_loop} in that column"
        )


def has_single_turns(config: DictConfig) -> bool:
    """Whether each rollout is one request to an engine; False if the data files do not say which loops play them.

    In the asynchronous trainer modes, new weights interrupt a turn, which is then requested again.
    """
    loops = _loops_of_launch(config)
    if config.trainer.v1.trainer_mode != "sync" or not loops:
        return False
    with_tools = "rollout" in config.pivot and parse_settings(config).max_turns == 1
    return loops <= (LOOPS_OF_ONE_TURN | {TOOL_LOOP} if with_tools else LOOPS_OF_ONE_TURN)


def has_only_pivots(config: DictConfig) -> bool:
    """Whether, in addition, all rollouts are played by the loop that announces its single turn to the router."""
    return has_single_turns(config) and _loops_of_launch(config) == {AGENT_NAME}


def _loops_of_launch(config: DictConfig) -> frozenset[str]:
    """Names of the agent loops that play the rows of a launch; empty if its files or its dataset do not say."""
    if config.data.custom_cls.path not in (None, OUR_DATASET):
        return frozenset()
    loops = frozenset[str]()
    for key in ("train_files", "val_files"):
        paths = file_list(config.data[key])
        is_here = all(Path(path).expanduser().is_file() for path in paths)  # others are refused or remote
        files = read_files(f"data.{key}", paths) if is_here else None
        if files is None:
            return frozenset()
        loops |= _loops_of(config, files)
    return loops


def _lack_of_others(config: DictConfig, method: str, key: str) -> str | None:
    """Why another loop does not fit the rows of these files, as the rest of a sentence; None if any loop fits."""
    if "process" in config.pivot:
        return "keeps no record of calls, which the judge of pivot.process needs"
    return _NEEDS_OWN_LOOP.get(method) if key == "data.train_files" else None


def _check_names(key: str, files: SplitSize, own_loop: str, lacks: str | None) -> None:
    """Refuse rows that name a loop other than the method's.

    Args:
        key: Key of the command line that names the files.
        files: Contents of the files.
        own_loop: The method's loop.
        lacks: Why another loop does not fit; None if only verl's loop with tools is refused.
    """
    for name in sorted(name for name in files.agent_names if name not in (None, own_loop)):
        if name == VERLS_TOOL_LOOP:
            raise ConfigError(
                f"{key} has rows whose column agent_name is {name}, so verl's own loop would play them, without the "
                f"tools of pivot.rollout.tools: remove the column, or write {own_loop} in it"
            )
        if lacks is not None:
            raise ConfigError(
                f"{key} has rows whose column agent_name is {name}, a loop that {lacks}: remove the column, or write "
                f"{own_loop} in it"
            )


def _loops_of(config: DictConfig, files: SplitSize) -> frozenset[str]:
    """Names of the agent loops that play the rows of some files."""
    default = str(config.actor_rollout_ref.rollout.agent.default_agent_loop)
    named = frozenset(default if name is None else name for name in files.agent_names)
    of_pivots = str(config.data.get("pivot_agent_name", AGENT_NAME))
    return named | {of_pivots} if files.num_pivots else named
