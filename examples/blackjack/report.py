"""Dumps of hands -> mean returns beside those of other players, a plot over training steps, and summary.json."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.blackjack.hands import MOVES, Hand, best_move, play
from examples.blackjack.training import BASE
from examples.comparison import difference_as_json, draw_curve, gain, shown_difference
from examples.success import Played, Result
from verl_pivot.statistics import Interval, PairedDifference, bootstrap_means, percentile_interval
from verl_pivot.types import Json


def returns_of(seeds: range, move_of: Callable[[Hand], str]) -> list[float]:
    """[num_hands] return of each hand as a player in Python plays it."""
    return [play(seed, move_of) for seed in seeds]


def players(seeds: range) -> dict[str, list[float]]:
    """{player: [num_hands] returns} of two players in Python: one chooses at random, one always makes the best move."""
    rng = random.Random(0)
    return {
        "a coin": returns_of(seeds, lambda hand: rng.choice(MOVES)),
        "the best moves": returns_of(seeds, best_move),
    }


class PlayerRow(NamedTuple):
    """One player on the held-out hands."""

    player: str
    """An arm, or one of the other players."""
    seed: int | None
    """None for the players in Python."""
    mean: float
    """Mean return of a hand."""
    interval: Interval
    """Bootstrap over the hands."""
    over_base: PairedDifference | None


def rows(results: Sequence[Result], others: Mapping[str, Sequence[float]]) -> list[PlayerRow]:
    """The other players, and then each unit."""
    base = {each.seed: each.held_out for each in results if each.arm == BASE}
    found = [PlayerRow(name, None, fmean(returns), _interval(returns), None) for name, returns in others.items()]
    for each in results:
        over_base = gain(base[each.seed], each.held_out) if each.arm != BASE and each.seed in base else None
        returns = [hand.em for hand in each.held_out]
        found.append(PlayerRow(each.arm, each.seed, fmean(returns), _interval(returns), over_base))
    return found


def _interval(returns: Sequence[float]) -> Interval:
    return percentile_interval(bootstrap_means([[each] for each in returns])[:, 0])


def write(results: Sequence[Result], others: Mapping[str, Sequence[float]], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and blackjack.png if anything was trained."""
    found: list[Json] = [
        {
            "player": row.player,
            "seed": row.seed,
            "return": row.mean,
            "interval": [*row.interval],
            "over base": difference_as_json(row.over_base),
        }
        for row in rows(results, others)
    ]
    (folder / "summary.json").write_text(json.dumps({"rows": found, "gaps": [*gaps]}, indent=1) + "\n")
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
    """Print the table, and the sentences about what is missing."""
    table = Table("player", "seed", "return of a hand", "over base", title="Held-out hands", title_justify="left")
    for row in rows(results, others):
        mean = f"{row.mean:+.3f} [{row.interval.low:+.3f}, {row.interval.high:+.3f}]"
        table.add_row(row.player, "" if row.seed is None else str(row.seed), mean, shown_difference(row.over_base))
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)
