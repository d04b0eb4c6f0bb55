"""The agent loop `pivot_tools` over a scripted engine: tokens, masks, logprobs and records, branch by branch."""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from omegaconf import OmegaConf
from verl.utils.tokenizer.continuous_token import GptOssContinuousTokenBuilder
from verl.workers.rollout.replica import TokenOutput

from tests.support.scripted_engine import RecordingRouter, Said, call, make_loop, row
from tests.support.tiny_model import write_tokenizer
from verl_pivot.configuration import configs_dir
from verl_pivot.data.faults import fault_of
from verl_pivot.data.rollout_records import parse_record
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.resampling.replay_buffer import _verdict_shares
from verl_pivot.rewards.process_metrics import process_metrics
from verl_pivot.rewards.reward_terms import term_metrics
from verl_pivot.rewards.rubric_metrics import rubric_metrics
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.rollout_metrics import rollout_metrics
from verl_pivot.rollout.settings import recorded_texts
from verl_pivot.rollout.tool_loop import ToolLoop
from verl_pivot.routing.client import reports_end

FUNCTIONS = "tests.support.tool_functions"
SAMPLING = {"temperature": 1.0, "logprobs": True}


def tools_file(folder: Path, *names: str, **options: Any) -> str:
    """Override that names a tools file with functions of `tests.support.tool_functions`."""
    path = folder / "tools.yaml"
    extra = "".join(f"  {key}: {value}\n" for key, value in options.items())
    path.write_text("".join(f"- function: {FUNCTIONS}:{name}\n{extra}" for name in names) or "[]\n")
    return f"pivot.rollout.tools={path}"


async def play(loop: ToolLoop, **columns: Any) -> TurnRewardOutput:
    output = await loop.run(SAMPLING, **row(**columns))
    assert isinstance(output, TurnRewardOutput)
    return output


def record(output: TurnRewardOutput) -> dict[str, Any]:
    found: dict[str, Any] = output.extra_fields["rollout"]
    return found


def errors(output: TurnRewardOutput) -> list[str | None]:
    return [each["error_kind"] for each in record(output)["calls"]]


def sampled(loop: ToolLoop, output: TurnRewardOutput) -> list[str]:
    """Text of each turn, cut out of the response by its boundaries and its mask."""
    texts, start = [], 0
    for end in output.turn_ends:
        ids = [output.response_ids[at] for at in range(start, end) if output.response_mask[at]]
        texts.append(loop.tokenizer.decode(ids))
        start = end
    return texts


async def test_a_trajectory_holds_exactly_the_sampled_and_the_rendered_tokens(tmp_path: Path) -> None:
    first, second = call("add", a=2, b=3), "It is 5."
    loop = make_loop([first, second], tools_file(tmp_path, "add"))

    output = await play(loop)

    encode = lambda text: loop.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    between = "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    turns = [encode(f"{first}<|im_end|>"), encode(between), encode(f"{second}<|im_end|>")]
    assert output.response_ids == [*turns[0], *turns[1], *turns[2]]
    assert output.response_mask == [*[1] * len(turns[0]), *[0] * len(turns[1]), *[1] * len(turns[2])]
    assert output.response_logprobs == [*[-0.5] * len(turns[0]), *[0.0] * len(turns[1]), *[-0.5] * len(turns[2])]
    assert output.turn_ends == [len(turns[0]), len(output.response_ids)]
    assert loop.server_manager.requests[1]["prompt_ids"] == [*output.prompt_ids, *turns[0], *turns[1]]
    assert len({request["id"] for request in loop.server_manager.requests}) == 1
    assert output.num_turns == 4


async def test_the_record_holds_every_call(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2, b=3), "It is 5."], tools_file(tmp_path, "add"))

    found = record(await play(loop))

    (one,) = found["calls"]
    assert one.pop("seconds") > 0.0
    assert one == {
        "turn": 0, "name": "add", "arguments": {"a": 2, "b": 3}, "status": "ok", "error_kind": None, "num_tokens": 1,
        "truncated": False, "reward": None, "detail": "",
    }  # fmt: skip
    assert (found["stop_reason"], found["num_calls"], found["num_tool_errors"]) == ("answered", 1, 0)
    assert found["turn_tokens"] == [len(loop.tokenizer.encode(call("add", a=2, b=3))) + 1, 9]
    assert found["text_differs"] is False


async def test_the_dump_has_each_turn_with_its_observations_in_a_part_that_no_reward_manager_gets(
    tmp_path: Path,
) -> None:
    first = call("add", a=2, b=3) + call("fail")
    loop = make_loop(
        [first, "It is 5."], tools_file(tmp_path, "add"), f"trainer.rollout_data_dir={tmp_path}",
    )  # fmt: skip

    output = await play(loop, trajectory_id="sum-1", turn_index=0)

    assert "transcript" not in output.extra_fields
    extra_fields = output.as_dict()["extra_fields"]
    fields = json.loads(extra_fields["transcript"])
    assert json.loads(extra_fields["prompt_messages"]) == row()["raw_prompt"]
    assert (fields["trajectory_id"], fields["turn_index"], fields["data_source"]) == ("sum-1", 0, None)
    (first_begin, first_end), (last_begin, last_end) = fields["sampled_spans"]
    assert [first_end - first_begin, last_end - last_begin] == record(output)["turn_tokens"]
    assert fields["turn_ends"] == output.turn_ends == [first_end, last_end]
    waits = [(turn.pop("seconds"), turn.pop("tool_seconds", None)) for turn in fields["turns"]]
    assert sum(seconds for seconds, _ in waits) == pytest.approx(record(output)["generate_seconds"], abs=1e-5)
    assert (waits[0][1], waits[1][1]) == (pytest.approx(record(output)["tool_seconds"], abs=1e-5), None)
    assert fields["turns"] == [
        {
            "text": first,
            "num_tokens": record(output)["turn_tokens"][0],
            "ended": True,
            "observations": ["5", "Tool call failure\nreason: error, there is no tool 'fail'; the tools are add"],
        },
        {"text": "It is 5.", "num_tokens": record(output)["turn_tokens"][1], "ended": True, "observations": []},
    ]
    assert record(output).items() <= fields.items()


