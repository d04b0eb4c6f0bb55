"""Row of the dataset -> whether it is for validation, as the manager of agent loops wrote into it."""

from collections.abc import Mapping
from typing import Any

from verl_pivot.data.rollout_records import IS_VALIDATION
from verl_pivot.errors import ConfigError

_MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"


def is_for_validation(row: Mapping[str, Any], section: str, method: str) -> bool:
    """Whether a row is for validation.

    Args:
        row: Columns of the dataset's row.
        section: Section of the settings that needs to know it, such as "pivot.ruler"; for the message.
        method: Method whose manager of agent loops writes it into the row; for the message.

    Raises:
        ConfigError: If the row does not say.
    """
    if IS_VALIDATION not in row:
        raise ConfigError(
            f"{section} cannot tell training from validation: leave out {_MANAGER_KEY}, or name a subclass of the "
            f"class that +method={method} sets"
        )
    return bool(row[IS_VALIDATION])
