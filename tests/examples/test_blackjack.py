"""The example blackjack: its renderer and transcripts over the real environment, its players, report and command."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.blackjack import report  # noqa: E402
from examples.blackjack.hands import Hand, best_move, hand_text, play  # noqa: E402
from examples.blackjack.policy import _BETWEEN_PHRASES, _VALUES  # noqa: E402
from examples.blackjack.training import ARMS, HELD_OUT, LENGTHS, make_arm  # noqa: E402
from examples.blackjack.transcripts import record_transcripts  # noqa: E402
from examples.quickstart.policy import END, encode, learn_tokenizer  # noqa: E402
from examples.success import Played, Result  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from verl_pivot.types import Role  # noqa: E402

TRANSCRIPTS = record_transcripts(range(40))


def test_a_hand_is_told_in_words() -> None:
    assert hand_text(Hand.of((14, 10, 1))) == "You have soft 14, the dealer shows 10."
    assert all(re.search(r"You have (hard|soft) \d+, the dealer shows \d+\.$", each.messages[0].content)
               for each in TRANSCRIPTS)  # fmt: skip


def test_a_player_who_tosses_a_coin_ends_every_hand_by_sticking_or_above_21() -> None:
    moves = [message.tool_calls[0].arguments["move"] for each in TRANSCRIPTS for message in each.messages
             if message.role is Role.ASSISTANT]  # fmt: skip
    for each in TRANSCRIPTS:
        last_move = each.messages[-2].tool_calls[0].arguments["move"]
        total = re.findall(r"\d+", each.messages[-1].content)[0]
        assert last_move == "stick" or int(total) > 21
    assert 0.35 < moves.count("hit") / len(moves) < 0.65


@pytest.mark.parametrize(
    ("hand", "move"),
    [((12, 4, 0), "stick"), ((12, 3, 0), "hit"), ((16, 6, 0), "stick"), ((16, 7, 0), "hit"), ((17, 1, 0), "stick"),
     ((18, 9, 1), "hit"), ((18, 8, 1), "stick"), ((17, 6, 1), "hit"), ((19, 10, 1), "stick")],
)  # fmt: skip
def test_the_best_moves_are_those_of_sutton_and_barto(hand: tuple[int, int, int], move: str) -> None:
    assert best_move(Hand.of(hand)) == move


def test_the_best_player_loses_little_and_a_coin_much() -> None:
    """The best mean return is about -0.05 per hand; its standard error over 1,000 hands is 0.03."""
    players = {name: sum(returns) / len(returns) for name, returns in report.players(HELD_OUT).items()}

    assert -0.15 < players["the best moves"] < 0.05
    assert players["a coin"] < -0.25
    assert play(3, best_move) == play(3, best_move)


def test_limits_hold_all_transcripts() -> None:
    tokenizer = learn_tokenizer(TRANSCRIPTS, _VALUES, _BETWEEN_PHRASES)
    end = tokenizer.convert_tokens_to_ids(END)
    for each in TRANSCRIPTS:
        example = encode(tokenizer, each)
        turns = [sum(label != -100 for label in example.labels)]
        assert example.input_ids.index(end) < LENGTHS.prompt
        assert len(example.input_ids) < LENGTHS.prompt + LENGTHS.response
        assert turns[0] <= LENGTHS.turn * sum(message.role is Role.ASSISTANT for message in each.messages)


def played(prompt_id: str, value: float) -> Played:
    return Played(prompt_id=prompt_id, em=value, num_calls=1)


def test_a_report_has_mean_returns_beside_those_of_other_players(tmp_path: Path) -> None:
    before, after = [played("a", -1.0), played("b", -1.0)], [played("a", 1.0), played("b", 0.0)]
    results = [
        Result(arm="base", seed=0, held_out=before, training={}),
        Result(arm="grpo", seed=0, held_out=after, training={1: before, 2: after}),
    ]
    console = Console(record=True, width=200)
    report.write(results, {"a coin": [-1.0, 0.0]}, ["gap."], tmp_path)
    report.show(results, {"a coin": [-1.0, 0.0]}, ["gap."], console)

    found = json.loads((tmp_path / "summary.json").read_text())
    assert [(row["player"], row["seed"], row["return"]) for row in found["rows"]] == [
        ("a coin", None, -0.5), ("base", 0, -1.0), ("grpo", 0, 0.5),
    ]  # fmt: skip
    assert found["rows"][2]["over base"]["value"] == 1.5
    assert (tmp_path / "blackjack.png").stat().st_size > 0
    assert "gap." in console.export_text()


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=10)
    config = checked_config(arm.command[3:])

    assert config.trainer.val_only is (name == "base")
    assert config.pivot.rollout.tools.endswith("blackjack/tools.yaml")
