"""Profiles: samples and verdicts of every turn in a file that survives kill -9, lost servers and full disks."""

import asyncio
import json
import math
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.fake_engine import Answer, FakeServer, fake_server, openai_answer, sglang_sample
from tests.support.tiny_model import write_tokenizer
from verl_pivot.cli import app
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.engines.engine import Completion, Sampling
from verl_pivot.engines.pool import EnginePool
from verl_pivot.engines.rendering import ActionText
from verl_pivot.engines.retries import UnavailableError
from verl_pivot.engines.sglang_engine import SGLangEngine
from verl_pivot.errors import ConfigError, DataError, EngineError, StateRefusedError
from verl_pivot.profiling.early_stopping import EarlyStop
from verl_pivot.profiling.job import drawn_ids
from verl_pivot.profiling.line_index import LineIndex
from verl_pivot.profiling.profiler import Profiler, Totals, profile_turns, turn_seed
from verl_pivot.profiling.profiles import (
    ProfileSettings,
    TurnKey,
    parse_profile,
    profile_as_dict,
    read_profiles,
    read_settings,
)
from verl_pivot.profiling.summary import TrajectoryCluster, TurnOutcome, clustered_mean, outcome, summarize
from verl_pivot.profiling.writer import ProfileWriter, open_profile
from verl_pivot.selection.profile_table import profile_rows, profiles_of
from verl_pivot.types import JsonObject, Message, Role, Sample, ToolCall, Trajectory, Turn, TurnProfile, Verdict

CALL = '<tool_call>{"name": "refund", "arguments": {}}</tool_call>'


def make_settings(**changes: object) -> ProfileSettings:
    settings = ProfileSettings(
        model="policy",
        input_sha256="0" * 64,
        num_samples=2,
        sampling=Sampling(),
        max_prompt_tokens=100,
        chat_template_kwargs={},
    )
    return replace(settings, **changes)  # type: ignore[arg-type]  # names of fields


def make_trajectory(identity: str = "t", num_turns: int = 2, content: str = "Hi.") -> Trajectory:
    """Trajectory whose expert never calls: a sampled message scores 1, a call 0, and a turn that was cut off 0."""
    pair = (Message(role=Role.USER, content=content), Message(role=Role.ASSISTANT, content="Done."))
    return Trajectory(id=identity, messages=pair * num_turns)


def make_profile(scores: Sequence[float | None], identity: str = "t", index: int = 0) -> TurnProfile:
    samples = [Sample(text="", verdict=Verdict(score=score, reason=f"r{score}"), num_tokens=3) for score in scores]
    return TurnProfile(trajectory_id=identity, index=index, samples=tuple(samples), num_prompt_tokens=7)


def line_of(profile: TurnProfile) -> str:
    return json.dumps(profile_as_dict(profile))


class ByteRenderer:
    """Renderer whose tokens are the bytes of the state's text; byte 0 ends a turn."""

    def prompt_ids(self, turn: Turn) -> list[int]:
        return list("".join(message.content for message in turn.state).encode())

    def action_text(self, token_ids: Sequence[int]) -> ActionText:
        ended = token_ids[-1] == 0
        return ActionText(bytes(token_ids[: len(token_ids) - ended]).decode(), ended)


def is_prefill(max_new_tokens: int, n: int) -> bool:
    return (max_new_tokens, n) == (1, 1)


class ScriptedEngine:
    """Engine that answers with the texts of `script(number of the request)`; None is a failure, prefills succeed."""

    def __init__(self, script: Callable[[int], Sequence[str] | None], url: str = "http://engine") -> None:
        self.url = url
        self.prefills: list[str] = []
        self.prompts: list[str] = []
        self.seeds: list[int] = []
        self._script = script

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        if is_prefill(sampling.max_new_tokens, n):
            self.prefills.append(bytes(prompt_ids).decode())
            await asyncio.sleep(0)
            return (Completion(token_ids=(0,), text="", ended=True, num_tokens=1),)
        self.prompts.append(bytes(prompt_ids).decode())
        self.seeds.append(sampling.seed)
        texts = self._script(len(self.prompts) - 1)
        await asyncio.sleep(0)
        if texts is None:
            raise EngineError(f"{self.url} died")
        return tuple(
            Completion(token_ids=(*text.encode(), 0), text="", ended=True, num_tokens=len(text) + 1) for text in texts
        )

    async def close(self) -> None: ...


def half_right(number: int) -> tuple[str, str]:
    return "Hello.", CALL


async def run(
    path: Path,
    trajectories: Sequence[Trajectory],
    *engines: ScriptedEngine,
    settings: ProfileSettings | None = None,
    concurrency: int = 4,
) -> list[str]:
    """Write a profile to `path`; returns the messages about lost engines."""
    lost: list[str] = []
    settings = settings or make_settings()
    with open_profile(path, settings) as writer:
        pool = EnginePool(engines or [ScriptedEngine(half_right)], lost.append)
        profiler = Profiler(renderer=ByteRenderer(), pool=pool, settings=settings, seed=0, totals=Totals())
        everything = [turn for trajectory in trajectories for turn in turns(trajectory)]
        await profile_turns(everything, profiler, writer, concurrency=concurrency, on_turn=lambda: None)
    return lost


class WaitingRenderer(ByteRenderer):
    """Renderer that waits with all prompts but the first until the engine was asked for samples of the first."""

    def __init__(self) -> None:
        self.sampled = threading.Event()
        self.is_too_late = False
        self.num_rendering = 0
        self.most_rendering = 0
        self._num_prompts = 0

    def prompt_ids(self, turn: Turn) -> list[int]:
        self.num_rendering += 1
        self.most_rendering = max(self.most_rendering, self.num_rendering)
        self._num_prompts += 1
        if self._num_prompts > 1 and not self.sampled.wait(60):
            self.is_too_late = True
        self.num_rendering -= 1
        return super().prompt_ids(turn)


