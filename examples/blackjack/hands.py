"""Gymnasium's Blackjack as text, the best known way to play it, and hands as rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from verl_pivot.environments.renderer import EnvironmentRenderer, StepResult
from verl_pivot.extras import extra
from verl_pivot.types import JsonObject

with extra("gymnasium"):
    import gymnasium

ENVIRONMENT = "Blackjack-v1"
MOVES = ("stick", "hit")
"""Names of the environment's actions 0 and 1."""
TASK = "Play hand {seed} of blackjack."
"""Prompt of a row; the seed makes the prompts differ, and tells nothing about the cards."""


class Hand(NamedTuple):
    """One observation of the environment."""

    total: int
    dealer: int
    """The dealer's open card; 1 is an ace."""
    is_soft: bool
    """Whether an ace of the hand counts 11."""

    @classmethod
    def of(cls, observation: Any) -> "Hand":
        total, dealer, is_soft = observation
        return cls(int(total), int(dealer), bool(is_soft))


class HandRenderer(EnvironmentRenderer):
    """Renderer that names the moves, and describes hands in words."""

    def parameters(self) -> JsonObject:
        moves: JsonObject = {"type": "string", "enum": [*MOVES]}
        return {
            "type": "object",
            "properties": {"move": moves},
            "required": ["move"],
            "additionalProperties": False,
        }

    def action(self, arguments: JsonObject) -> int:
        return MOVES.index(str(arguments["move"]))

    def text(self, result: StepResult) -> str:
        return hand_text(Hand.of(result.observation))


def hand_text(hand: Hand) -> str:
    return f"You have {'soft' if hand.is_soft else 'hard'} {hand.total}, the dealer shows {hand.dealer}."


def best_move(hand: Hand) -> str:
    """The move with the greatest expected return (Sutton and Barto, Reinforcement Learning, figure 5.2)."""
    if hand.is_soft:
        sticks = hand.total >= 19 or (hand.total == 18 and hand.dealer in range(2, 9))
    else:
        least = 12 if hand.dealer in (4, 5, 6) else 13 if hand.dealer in (2, 3) else 17
        sticks = hand.total >= least
    return "stick" if sticks else "hit"


def play(seed: int, move_of: Callable[[Hand], str]) -> float:
    """Return of one hand: 1 for a win, 0 for a draw, -1 for a loss."""
    environment = gymnasium.make(ENVIRONMENT)
    observation, _ = environment.reset(seed=seed)
    reward, ended = 0.0, False
    while not ended:
        observation, paid, ended, _, _ = environment.step(MOVES.index(move_of(Hand.of(observation))))
        reward += float(paid)
    environment.close()
    return reward


def write_hands(path: Path, seeds: range) -> Path:
    """Write one row per seed, which decides the cards of the hand."""
    rows = [
        {
            "data_source": "blackjack",
            "prompt": [{"role": "user", "content": TASK.format(seed=seed)}],
            "metadata": json.dumps({"seed": seed}),
            "ability": "game",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": seed},
        }
        for seed in seeds
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