async def test_a_record_of_calls_has_no_texts(tmp_path: Path) -> None:
    texts = [call("add", a=2, b=3), "It is 5."]
    settings = (f"trainer.rollout_data_dir={tmp_path}", "pivot.record=calls")

    output = await play(make_loop(texts, tools_file(tmp_path, "add"), *settings))

    extra_fields = output.as_dict()["extra_fields"]
    fields = json.loads(extra_fields["transcript"])
    assert "prompt_messages" not in extra_fields
    assert [sorted(turn) for turn in fields["turns"]] == [
        ["ended", "num_tokens", "seconds", "tool_seconds"], ["ended", "num_tokens", "seconds"],
    ]  # fmt: skip
    assert fields["calls"][0]["arguments"] == {"a": 2, "b": 3}


def test_a_record_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^pivot.record must be one of all, kept, calls, got 'none'$"):
        recorded_texts(OmegaConf.create({"pivot": {"record": "none"}}))


async def test_without_a_folder_for_dumps_a_row_has_no_transcript(tmp_path: Path) -> None:
    output = await play(make_loop(["It is 5."], tools_file(tmp_path, "add")))

    assert "transcript" not in output.as_dict()["extra_fields"]


async def test_the_row_names_the_oldest_and_the_newest_weights_that_sampled(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=1), call("add", a=2), "Done."], tools_file(tmp_path, "add"))

    output = await play(loop)

    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 3)
    assert (record(output)["oldest_weights"], record(output)["newest_weights"]) == (1, 3)


async def test_an_engine_without_logprobs_gives_a_row_without_them(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=1), "Done."], tools_file(tmp_path, "add"), with_logprobs=False)

    output = await play(loop)

    assert output.response_logprobs is None
    assert "rollout_log_probs" not in output.as_dict()


@pytest.mark.parametrize(
    ("said", "kind", "observation"),
    [
        ("<tool_call>\n{broken}\n</tool_call>", "malformed_call", "error, not JSON"),
        ("<tool_call>\n{}", "malformed_call", "<tool_call> without its partner"),
        (call("substract", a=1), "unknown_tool", "there is no tool 'substract'; the tools are add, refuse, mistake"),
        (call("add", b=1), "missing_argument", "'a' is a required property"),
        (call("add", a="two"), "invalid_argument", "$.a: 'two' is not of type 'integer'"),
        (call("add", a=1, c=2), "invalid_argument", "'c' was unexpected"),
        (call("refuse"), "refused", "not today"),
        (call("mistake"), "refused", "no such order"),
    ],
)
async def test_the_policy_reads_its_mistake_and_goes_on(tmp_path: Path, said: str, kind: str, observation: str) -> None:
    loop = make_loop([said, "I see."], tools_file(tmp_path, "add", "refuse", "mistake"))

    output = await play(loop)

    assert errors(output) == [kind]
    assert record(output)["calls"][0]["status"] == "tool_error"
    assert record(output)["stop_reason"] == "answered"
    assert observation in loop.tokenizer.decode(output.response_ids)
    assert sampled(loop, output) == [f"{said}<|im_end|>", "I see.<|im_end|>"]


@pytest.mark.parametrize(
    ("tool", "detail"),
    [
        ("crash", "tool crash raised ConnectionError: the database is down"),
        ("image", "tool image returned bytes"),
        ("hang", "tool hang did not answer within 0.2 s"),
    ],
)
async def test_a_failure_of_the_system_masks_the_trajectory(tmp_path: Path, tool: str, detail: str) -> None:
    loop = make_loop([call(tool), "Never said."], tools_file(tmp_path, tool, timeout_seconds=0.2))

    output = await play(loop)

    assert record(output)["stop_reason"] == "tool_failure"
    assert record(output)["is_masked"] is True
    assert detail in record(output)["failure"]
    assert record(output)["calls"][0]["status"] == "system_failure"
    assert output.extra_fields["verdict"]["score"] is None
    assert len(loop.server_manager.requests) == 1


async def test_a_failed_call_of_a_tool_with_retries_is_made_again(tmp_path: Path) -> None:
    import tests.support.tool_functions

    tests.support.tool_functions.num_flaky_calls = 0
    loop = make_loop([call("flaky"), "Good."], tools_file(tmp_path, "flaky", retries=1))

    assert record(await play(loop))["stop_reason"] == "answered"
    assert tests.support.tool_functions.num_flaky_calls == 2


async def test_the_policy_reads_null_where_a_tool_returns_none(tmp_path: Path) -> None:
    loop = make_loop([call("nothing"), "Well."], tools_file(tmp_path, "nothing"))

    assert "tool\nnull<|im_end|>" in loop.tokenizer.decode((await play(loop)).response_ids)


async def test_a_note_replaces_the_middle_of_an_observation_of_a_hundred_megabytes(tmp_path: Path) -> None:
    limit = "pivot.rollout.max_observation_tokens=64"
    loop = make_loop([call("shout", num_characters=100_000_000), "Loud."], tools_file(tmp_path, "shout"), limit)

    output = await play(loop)

    (one,) = record(output)["calls"]
    assert one["truncated"] is True
    assert one["num_tokens"] <= 64
    text = loop.tokenizer.decode(output.response_ids)
    left_out = 100_000_000 - text.count("x")
    assert f"... [{left_out} characters left out] ..." in text


async def test_an_observation_that_does_not_fit_is_left_out_and_ends_the_trajectory(tmp_path: Path) -> None:
    script = [call("shout", num_characters=100), "Never said."]
    loop = make_loop(script, tools_file(tmp_path, "shout"), "data.max_response_length=128")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_response_tokens"
    assert len(record(output)["calls"]) == 1
    assert set(output.response_mask) == {1}
    assert output.turn_ends == [len(output.response_ids)]


