"""The stock trainer with the tool loop: a policy that calls the sandbox, in mode sync and in an asynchronous one."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow
import pyarrow.parquet
import pytest

from tests.support.factories import make_trajectory
from tests.support.launching import LAUNCH_SECONDS, cli, launch, step_metrics, training
from tests.support.sandbox_machine import needs_sandbox
from tests.support.scripted_engine import call, loop_of, make_loop, rollout_config, row
from tests.support.tiny_model import teach, write_model
from verl_pivot.configuration import configs_dir
from verl_pivot.data.pivots import SCHEMA as PIVOTS
from verl_pivot.data.pivots import PivotNumbers, pivot_rows, writing_pivots
from verl_pivot.resampling.prefetch import num_ahead
from verl_pivot.types import Message, Role, ToolCall

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200), needs_sandbox]

QUESTION = "Add 1 and 2."
ENVIRONMENT = """
from collections import Counter
from verl_pivot.tools.contract import Environment
from verl_pivot.types import Verdict

rollouts = Counter()

class AnswerCheck(Environment):
    tools = ()

    def __init__(self, metadata):
        number = metadata["number"]
        rollouts[number] += 1
        self.is_unlucky = number % 4 != 0 and rollouts[number] % 4 == 0

    async def score(self, answer):
        is_right = answer is not None and "It is 3." in answer.content
        return Verdict(score=float(is_right and not self.is_unlucky), reason="seen")
"""
VERIFIER = """
from itertools import count
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import register

calls = count()

@register("sometimes_undecided")
async def sometimes_undecided(action, turn):
    if not 8 <= next(calls) < 12:
        return Verdict(score=None, reason="no_judge")
    result = await (await shared_sandbox()).run(action.tool_calls[0].arguments["code"] + "\\nprint(1)")
    return Verdict(score=float(result.stdout), reason="ran")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with two tools files, the environment that one of them names, and later the model."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "environment.py").write_text(ENVIRONMENT)
    cells = "- tool: jupyter_code\n  tell_seconds: False\n"
    (folder / "cells.yaml").write_text(cells)
    (folder / "cells_and_environment.yaml").write_text(f"{cells}- environment: {folder}/environment.py:AnswerCheck\n")
    return folder


@pytest.fixture
async def model(folder: Path) -> Path:
    """A model that was taught to run one cell and to answer with its result."""
    path = folder / "model"
    if not path.is_dir():
        loop = make_loop([call("jupyter_code", code="1 + 2"), "It is 3."], f"pivot.rollout.tools={folder}/cells.yaml")
        shown = await loop.run({}, **row(QUESTION))
        assert shown.extra_fields["rollout"]["num_tool_errors"] == 0
        mask = [0] * len(shown.prompt_ids) + shown.response_mask
        teach(write_model(path), shown.prompt_ids + shown.response_ids, mask)
    return path


async def write_rstar2_model(folder: Path) -> Path:
    """Write a model that was taught the same in the format of rStar2-Agent, with a tokenizer made for its words."""
    from verl_pivot.rollout.tool_loop import ToolLoop

    script = [f"I add.</reason>\n{call('jupyter_code', code='1 + 2')}", "I see.</reason>\n<answer>It is 3.</answer>"]
    template = (configs_dir() / "chat_templates" / "rstar2.jinja").read_text()
    path = write_model(folder / "rstar2", corpus=[template, QUESTION, *script])
    config = rollout_config(path, "+tool_format=rstar2", f"pivot.rollout.tools={folder}/cells.yaml")
    shown = await loop_of(ToolLoop, config, script).run({}, **row(QUESTION))
    mask = [0] * len(shown.prompt_ids) + shown.response_mask
    return teach(path, shown.prompt_ids + shown.response_ids, mask)


def write_problems(path: Path, numbers: Iterable[int]) -> Path:
    """Write one row per problem; of those whose number is divisible by four all rollouts succeed."""
    rows = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": QUESTION}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
            "metadata": json.dumps({"number": number}),
        }
        for number in numbers
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def tool_training(
    method: str, model: Path, rows: Path, tools: Path, *, batch_size: int, n: int, num_steps: int
) -> list[str]:
    return [
        f"+method={method}",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, rows, batch_size=batch_size, n=n, num_steps=num_steps),
        f"data.val_files={rows}",
        f"pivot.rollout.tools={tools}",
        "pivot.rollout.max_turns=3",
        "trainer.val_before_train=False",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch_size}",
        "data.max_prompt_length=512",
        "data.max_response_length=256",
        "actor_rollout_ref.rollout.top_k=1",  # greedy, so that the model gives what it was taught
    ]


