"""Labelled turns and pairs -> import -> profile -> select -> two steps of the stock trainer with `+method=pivotrl`."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_process import dumped
from tests.support.launching import LAUNCH_SECONDS, cli, launch, step_metrics, training
from tests.support.paths import ROOT
from tests.support.tiny_model import teach_all, write_model
from verl_pivot.types import JsonObject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]

NUM_TASKS = 2
SCORES = ("<final_score>1,1</final_score>", "<final_score>0,1</final_score>")


def succeed(*arguments: str | Path) -> str:
    done = cli(*arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def write_labels(folder: Path) -> list[Path]:
    """Write labelled turns, a good and a bad one for each of two tasks, and each task's pair in both orders."""
    prompts: list[list[JsonObject]] = [[{"role": "user", "content": f"Who painted no. {n}?"}] for n in range(NUM_TASKS)]
    lines = [
        dumped(f"{number}_{sample}_0", 1.0 - sample, f"{word} {number}", "Ann.", prompt=prompt)
        for number, prompt in enumerate(prompts)
        for sample, word in enumerate(("look up", "guess"))
    ]
    (folder / "1.jsonl").write_bytes(b"".join(lines))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    (folder / "principles.yaml").write_text("- name: query\n  text: It asks what is needed.\n")
    succeed(
        *("process", "label", folder / "1.jsonl", "--rows", folder / "rows.jsonl", "--by", "outcomes"),
        *("--form", "released", "--principles", folder / "principles.yaml", "--pairs", "99"),
        *("--out", folder / "turns.parquet"),
    )
    return [folder / "turns.parquet", folder / "turns.pairs.parquet"]


def write_judge(folder: Path) -> None:
    """Write a model that scores two turns, and one pair of turns, 1 as often as 0, and writes nonsense for others."""
    import pyarrow.parquet
    from transformers import AutoTokenizer

    rows = [pyarrow.parquet.read_table(folder / name).to_pylist() for name in ("turns.parquet", "turns.pairs.parquet")]
    texts = [message["content"] for each in rows for row in each for message in row["messages"]]
    write_model(folder / "model", corpus=texts)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    shown = []
    for each, answers in (
        (rows[0][:2], SCORES),
        (rows[1][:2], ["\n".join((SCORES[n], SCORES[1 - n])) for n in (0, 1)]),
    ):
        for row in each:
            prompt = tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True, tokenize=False)
            for answer in answers:
                asked = tokenizer.encode(prompt, add_special_tokens=False)
                said = tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False)
                shown.append((asked + said, [0] * len(asked) + [1] * len(said)))
    teach_all(folder / "model", shown, num_steps=15, max_loss=0.2)


def test_a_judge_is_profiled_selected_and_trained_on_labelled_turns_and_pairs(tmp_path: Path) -> None:
    files = write_labels(tmp_path)
    code = "import sys, pathlib; from tests.rewards.test_judge_training import write_judge\n"
    code += "write_judge(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    model, trajectories, profile, pivots = (
        tmp_path / name for name in ("model", "trajectories.jsonl", "profile.jsonl", "pivots.parquet")
    )

    succeed("import", *files, "--allow-no-tools", "--check", "--out", trajectories)
    succeed(
        "profile", trajectories, "--model", model, "--out", profile, "--max-new-tokens", "64", "--temperature", "0.5"
    )
    succeed("select", trajectories, "--profile", profile, "--keep", "all", "--validation-share", "0", "--out", pivots)
    output = launch(
        tmp_path,
        "+method=pivotrl",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, pivots, batch_size=8, n=4, num_steps=2),
        "actor_rollout_ref.rollout.temperature=0.5",  # that of the profile, at which only the scores of an answer vary
        f"data.val_files={pivots}",
        "data.max_prompt_length=2048",
        "data.max_response_length=64",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
        f"trainer.rollout_data_dir={tmp_path}/dump",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
    )

    assert output.returncode == 0, output.stdout[-3000:] + output.stderr
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [1, 2]
    assert 0.05 < metrics[1]["critic/score/mean"] < 0.95
    lines: list[dict[str, Any]] = [
        json.loads(line)
        for step in (1, 2)
        for line in (tmp_path / "dump" / "pivot" / f"{step}.jsonl").read_text().splitlines()
    ]
    assert {line["verifier"] for line in lines} == {"process_score"}
    reasons = Counter(line["reason"] for line in lines)
    assert reasons["accepted"] >= 4, reasons
    assert reasons["wrong_value"] >= 4, reasons
    assert sum(reasons.values()) == 2 * 8 * 4
    assert {"|" in line["trajectory_id"] for line in lines} == {False, True}  # turns, and pairs of them
