"""Synthetic trajectories of 20 turns each, and profiles of them, in any number: inputs for benchmarks."""

import json
import random
from pathlib import Path
from typing import cast

from verl_pivot.data.files import RawRow
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.data.turns import turns
from verl_pivot.engines.engine import Sampling
from verl_pivot.profiling.profiles import KIND, VERSION, ProfileSettings, file_sha256
from verl_pivot.types import Json, JsonObject

NUM_TURNS = 20
_WORDS = """
order parcel refund customer address morning delivery payment invoice stock shelf colour size blue red late early
please confirm check again number card bank street city week month return label printer paper box glass broken
""".split()  # noqa: SIM905
_ARGUMENTS = {
    "find_order": "order_id",
    "find_customer": "customer_id",
    "refund": "order_id",
    "send_mail": "customer_id",
}
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the shop's database.",
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "integer"}, "note": {"type": "string"}},
                "required": [argument],
            },
        },
    }
    for name, argument in _ARGUMENTS.items()
]


def openai_row(number: int) -> JsonObject:
    """One row of an agent's log in OpenAI's format, about 9 kB; the same number always gives the same row."""
    rng = random.Random(number)
    messages: list[JsonObject] = [
        {"role": "system", "content": f"You work in a shop. {_text(rng, 80)}"},
        {"role": "user", "content": f"Customer {number}: {_text(rng, 30)}"},
    ]
    for turn in range(NUM_TURNS - 1):
        name = rng.choice(list(_ARGUMENTS))
        arguments = json.dumps({_ARGUMENTS[name]: rng.randrange(10**6), "note": _text(rng, 6)})
        call: JsonObject = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = json.dumps({"status": "done", "found": _text(rng, 20)})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "name": name, "content": result})
    messages.append({"role": "assistant", "content": _text(rng, 25)})
    row = {"id": f"shop-{number}", "task_id": str(number // 4), "messages": messages, "tools": TOOLS, "passed": True}
    return cast(JsonObject, row)


def rows_text(numbers: range) -> str:
    """The rows of these numbers as JSON lines."""
    return "".join(encode_json(openai_row(number)) + "\n" for number in numbers)


def profile_header(trajectories: Path, *, num_samples: int = 8) -> str:
    """First line of a profile: its settings, with the hash of the file of trajectories."""
    settings = ProfileSettings(
        model="synthetic",
        input_sha256=file_sha256(trajectories),
        num_samples=num_samples,
        sampling=Sampling(),
        max_prompt_tokens=32768,
        chat_template_kwargs={},
    )
    return encode_json({"kind": KIND, "version": VERSION, "settings": settings.as_dict()}) + "\n"


def profile_lines_of(rows: tuple[RawRow, ...], *, num_samples: int = 8) -> str:
    """Profiles of every turn of some trajectories as JSON lines; 29 % of them have mixed scores.

    PivotRL (arXiv:2603.21383) reports 71 % of turns without a signal.
    """
    trajectories = map(read_trajectory, rows)
    every_turn = (turn for trajectory in trajectories for turn in turns(trajectory))
    return "".join(_profile_line(turn.trajectory_id, turn.index, num_samples) + "\n" for turn in every_turn)


def _profile_line(trajectory_id: str, index: int, num_samples: int) -> str:
    rng = random.Random(f"{trajectory_id}/{index}")
    kind = rng.random()  # below 0.29 mixed, below 0.7 always right, else always wrong
    rate = rng.random() if kind < 0.29 else float(kind < 0.7)
    samples: list[Json] = []
    for _ in range(num_samples):
        is_right = rng.random() < rate
        reason = "accepted" if is_right else "wrong_value"
        text = f'<tool_call>{{"name": "find_order", "arguments": {{"order_id": {rng.randrange(10**6)}}}}}</tool_call>'
        samples.append(
            {
                "text": text,
                "score": float(is_right),
                "reason": reason,
                "detail": "",
                "num_tokens": rng.randrange(20, 60),
            }
        )
    return encode_json(
        {"trajectory_id": trajectory_id, "turn_index": index, "num_prompt_tokens": 600 + 90 * index, "samples": samples}
    )


def _text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=num_words))