async def test_requests_go_out_while_one_thread_renders_the_next_prompts(tmp_path: Path) -> None:
    renderer, settings = WaitingRenderer(), make_settings()

    def script(request: int) -> Sequence[str]:
        renderer.sampled.set()
        return half_right(request)

    with open_profile(tmp_path / "p.jsonl", settings) as writer:
        pool = EnginePool([ScriptedEngine(script)], print)
        profiler = Profiler(renderer=renderer, pool=pool, settings=settings, seed=0, totals=Totals())
        trajectories = [make_trajectory(name, num_turns=1) for name in "abcd"]
        every_turn = [turn for trajectory in trajectories for turn in turns(trajectory)]
        await profile_turns(every_turn, profiler, writer, concurrency=4, on_turn=lambda: None)

    assert (renderer.is_too_late, renderer.most_rendering) == (False, 1)
    assert len(read_profiles(tmp_path / "p.jsonl")) == 4


def write_trajectories(path: Path, *trajectories: Trajectory) -> Path:
    path.write_text("".join(json.dumps(trajectory_as_dict(trajectory)) + "\n" for trajectory in trajectories))
    return path


async def test_a_line_holds_every_sample_with_its_reason_and_the_statistics(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"

    await run(path, [make_trajectory(num_turns=1)])

    header, line = (json.loads(text) for text in path.read_text().splitlines())
    assert header == {"kind": "verl-pivot profile", "version": 1, "settings": make_settings().as_dict()}
    call, message = line["samples"].pop(), line["samples"].pop()
    assert line == {
        "trajectory_id": "t",
        "turn_index": 0,
        "num_prompt_tokens": 3,
        "samples": [],
        "pass_rate": 0.5,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "reward_var": 0.25,
    }
    assert (message["text"], message["score"], message["num_tokens"]) == ("Hello.", 1.0, 7)
    assert (call["text"], call["score"]) == (CALL, 0.0)
    assert call["reason"] != message["reason"]


async def test_half_a_surrogate_pair_in_the_name_of_a_call_does_not_end_the_profile(tmp_path: Path) -> None:
    path, sampled = tmp_path / "profile.jsonl", CALL.replace("refund", r"refund\ud83d")
    call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="refund", arguments={}),))
    trajectory = Trajectory(id="t", messages=(Message(role=Role.USER, content="Hi."), call))

    await run(path, [trajectory], ScriptedEngine(lambda number: (sampled, CALL)))

    (profile,) = read_profiles(path).values()
    wrong, right = profile.samples
    detail = r"the name of a tool call has half of a surrogate pair: 'refund\ud83d'"
    assert (wrong.text, wrong.verdict.reason, wrong.verdict.detail) == (sampled, "malformed_call", detail)
    assert right.verdict.score == 1.0


async def test_a_resumed_run_measures_only_missing_turns_even_after_a_torn_line(tmp_path: Path) -> None:
    path, trajectories = tmp_path / "profile.jsonl", [make_trajectory("a"), make_trajectory("b")]
    await run(path, trajectories)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 20])  # kill -9 in the middle of the last line

    engine = ScriptedEngine(half_right)
    await run(path, trajectories, engine)

    assert len(engine.prompts) == 1
    assert sorted(read_profiles(path)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize("num_bytes", [0, 1, 20, 60])
async def test_a_file_torn_in_its_first_line_is_begun_anew(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "profile.jsonl"
    await run(path, [])
    path.write_bytes(path.read_bytes()[:num_bytes])

    await run(path, [make_trajectory()])

    assert len(read_profiles(path)) == 2


async def test_a_file_without_finished_turns_takes_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    await run(path, [])

    await run(path, [make_trajectory()], settings=make_settings(model="other"))

    assert read_settings(path) == make_settings(model="other")
    assert len(read_profiles(path)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "other"}, r"model is 'policy' in the file and 'other' now"),
        ({"sampling": Sampling(temperature=0.5)}, r"temperature is 1.0 in the file and 0.5 now"),
        ({"num_samples": 3, "input_sha256": "1"}, r"input_sha256 is .* num_samples is 2 in the file and 3 now"),
    ],
)
async def test_other_settings_are_refused_and_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "profile.jsonl"
    await run(path, [make_trajectory()])
    before = path.read_bytes()

    with pytest.raises(ConfigError, match=message):
        await run(path, [make_trajectory()], settings=make_settings(**changes))

    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["notes", "notes\nmore", '{"id": "t"}\n{"id"', "\n"])
def test_a_file_that_is_no_profile_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(content)

    with (
        pytest.raises(DataError, match=r"notes.jsonl is not a profile of version 1 .*choose another --out"),
        open_profile(path, make_settings()),
    ):
        pass

    assert path.read_text() == content


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    with (
        open_profile(path, make_settings()),
        pytest.raises(ConfigError, match="is being written by another `verl-pivot profile`"),
        open_profile(path, make_settings()),
    ):
        pass