async def test_undecided_batches_are_sampled_again_until_too_many_in_a_row_stop_the_run(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    """Rollouts go on after their pivots. Two batches of four rows are undecided, the third is step 1, three more fail.

    The third batch is decided by programs in the sandbox, for which nothing is configured: reward workers and agent
    loops start a service by themselves.
    """
    expert = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="jupyter_code", arguments={"code": "3"}),))
    user = Message(role=Role.USER, content=QUESTION)
    pivots = tmp_path / "pivots.parquet"
    with writing_pivots(pivots) as writer:
        for number in range(20):
            trajectory = make_trajectory(
                id=f"sum-{number}", messages=(user, expert), tools=(), verifier="sometimes_undecided"
            )
            rows = list(pivot_rows(trajectory, {0: PivotNumbers("train")}))
            writer.append(pyarrow.Table.from_pylist(rows, schema=PIVOTS))
    verifier = tmp_path / "verifier.py"
    verifier.write_text(VERIFIER)

    output = launch(
        tmp_path,
        *tool_training("tool_rollout", model, pivots, folder / "cells.yaml", batch_size=2, n=2, num_steps=3),
        f"pivot.verifier_modules=[{verifier}]",
        f"trainer.rollout_data_dir={tmp_path}/dump",
    )

    assert output.returncode != 0
    assert "no reward could be decided in any row of the last 3 batches" in output.stdout
    assert "'no_judge': 12" in output.stdout
    assert output.stderr.splitlines()[-1].startswith("verl-pivot: no reward could be decided in any row of the last 3")
    metrics = step_metrics(output.stdout)
    assert sorted(metrics) == [1]
    assert metrics[1]["pivot/undecided_rows"] == 8
    assert metrics[1]["verifier/sometimes_undecided/ran"] == metrics[1]["critic/score/mean"] == 1.0
    assert metrics[1]["rollout/calls_per_trajectory"] > 0.5
    assert metrics[1]["rollout/stop_reason/answered"] > 0.5
    decided, failed = (
        [json.loads(line) for line in (tmp_path / "dump" / "pivot" / f"{step}.jsonl").read_text().split("\n")[:-1]]
        for step in (1, 2)
    )
    assert Counter((each["left_out"], each["reason"]) for each in decided) == {
        ("undecided", "no_judge"): 8,
        (None, "ran"): 4,
    }
    assert Counter((each["left_out"], each["reason"]) for each in failed) == {("undecided", "no_judge"): 12}
    assert {each["trajectory_id"] for each in decided} <= {f"sum-{number}" for number in range(20)}


async def test_two_stages_of_grpo_roc_in_the_format_of_rstar2(folder: Path, tmp_path: Path) -> None:
    """Stage 1 has partial rollouts; stage 2 goes on with the optimizer of stage 1, in mode sync.

    Each prompt has eight rollouts, and the update sees four of them. The policy is greedy and always right, but the
    environment fails two rollouts of some problems; groups of the other problems have equal rewards.
    """
    model = await write_rstar2_model(folder)
    tools = folder / "cells_and_environment.yaml"
    stage_1, stage_2 = tmp_path / "stage-1", tmp_path / "stage-2"
    shared = ("+tool_format=rstar2", "actor_rollout_ref.actor.optim.lr_warmup_steps=20")

    first = launch(
        tmp_path,
        *tool_training(
            "grpo_roc", model, write_problems(tmp_path / "rows.parquet", range(16)), tools,
            batch_size=4, n=4, num_steps=2,
        ),
        *shared,
        "+router=kv_forecast",
        "+stage=rstar2_1",
        "+tail=partial",
        f"trainer.rollout_data_dir={tmp_path}/dump",
        "trainer.save_freq=2",
        f"trainer.default_local_dir={stage_1}",
    )  # fmt: skip

    check_first_stage(first, tmp_path / "dump")
    carried = cli("next-stage", stage_1, "--out", stage_2, "--keep-optimizer")
    assert carried.returncode == 0, carried.stderr

    rows = write_problems(tmp_path / "more.parquet", [4 * number + (number % 4 == 0) for number in range(64)])
    second = launch(
        tmp_path,
        *tool_training("grpo_roc", model, rows, tools, batch_size=4, n=4, num_steps=2),
        *shared,
        "+stage=rstar2_2",
        "pivot.resampling.equal_rewards=drop",
        f"trainer.default_local_dir={stage_2}",
        "trainer.resume_mode=auto",
    )

    check_second_stage(step_metrics(first.stdout), second)


