"""What happened in one trajectory of the tool loop, for metrics, resampling, rewards and dumps."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from verl_pivot.rollout.limits import StopReason
from verl_pivot.routing.accounts import Journey
from verl_pivot.tools.calls import CallRecord, CallStatus
from verl_pivot.types import Json, JsonObject

FIELD = "rollout"
"""Key of a row's `extra_fields` under which the record stands."""
TURN_ENDS = "turn_ends"
"""Another: [num_turns] behind the last token of each sampled turn, as positions in the response."""
VERDICT = "verdict"
"""Another: the outcome, where an environment or a failure decided it."""


@dataclass(slots=True, kw_only=True)
class TagCounts:
    """How often a pair of tags stands in the policy's turns."""

    tag: str
    num_open: int = 0
    num_close: int = 0
    num_pairs: int = 0

    def add(self, turn: str) -> None:
        """Count those of one turn."""
        name = re.escape(self.tag)
        self.num_open += turn.count(f"<{self.tag}>")
        self.num_close += turn.count(f"</{self.tag}>")
        self.num_pairs += len(re.findall(f"<{name}>.*?</{name}>", turn, re.DOTALL))

    @property
    def num_matched(self) -> int:
        """0 unless every tag has its other."""
        return self.num_pairs if self.num_open == self.num_close == self.num_pairs else 0


@dataclass(slots=True, kw_only=True)
class RolloutRecord:
    """One trajectory."""

    prompt_id: str = ""
    """By which the rollouts of a prompt are found again (`data.prompts`)."""
    stop_reason: StopReason | None = None
    """None while it runs."""
    calls: list[CallRecord] = field(default_factory=list)
    turn_tokens: list[int] = field(default_factory=list)
    """[num_turns] sampled in each."""
    prompt_tokens: int = 0
    response_tokens: int = 0
    """Sampled and observed."""
    generate_seconds: float = 0.0
    tool_seconds: float = 0.0
    """Waited for tools; of parallel calls the longest counts."""
    num_empty_answers: int = 0
    """Of the engine, which was asked again."""
    answers: TagCounts | None = None
    """None where no format tag is asked for."""
    text_differs: bool = False
    """The chat template writes the messages otherwise than the tokens read (such as without old thinking)."""
    journey: Journey | None = None
    """What scheduling cost it; None without a router that keeps account."""
    failure: str = ""
    """Why it is masked."""

    def as_dict(self) -> JsonObject:
        calls: list[Json] = [call.as_dict() for call in self.calls]
        return {
            "prompt_id": self.prompt_id,
            "stop_reason": "" if self.stop_reason is None else self.stop_reason.value,
            "is_masked": self.stop_reason is not None and self.stop_reason.is_masked,
            "calls": calls,
            "num_calls": len(self.calls),
            "num_tool_errors": sum(call.status is CallStatus.TOOL_ERROR for call in self.calls),
            "turn_tokens": [*self.turn_tokens],
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
            "generate_seconds": self.generate_seconds,
            "tool_seconds": self.tool_seconds,
            "num_empty_answers": self.num_empty_answers,
            "num_answers": None if self.answers is None else self.answers.num_matched,
            "text_differs": self.text_differs,
            "journey": None if self.journey is None else asdict(self.journey),
            "failure": self.failure,
        }


def write_records(path: Path, records: Mapping[str, Mapping[str, Any]], *, append: bool = False) -> None:
    """One line of JSON per trajectory, beside verl's dump of the same step, which has its text under the same uid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if append else "wb") as file:
        file.writelines(_line({"uid": uid, **record}) for uid, record in sorted(records.items()))


def _line(record: Mapping[str, Any]) -> bytes:
    """By msgspec, three times as fast where a step has many thousands."""
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair in what the policy wrote, which JSON can only escape
        return json.dumps(record).encode() + b"\n"


def rollout_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{verl's style of name: value} of a step.

    Args:
        records: [num_trajectories] as `RolloutRecord.as_dict` gives them; those of masked ones included.
    """
    if not records:
        return {}
    num = len(records)
    calls = [call for record in records for call in record["calls"]]
    turns = [tokens for record in records for tokens in record["turn_tokens"]]
    stops = Counter(record["stop_reason"] for record in records)
    kinds = Counter(call["error_kind"] for call in calls if call["status"] == CallStatus.TOOL_ERROR)
    found = {
        "rollout/calls_per_trajectory": len(calls) / num,
        "rollout/masked_rate": sum(record["is_masked"] for record in records) / num,
        "rollout/text_differs_rate": sum(record["text_differs"] for record in records) / num,
        "rollout/empty_answers": float(sum(record["num_empty_answers"] for record in records)),
        **{f"rollout/stop_reason/{reason}": stops[reason] / num for reason in StopReason},
        **_spread("rollout/generate_seconds", [record["generate_seconds"] for record in records]),
        **_spread("rollout/tool_seconds", [record["tool_seconds"] for record in records]),
    }
    if turns:
        found |= _spread("rollout/turn_tokens", turns)
    if journeys := [record["journey"] for record in records if record["journey"]]:
        found |= _spread("routing/wait_seconds", [journey["wait_seconds"] for journey in journeys])
        found["routing/moves"] = float(sum(journey["num_moves"] for journey in journeys))
        found["routing/recomputed_tokens"] = float(sum(journey["recomputed_tokens"] for journey in journeys))
    if calls:
        found["rollout/error_rate"] = kinds.total() / len(calls)
        found["rollout/truncated_rate"] = sum(call["truncated"] for call in calls) / len(calls)
        found |= {f"rollout/error_rate/{kind}": count / len(calls) for kind, count in sorted(kinds.items())}
        found["rollout/unknown_tool_rate"] = kinds["unknown_tool"] / len(calls)
    return found


def success_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Share of calls that failed, in rewarded trajectories alone: what rStar2-Agent's figure 4 plots.

    Args:
        records: [num_trajectories] as `rollout_metrics` takes them, with their score.
    """
    calls = [call for record in records if (record["score"] or 0.0) > 0 for call in record["calls"]]
    failed = sum(call["status"] == CallStatus.TOOL_ERROR for call in calls)
    return {"rollout/error_rate_of_successes": failed / len(calls)} if calls else {}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}/mean": sum(values) / len(values),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }
