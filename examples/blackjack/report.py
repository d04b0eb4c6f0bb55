"""Dumps of hands -> mean returns beside those of other players, a plot over training steps, and summary.json."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.blackjack.hands import MOVES, Hand, best_move, play
from examples.blackjack.training import BASE
from examples.comparison import difference_as_json, draw_curve, gain, shown_difference
from examples.success import Played, Result
from verl_pivot.statistics import bootstrap_means, percentile_interval
from verl_pivot.types import JsonObject


def returns_of(seeds: range, move_of: Callable[[Hand], str]) -> list[float]:
    """[num_hands] return of each hand as a player in Python plays it."""
    return [play(seed, move_of) for seed in seeds]


def players(seeds: range) -> dict[str, list[float]]:
    """{player: [num_hands] returns}: one who tosses a coin, and one who plays as well as anybody can."""
    rng = random.Random(0)
    return {
        "a coin": returns_of(seeds, lambda hand: rng.choice(MOVES)),
        "the best moves": returns_of(seeds, best_move),
    }


def summary(results: Sequence[Result], others: Mapping[str, Sequence[float]], gaps: Sequence[str]) -> JsonObject:
    """Mean returns with their intervals over hands, of each unit and of the other players."""
    base = {each.seed: each.held_out for each in results if each.arm == BASE}
    rows: list[JsonObject] = []
    for each in results:
        over_base = gain(base[each.seed], each.held_out) if each.arm != BASE and each.seed in base else None
        found = _mean([hand.em for hand in each.held_out])
        rows.append({"arm": each.arm, "seed": each.seed, **found, "over base": difference_as_json(over_base)})
    return {"rows": [*rows], "players": {name: _mean(returns) for name, returns in others.items()}, "gaps": [*gaps]}


def _mean(returns: Sequence[float]) -> JsonObject:
    low, high = percentile_interval(bootstrap_means([[each] for each in returns])[:, 0])
    return {"return": fmean(returns), "interval": [low, high], "hands": len(returns)}


def write(results: Sequence[Result], others: Mapping[str, Sequence[float]], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and blackjack.png if anything was trained."""
    (folder / "summary.json").write_text(json.dumps(summary(results, others, gaps), indent=1) + "\n")
    trained = [each for each in results if each.training]
    if not trained:
        return
    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    draw_curve(panel, _mean_return, "the policy in training", [each.training for each in trained])
    for number, (name, returns) in enumerate(others.items(), start=1):
        panel.axhline(fmean(returns), color=f"C{number}", linestyle="--", label=name)
    panel.set(xlabel="training step", ylabel="return of a hand")
    panel.legend()
    figure.savefig(folder / "blackjack.png", dpi=110)
    plt.close(figure)


def _mean_return(played: Sequence[Played]) -> float:
    return fmean(each.em for each in played)


def show(
    results: Sequence[Result], others: Mapping[str, Sequence[float]], gaps: Sequence[str], console: Console
) -> None:
    """Print the table, and what is missing."""
    base = {each.seed: each.held_out for each in results if each.arm == BASE}
    table = Table("player", "seed", "return of a hand", "over base", title="Held-out hands", title_justify="left")
    for name, returns in others.items():
        table.add_row(name, "", _shown(returns), "")
    for each in results:
        over_base = gain(base[each.seed], each.held_out) if each.arm != BASE and each.seed in base else None
        returns = [hand.em for hand in each.held_out]
        table.add_row(each.arm, str(each.seed), _shown(returns), shown_difference(over_base))
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)


def _shown(returns: Sequence[float]) -> str:
    low, high = percentile_interval(bootstrap_means([[each] for each in returns])[:, 0])
    return f"{fmean(returns):+.3f} [{low:+.3f}, {high:+.3f}]"
