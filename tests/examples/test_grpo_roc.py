"""The example grpo_roc: its problems, the transcripts for SFT, the commands of its arms, and its measures."""

import contextlib
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import typer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from verl.utils.reward_score import default_compute_score  # noqa: E402
from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder  # noqa: E402

from examples.grpo_roc import report  # noqa: E402
from examples.grpo_roc.measures import (  # noqa: E402
    ACCURACY,
    ERRORS,
    TOKENS,
    Rollout,
    estimate,
    first_step,
    gain,
    last_steps,
    measure,
    read_steps,
    reduction,
)
from examples.grpo_roc.policy import build_tokenizer  # noqa: E402
from examples.grpo_roc.problems import FAMILIES, MAX_NUMBER, WAYS_TO_BREAK, Problem, break_code, make_problem  # noqa: E402
from examples.grpo_roc.run import main, make_arm  # noqa: E402
from examples.grpo_roc.training import ARMS, MAX_OBSERVATION_TOKENS, MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS, make_row  # noqa: E402
from examples.grpo_roc.transcripts import plan, record_transcripts  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.rollout_records import dump_line  # noqa: E402
from tests.support.sandbox_machine import needs_sandbox  # noqa: E402
from tests.support.sandbox_services import use_service  # noqa: E402
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason  # noqa: E402
from verl_pivot.engines.text_cut import cut_to_tokens  # noqa: E402
from verl_pivot.types import Role, Trajectory  # noqa: E402

PROBLEMS = [make_problem(seed) for seed in range(200)]


