"""Measures without a verdict -> a table with the paper's statements beside them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, Protocol, TypeVar

from examples.study.claims import Claims, ToldMeasure, ToldName
from examples.study.measures import rank_correlation
from examples.study.measures_file import SignalCount, StudyMeasures, TurnGain
from examples.study.paper_page import seed_cells, seeds_table_head


class MeasureRow(NamedTuple):
    """One row of the table, with a value for each seed that was measured."""

    name: str
    values: Mapping[int, float]
    """{seed: value}"""
    text: str
    """Format of a value."""
    factor: float = 1.0


_PERCENT = ("{:.1f} %", 100.0)


class OfSeed(Protocol):
    """A record of one seed."""

    @property
    def seed(self) -> int: ...


RowT = TypeVar("RowT", bound=OfSeed)


def measures_lines(claims: Claims, measures: StudyMeasures, seeds: Sequence[int]) -> list[str]:
    """A table in Markdown; it has a mean only if every seed was measured."""
    lines = seeds_table_head("| measure | paper |", seeds)
    for told in claims.measures:
        lines.append(f"| {told.text} | {told.paper} |{' |' * (len(seeds) + 1)}")
        rows = measure_rows(told, measures)
        lines += [f"| {row.name} | {seed_cells(row.values, seeds, row.text, row.factor)}" for row in rows]
        lines += [] if rows else [f"| not measured | {seed_cells({}, seeds, '')}"]
    return lines


def measure_rows(told: ToldMeasure, measures: StudyMeasures) -> list[MeasureRow]:
    """The rows of one measure, without rows that have no value."""
    rows = _ROWS[told.name](told.arms, measures)
    return [row for row in rows if row.values]


def _no_signal(arms: Sequence[str], measures: StudyMeasures) -> list[MeasureRow]:
    counts = measures.signals
    numbers = ", ".join(map(str, sorted({each.num_samples for each in counts})))

    def share(rows: Sequence[SignalCount]) -> float | None:
        return _ratio(sum(row.num_without_signal for row in rows), sum(row.num_turns for row in rows))

    drawn = [gain for gain in measures.gains if gain.deviation is not None]
    most = max((gain.num_answers for gain in drawn), default=0)
    return [
        MeasureRow(f"all turns of the expert, K = {numbers}", _by_seed(counts, share), *_PERCENT),
        *(
            MeasureRow(f"of these `{domain}`", _by_seed(_of(counts, domain), share), *_PERCENT)
            for domain in dict.fromkeys(each.domain for each in counts)
        ),
        MeasureRow(
            f"random turns of these, K = {most}",
            _by_seed(drawn, lambda rows: _ratio(sum(not row.has_signal for row in rows), len(rows))),
            *_PERCENT,
        ),
    ]


def _of(counts: Iterable[SignalCount], domain: str) -> list[SignalCount]:
    return [each for each in counts if each.domain == domain]


def _reward_variance(arms: Sequence[str], measures: StudyMeasures) -> list[MeasureRow]:
    rows = []
    for arm in arms:
        steps = [each for each in measures.variances if each.arm == arm]
        within = _by_seed(steps, lambda several: fmean(each.within_groups for each in several))
        whole = _by_seed(steps, lambda several: fmean(each.of_batch for each in several))
        rows.append(MeasureRow(f"`{arm}`, within the groups of a batch", within, "{:.4f}"))
        rows.append(MeasureRow(f"`{arm}`, of all rewards of a batch", whole, "{:.4f}"))
    return rows


def _gain_and_deviation(arms: Sequence[str], measures: StudyMeasures) -> list[MeasureRow]:
    known = [gain for gain in measures.gains if gain.is_measured]
    signal = [gain for gain in known if gain.has_signal]
    lost = [gain for gain in measures.gains if gain.deviation and gain.gain is None]
    return [
        MeasureRow("all turns", _by_seed(known, _correlation), "{:+.2f}"),
        MeasureRow("turns with signal alone", _by_seed(signal, _correlation), "{:+.2f}"),
        MeasureRow("number of turns", _by_seed(known, lambda rows: float(len(rows))), "{:.0f}"),
        MeasureRow("of these with signal", _by_seed(signal, lambda rows: float(len(rows))), "{:.0f}"),
        MeasureRow("left out, since no step had the KL", _by_seed(lost, lambda rows: float(len(rows))), "{:.0f}"),
    ]


def _correlation(gains: Sequence[TurnGain]) -> float | None:
    return rank_correlation([gain.deviation or 0.0 for gain in gains], [gain.gain or 0.0 for gain in gains])


def _outside_kl(arms: Sequence[str], measures: StudyMeasures) -> list[MeasureRow]:
    return [
        MeasureRow(
            f"`{arm}`, nats",
            _by_seed(
                [each for each in measures.kls if each.arm == arm],
                lambda rows: _ratio(sum(row.nats for row in rows), sum(row.num_tokens for row in rows)),
            ),
            "{:.5f}",
        )
        for arm in arms
    ]


def _miss_rate(arms: Sequence[str], measures: StudyMeasures) -> list[MeasureRow]:
    counts = measures.signals

    def share(rows: Sequence[SignalCount]) -> float | None:
        return _ratio(sum(row.num_missed for row in rows), sum(row.num_accepted for row in rows))

    return [
        MeasureRow("all domains", _by_seed(counts, share), *_PERCENT),
        *(
            MeasureRow(f"`{domain}`", _by_seed(_of(counts, domain), share), *_PERCENT)
            for domain in dict.fromkeys(each.domain for each in counts)
        ),
    ]


def _by_seed(rows: Iterable[RowT], value: Callable[[Sequence[RowT]], float | None]) -> dict[int, float]:
    """{seed: value of its rows}, without seeds whose value is None."""
    several: dict[int, list[RowT]] = {}
    for row in rows:
        several.setdefault(row.seed, []).append(row)
    values = {seed: value(each) for seed, each in several.items()}
    return {seed: found for seed, found in values.items() if found is not None}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_ROWS: Mapping[ToldName, Callable[[Sequence[str], StudyMeasures], list[MeasureRow]]] = {
    ToldName.NO_SIGNAL: _no_signal,
    ToldName.REWARD_VARIANCE: _reward_variance,
    ToldName.GAIN_AND_DEVIATION: _gain_and_deviation,
    ToldName.OUTSIDE_KL: _outside_kl,
    ToldName.MISS_RATE: _miss_rate,
}