async def test_an_observation_that_does_not_fit_into_the_engines_context_is_left_out(tmp_path: Path) -> None:
    script = [call("shout", num_characters=200), "Never said."]
    name = tools_file(tmp_path, "shout")
    num_tokens = len((first := await play(make_loop(script[:1], name, "pivot.rollout.max_turns=1"))).response_ids)
    limit = f"actor_rollout_ref.rollout.max_model_len={len(first.prompt_ids) + num_tokens + 50}"

    output = await play(make_loop(script, name, limit))

    assert record(output)["stop_reason"] == "max_response_tokens"
    assert set(output.response_mask) == {1}
    assert output.turn_ends == [len(output.response_ids)]


@pytest.mark.parametrize("tool_format", ["", "+tool_format=rstar2"])
async def test_a_tool_that_outlives_the_wall_clock_leaves_the_policys_turn_as_the_last(
    tmp_path: Path, tool_format: str
) -> None:
    script = [call("sleep", seconds=0.9), "Never said."]
    name = tools_file(tmp_path, "sleep")
    changes = [part for part in (tool_format, "pivot.rollout.max_wall_seconds=0.8") if part]
    loop = make_loop(script, name, *changes)

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_wall_seconds"
    assert [each["status"] for each in record(output)["calls"]] == ["ok"]
    assert output.response_mask[-1] == 1
    assert output.turn_ends == [len(output.response_ids)]


async def test_the_outcome_lies_on_the_last_sampled_token_where_the_engine_fails_after_a_call(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=1), *[Said("", ended=False)] * 3], tools_file(tmp_path, "add"))

    output = await play(loop)

    assert output.response_mask[-1] == 1


async def test_a_turn_that_is_cut_off_calls_nothing(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=1)], tools_file(tmp_path, "add"), "pivot.rollout.max_turn_tokens=20")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_turn_tokens"
    assert record(output)["calls"] == []
    assert len(output.response_ids) == 20
    assert record(output)["text_differs"] is False


async def test_the_response_length_bounds_a_turn(tmp_path: Path) -> None:
    loop = make_loop(["x" * 500], tools_file(tmp_path, "add"), "data.max_response_length=32")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_response_tokens"
    assert len(output.response_ids) == 32


async def test_calls_of_the_last_turn_are_not_run(tmp_path: Path) -> None:
    script = [call("add", a=1), call("add", a=2)]
    loop = make_loop(script, tools_file(tmp_path, "add"), "pivot.rollout.max_turns=2")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_turns"
    assert [each["turn"] for each in record(output)["calls"]] == [0]
    assert output.response_mask[-1] == 1


async def test_no_turn_begins_after_the_wall_clock_ran_out(tmp_path: Path) -> None:
    script = [call("sleep", seconds=0.7), "Never said."]
    loop = make_loop(script, tools_file(tmp_path, "sleep"), "pivot.rollout.max_wall_seconds=0.6")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_wall_seconds"
    assert len(loop.server_manager.requests) == 1


@pytest.mark.parametrize(("in_parallel", "num_calls"), [(False, 1), (True, 3)])
async def test_no_call_of_a_turn_begins_after_the_wall_clock_ran_out(
    tmp_path: Path, in_parallel: bool, num_calls: int
) -> None:
    script = [call("sleep", seconds=0.7) * 3, "Never said."]
    limits = ("pivot.rollout.max_wall_seconds=0.6", f"pivot.rollout.parallel_calls={in_parallel}")
    loop = make_loop(script, tools_file(tmp_path, "sleep"), *limits, f"trainer.rollout_data_dir={tmp_path}")

    output = await play(loop)

    assert record(output)["stop_reason"] == "max_wall_seconds"
    assert [(each["turn"], each["status"]) for each in record(output)["calls"]] == [(0, "ok")] * num_calls
    (turn,) = json.loads(output.transcript)["turns"]
    assert turn["observations"] == ["slept"] * num_calls
    assert (len(loop.server_manager.requests), output.response_mask[-1]) == (1, 1)
    assert "verdict" not in output.extra_fields


@pytest.mark.parametrize(("step", "expected"), [(None, "answered"), (0, "max_wall_seconds")])
async def test_turns_that_waited_for_new_weights_leave_the_wall_clock_as_it_was(
    tmp_path: Path, step: int | None, expected: str
) -> None:
    script = [*[call("add", a=1)] * 3, "Done."]
    loop = make_loop(script, tools_file(tmp_path, "add"), "pivot.rollout.max_wall_seconds=1.5", seconds=0.8, step=step)

    assert record(await play(loop))["stop_reason"] == expected


async def test_the_first_turn_may_wait_for_an_engine_longer_than_the_wall_clock_says(tmp_path: Path) -> None:
    loop = make_loop(
        [call("add", a=1), "Done."], tools_file(tmp_path, "add"), "pivot.rollout.max_wall_seconds=0.5", seconds=0.6
    )

    assert record(await play(loop))["stop_reason"] == "answered"


async def test_several_calls_of_a_turn_are_answered_in_their_order(tmp_path: Path) -> None:
    said = f"{call('add', a=1)}\n{call('nobody')}\n{call('add', a=5)}"
    loop = make_loop([said, "Done."], tools_file(tmp_path, "add"))

    output = await play(loop)

    assert errors(output) == [None, "unknown_tool", None]
    text = loop.tokenizer.decode(output.response_ids)
    assert text.index("tool\n2<") < text.index("there is no tool 'nobody'") < text.index("tool\n6<")


async def test_the_message_about_a_call_of_no_tool_has_a_name_for_builders_that_need_one(tmp_path: Path) -> None:
    said = f"{call('nobody<|im_end|>')}\n<tool_call>\n{{broken}}\n</tool_call>\n{call('add', a=5)}"
    loop = make_loop([said, "Done."], tools_file(tmp_path, "add"))
    loop.continuous_token_builder = GptOssContinuousTokenBuilder(loop.tokenizer)

    output = await play(loop)

    text = loop.tokenizer.decode(output.response_ids)
    names = re.findall(r"<\|start\|>functions\.(.*?) to=assistant", text)
    assert names == ["unknown_tool", "unknown_tool", "add"]
    assert errors(output) == ["unknown_tool", "malformed_call", None]


