"""benchmarks/bench_trainer: its launches pass our check of a launch."""

import json
from pathlib import Path

from benchmarks.bench_engines import OURS, step_scenario
from benchmarks.bench_trainer import ROUTERS, launch_of, write_rows
from tests.contract.test_configs import stock
from verl_pivot.launch import check_all
from verl_pivot.routing.simulator.workload import draw_conversations


def test_a_launch_with_our_router_passes_the_check(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    scenario = step_scenario(2, 256)
    rows = write_rows(tmp_path / "rows.parquet", draw_conversations(scenario, 0))
    launch = [*launch_of(tmp_path, rows, scenario, 1536, batch_size=8, steps=2), *ROUTERS[OURS]]

    check_all(stock(*launch), {"local": "cpu", "router": "kv_forecast"}, launch)