def test_a_full_disk_is_one_sentence_and_earlier_lines_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    with open_profile(path, make_settings()) as writer:
        writer.append(make_profile([1.0]))
        before = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))  # the next line is longer than that
        try:
            with pytest.raises(ConfigError, match=r"profile.jsonl cannot be written: .*free some space.*same command"):
                writer.append(make_profile([0.0], index=1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_refused_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(ConfigError, match="cannot be written"),
        open_profile(tmp_path / "file" / "profile.jsonl", make_settings()),
    ):
        pass


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 3 is broken .*not JSON.*delete it"),
        ("[]", r"line 3 is not the profile of a turn: a turn needs trajectory_id.*delete that line"),
        (line_of(make_profile([1.0], index=1)).replace('"text"', '"words"'), "a sample needs text, score"),
        (line_of(make_profile([1.0])), "line 3 repeats turn t:0"),
        (line_of(make_profile([1.0], index=1)).replace(": 1.0", ": 2.0"), r"score must lie in \[0, 1\]"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "profile.jsonl"
    with open_profile(path, make_settings()) as writer:
        writer.append(make_profile([1.0]))
    path.write_text(path.read_text() + line + "\n")

    with pytest.raises(DataError, match=message):
        read_profiles(path)


@pytest.mark.parametrize("line", [b'{"trajectory_id": "caf\xe9", "turn_index": 1}', b'{"samples": ' + b"[" * 100_000])
def test_a_line_that_is_not_utf_8_or_nested_too_deeply_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "profile.jsonl"
    with open_profile(path, make_settings()) as writer:
        writer.append(make_profile([1.0]))
    path.write_bytes(path.read_bytes() + line + b"\n")

    with pytest.raises(DataError, match=r"line 3 is broken .*delete it"):
        read_profiles(path)


def test_settings_can_be_read_back(tmp_path: Path) -> None:
    settings = make_settings(chat_template_kwargs={"enable_thinking": False}, sampling=Sampling(top_k=20, seed=4))
    with open_profile(tmp_path / "profile.jsonl", settings):
        pass

    assert read_settings(tmp_path / "profile.jsonl") == settings


async def test_the_turns_of_an_endpoint_that_dies_go_to_the_others(tmp_path: Path) -> None:
    dying = ScriptedEngine(lambda number: half_right(0) if number < 1 else None, "http://dying")
    healthy = ScriptedEngine(half_right, "http://healthy")
    trajectories = [make_trajectory(f"t{i}", num_turns=3) for i in range(4)]

    lost = await run(tmp_path / "profile.jsonl", trajectories, dying, healthy)

    assert lost == ["http://dying died (endpoints left: 1)"]
    assert len(read_profiles(tmp_path / "profile.jsonl")) == 12
    assert len(dying.prompts) - 1 + 12 >= len(healthy.prompts) >= 11


async def test_an_endpoint_that_hangs_holds_back_only_its_own_turns(tmp_path: Path) -> None:
    path, hung = tmp_path / "p.jsonl", asyncio.Event()

    class Hanging(ScriptedEngine):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
            await hung.wait()
            raise EngineError("http://hanging hangs")

    trajectories = [make_trajectory(f"t{i}", num_turns=5) for i in range(20)]

    def until_all_others_are_done(number: int) -> tuple[str, str]:
        if number == 83:
            hung.set()
        return half_right(number)

    healthy = ScriptedEngine(until_all_others_are_done, "http://healthy")

    lost = await run(path, trajectories, Hanging(half_right), healthy, concurrency=16)

    assert lost == ["http://hanging hangs (endpoints left: 1)"]
    assert len(healthy.prompts) == 100
    assert len(read_profiles(path)) == 100


async def test_a_lost_endpoint_is_tried_again_later() -> None:
    engine = ScriptedEngine(lambda number: None if number == 0 else half_right(0), "http://back")
    other = ScriptedEngine(half_right, "http://other")
    lost: list[str] = []
    pool = EnginePool([engine, other], lost.append, return_seconds=0.0)

    await pool.generate("t", [1], Sampling(), 2)
    await asyncio.sleep(0.01)
    await asyncio.gather(*(pool.generate(name, [1], Sampling(), 2) for name in "uv"))
    await pool.close()

    assert lost == ["http://back died (endpoints left: 1)"]
    assert (len(engine.prompts), len(other.prompts)) == (2, 2)


class Frail(ScriptedEngine):
    """Engine that fails, each time, at prompts of 17 tokens or more."""

    num_failures = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        if len(prompt_ids) >= 17:
            self.num_failures += 1
            raise UnavailableError(f"{self.url} is out of memory", may_concern_one_question=True)
        return await super().generate(prompt_ids, sampling, n)


async def test_a_prompt_at_which_each_endpoint_fails_has_no_samples_and_takes_no_endpoint_out(tmp_path: Path) -> None:
    path, said = tmp_path / "profile.jsonl", list[str]()
    one, two = Frail(half_right, "http://one"), Frail(half_right, "http://two")
    with open_profile(path, make_settings()) as writer:
        pool = EnginePool([one, two], said.append)
        profiler = Profiler(
            renderer=ByteRenderer(), pool=pool, settings=make_settings(), seed=0, totals=Totals(), say=said.append
        )
        three_turns = turns(make_trajectory(num_turns=3))  # prompts of 3, 10 and 17 tokens
        await profile_turns(three_turns, profiler, writer, concurrency=1, on_turn=lambda: None)

    profiles = read_profiles(path)
    assert [(index, len(profiles[TurnKey("t", index)].samples)) for index in range(3)] == [(0, 2), (1, 2), (2, 0)]
    assert outcome(profiles[TurnKey("t", 2)]) is TurnOutcome.UNDECIDED
    assert (one.num_failures, two.num_failures) == (1, 1)
    assert said == [
        "Turn t:2, and perhaps others, gets no samples: no server samples its prompt (each endpoint fails at it, and "
        "samples other prompts: http://two is out of memory)."
    ]


async def test_a_prompt_at_which_one_endpoint_fails_is_sampled_by_another(tmp_path: Path) -> None:
    path, frail = tmp_path / "profile.jsonl", Frail(half_right, "http://frail")

    lost = await run(path, [make_trajectory(num_turns=3)], frail, ScriptedEngine(half_right), concurrency=1)

    assert (lost, frail.num_failures) == ([], 1)
    assert [len(profile.samples) for profile in read_profiles(path).values()] == [2, 2, 2]


async def test_with_no_endpoint_left_finished_turns_are_kept(tmp_path: Path) -> None:
    path, trajectories = tmp_path / "profile.jsonl", [make_trajectory(num_turns=5)]
    dying = ScriptedEngine(lambda number: half_right(0) if number < 3 else None)

    with pytest.raises(EngineError, match="no endpoint is left: http://engine died"):
        await run(path, trajectories, dying, concurrency=1)

    assert sorted(read_profiles(path)) == [("t", 2), ("t", 3), ("t", 4)]
    await run(path, trajectories)
    assert sorted(read_profiles(path)) == [("t", 0), ("t", 1), ("t", 2), ("t", 3), ("t", 4)]


async def test_a_trajectory_keeps_its_endpoint_and_its_last_turn_goes_first(tmp_path: Path) -> None:
    one, two = ScriptedEngine(half_right, "http://one"), ScriptedEngine(half_right, "http://two")
    trajectories = [make_trajectory("a", num_turns=3, content="A"), make_trajectory("b", num_turns=3, content="B")]

    await run(tmp_path / "profile.jsonl", trajectories, one, two, concurrency=64)

    for name in "AB":
        prompts = [[prompt for prompt in engine.prompts if name in prompt] for engine in (one, two)]
        assert sorted(prompts, key=len) == [[], [f"{name}Done.{name}Done.{name}", f"{name}Done.{name}", name]]


async def test_a_turn_with_an_overlong_prompt_has_a_line_without_samples(tmp_path: Path) -> None:
    engine = ScriptedEngine(half_right)
    path = tmp_path / "profile.jsonl"

    await run(path, [make_trajectory(content="12345")], engine, settings=make_settings(max_prompt_tokens=9))

    profiles = read_profiles(path)
    assert engine.prompts == ["12345"]
    assert (profiles[TurnKey("t", 1)].samples, profiles[TurnKey("t", 1)].num_prompt_tokens) == ((), 15)
    assert json.loads(path.read_text().splitlines()[-1])["reward_mean"] in (None, 0.5)


class StrictRenderer(ByteRenderer):
    """Renderer whose chat template refuses two messages of one role in a row."""

    def prompt_ids(self, turn: Turn) -> list[int]:
        if any(first.role is second.role for first, second in pairwise(turn.state)):
            raise StateRefusedError(f"turn {turn.id}", why="roles must alternate")
        return super().prompt_ids(turn)


async def test_a_turn_whose_state_the_template_refuses_has_a_line_without_samples_and_is_undecided(
    tmp_path: Path,
) -> None:
    path, said = tmp_path / "profile.jsonl", list[str]()
    good, bad = make_trajectory("good", num_turns=1), make_trajectory("bad")
    bad = replace(bad, messages=(bad.messages[0], *bad.messages))
    with open_profile(path, make_settings()) as writer:
        pool = EnginePool([ScriptedEngine(half_right)], said.append)
        profiler = Profiler(
            renderer=StrictRenderer(), pool=pool, settings=make_settings(), seed=0, totals=Totals(), say=said.append
        )
        everything = [turn for trajectory in (good, bad) for turn in turns(trajectory)]
        await profile_turns(everything, profiler, writer, concurrency=1, on_turn=lambda: None)

    profiles = read_profiles(path)
    summary = summarize(profiles.values())
    table = profiles_of(tuple(profile_rows(path))).to_pylist()
    assert [(profile.samples, profile.num_prompt_tokens) for key, profile in profiles.items() if key[0] == "bad"] == [
        ((), 0)
    ] * 2
    assert (summary.num_by_outcome[TurnOutcome.MIXED], summary.num_by_outcome[TurnOutcome.UNDECIDED]) == (1, 2)
    assert sorted(row["outcome"] for row in table) == ["mixed", "undecided", "undecided"]
    assert said == [
        "Turn bad:1, and perhaps others, gets no samples: the model's chat template refuses its state (roles must "
        "alternate)."
    ]


async def test_the_longest_prompt_of_a_trajectory_is_prefilled_before_all_samples(tmp_path: Path) -> None:
    log: list[str] = []

    class Logging(ScriptedEngine):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
            log.append(f"{'prefill' if is_prefill(sampling.max_new_tokens, n) else 'sample'} {len(prompt_ids)}")
            completions = await super().generate(prompt_ids, sampling, n)
            log.append(f"done {len(prompt_ids)}")
            return completions

    await run(tmp_path / "p.jsonl", [make_trajectory(num_turns=4, content="Hello there.")], Logging(half_right))

    assert log[:2] == ["prefill 63", "done 63"]
    assert [entry for entry in log if "sample" in entry] == ["sample 63", "sample 46", "sample 29", "sample 12"]


async def test_prompts_that_do_not_begin_alike_are_prefilled_one_by_one() -> None:
    engine = ScriptedEngine(half_right)
    pool = EnginePool([engine], lambda message: None)
    prompts = ["A" * 40, "A" * 30 + "think", "B" * 40, "A" * 38]

    await asyncio.gather(*(pool.generate("t", list(prompt.encode()), Sampling(), 2) for prompt in prompts))

    assert engine.prefills == ["A" * 40, "B" * 40]
    assert sorted(engine.prompts) == sorted(prompts)


async def test_cached_tokens_of_a_prefill_count_as_those_of_the_first_sample(tmp_path: Path) -> None:
    class Caching(ScriptedEngine):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
            num_cached = 2 if is_prefill(sampling.max_new_tokens, n) else len(prompt_ids) - 1
            completions = await super().generate(prompt_ids, sampling, n)
            return tuple(replace(completion, num_cached_tokens=num_cached) for completion in completions)

    totals, pool = Totals(), EnginePool([Caching(half_right)], lambda message: None)
    profiler = Profiler(renderer=ByteRenderer(), pool=pool, settings=make_settings(), seed=0, totals=totals)
    (turn,) = turns(make_trajectory(num_turns=1, content="12345" * 4))

    await profiler.measure(turn)

    assert (totals.num_prompt_tokens, totals.num_cached_tokens) == (40, 2 + 19)


class SteppingEngine(ScriptedEngine):
    """Engine whose first samples are right, as many as the last digit of the prompt says, and all later ones wrong."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        num_right, drawn = int(chr(prompt_ids[-1])), sum(map(len, self.drawn))
        texts = ["Hello." if number < num_right else CALL for number in range(drawn, drawn + n)]
        if not is_prefill(sampling.max_new_tokens, n):
            self.drawn.append(texts)
            self.seeds.append(sampling.seed)
        return tuple(
            Completion(token_ids=(*text.encode(), 0), text="", ended=True, num_tokens=len(text) + 1) for text in texts
        )

    drawn: list[list[str]]


@pytest.mark.parametrize(
    ("num_right", "num_drawn", "statistics"),
    [("0", [2, 2], (0.0, 0.0)), ("1", [2], (0.5, 0.375)), ("2", [2, 2], (0.5, 0.0)), ("4", [2, 2], (1.0, 0.0))],
)
async def test_early_stopping_draws_no_more_samples_than_it_needs(
    tmp_path: Path, num_right: str, num_drawn: list[int], statistics: tuple[float, float]
) -> None:
    path, engine = tmp_path / "p.jsonl", SteppingEngine(half_right)
    engine.drawn = []
    plan = EarlyStop(filter="pivots", stages=(2, 4))

    trajectory = make_trajectory(num_turns=1, content=num_right)
    await run(path, [trajectory], engine, settings=make_settings(num_samples=4, early_stop=plan))

    (profile,) = read_profiles(path).values()
    line = json.loads(path.read_text().splitlines()[1])
    assert [len(texts) for texts in engine.drawn] == num_drawn
    assert engine.seeds == [engine.seeds[0] + 2 * stage for stage in range(len(num_drawn))]
    assert (line["reward_mean"], line["reward_var"]) == statistics
    assert read_settings(path).early_stop == plan
    assert profile_as_dict(profile, plan) == line
    assert outcome(profile) is (TurnOutcome.MIXED if num_right in "12" else outcome(profile))
    assert summarize([profile], plan).num_saved == 4 - sum(num_drawn)


async def test_a_turn_that_was_cut_off_scores_zero_with_the_reason_truncated(tmp_path: Path) -> None:
    class CutOff(ScriptedEngine):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
            return (Completion(token_ids=(72, 105), text="Hi", ended=False, num_tokens=2),) * n

    await run(tmp_path / "p.jsonl", [make_trajectory(num_turns=1)], CutOff(half_right))

    (profile,) = read_profiles(tmp_path / "p.jsonl").values()
    assert [(s.text, s.verdict.score, s.verdict.reason) for s in profile.samples] == [("Hi", 0.0, "truncated")] * 2


def test_the_seed_of_a_turn_depends_on_the_turn_and_the_runs_seed_alone() -> None:
    first, second = turns(make_trajectory("a"))
    (other, _) = turns(make_trajectory("b"))
    seeds = [turn_seed(0, first), turn_seed(0, second), turn_seed(0, other), turn_seed(1, first)]

    assert seeds == [turn_seed(0, first), turn_seed(0, second), turn_seed(0, other), turn_seed(1, first)]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("scores", "member"),
    [
        ([1.0, 1.0], TurnOutcome.ALWAYS_RIGHT),
        ([1.0, None], TurnOutcome.ALWAYS_RIGHT),
        ([0.0, 0.0], TurnOutcome.ALWAYS_WRONG),
        ([0.1, 0.1, 0.1], TurnOutcome.ALWAYS_WRONG),
        ([0.0, 1.0], TurnOutcome.MIXED),
        ([0.5, 1.0], TurnOutcome.MIXED),
        ([None, None], TurnOutcome.UNDECIDED),
        ([], TurnOutcome.OVERLONG),
    ],
)
def test_the_outcome_of_a_turn_follows_from_its_decided_scores(scores: list[float | None], member: TurnOutcome) -> None:
    assert outcome(make_profile(scores)) is member


def test_the_summary_counts_turns_reasons_and_tokens() -> None:
    profiles = [
        make_profile([1.0, 1.0], "a"),
        make_profile([0.0, 1.0], "b"),
        make_profile([0.0, None], "c"),
        make_profile([], "d"),
    ]

    summary = summarize(profiles)

    assert summary.num_by_outcome == {
        TurnOutcome.ALWAYS_RIGHT: 1,
        TurnOutcome.ALWAYS_WRONG: 1,
        TurnOutcome.MIXED: 1,
        TurnOutcome.UNDECIDED: 0,
        TurnOutcome.OVERLONG: 1,
    }
    assert summary.reasons == (("r0.0", 2), ("rNone", 1))
    assert summary.reward.mean == 0.6
    assert (summary.num_turns, summary.num_tokens) == (4, 18)


scores = st.one_of(st.none(), st.floats(0.0, 1.0))


@given(st.lists(scores, max_size=9), st.text(max_size=5))
def test_a_written_profile_is_read_back_unchanged(values: list[float | None], text: str) -> None:
    profile = make_profile(values, identity=text)

    line = profile_as_dict(profile)

    assert parse_profile(json.loads(json.dumps(line))) == profile
    decided = [value for value in values if value is not None]
    if not decided:
        assert line["reward_mean"] is line["reward_std"] is line["reward_var"] is line["pass_rate"] is None
    else:
        assert line["reward_mean"] == pytest.approx(statistics.fmean(decided))
        assert line["reward_var"] == pytest.approx(statistics.pvariance(decided))
        assert line["reward_std"] == pytest.approx(statistics.pstdev(decided))


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=30))
def test_clusters_of_one_give_the_ordinary_standard_error(values: list[float]) -> None:
    estimate = clustered_mean([TrajectoryCluster(value, 1) for value in values])

    assert estimate.mean == pytest.approx(statistics.fmean(values))
    assert estimate.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-12)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9), st.integers(1, 8))
def test_repeated_values_within_clusters_do_not_shrink_the_standard_error(values: list[float], times: int) -> None:
    once, often = (clustered_mean([TrajectoryCluster(n * value, n) for value in values]) for n in (1, times))

    assert often.mean == pytest.approx(once.mean)
    assert often.standard_error == pytest.approx(once.standard_error, abs=1e-12)


async def generate_slowly(health_status: int, *, hung_seconds: float) -> tuple[Completion, ...]:
    """Completions of a server that answers only after three health checks."""
    answered = threading.Semaphore(0)

    def answer(path: str, body: JsonObject) -> Answer:
        if path == "/health":
            answered.release()
            return Answer(body="", status=health_status)
        for _ in range(3):
            answered.acquire(timeout=60.0)
        return Answer(body=[sglang_sample([2])])

    with fake_server(answer) as server:
        engine = SGLangEngine(server.url, check_seconds=0.05, hung_seconds=hung_seconds)
        try:
            return await engine.generate([5], Sampling(), 1)
        finally:
            await engine.close()
            answered.release(3)


async def test_a_server_that_neither_answers_nor_is_healthy_hangs() -> None:
    with pytest.raises(EngineError, match=r"127.0.0.1:\d+ hangs: for 0 s it answered no request and /health failed"):
        await generate_slowly(503, hung_seconds=0.0)


async def test_a_slow_server_that_is_healthy_is_waited_for() -> None:
    assert len(await generate_slowly(200, hung_seconds=60.0)) == 1


# The command itself, against a server over HTTP.


def sglang_policy(folder: Path, text: str = "Hello.") -> Callable[[str, JsonObject], Answer]:
    """Answers of a server whose first sample for each request is `text`; all others are calls."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    right, wrong = tokenizer.encode(text + "<|im_end|>"), tokenizer.encode(CALL + "<|im_end|>")

    def answer(path: str, body: JsonObject) -> Answer:
        prompts = body["input_ids"]
        assert isinstance(prompts, list), prompts
        return Answer(body=[sglang_sample(wrong if number else right, cached=2) for number in range(len(prompts))])

    return answer


def sampled(server: FakeServer) -> list[JsonObject]:
    """Requests that a server got, without the prefills."""
    return [body for body in server.requests if not is_prefill(*_size(body))]


def _size(body: JsonObject) -> tuple[int, int]:
    match body["sampling_params"]:
        case [{"max_new_tokens": int(max_new_tokens)}, *others]:
            return max_new_tokens, 1 + len(others)
    raise AssertionError(body)


def test_the_command_prints_a_summary_and_repeats_it_without_sampling_again(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory("a"), make_trajectory("b"))
    out = tmp_path / "profile.jsonl"
    command = ["profile", str(trajectories), "--model", str(model), "--out", str(out), "--samples", "4"]

    with fake_server(sglang_policy(model)) as server:
        first = CliRunner().invoke(app, [*command, "--endpoint", server.url], catch_exceptions=False)
        again = CliRunner().invoke(app, [*command, "--endpoint", server.url], catch_exceptions=False)

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert len(sampled(server)) == 4
    assert [profile.reward_mean for profile in read_profiles(out).values()] == [0.25] * 4
    for fact in ("mixed", "4 (100.0%)", "0.2500 +- 0.0000", "12 samples", f"select {trajectories} --profile {out}"):
        assert fact in first.stdout
    assert "4 (100.0%)" in again.stdout


def test_lengths_beyond_the_models_context_are_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory())
    command = ["profile", str(trajectories), "--model", str(model), "--out", str(tmp_path / "profile.jsonl")]
    lengths = ("--max-prompt-tokens", "14337")

    with fake_server(sglang_policy(model)) as server:
        refused = CliRunner().invoke(app, [*command, "--endpoint", server.url, *lengths])
        fitting = CliRunner().invoke(app, [*command, "--endpoint", server.url, "--max-prompt-tokens", "14336"])
        num_sampled = len(sampled(server))

    assert (refused.exit_code, fitting.exit_code, num_sampled) == (1, 0, 2)
    assert (
        "--max-prompt-tokens 14337 and --max-new-tokens 2048 are more than the 16384 tokens of the model's context; "
        "lower one of them, here and in training"
    ) in " ".join(refused.stderr.split())


def test_a_draw_is_a_part_of_the_whole_profile_whose_bytes_it_does_not_change(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", *map(make_trajectory, "abcde"))
    at_once, in_parts = tmp_path / "at_once.jsonl", tmp_path / "in_parts.jsonl"
    command = ["profile", str(trajectories), "--model", str(model), "--samples", "4", "--seed", "3"]

    with fake_server(sglang_policy(model)) as server:
        drawn = CliRunner().invoke(
            app, [*command, "--endpoint", server.url, "--out", str(in_parts), "--draw", "2"], catch_exceptions=False
        )
        found = [key.trajectory_id for key in read_profiles(in_parts)]
        for out in (in_parts, at_once):
            CliRunner().invoke(app, [*command, "--endpoint", server.url, "--out", str(out)], catch_exceptions=False)

    assert drawn.exit_code == 0
    assert found == sorted(2 * [*drawn_ids("edcbaa", 2, seed=3)])
    assert drawn_ids("abcde", 2, seed=3) < drawn_ids("abcde", 3, seed=3)
    assert drawn_ids("abcde", 2, seed=3) != drawn_ids("abcde", 2, seed=0)
    assert in_parts.read_bytes() == at_once.read_bytes()
    assert len(sampled(server)) == 20


def test_the_command_stops_early_and_says_what_it_saved(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory("a"), make_trajectory("b"))
    out = tmp_path / "profile.jsonl"
    command = ["profile", str(trajectories), "--model", str(model), "--out", str(out), "--early-stop", "pivots"]

    with fake_server(sglang_policy(model)) as server:
        result = CliRunner().invoke(app, [*command, "--endpoint", server.url], catch_exceptions=False)
        other = CliRunner().invoke(app, [*command, "--endpoint", server.url, "--stages", "2,8"])

    assert result.exit_code == 0
    assert "16 samples (50.0%)" in result.stdout
    assert [len(profile.samples) for profile in read_profiles(out).values()] == [4] * 4
    assert other.exit_code == 1
    assert "begun with other settings: early_stop is" in other.stderr


@pytest.mark.parametrize("stages", ["2,4", "2,x", "1,8", "8,2,8"])
def test_impossible_stages_are_refused(tmp_path: Path, stages: str) -> None:
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory())
    command = ["profile", str(trajectories), "--model", "none", "--out", str(tmp_path / "p.jsonl")]

    result = CliRunner().invoke(app, [*command, "--early-stop", "pivots", "--stages", stages])

    assert result.exit_code == 1
    assert "--stages must" in result.stderr


def test_the_command_reads_openai_servers_by_their_text(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory())
    out = tmp_path / "profile.jsonl"

    def answer(path: str, body: JsonObject) -> Answer:
        listing: JsonObject = {"object": "list", "data": [{"id": "policy", "object": "model"}]}
        return Answer(body=listing if path == "/v1/models" else openai_answer("Hello."))

    with fake_server(answer) as server:
        command = ["profile", str(trajectories), "--model", str(model), "--out", str(out), "--openai", server.url]
        result = CliRunner().invoke(app, command, catch_exceptions=False)

    assert result.exit_code == 0
    assert [profile.reward_mean for profile in read_profiles(out).values()] == [1.0, 1.0]


def test_the_command_says_how_to_go_on_when_the_last_endpoint_dies(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(tmp_path / "trajectories.jsonl", make_trajectory(num_turns=9))
    healthy = sglang_policy(model)

    def answer(path: str, body: JsonObject) -> Answer:
        return healthy(path, body) if len(sampled(server)) < 4 else Answer(body="out of memory", status=500)

    with fake_server(answer) as server:
        command = ["profile", str(trajectories), "--model", str(model), "--out", str(tmp_path / "p.jsonl")]
        command += ["--endpoint", server.url, "--attempts", "1", "--concurrency", "1"]
        result = CliRunner().invoke(app, command)

    assert result.exit_code == 1
    assert "no endpoint is left" in result.stderr
    assert "out of memory" in result.stderr
    assert "3 more turns are finished in" in result.stderr
    assert "run the same command again to go on" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(read_profiles(tmp_path / "p.jsonl")) == 3


def test_unknown_verifiers_and_broken_lines_stop_the_command_before_it_samples(tmp_path: Path) -> None:
    trajectories = write_trajectories(
        tmp_path / "trajectories.jsonl", make_trajectory(), replace(make_trajectory("u"), verifier="none_such")
    )
    (tmp_path / "config.json").write_text("{}")
    command = ["profile", str(trajectories), "--model", str(tmp_path), "--out", str(tmp_path / "p.jsonl")]

    unknown = CliRunner().invoke(app, [*command, "--endpoint", "http://127.0.0.1:9"])
    trajectories.write_text("{")
    broken = CliRunner().invoke(app, [*command, "--endpoint", "http://127.0.0.1:9"])

    assert (unknown.exit_code, broken.exit_code) == (1, 1)
    assert "unknown verifier 'none_such'" in unknown.stderr
    assert "trajectories.jsonl" in broken.stderr


@pytest.mark.heavy
@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_killed_command_loses_and_repeats_nothing(tmp_path: Path, signum: signal.Signals, exit_code: int) -> None:
    model = write_tokenizer(tmp_path / "policy")
    trajectories = write_trajectories(
        tmp_path / "trajectories.jsonl", *(make_trajectory(f"t{9 - i}", num_turns=5) for i in range(8))
    )
    out, uninterrupted = tmp_path / "profile.jsonl", tmp_path / "uninterrupted.jsonl"
    at_once = sglang_policy(model)

    def slowly(path: str, body: JsonObject) -> Answer:
        time.sleep(random.uniform(0.0, 0.04))
        return at_once(path, body)

    with fake_server(slowly) as server:
        arguments = ["profile", str(trajectories), "--model", str(model), "--endpoint", server.url]
        arguments += ["--concurrency", "4", "--samples", "2"]
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, "-m", "verl_pivot.cli", *arguments, "--out", str(out)]
            process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_heed_interrupts)
            num_lines = random.randrange(6, 30)
            while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") < num_lines):
                time.sleep(0.01)
            process.send_signal(signum)
            assert process.wait(30) == exit_code, (tmp_path / "log").read_text()
        survived = read_lines(out)
        num_sent = len(sampled(server))
        CliRunner().invoke(app, [*arguments, "--out", str(out)], catch_exceptions=False)
        num_sent_in_all = len(sampled(server))
        CliRunner().invoke(app, [*arguments, "--out", str(uninterrupted)], catch_exceptions=False)

    assert 5 <= len(survived) < 40
    assert num_sent - len(survived) <= 4  # the requests in flight
    assert num_sent_in_all - num_sent == 40 - len(survived)
    assert out.read_bytes() == uninterrupted.read_bytes()
    assert list(read_profiles(out)) == [(f"t{9 - i}", index) for i in range(8) for index in range(5)]
    if signum == signal.SIGINT:
        said = (tmp_path / "log").read_text()
        assert "run the same command again to go on" in said
        assert "Traceback" not in said