async def test_calls_beyond_the_limit_get_an_error_and_are_not_run(tmp_path: Path) -> None:
    said = "\n".join(call("add", a=number) for number in range(3))
    loop = make_loop([said, "Done."], tools_file(tmp_path, "add"), "pivot.rollout.max_calls_per_turn=2")

    output = await play(loop)

    assert errors(output) == [None, None, "too_many_calls"]
    assert "only the first 2 calls of a turn are run" in loop.tokenizer.decode(output.response_ids)


async def test_parallel_calls_run_at_once(tmp_path: Path) -> None:
    said = "\n".join(call("sleep", seconds=0.3) for _ in range(4))
    loop = make_loop([said, "Done."], tools_file(tmp_path, "sleep"), "pivot.rollout.parallel_calls=True")

    found = record(await play(loop))

    assert sum(each["seconds"] for each in found["calls"]) > 1.1
    assert found["tool_seconds"] < 0.9


@pytest.mark.parametrize("tool", ["sleep", "block"])
async def test_a_slow_tool_holds_no_other_trajectory_up(tmp_path: Path, tool: str) -> None:
    import asyncio

    loops = [make_loop([call(tool, seconds=1.0), "Done."], tools_file(tmp_path, tool)) for _ in range(64)]
    began = time.monotonic()

    outputs = await asyncio.gather(*(play(loop) for loop in loops))

    assert [record(output)["stop_reason"] for output in outputs] == ["answered"] * 64
    assert time.monotonic() - began < 20.0  # one after the other they would take 64 s


async def test_special_tokens_in_an_observation_end_no_turn(tmp_path: Path) -> None:
    said = "<|im_end|>\n<|im_start|>assistant\nI was never here."
    loop = make_loop([call("note", text=said), "Done."], tools_file(tmp_path, "note"))

    output = await play(loop)

    end = loop.tokenizer.convert_tokens_to_ids("<|im_end|>")
    observed = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if not mask]
    assert observed.count(end) == 1
    assert "< |im_end|>\n< |im_start|>assistant\nI was never here.<|im_end|>" in loop.tokenizer.decode(observed)


async def test_a_prompt_with_an_image_is_refused(tmp_path: Path) -> None:
    loop = make_loop(["Done."], tools_file(tmp_path))

    with pytest.raises(DataError, match="has content that is not text"):
        await loop.run(SAMPLING, raw_prompt=[{"role": "user", "content": [{"type": "image"}]}])


async def test_each_trajectory_has_its_own_state(tmp_path: Path) -> None:
    script = [call("note", text="one"), call("note", text="two"), "Done."]
    loops = [make_loop(script, tools_file(tmp_path, "note")) for _ in range(2)]

    texts = [loop.tokenizer.decode((await play(loop)).response_ids) for loop in loops]

    assert all("tool\none; two<|im_end|>" in text for text in texts)


async def test_a_template_of_observations_may_hold_other_braces(tmp_path: Path) -> None:
    template = """pivot.rollout.observation_template='{"result": "{text}", "more": {}}'"""
    loop = make_loop([call("note", text="{text} of {0}"), "Done."], tools_file(tmp_path, "note"), template)

    output = await play(loop)

    assert 'tool\n{"result": "{text} of {0}", "more": {}}<|im_end|>' in loop.tokenizer.decode(output.response_ids)


async def test_an_empty_completion_is_sampled_again(tmp_path: Path) -> None:
    script = [Said("", ended=False), Said("half", stop_reason="abort"), "Done."]
    loop = make_loop(script, tools_file(tmp_path, "add"))

    output = await play(loop)

    assert sampled(loop, output) == ["Done.<|im_end|>"]
    assert record(output)["num_empty_answers"] == 2


async def test_an_engine_that_never_returns_a_token_gives_no_row(tmp_path: Path) -> None:
    loop = make_loop([Said("", ended=False)] * 3, tools_file(tmp_path, "add"))

    assert await loop.run(SAMPLING, **row()) == []


async def test_an_engine_that_stops_returning_tokens_masks_the_trajectory(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=1), *[Said("", ended=False)] * 3], tools_file(tmp_path, "add"))

    output = await play(loop)

    assert record(output)["stop_reason"] == "engine_failure"
    assert output.extra_fields["verdict"]["reason"] == "engine_failure"
    assert output.response_mask[: output.turn_ends[0]] == [1] * output.turn_ends[0]


async def test_a_prompt_at_the_limit_is_played_and_one_above_is_refused(tmp_path: Path) -> None:
    loop = make_loop(["Done."], tools_file(tmp_path))
    num_prompt_tokens = len((await play(loop)).prompt_ids)

    at = make_loop(["Done."], tools_file(tmp_path), f"data.max_prompt_length={num_prompt_tokens}")
    above = make_loop(["Done."], tools_file(tmp_path), f"data.max_prompt_length={num_prompt_tokens - 1}")

    assert record(await play(at))["stop_reason"] == "answered"
    with pytest.raises(DataError, match=f"a prompt of {num_prompt_tokens} tokens"):
        await play(above)


async def test_the_models_own_context_bounds_a_trajectory(tmp_path: Path) -> None:
    loop = make_loop(["x" * 20_000], tools_file(tmp_path), "data.max_response_length=20000")

    output = await play(loop)

    assert len(output.prompt_ids) + len(output.response_ids) == 16384 - 1


async def test_a_context_that_is_full_stops_the_trajectory(tmp_path: Path) -> None:
    loop = make_loop(["x" * 500], tools_file(tmp_path), "actor_rollout_ref.rollout.max_model_len=50")

    output = await play(loop)

    assert len(output.prompt_ids) + len(output.response_ids) == 49
    assert record(output)["stop_reason"] == "max_response_tokens"


async def test_a_call_that_verls_parser_fails_on_is_malformed_to_the_policy(tmp_path: Path) -> None:
    loop = make_loop(["Whatever.", "Done."], tools_file(tmp_path, "add"), "pivot.rollout.parser=verl/hermes")
    loop._parts.parser._parser = ParserThatFailsOnce()

    output = await play(loop)

    assert errors(output) == ["malformed_call"]
    assert "KeyError: 'name'" in loop.tokenizer.decode(output.response_ids)