def check_second_stage(before: dict[int, dict[str, float]], output: CompletedProcess[str]) -> None:
    """Check that the optimizer's schedule goes on, and that the step after one with dropped groups generates ahead."""
    assert output.returncode == 0, output.stdout[-3000:] + output.stderr
    metrics = step_metrics(output.stdout)
    assert sorted(set(metrics) - {0}) == [1, 2]
    rates = [steps[number]["actor/lr"] for steps in (before, metrics) for number in (1, 2)]
    assert rates == pytest.approx([rates[0] + number * 1e-6 / 20 for number in range(4)], rel=1e-6)
    assert metrics[1]["critic/score/mean"] > 0.5
    num_dropped = metrics[1]["down_sampling/groups_equal_rewards"]
    assert metrics[1]["down_sampling/groups_ahead"] == 0
    expected = num_ahead(4, num_used=4, num_dropped=int(num_dropped), budget=80)
    assert metrics[2]["down_sampling/groups_ahead"] == expected > 0
    for step in (1, 2):
        assert metrics[step]["down_sampling/after_sampling_trace_num"] == 16
        assert (
            metrics[step]["reject_equal_reward/solve_equal_total"]
            == metrics[step]["down_sampling/groups_equal_rewards"]
        )


def check_first_stage(output: CompletedProcess[str], dump: Path) -> None:
    """Check that the update sees half of each group whose rewards differ, and check the format of the rollouts."""
    assert output.returncode == 0, output.stdout[-3000:]
    metrics = step_metrics(output.stdout)
    assert sorted(set(metrics) - {0}) == [1, 2]
    assert metrics[1]["critic/score/mean"] > 0.5
    assert metrics[1]["rollout/calls_per_trajectory"] > 0.5
    assert metrics[1]["rollout/masked_rate"] == metrics[1]["rollout/text_differs_rate"] == 0.0
    assert metrics[2]["routing/wait_seconds/min"] >= 0.0
    assert metrics[2]["routing/moves"] == 0.0  # there is one engine
    assert 0 <= metrics[2]["training/off_policy/trajectory_staleness_worst/max"] <= 1
    assert metrics[1]["training/rollout_probs_diff_mean"] < 0.005  # verl's own bound: tokens, mask and logprobs agree
    text, records = (
        [json.loads(line) for line in (dump / part / "1.jsonl").read_text().split("\n")[:-1]] for part in (".", "pivot")
    )
    assert {each["uid"]: each["score"] for each in text} == {
        each["uid"]: each["score"] for each in records if each["kept"]
    }
    outcomes: dict[str, set[float]] = {}
    for each in records:
        outcomes.setdefault(each["uid"].split("_")[0], set()).add(each["score"])
    num_mixed = sum(len(scores) == 2 for scores in outcomes.values())
    assert len(outcomes) == 4
    assert Counter(each["left_out"] for each in records) == Counter(
        {None: 4 * num_mixed, "resampled": 4 * num_mixed, "group_equal_rewards": 8 * (4 - num_mixed)}
    )
    first = records[0]
    assert (first["oldest_weights"], first["newest_weights"]) == (0, 0)
    assert (first["step"], first["data_source"], first["verifier"], first["reason"]) == (
        1,
        "made_up",
        "outcome",
        "seen",
    )
    assert [each["text"] for each in first["turns"]] == [
        f"<reason>I add.</reason>\n{call('jupyter_code', code='1 + 2')}",
        "<reason>I see.</reason>\n<answer>It is 3.</answer>",
    ]
    assert text[0]["input"].startswith("system\nA conversation between User and Assistant. The User asks a question")
    assert text[0]["input"].endswith(f"This is the problem:\n{QUESTION}\nassistant\n<reason>")
    observed = "user\n<tool_response>\nTool call success\nstdout: 3\n</tool_response>\nassistant\n<reason>"
    assert observed in text[0]["output"]
    assert metrics[1]["roc_answer_format/one_answer_count"] == 8 * num_mixed
    assert first["turns"][0]["observations"] == ["Tool call success\nstdout: 3"]
    assert len({each["uid"].split("_")[0] for each in text}) == num_mixed
    assert sum(each["num_calls"] for each in records) / 32 == metrics[1]["rollout/calls_per_trajectory"]
    assert len(records) == 32
    assert metrics[1]["down_sampling/before_sampling_trace_num"] == 8 * num_mixed
    assert metrics[1]["down_sampling/after_sampling_trace_num"] == len(text) == 4 * num_mixed
    assert records[0]["calls"][0]["arguments"] == {"code": "1 + 2"}
