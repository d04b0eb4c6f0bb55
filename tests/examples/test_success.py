"""Reports of the studies of whole tasks about their arms."""

import json
from pathlib import Path

from rich.console import Console

from examples.success import Played, Result, show, success_rows, write

ARMS = ("base", "ruler", "outcome")


def played(prompt_id: str, em: float) -> Played:
    return Played(prompt_id=prompt_id, em=em, num_calls=2)


def test_a_report_compares_arms_with_the_base_policy_on_the_same_tasks(tmp_path: Path) -> None:
    before, after = [played("a", 1.0), played("b", 0.0)], [played("b", 1.0), played("a", 1.0)]
    results = [
        Result(arm="ruler", seed=0, held_out=after, training={}),
        Result(arm="base", seed=0, held_out=before, training={}),
        Result(arm="outcome", seed=1, held_out=after, training={}),
    ]
    found = success_rows(results, ARMS)
    console = Console(record=True, width=200)
    write(found, ["gap."], tmp_path)
    show(found, ["gap."], console)

    assert [(each.arm, each.seed, each.success) for each in found] == [
        ("base", 0, 0.5), ("ruler", 0, 1.0), ("outcome", 1, 1.0),
    ]  # fmt: skip
    assert [each.over_base and each.over_base.value for each in found] == [None, 0.5, None]
    assert json.loads((tmp_path / "summary.json").read_text())["gaps"] == ["gap."]
    assert "gap." in console.export_text()