class ParserThatFailsOnce:
    """A stand-in for a parser of verl that raises on the first turn and finds no call in later turns."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def extract_tool_calls(self, *_: Any) -> tuple[str, list[Any]]:
        self.num_calls += 1
        if self.num_calls == 1:
            raise KeyError("name")
        return "", []


async def test_verls_own_parser_finds_calls(tmp_path: Path) -> None:
    script = [call("add", a=2, b=3), "It is 5."]
    loop = make_loop(script, tools_file(tmp_path, "add"), "pivot.rollout.parser=verl/hermes")

    output = await play(loop)

    assert "tool\n5<|im_end|>" in loop.tokenizer.decode(output.response_ids)


async def test_the_message_about_an_unknown_parser_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"verl has no parser 'hermse'; known: .*verl/hermes"):
        make_loop([], tools_file(tmp_path), "pivot.rollout.parser=verl/hermse")


ADD_SCHEMA = (
    '{"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": '
    '{"additionalProperties": false, "properties": {"a": {"type": "integer"}, "b": {"default": 1, "description": '
    '"The other one.", "type": "integer"}}, "required": ["a"], "type": "object"}}}'
)
RSTAR2_SYSTEM = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <reason> </reason> and answer is enclosed within <answer> </answer> tags, "
    "respectively, i.e., <reason> reasoning process here </reason> <answer> answer here </answer>."
)
RSTAR2_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n{schema}\n</tools>\n\nFor each function call, "
    "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call><|im_end|>\n'
)
RSTAR2_PROBLEM = (
    "<|im_start|>user\nYou must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. "
    "And your final answer will be extracted automatically by the \\boxed{} tag.\nThis is the problem:\n"
)
"""What the chat template of microsoft/rStar writes (rstar2_agent/config/rstar2_agent_trainer.yaml)."""


async def test_rstar2_renders_a_rollout_as_the_published_chat_template(tmp_path: Path) -> None:
    first = f"I add.</reason>\n{call('add', a=2, b=3)}\n{call('add', a=1, b=1)}"
    second = "Easy.</reason><answer>\\boxed{5}</answer>"
    loop = make_loop([first, second], tools_file(tmp_path, "add"), "+tool_format=rstar2")

    output = await play(loop)

    decode = loop.tokenizer.decode
    assert decode(output.prompt_ids) == (
        f"<|im_start|>system\n{RSTAR2_SYSTEM}{RSTAR2_TOOLS.format(schema=ADD_SCHEMA)}"
        f"{RSTAR2_PROBLEM}Add 2 and 3.<|im_end|>\n<|im_start|>assistant\n<reason>"
    )
    answer = (
        "<|im_start|>user\n<tool_response>\n5\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<reason>"
    )
    assert decode(output.response_ids) == f"{first}<|im_end|>\n{answer}{second}<|im_end|>"
    assert sampled(loop, output) == [f"{first}<|im_end|>", f"{second}<|im_end|>"]
    assert record(output)["text_differs"] is False


async def test_the_prefix_of_turns_is_added_where_the_chat_template_does_not_write_it(tmp_path: Path) -> None:
    script = [call("add", a=2, b=3), "It is 5."]
    prefix = "pivot.rollout.assistant_prefix=<reason>"
    loop = make_loop(script, tools_file(tmp_path, "add"), prefix)

    output = await play(loop)

    text = loop.tokenizer.decode([*output.prompt_ids, *output.response_ids])
    assert text.count("<|im_start|>assistant\n<reason>") == text.count("<reason>") == 2
    assert record(output)["text_differs"] is False


def test_the_template_of_rstar2_renders_what_rollouts_do_not_have_as_published(tmp_path: Path) -> None:
    """The messages have a system prompt of their own, no tools, and recorded calls."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path))
    tokenizer.chat_template = (configs_dir() / "chat_templates" / "rstar2.jinja").read_text()
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": "\u00e9", "b": None}}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "<reason>Hm.</reason>", "tool_calls": calls},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "<answer>1</answer>"},
    ]

    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n{RSTAR2_PROBLEM}Hello.<|im_end|>\n"
        '<|im_start|>assistant\n<reason>Hm.</reason>\n<tool_call>\n{"name": "add", "arguments": {"a": "\u00e9", "b": '
        "null}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<answer>1</answer><|im_end|>\n"
    )


async def test_search_r1_goes_on_in_the_same_turn(tmp_path: Path) -> None:
    script = [
        Said("I search. <search>add</search> and more", ended=False),
        "I do not know.",
        Said("<answer>5</answer>", ended=False),
    ]
    name = tools_file(tmp_path, "note")
    search = "pivot.rollout.tags=[{open: <search>, close: </search>, tool: note, argument: text}]"
    loop = make_loop(script, name, "+tool_format=search_r1", search)

    output = await play(loop)

    text = loop.tokenizer.decode(output.response_ids)
    retry = (
        "My previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and </answer>. "
        "Let me try again.\n"
    )
    assert text.startswith("I search. <search>add</search>\n\n<information>add</information>\n\nI do not know.")
    assert f"I do not know.<|im_end|>\n{retry}" in text
    assert text.endswith("<answer>5</answer>")
    assert errors(output) == [None, "no_action"]
    assert loop.server_manager.requests[0]["params"]["stop"] == ["</search>", "</answer>"]
    assert sampled(loop, output)[0] == "I search. <search>add</search>"


async def test_retool_runs_fenced_code(tmp_path: Path) -> None:
    code = "<code>\n```python\nadd\n```\n</code>"
    tags = "pivot.rollout.tags=[{open: <code>, close: </code>, tool: note, argument: text, fenced: True}]"
    loop = make_loop([Said(code, ended=False), "5"], tools_file(tmp_path, "note"), "+tool_format=retool", tags)

    output = await play(loop)

    assert record(output)["calls"][0]["arguments"] == {"text": "add"}
    assert "</code>\n<interpreter>\nadd\n</interpreter>\n" in loop.tokenizer.decode(output.response_ids)


