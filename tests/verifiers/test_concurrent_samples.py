"""Eight samples of one row that are scored at once: the expert's action is run once, and failures are not kept."""

import asyncio
import json
from collections.abc import Iterable

import pytest

from tests.support.factories import make_turn
from tests.support.fake_judge import FakeJudge, judging
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.types import Json, JsonObject, Message, Role, Verdict
from verl_pivot.verifiers import sandboxed
from verl_pivot.verifiers.registry import get_verifier

NUM_SAMPLES = 8
SQL: JsonObject = {"scripts": ["CREATE TABLE t (n); INSERT INTO t VALUES (1)"]}
SHELL: JsonObject = {"mode": "execution"}


class FakeSandbox:
    """Sandbox that runs nothing: a command prints its own text, and every query finds one row."""

    def __init__(self) -> None:
        self.num_programs = 0
        self.num_failures = 0
        """Executions that fail before one succeeds."""

    async def run_many(self, programs: Iterable[Program], *, deadline_seconds: float) -> list[Result]:
        results = [_result(program) for program in programs]
        self.num_programs += len(results)
        is_failure, self.num_failures = self.num_failures > 0, max(self.num_failures - 1, 0)
        await asyncio.sleep(0.01)
        if is_failure:
            raise SandboxError("no node answers")
        return results

    async def shared(self) -> "FakeSandbox":
        """Replacement of `shared_sandbox`."""
        return self


def _result(program: Program) -> Result:
    if program.language == "bash":
        return Result(status=Status.OK, stdout=program.files["command.sh"].decode())
    num_databases = 1 + json.loads(program.files["plan.json"])["num_perturbed"]
    return Result(status=Status.OK, files={"answers.json": json.dumps([{"rows": [[1]]}] * num_databases).encode()})


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> FakeSandbox:
    fake = FakeSandbox()
    monkeypatch.setattr(sandboxed, "shared_sandbox", fake.shared)
    return fake


def block(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"```\n{text}\n```")


async def score_samples(name: str, options: JsonObject, expert: Message, samples: list[Message]) -> list[Verdict]:
    verifier = get_verifier(name, options)
    return await asyncio.gather(*(verifier(sample, make_turn(expert=expert)) for sample in samples))


@pytest.mark.parametrize(
    ("name", "options", "expert", "num_programs"),
    [
        ("sql", SQL, "SELECT n FROM t WHERE n = 1", 1 + NUM_SAMPLES),
        ("shell", SHELL, "make first", 2 + NUM_SAMPLES),  # an idle command is run beside the expert's
    ],
)
async def test_the_experts_program_is_run_once_for_all_samples_of_a_row(
    name: str, options: JsonObject, expert: str, num_programs: int, sandbox: FakeSandbox
) -> None:
    verdicts = await score_samples(name, options, block(expert), [block(expert)] * NUM_SAMPLES)

    assert [verdict.score for verdict in verdicts] == [1.0] * NUM_SAMPLES
    assert sandbox.num_programs == num_programs

    await score_samples(name, options, block(expert), [block(expert)])
    assert sandbox.num_programs == num_programs + 1


@pytest.mark.parametrize(
    ("name", "options", "expert", "num_programs_of_expert"),
    [("sql", SQL, "SELECT n FROM t WHERE n = 2", 1), ("shell", SHELL, "make second", 2)],
)
async def test_a_failure_of_the_sandbox_is_not_kept(
    name: str, options: JsonObject, expert: str, num_programs_of_expert: int, sandbox: FakeSandbox
) -> None:
    sandbox.num_failures = 1
    failed = await score_samples(name, options, block(expert), [block(expert)] * NUM_SAMPLES)

    assert {(verdict.score, verdict.reason) for verdict in failed} == {(None, "sandbox_failed")}
    assert sandbox.num_programs == num_programs_of_expert

    verdicts = await score_samples(name, options, block(expert), [block(expert)] * NUM_SAMPLES)
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert sandbox.num_programs == 2 * num_programs_of_expert + NUM_SAMPLES


def judge_options(judge: FakeJudge, **options: Json) -> JsonObject:
    return {"base_url": judge.url, "model": "j", "api_key_variable": "JUDGE_KEY", **options}


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "none")


@pytest.mark.usefixtures("key")
async def test_equal_samples_are_judged_once_in_both_orders() -> None:
    async with judging() as judge:
        options, expert = judge_options(judge), say("On its way.")
        equal = await score_samples("judge", options, expert, [say("ON its way.")] * NUM_SAMPLES)
        num_requests = len(judge.requests)
        different = await score_samples("judge", options, expert, [say(f"ON {n}.") for n in range(NUM_SAMPLES)])

    assert [verdict.score for verdict in equal] == [1.0] * NUM_SAMPLES
    assert num_requests == 2
    assert [verdict.score for verdict in different] == [0.0] * NUM_SAMPLES
    assert len(judge.requests) == 2 + 2 * NUM_SAMPLES


@pytest.mark.usefixtures("key")
async def test_a_failure_of_the_judge_is_not_kept() -> None:
    async with judging() as judge:
        options, samples = judge_options(judge, max_retries=0, max_concurrency=1), [say("ON its way.")] * NUM_SAMPLES
        judge.failures = [400, 400]
        failed = await score_samples("judge", options, say("On its way."), samples)
        verdicts = await score_samples("judge", options, say("On its way."), samples)

    assert {(verdict.score, verdict.reason) for verdict in failed} == {(None, "judge_failed")}
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert len(judge.requests) == 2 + 2