def _heed_interrupts() -> None:
    """Let SIGINT end the process, since background jobs of a shell and their children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_lines(path: Path) -> list[str]:
    """Complete lines of a file after its first one."""
    return [line for line in path.read_text().splitlines(keepends=True)[1:] if line.endswith("\n")]


def test_a_missing_profile_is_refused_with_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl cannot be read: No such file.*verl-pivot profile"):
        read_profiles(tmp_path / "none.jsonl")


class JitteryEngine(ScriptedEngine):
    """Engine that answers each request after a random number of turns of the event loop."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(half_right)
        self._rng = rng

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, n: int) -> tuple[Completion, ...]:
        for _ in range(self._rng.randrange(9)):
            await asyncio.sleep(0)
        return await super().generate(prompt_ids, sampling, n)


def run_to_the_end(path: Path, trajectories: Sequence[Trajectory], engine: ScriptedEngine) -> bytes:
    asyncio.run(run(path, trajectories, engine))
    with open_profile(path, make_settings()) as writer:
        writer.put_in_order(TurnKey(turn.trajectory_id, turn.index) for each in trajectories for turn in turns(each))
    return path.read_bytes()


@settings(deadline=None, max_examples=30)
@given(st.randoms(use_true_random=False), st.lists(st.floats(0.0, 1.0), max_size=3))
def test_a_finished_profile_has_the_same_bytes_wherever_runs_were_cut(rng: random.Random, cuts: list[float]) -> None:
    trajectories = [make_trajectory(name, num_turns=4) for name in "badc"]
    with tempfile.TemporaryDirectory() as folder:
        whole = run_to_the_end(Path(folder) / "whole.jsonl", trajectories, ScriptedEngine(half_right))
        path = Path(folder) / "cut.jsonl"
        for cut in cuts:
            asyncio.run(run(path, trajectories, JitteryEngine(rng)))
            content = path.read_bytes()
            path.write_bytes(content[: int(cut * len(content))])
        assert run_to_the_end(path, trajectories, JitteryEngine(rng)) == whole

    keys = [json.loads(line)["trajectory_id"] for line in whole.splitlines()[1:]]
    assert keys == list("bbbbaaaaddddcccc")