async def test_torl_runs_the_last_block_at_its_output_marker(tmp_path: Path) -> None:
    said = "```python\nfirst\n``` or ```python\nsecond\n```\n```output"
    tags = "pivot.rollout.tags=[{open: '```python', close: '```', stop: '```output', tool: note, argument: text}]"
    loop = make_loop([Said(said, ended=False), "5"], tools_file(tmp_path, "note"), "+tool_format=torl", tags)

    output = await play(loop)

    assert record(output)["calls"][0]["arguments"] == {"text": "second"}
    assert "```output\nsecond\n```\n5" in loop.tokenizer.decode(output.response_ids)


async def test_tags_without_an_engine_that_can_stop_at_them_are_refused(tmp_path: Path) -> None:
    overrides = ("+tool_format=retool", "actor_rollout_ref.rollout.skip_tokenizer_init=True")

    with pytest.raises(ConfigError, match="skip_tokenizer_init=False"):
        make_loop([], tools_file(tmp_path, "note"), *overrides)


async def test_the_outcome_lies_on_the_last_token_and_turn_rewards_on_the_last_of_each_turn(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2), "It is 3."], tools_file(tmp_path, "add"))
    output = await play(loop)
    output.turn_rewards = [0.25, 0.5]
    output.reward_score = 1.0

    scores = output.as_dict()["rm_scores"]

    first, last = output.turn_ends
    assert scores.nonzero().flatten().tolist() == [first - 1, last - 1]
    assert scores[[first - 1, last - 1]].tolist() == [0.25, 1.5]
    assert output.as_dict()["extra_fields"]["turn_ends"] == [first, last]


async def test_a_reward_for_half_of_the_turns_is_refused(tmp_path: Path) -> None:
    output = await play(make_loop([call("add", a=2), "It is 3."], tools_file(tmp_path, "add")))
    output.turn_rewards = [0.25]

    with pytest.raises(ValueError, match="one reward for each of 2 turns, got 1"):
        output.as_dict()


async def test_a_template_that_renders_other_text_than_the_tokens_is_recorded(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2), "It is 3."], tools_file(tmp_path, "add"))
    template = loop.tokenizer.chat_template
    loop.tokenizer.chat_template = template.replace("+ message.content", "+ message.content.upper()", 1)

    assert record(await play(loop))["text_differs"] is True


STRICT = (
    "{%- set last = namespace(calls=false) %}{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{%- set last.calls = message.tool_calls is defined %}{%- elif message.role == 'tool' and not last.calls %}"
    "{{- raise_exception('a tool message without a call before it') }}{%- endif %}{%- endfor %}"
)
"""Beginning of a chat template that refuses a tool's message behind a turn without `tool_calls`, as MiniMax-M2's."""


async def test_a_chat_template_that_refuses_the_messages_is_recorded_and_ends_no_rollout(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2), "It is 3."], tools_file(tmp_path, "add"))
    loop.tokenizer.chat_template = STRICT + loop.tokenizer.chat_template

    found = record(await play(loop))

    assert (found["text_differs"], found["stop_reason"], found["num_calls"]) == (True, "answered", 1)


class EngineWithWeightUpdate:
    """An engine whose first completion a weight update cuts off; verl's asynchronous client goes on from there."""

    def __init__(self, tokenizer: Any, script: list[str]) -> None:
        self.tokenizer, self.script = tokenizer, script
        self.prompts: list[list[int]] = []
        self.generate = self

    async def remote(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.prompts.append(prompt_ids)
        number = len(self.prompts)
        ids = self.tokenizer.encode(self.script[number - 1], add_special_tokens=False)
        is_cut = number == 1
        return TokenOutput(
            token_ids=ids if is_cut else [*ids, self.tokenizer.eos_token_id],
            log_probs=[-0.5] * (len(ids) + (not is_cut)),
            stop_reason="abort" if is_cut else "stop",
            extra_fields={"global_steps": number},
        )


async def test_a_turn_that_a_weight_update_cut_goes_on_under_the_asynchronous_trainers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    said = call("add", a=2, b=3)
    loop = make_loop([], tools_file(tmp_path, "add"))
    engine = EngineWithWeightUpdate(loop.tokenizer, [said[:20], said[20:], "It is 5."])
    client = FullyAsyncLLMServerClient(loop.config)

    async def acquire(request_id: str, **_: Any) -> tuple[str, EngineWithWeightUpdate]:
        return "only", engine

    monkeypatch.setattr(client, "_acquire_server", acquire)
    monkeypatch.setattr(client, "_release_server", lambda *_, **__: None)
    loop.server_manager = client

    output = await play(loop)

    assert sampled(loop, output) == [f"{said}<|im_end|>", "It is 5.<|im_end|>"]
    assert engine.prompts[1] == [*engine.prompts[0], *loop.tokenizer.encode(said[:20], add_special_tokens=False)]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 3)
    assert record(output)["num_empty_answers"] == 0


async def test_the_end_is_reported_to_the_router_and_its_scheduling_cost_is_recorded(tmp_path: Path) -> None:
    router = RecordingRouter()
    loop = make_loop([call("add", a=2, b=3), "It is 5."], tools_file(tmp_path, "add"), _load_balancer=router)

    output = await play(loop)

    (request_id,) = {request["id"] for request in loop.server_manager.requests}
    assert reports_end(request_id)
    assert router.ended == [(request_id, len(output.response_ids), 2)]
    assert record(output)["journey"] == {"wait_seconds": 0.5, "num_moves": 1, "recomputed_tokens": 70}
    assert rollout_metrics([parse_record(record(output))])["routing/recomputed_tokens"] == 70.0


async def test_the_end_of_a_cancelled_trajectory_is_reported_to_the_router(tmp_path: Path) -> None:
    router = RecordingRouter()
    loop = make_loop(["It is 5."], tools_file(tmp_path, "add"), _load_balancer=router, seconds=60.0)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(play(loop), 2.0)

    assert router.ended == [(loop.server_manager.requests[0]["id"], 0, None)]


