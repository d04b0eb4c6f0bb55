"""plan.json in a plan's folder <-> PlanState: what the next run of the same plan need not do again."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from verl_pivot.data.files import replacing
from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """What earlier runs of the plan have done."""

    imported: Json = None
    """Command and inputs of the import that wrote the folder's trajectories; None before it."""
    num_tokens: int = 0
    """Tokens that the trial has sampled."""
    seconds: float = 0.0
    """Seconds that the trial took, without the start of a server."""

    def with_trial(self, num_tokens: int, seconds: float) -> "PlanState":
        """The state after a run of the trial; the same state if the run sampled no tokens."""
        if not num_tokens:
            return self
        return replace(self, num_tokens=self.num_tokens + num_tokens, seconds=self.seconds + seconds)


def read_state(path: Path) -> PlanState:
    """State in a plan.json; that of a new plan if there is none.

    Raises:
        DataError: If the file is not a plan's.
    """
    try:
        value = as_object(decode_json(path.read_bytes()), "plan.json")
    except FileNotFoundError:
        return PlanState()
    except (OSError, BadRowError) as error:
        raise DataError(f"{path} cannot be read as a plan ({error}); delete it, or choose another --out") from error
    match value.get("state"):
        case {"imported": imported, "num_tokens": int(num_tokens), "seconds": float() | int() as seconds}:
            return PlanState(imported=imported, num_tokens=num_tokens, seconds=float(seconds))
    raise DataError(f"{path} holds no plan; delete it, or choose another --out")


def write_state(path: Path, state: PlanState, plan: JsonObject) -> None:
    """Write the state, and beside it the plan for people and other programs.

    Raises:
        ConfigError: If the file cannot be written.
    """
    noted: JsonObject = {"imported": state.imported, "num_tokens": state.num_tokens, "seconds": state.seconds}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({**plan, "state": noted}, indent=2) + "\n", encoding="utf-8")