def test_interrupted_sorting_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path, trajectories = tmp_path / "p.jsonl", [make_trajectory("b"), make_trajectory("a")]
    asyncio.run(run(path, list(reversed(trajectories))))
    before = path.read_bytes()

    def interrupted() -> Iterator[TurnKey]:
        yield TurnKey("b", 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_profile(path, make_settings()) as writer:
        writer.put_in_order(interrupted())
    assert path.read_bytes() == before
    (tmp_path / ".p.jsonl.ordered").write_text("what kill -9 left")

    run_to_the_end(path, trajectories, ScriptedEngine(half_right))

    assert list(read_profiles(path)) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.jsonl"]


def test_sorting_replaces_the_file_where_a_link_leads_and_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "large_disk").mkdir()
    target, link = tmp_path / "large_disk" / "p.jsonl", tmp_path / "profile.jsonl"
    link.symlink_to(target)
    with open_profile(link, make_settings()) as writer:
        writer.append(make_profile([1.0], index=1))
        writer.append(make_profile([1.0], index=0))
    with open_profile(link, make_settings()) as writer:
        writer.put_in_order([TurnKey("t", 0), TurnKey("t", 1)])

    assert link.readlink() == target
    assert list(read_profiles(target)) == [("t", 0), ("t", 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large_disk", "profile.jsonl"]


def test_lines_of_other_turns_come_after_those_of_the_input(tmp_path: Path) -> None:
    path, first, second = tmp_path / "p.jsonl", make_trajectory("b"), make_trajectory("a")
    asyncio.run(run(path, [second, first]))

    run_to_the_end(path, [first], ScriptedEngine(half_right))

    assert list(read_profiles(path)) == [("b", 0), ("b", 1), ("a", 1), ("a", 0)]


def test_a_file_that_was_replaced_by_sorting_can_be_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with open_profile(path, make_settings()) as writer:
        for name in "ab":
            writer.append(make_profile([1.0], name))
        writer.put_in_order([TurnKey("b", 0)])

        with open_profile(path, make_settings()) as other:
            assert ("b", 0) in other.done


turn_keys = st.tuples(st.text(max_size=3), st.integers(0, 3))


@given(st.lists(turn_keys), turn_keys)
def test_an_index_finds_the_first_line_of_each_turn(keys: list[tuple[str, int]], other: tuple[str, int]) -> None:
    index = LineIndex((key, 10 * number) for number, key in enumerate(keys))

    assert [index.line(key) for key in keys] == [keys.index(key) for key in keys]
    assert (other in index) == (other in keys)
    assert [index.offset(number) for number in range(len(index))] == [10 * number for number in range(len(keys))]
    assert index.first_repeat() == next((i for i, key in enumerate(keys) if key in keys[:i]), None)


def test_a_line_is_in_the_file_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    with open_profile(path, make_settings()) as writer:
        assert isinstance(writer, ProfileWriter)
        writer.append(make_profile([1.0]))

        assert list(read_profiles(path)) == [("t", 0)]
        assert os.path.getsize(path) == len(path.read_bytes())