async def scored(
    loop: ToolLoop, output: TurnRewardOutput, function: Callable[..., Any] | None = None, **columns: Any
) -> dict[str, Any]:
    """Reward that the reward manager gives to an output, in the batch that verl's worker makes of it."""
    import numpy
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    from verl_pivot.rewards.manager import PivotRewardManager

    responses = torch.tensor([output.response_ids])
    batch = TensorDict({"responses": responses, "attention_mask": torch.ones_like(responses)}, batch_size=1)
    columns["tool_extra_fields"] = output.extra_fields
    wrapped = {}
    for name, value in columns.items():
        wrapped[name] = numpy.empty(1, dtype=object)
        wrapped[name][0] = value
    manager = PivotRewardManager(loop.config, loop.tokenizer, function)
    reward = await manager.run_single(DataProto(batch=batch, non_tensor_batch=wrapped))
    return {"reward_score": reward["reward_score"], **reward["reward_extra_info"]}


PIVOT = {
    "trajectory_id": "shop-1", "turn_index": 0, "prompt": '[{"role": "user", "content": "Add."}]', "tools": "[]",
    "expert": '{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": '
    '{"a": 2}}}]}',
    "verifier": "tool_call", "verifier_options": "{}", "metadata": "{}",
}  # fmt: skip


async def test_a_rollout_that_goes_on_after_its_pivot_is_scored_by_the_pivots_turn(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2), call("add", a=9), "Done."], tools_file(tmp_path, "add"))
    output = await play(loop)

    reward = await scored(loop, output, **PIVOT)

    assert reward == {
        "reward_score": 1.0, "score": 1.0, "undecided": 0.0, "verifier": "tool_call", "reason": "accepted",
        "detail": "",
        "stop_reason": "answered", "num_calls": 2, "num_tool_errors": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "unread", "is_cut_off", "reward"),
    [
        (call("add", a=2), None, False, 4.0),  # ToolRL: 3 for the right call, and 1 for its form
        (call("add", a=9), None, False, 1.0 + 6 * 2 / 3 - 3),  # the name and the argument's name are right
        ("<tool_call>{oops</tool_call>", "malformed_call", False, -3.0),
        (Said(call("add", a=2), ended=False), None, True, -3.0),
    ],
)
async def test_the_last_turn_is_judged_as_it_was_sampled_whatever_ended_the_rollout(
    said: str | Said, unread: str | None, is_cut_off: bool, reward: float, tmp_path: Path
) -> None:
    once = ("pivot.rewards=toolrl", "pivot.rollout.max_turns=1")
    loop = make_loop([said], tools_file(tmp_path, "add"), *once)
    output = await play(loop)

    assert (record(output)["unread"], record(output)["is_cut_off"]) == (unread, is_cut_off)
    assert (await scored(loop, output, **PIVOT))["reward_score"] == reward


async def test_a_turn_whose_observation_does_not_fit_was_not_cut_off(tmp_path: Path) -> None:
    named = tools_file(tmp_path, "add")
    (whole, *_) = record(await play(make_loop([call("add", a=2), "2"], named)))["turn_tokens"]
    loop = make_loop([call("add", a=2)], named, f"data.max_response_length={whole + 1}", "pivot.rewards=toolrl")
    output = await play(loop)

    assert (record(output)["stop_reason"], record(output)["is_cut_off"]) == ("max_response_tokens", False)
    assert (await scored(loop, output, **PIVOT))["reward_score"] == 4.0


async def test_a_last_turn_without_the_answer_tag_is_no_action(tmp_path: Path) -> None:
    search = "pivot.rollout.tags=[{open: <search>, close: </search>, tool: note, argument: text}]"
    named = tools_file(tmp_path, "note")
    ways = {"I do not know.": "no_action", "<answer>5</answer>": None}
    for said, unread in ways.items():
        loop = make_loop([said], named, "+tool_format=search_r1", search, "pivot.rollout.max_turns=1")
        assert record(await play(loop))["unread"] == unread


async def by_verifier(folder: Path, verifier: str, said: str, truth: Any, /, **columns: Any) -> dict[str, Any]:
    """Reward of a rollout of one turn by a term with a verifier, given as YAML."""
    (folder / "verified.yaml").write_text(f"terms: {{right: {{verifier: {verifier}}}}}\n")
    loop = make_loop([said], tools_file(folder, "add"), f"pivot.rewards={folder / 'verified.yaml'}")
    output = await play(loop)
    label = {"reward_model": {"ground_truth": truth}, "raw_prompt": [{"role": "user", "content": "Which city?"}]}
    return await scored(loop, output, **label, **columns)


QA_OF_ALL = "{name: qa, options: {place: all}}"


@pytest.mark.parametrize(
    ("verifier", "said", "truth"),
    [
        (QA_OF_ALL, "Paris", "Paris"),
        (QA_OF_ALL, "Paris", {"target": ["Paris"]}),
        (QA_OF_ALL, "City of Paris", ["Paris", "City of Paris"]),
        (QA_OF_ALL, "Paris", numpy.array(["Paris"], dtype=object)),
        ("{name: qa}", "<answer>Paris</answer>", "Paris"),
        ("{name: qa}", "<answer>Paris</answer>", "<answer>Paris</answer>"),
        ("{name: qa, options: {answers: [Paris]}}", "<answer>Paris</answer>", {"id": 7}),
        ("{name: math}", "So \\boxed{42}", "42"),
        ("{name: math}", "So \\boxed{42}", 42),
        ("{name: math, options: {place: all}}", "42", ["\\boxed{42}"]),
        ("{name: weighted, options: {verifiers: [{name: qa}, {name: qa}]}}", "<answer>Paris</answer>", ["Paris"]),
    ],
)
async def test_a_term_of_a_verifier_takes_the_ground_truth_of_a_task(
    verifier: str, said: str, truth: Any, tmp_path: Path
) -> None:
    right = await by_verifier(tmp_path, verifier, said, truth)
    wrong = await by_verifier(tmp_path, verifier, said.replace("Paris", "Lyon").replace("42", "43"), truth)

    assert [(each["reward_score"], each["detail"]) for each in (right, wrong)] == [(1.0, ""), (0.0, "")]


