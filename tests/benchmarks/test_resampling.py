"""bench_resampling: the order of the steps, and the table of made-up measurements; nothing is measured here."""

import pytest

pytest.importorskip("torch")

from benchmarks.bench_resampling import Case, Measured, round_order, table


def make_measured(seconds: float, cpu: float, num_bytes: int = 0) -> Measured:
    return Measured(seconds, write_seconds=0.5, cpu_seconds=cpu, step_seconds=20.0, num_bytes=num_bytes)


def test_steps_without_and_with_a_dump_alternate_and_each_comes_first_in_every_other_round() -> None:
    order = [case for number in range(2) for case in round_order(number, 20.0)]

    assert order == [
        Case(20.0, False), Case(20.0, True), Case(None, False), Case(None, True),
        Case(20.0, True), Case(20.0, False), Case(None, True), Case(None, False),
    ]  # fmt: skip


def test_the_table_has_medians_and_the_ratio_of_each_pair() -> None:
    without = [make_measured(1.0, 2.0), make_measured(9.0, 2.0), make_measured(2.0, 4.0)]
    dumped = [make_measured(3.0, 3.0, 1 << 20), make_measured(3.0, 3.0), make_measured(9.0, 6.0)]
    found = {Case(spread, is_dumped): dumped if is_dumped else without for spread, is_dumped in round_order(0, 20.0)}

    cells = [list(column.cells) for column in table("t", found, 20.0).columns]

    assert cells[1] == ["none", "1 MiB", "ratio"] * 2
    assert cells[2] == ["2.00", "3.00", "1.50"] * 2
    assert cells[5] == ["2.00", "3.00", "1.50"] * 2
    assert cells[6] == ["", "5.0%", "", "", "", ""]
