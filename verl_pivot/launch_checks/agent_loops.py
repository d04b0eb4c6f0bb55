"""Agent loops that the rows of a launch name -> an error where another loop than the method's would play them."""

from collections.abc import Mapping

from omegaconf import DictConfig

from verl_pivot.data.pivots import AGENT_NAME
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.training_files import SplitSize

TOOL_LOOP = "pivot_tools"
"""Name of this package's agent loop with tools, the only one that reads `pivot.rollout`."""
VERLS_TOOL_LOOP = "tool_agent"
LOOPS_WITHOUT_OUR_TOOLS = frozenset({AGENT_NAME, VERLS_TOOL_LOOP, "single_turn_agent"})
"""Agent loops of this package and of verl that do not read `pivot.rollout`; one of the user's own may."""


def check_agent_loops(config: DictConfig, method: str, splits: Mapping[str, SplitSize]) -> None:
    """Refuse rows that the method's agent loop would not play, and `pivot.rollout` where no loop reads it.

    verl takes the agent loop from a row's column `agent_name`, and `default_agent_loop` for rows without one.

    Args:
        config: verl's whole config.
        method: "pivotrl", "tool_rollout" or "grpo_roc".
        splits: {key of the command line: what its files hold}.

    Raises:
        ConfigError: Naming the loop and the remedy.
    """
    if method != "pivotrl":
        for key, files in splits.items():
            _check_names(key, files, needs_records=method == "grpo_roc" and key == "data.train_files")
    loops = frozenset[str]().union(*(_loops_of(config, files) for files in splits.values()))
    if "rollout" in config.pivot and loops <= LOOPS_WITHOUT_OUR_TOOLS:
        raise ConfigError(
            f"pivot.rollout does nothing, since no agent loop of the rows ({', '.join(sorted(loops))}) reads it: set "
            f"actor_rollout_ref.rollout.agent.default_agent_loop={TOOL_LOOP} for rows without a column agent_name, "
            f"or write {TOOL_LOOP} in that column"
        )


def _check_names(key: str, files: SplitSize, *, needs_records: bool) -> None:
    """Refuse rows that name a loop other than the method's.

    Args:
        key: Key of the command line that names the files.
        files: What the files hold.
        needs_records: Whether every loop but the method's is refused, and not verl's loop with tools alone.
    """
    for name in sorted(name for name in files.agent_names if name not in (None, TOOL_LOOP)):
        if name == VERLS_TOOL_LOOP:
            raise ConfigError(
                f"{key} has rows whose column agent_name is {name}, by which verl's own loop would play them, without "
                f"the tools of pivot.rollout.tools: remove the column, or write {TOOL_LOOP} in it"
            )
        if needs_records:
            raise ConfigError(
                f"{key} has rows whose column agent_name is {name}, a loop that keeps no record of calls, by which "
                f"+method=grpo_roc resamples: remove the column, or write {TOOL_LOOP} in it"
            )


def _loops_of(config: DictConfig, files: SplitSize) -> frozenset[str]:
    """Names of the agent loops that play the rows of some files."""
    default = str(config.actor_rollout_ref.rollout.agent.default_agent_loop)
    named = frozenset(default if name is None else name for name in files.agent_names)
    of_pivots = str(config.data.get("pivot_agent_name", AGENT_NAME))
    return named | {of_pivots} if files.num_pivots else named