async def test_a_term_of_a_verifier_takes_the_options_of_a_task_that_names_it(tmp_path: Path) -> None:
    given = {"verifier": "qa", "verifier_options": '{"place": "all"}'}
    named = await by_verifier(tmp_path, "{name: qa}", "Paris", "Paris", **given)
    of_another = await by_verifier(tmp_path, "{name: qa}", "Paris", "Paris", **{**given, "verifier": "math"})

    assert [each["reward_score"] for each in (named, of_another)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("verifier", "truth", "message"),
    [
        ("{name: qa}", {"answer": "Paris"}, "reward_model.ground_truth must be a text, a number, a list of them or an"),
        ("{name: math}", ["1", "2"], "the verifier math takes one right answer, but reward_model.ground_truth gives 2"),
    ],
)
async def test_a_ground_truth_that_the_verifier_of_a_term_cannot_take_is_the_rows_fault(
    verifier: str, truth: Any, message: str, tmp_path: Path
) -> None:
    reward = await by_verifier(tmp_path, verifier, "\\boxed{1}", truth, extra_info={"index": 7})

    assert (math.isnan(reward["reward_score"]), reward["reason"]) == (True, "broken_row")
    assert reward["detail"].startswith("row with extra_info.index 7: ")
    assert message in reward["detail"]


BROKEN_VERIFIER = """
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.verifiers.registry import register

@register("unreachable")
async def unreachable(action: Message, turn: Turn) -> Verdict:
    raise OSError("no route to the host")
"""


async def test_a_verifier_whose_system_failed_masks_only_rollouts_whose_reward_needs_it(tmp_path: Path) -> None:
    (tmp_path / "unreachable.py").write_text(BROKEN_VERIFIER)
    checked = "checked: {verifier: {name: unreachable}, only_if: {term: task, at_least: 1}}"
    (tmp_path / "sum.yaml").write_text(f"terms:\n  task: {{value: outcome}}\n  {checked}\n")
    modules = f"pivot.verifier_modules=[{tmp_path / 'unreachable.py'}]"
    loop = make_loop(["5"], tools_file(tmp_path, "add"), modules, f"pivot.rewards={tmp_path / 'sum.yaml'}")
    output = await play(loop)
    label = {"data_source": "x", "reward_model": {"ground_truth": "5"}, **row()}

    wrong = await scored(loop, output, lambda **given: 0.0, **label)
    right = await scored(loop, output, lambda **given: 1.0, **label)

    assert (wrong["reward_score"], wrong["undecided"], wrong["reason"], wrong["detail"]) == (0.0, 0.0, "composed", "")
    assert (right["undecided"], right["reason"]) == (1.0, "verifier_failed")
    assert right["detail"].startswith("term checked: verifier 'unreachable' raised OSError: no route to the host")


@pytest.mark.parametrize("rewards", ["null", "outcome"])
async def test_values_that_a_reward_function_returns_under_our_names_are_kept_apart(
    rewards: str, tmp_path: Path
) -> None:
    loop = make_loop(["5"], tools_file(tmp_path, "add"), f"pivot.rewards={rewards}")
    output = await play(loop)
    label = {"data_source": "x", "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 7}}
    returned = {
        "reason": ["wrong", "unit"], "detail": 1, "verifier": None, "undecided": 1.0, "process": 0.7, "steps": 3,
        "criteria": ["short"], "reward_terms": [], "paid/task": "x", "num_calls": -1, "unit": "m",
    }  # fmt: skip

    reward = await scored(loop, output, lambda **given: {"score": 0.5, **returned}, **label)
    output.extra_fields["reward_extra_info"] = reward
    output.reward_score = reward["reward_score"]

    assert reward["unit"] == "m"
    assert {key: reward[f"returned_{key}"] for key in returned if key != "unit"} == {
        key: value for key, value in returned.items() if key != "unit"
    }
    assert (reward["score"], reward["undecided"], reward["num_calls"]) == (0.5, 0.0, 0)
    assert output.as_dict()["rm_scores"].sum() == 0.5
    assert _verdict_shares([reward]) == ({} if rewards == "null" else {"verifier/rewards/composed": 1.0})
    assert (process_metrics([reward]), rubric_metrics([reward]), fault_of([reward])) == ({}, {}, None)
    assert term_metrics({"a": [reward]}).keys() >= (set() if rewards == "null" else {"rewards/undecided_rate"})


@pytest.mark.parametrize("rewards", ["null", "outcome"])
@pytest.mark.parametrize("score", [math.nan, -math.inf, None, "much"])
async def test_a_score_that_is_no_finite_number_is_the_reward_functions_fault(
    score: Any, rewards: str, tmp_path: Path
) -> None:
    loop = make_loop(["5"], tools_file(tmp_path, "add"), f"pivot.rewards={rewards}")
    output = await play(loop)
    label = {"data_source": "x", "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 7}}

    reward = await scored(loop, output, lambda **given: score, **label)

    assert (math.isnan(reward["reward_score"]), reward["undecided"], reward["reason"]) == (
        True,
        1.0,
        "user_code_failed",
    )
    assert f"returned the score {score!r}; return a finite number" in reward["detail"]


async def test_a_masked_trajectory_has_no_reward(tmp_path: Path) -> None:
    loop = make_loop([call("add", a=2), call("crash")], tools_file(tmp_path, "add", "crash"))
    output = await play(loop)

    reward = await scored(loop, output, **PIVOT)

    assert str(reward["reward_score"]) == "nan"
    assert (reward["undecided"], reward["reason"], reward["stop_reason"]) == (1.0, "tool_failure", "tool_failure")


async def test_an_environments_outcome_is_the_reward(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- environment: tests.tools.test_toolset:Counter\n")
    named = f"pivot.rollout.tools={tmp_path}/tools.yaml"
    answering = make_loop([call("increment"), "Done."], named)
    cut_off = make_loop([call("increment")] * 2, named, "pivot.rollout.max_turns=2")

    rewards = [await scored(loop, await play(loop)) for loop in (answering, cut_off)]

    assert [reward["reward_score"] for reward in rewards] == [1.0, 0.0]
    assert [reward["reason"] for reward in rewards] == ["counted", "counted"]
