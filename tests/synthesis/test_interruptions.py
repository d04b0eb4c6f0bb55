"""kill -9 during a run against a real server: the output is the same, and no answered question is asked again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.fake_engine import Answer, FakeServer, fake_server
from tests.support.paths import ROOT
from verl_pivot.types import JsonObject

CONCURRENCY = 4
NUM_TASKS = 30
SHOP = f"{ROOT}/tests/support/counting_shop.py:Shop"
RECIPE = """
- tasks
- rollouts: {num: 3, max_turns: 4, max_turn_tokens: 64}
- fewest_calls: {max_per_task: 1}
"""


def respond(path: str, body: JsonObject) -> Answer:
    """An answer that depends on the question alone: order one or two packs, then end."""
    if path == "/v1/models":
        return Answer(body={"data": [{"id": "small"}]})
    time.sleep(0.01)
    messages: Any = body["messages"]
    digest = sha256(json.dumps(body, sort_keys=True).encode()).digest()
    call = {"name": "order", "arguments": json.dumps({"amount": 1 + digest[0] % 2})}
    is_first = messages[-1]["role"] == "user"
    message: Any = {"role": "assistant", "content": None if is_first else "Done."}
    if is_first:
        message["tool_calls"] = [{"id": "a", "type": "function", "function": call}]
    usage = {"prompt_tokens": 20, "completion_tokens": 5}
    return Answer(body={"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})


def started(folder: Path, server: FakeServer, out: str, *more: str) -> "subprocess.Popen[str]":
    words = ["synthesize", "recipe.yaml", "--tasks", "tasks.jsonl", "--tools", SHOP, "--out", out]
    words += ["--openai", server.url, "--concurrency", str(CONCURRENCY), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "verl_pivot.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def write_inputs(folder: Path) -> None:
    """Write a recipe and its tasks."""
    (folder / "recipe.yaml").write_text(RECIPE)
    rows = ({"prompt": [{"role": "user", "content": f"Two packs for table {number}."}]} for number in range(NUM_TASKS))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def questions(server: FakeServer) -> Counter[str]:
    return Counter(json.dumps(request, sort_keys=True) for request in server.requests)


def test_killed_twice_a_run_gives_the_same_bytes_and_repeats_what_was_under_way_alone(tmp_path: Path) -> None:
    write_inputs(tmp_path)

    with fake_server(respond) as calm:
        process = started(tmp_path, calm, "calm")
        output, errors = process.communicate()
        assert process.returncode == 0, output + errors
    with fake_server(respond) as server:
        for goal in (40, 100):
            process = started(tmp_path, server, "killed")
            while len(server.requests) < goal and process.poll() is None:
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        process = started(tmp_path, server, "killed")
        output, errors = process.communicate()

    assert process.returncode == 0, output + errors
    assert written(tmp_path / "killed") == written(tmp_path / "calm")
    assert questions(server).keys() == questions(calm).keys()
    assert max(questions(calm).values()) == 1
    assert sum(count - 1 for count in questions(server).values()) <= 2 * CONCURRENCY
    assert not (tmp_path / "killed.unfinished").exists()


def test_a_budget_of_tokens_holds_over_the_server_s_own_count(tmp_path: Path) -> None:
    """Each call costs 25 tokens, but more are set aside for it, so that at most 2000 / 25 calls are made."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": [{"role": "user", "content": "Two packs."}]}\n' * NUM_TASKS)

    with fake_server(respond) as server:
        process = started(tmp_path, server, "out", "--budget-tokens", "2000")
        output, errors = process.communicate()

    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 20 < len(server.requests) <= 2000 // 25
    assert report["num_items"] == NUM_TASKS, output + errors
    assert report["num_drafts"] == report["num_kept"] + sum(sum(each.values()) for each in report["rejected"].values())
    assert report["rejected"]["rollouts"]["out_of_budget"] > 0