def printed(code: str) -> str:
    """Standard output of a program."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue()


def make_rollout(score: float = 1.0, *, calls: int = 1, errors: int = 0, problem: str = "a", step: int = 1) -> Rollout:
    return Rollout(
        problem=problem, step=step, score=score, num_tokens=10 * calls, num_calls=calls, num_tool_errors=errors
    )


def test_a_problem_is_the_same_every_time() -> None:
    assert make_problem(1) == Problem(
        family="digits",
        text="What is the sum of the digits of 5 to the power of 6?",
        answer=19,
        code="print(sum(int(d) for d in str(5 ** 6)))",
        slip="print(sum(int(d) for d in str(5 ^ 6)))",
    )


def test_good_code_prints_the_answer_and_a_slip_another_number() -> None:
    assert {problem.family for problem in PROBLEMS} == set(FAMILIES)
    for problem in PROBLEMS:
        assert printed(problem.code) == f"{problem.answer}\n"
        assert 0 <= problem.answer <= MAX_NUMBER
        assert printed(problem.slip) != printed(problem.code)


@pytest.mark.parametrize("way", WAYS_TO_BREAK)
def test_broken_code_raises(way: str) -> None:
    codes = [code for problem in PROBLEMS for code in (problem.code, problem.slip)]
    for code in [code for code in codes if code.startswith("from")] if way == "import" else codes:
        with pytest.raises((SyntaxError, NameError, TypeError)):
            printed(WAYS_TO_BREAK[way](code))


def test_code_without_an_import_is_broken_in_the_other_ways_only() -> None:
    rng = random.Random(0)
    broken = {break_code("print(1 + 2)", rng) for _ in range(50)}
    assert broken == {"print(1 + 2", "print(1 + 2))", "pritn(1 + 2)", "print('1' + 2)"}


def test_a_programmer_who_is_not_careless_solves_each_problem_at_once() -> None:
    assert [plan(problem, random.Random(0), 0.0) for problem in PROBLEMS] == [[each.code] for each in PROBLEMS]


def test_slips_and_failing_cells_are_independent_and_the_last_cell_succeeds() -> None:
    plans = [plan(PROBLEMS[0], random.Random(seed), 0.6) for seed in range(2000)]
    is_right = [cells[-1] == PROBLEMS[0].code for cells in plans]
    assert {cells[-1] for cells in plans} == {PROBLEMS[0].code, PROBLEMS[0].slip}
    assert sum(is_right) / 2000 == pytest.approx(0.7, abs=0.03)
    num_broken = Counter(len(cells) - 1 for cells in plans)
    assert num_broken[0] / 2000 == pytest.approx(0.4, abs=0.03)
    assert num_broken[2] / 2000 == pytest.approx(0.6 * 0.2, abs=0.03)
    clean = [right for right, cells in zip(is_right, plans, strict=True) if len(cells) == 1]
    assert sum(clean) / len(clean) == pytest.approx(0.7, abs=0.04)


@pytest.fixture(scope="module")
def transcripts() -> list[Trajectory]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_service(monkeypatch)
        return record_transcripts(range(40), carelessness=0.9)


@needs_sandbox
def test_observations_are_those_of_the_real_tool(transcripts: list[Trajectory]) -> None:
    messages = [message for transcript in transcripts for message in transcript.messages]
    observations = [message.content for message in messages if message.role is Role.TOOL]
    heads = Counter(text.split("\n")[0] for text in observations)
    assert set(heads) == {"Tool call success", "Tool call failure"}
    errors = {text.rpartition("\n")[2].split(":")[0] for text in observations if "failure" in text}
    assert errors == {"SyntaxError", "NameError", "TypeError"}


@needs_sandbox
def test_the_answer_is_what_the_last_cell_printed(transcripts: list[Trajectory]) -> None:
    for transcript in transcripts:
        number = transcript.messages[-2].content.removeprefix("Tool call success\nstdout: ")
        assert transcript.messages[-1].content == f"<answer>\\boxed{{{number}}}</answer>"


@needs_sandbox
def test_the_reward_of_verl_accepts_right_transcripts_and_refuses_wrong_ones(transcripts: list[Trajectory]) -> None:
    assert {transcript.passed for transcript in transcripts} == {True, False}
    for seed, transcript in enumerate(transcripts):
        row: Any = make_row(seed)
        response = "\n".join(message.content for message in transcript.messages[1:])
        score = default_compute_score(row["data_source"], response, row["reward_model"]["ground_truth"])
        assert row["prompt"] == [{"role": "user", "content": transcript.messages[0].content}]
        assert score == float(transcript.passed is True)


@needs_sandbox
def test_numbers_and_phrases_are_one_token_each(transcripts: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(transcripts)
    code = '{"code": "print((134 * 18 + 7) % 36)"}}\n</tool_call>'
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(code, add_special_tokens=False)]
    assert "".join(pieces) == code
    assert pieces[-10:] == ["134", " * ", "18", " + ", "7", ")", " % ", "36", ")", '"}}\n</tool_call>']


@needs_sandbox
def test_transcripts_fit_into_training_uncut(transcripts: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(transcripts)
    for transcript in transcripts:
        assert len(encode(tokenizer, transcript).input_ids) <= MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS
        for message in transcript.messages:
            if message.role is Role.TOOL:
                assert not cut_to_tokens(message.content, MAX_OBSERVATION_TOKENS, tokenizer).truncated


@needs_sandbox
def test_only_the_programmers_tokens_are_labels(transcripts: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(transcripts)
    example = encode(tokenizer, transcripts[0])
    labelled = tokenizer.decode([label for label in example.labels if label != -100])
    calls = [message.tool_calls[0] for message in transcripts[0].messages if message.tool_calls]
    actions = [
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in calls
    ]
    assert labelled == "".join(f"{text}<|im_end|>" for text in (*actions, transcripts[0].messages[-1].content))


@needs_sandbox
def test_verls_continuous_tokens_equal_the_whole_rendering(transcripts: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(transcripts)
    builder = QwenContinuousTokenBuilder(tokenizer)
    for transcript in transcripts:
        tools = list(transcript.tools)
        dicts = [message.as_dict() for message in transcript.messages]
        whole = encode(tokenizer, transcript).input_ids
        tokens = builder.build_initial_tokens(dicts[:1], tools=tools)
        for index in range(1, len(dicts) - 1, 2):  # a cell and its observation
            end = whole.index(tokenizer.eos_token_id, len(tokens)) + 1
            tokens = builder.merge_assistant_tokens(tokens, whole[len(tokens) : end]).token_ids
            tokens = builder.merge_context_tokens(dicts[: index + 1], dicts[: index + 2], tokens, tools=tools).token_ids
        assert tokens == whole[: len(tokens)]


def test_arms_differ_in_their_resampling_and_their_tail_alone(tmp_path: Path) -> None:
    commands = [make_arm(name, tmp_path / "policy", tmp_path, seed=1, num_steps=10).command for name in ARMS]
    assert [[part for part in command if part.startswith("+tail")] for command in commands] == [
        [], [], [], ["+tail=partial"]
    ]  # fmt: skip
    shared = "pivot.resampling.equal_rewards=keep"
    own = [{part for part in command if part.startswith("pivot.resampling.")} - {shared} for command in commands]
    assert all(shared in command for command in commands)
    assert own == [
        {"pivot.resampling.oversample=1"},
        {"pivot.resampling.mode=paper"},
        {"pivot.resampling.mode=released"},
        {"pivot.resampling.mode=paper"},
    ]
    own_places = [
        (
            "pivot.resampling.",
            "+tail=",
            "trainer.experiment_name",
            "trainer.default_local_dir",
            "trainer.rollout_data_dir",
            "hydra.run.dir",
        )
    ]
    rest = [[part for part in command if not part.startswith(*own_places)] for command in commands]
    assert rest == [rest[0]] * len(ARMS)


def test_the_arm_with_partial_rollouts_composes_to_verls_asynchronous_trainer(tmp_path: Path) -> None:
    command = make_arm("grpo_roc_partial", tmp_path / "policy", tmp_path, seed=0, num_steps=30).command
    config = checked_config(command[3:])

    assert (config.trainer.v1.trainer_mode, config.trainer.v1.colocate_async.num_warmup_batches) == (
        "colocate_async", 0.5,
    )  # fmt: skip
    assert config.pivot.resampling.mode == "paper"


@pytest.mark.parametrize(
    ("arms", "message"),
    [("grpo,roc", "there is no arm roc"), ("grpo_roc_paper", "1 arm is named, and at least 2 are needed")],
)
def test_arms_that_cannot_be_compared_are_refused(arms: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        main(out=tmp_path, arms=arms)


def test_every_problem_occurs_once_over_all_seeds(tmp_path: Path) -> None:
    rows = [
        pyarrow.parquet.read_table(make_arm("grpo", tmp_path, tmp_path / str(seed), seed, 10).rows).to_pylist()
        for seed in range(2)
    ]
    indices = [row["extra_info"]["index"] for rows_of_seed in rows for row in rows_of_seed]
    assert len(indices) == len(set(indices)) == 8000


def test_masked_and_undecided_rollouts_are_left_out(tmp_path: Path) -> None:
    calls = tuple(
        CallRecord(turn=0, name="jupyter_code", arguments={}, status=status)
        for status in (CallStatus.OK, CallStatus.TOOL_ERROR)
    )
    record = {"response_tokens": 30, "calls": calls}
    folder = tmp_path / "pivot"
    folder.mkdir()
    lines = (
        dump_line("a_0_0", prompt_id="a", **record),
        dump_line("a_1_0", None, prompt_id="a", **record),
        dump_line("b_0_0", prompt_id="b", stop_reason=StopReason.TOOL_FAILURE, **record),
    )
    (folder / "10.jsonl").write_text("".join(lines))
    (folder / "9.jsonl").write_text(dump_line("c_0_0", 0.0, prompt_id="c", **record))

    assert read_steps(tmp_path) == [
        Rollout(problem="c", step=9, score=0.0, num_tokens=30, num_calls=2, num_tool_errors=1),
        Rollout(problem="a", step=10, score=1.0, num_tokens=30, num_calls=2, num_tool_errors=1),
    ]


def test_each_measure_is_a_ratio_of_sums_over_rollouts() -> None:
    rollouts = [make_rollout(calls=2, errors=1), make_rollout(calls=2), make_rollout(0.0, calls=4, errors=4)]
    assert measure(ACCURACY, rollouts) == 2 / 3
    assert measure(TOKENS, rollouts) == 80 / 3
    assert measure(ERRORS, rollouts) == 1 / 4  # errors of the failed rollout do not count


def test_the_bootstrap_draws_problems_and_not_rollouts() -> None:
    rollouts = [
        make_rollout(score, problem=str(problem)) for problem in range(100) for score in [float(problem % 2)] * 8
    ]
    found = estimate(ACCURACY, [rollouts[:400], rollouts[400:]])
    assert (found.value, found.by_seed) == (0.5, (0.5, 0.5))
    assert (found.low, found.high) == (pytest.approx(0.4, abs=0.02), pytest.approx(0.6, abs=0.02))  # 0.5 -+ 1.96 * 0.05


def test_a_reduction_is_a_share_of_the_baseline() -> None:
    half = [[make_rollout(calls=2, errors=1, problem=str(problem)) for problem in range(5)]]
    quarter = [[make_rollout(calls=4, errors=1, problem=str(problem)) for problem in range(5)]]
    found = reduction(ERRORS, half, quarter)
    assert (found.value, found.low, found.high, found.by_seed) == (0.5, 0.5, 0.5, (0.5,))


def test_a_gain_is_measured_on_the_same_problems() -> None:
    baseline = [[make_rollout(float(problem % 2), problem=str(problem)) for problem in range(20)]]
    better = [[make_rollout(score, problem=each.problem) for each in baseline[0] for score in (each.score, 1.0)]]
    same = [baseline[0][::-1]]
    found = gain(ACCURACY, baseline, same)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    found = gain(ACCURACY, baseline, better)
    assert (found.value, found.by_seed) == (0.25, (0.25,))
    assert 0.1 < found.low < 0.25 < found.high < 0.4


def test_rollouts_of_the_first_and_the_last_steps_are_selected() -> None:
    rollouts = [make_rollout(step=step) for step in (1, 1, 2, 3)]
    assert [each.step for each in last_steps([rollouts], 2)[0]] == [2, 3]
    assert [each.step for each in first_step({"a": [rollouts], "b": [rollouts]})[0]] == [1, 1, 1, 1]


def test_a_report_is_written_and_shown(tmp_path: Path) -> None:
    arms = {
        name: [[make_rollout(calls=2, errors=errors, problem=str(step), step=step) for step in range(1, 13)]] * 2
        for name, errors in (("grpo", 1), ("grpo_roc_paper", 0))
    }
    summary = report.Summary.of(arms, {"grpo": [4.0, 1.0, 2.0], "grpo_roc_paper": [1.0, 2.0]})
    console = Console(record=True, width=140)

    report.write(summary, arms, {"policy 0": 1.25}, tmp_path)
    report.show(summary, console)

    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["arms"]["grpo"][ERRORS] == {"value": 0.5, "low": 0.5, "high": 0.5, "by_seed": [0.5, 0.5]}
    assert content["fewer_errors"]["grpo_roc_paper"]["value"] == 1.0
    assert content["more_accuracy"]["grpo_roc_paper"]["value"] == 0.0
    assert content["rollout_seconds"] == {"grpo": 2.0, "grpo_roc_paper": 1.5}
    assert (content["num_steps"], content["num_seeds"]) == (12, 2)
    assert (tmp_path / "grpo_roc.png").stat().st_size > 0
    text = console.export_text()
    assert "Steps 3 to 12, 2 seeds" in text
    assert "50.0 % [50.0, 50.0]" in text


def test_rollouts_are_binned_by_five_steps() -> None:
    rollouts = [make_rollout(step=step) for step in range(1, 13)]
    steps = [[each.step for each in few] for few in report.binned(rollouts)]
    assert steps == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]
