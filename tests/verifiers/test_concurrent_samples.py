"""Eight samples of one row that are scored at once: the expert's action is run once, and failures are not kept."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.factories import make_turn
from tests.support.fake_judge import FakeJudge, judging
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.execution import Program, Result
from verl_pivot.types import Json, JsonObject, Message, Role, Verdict
from verl_pivot.verifiers import sandboxed
from verl_pivot.verifiers.registry import get_verifier

NUM_SAMPLES = 8
SQL: JsonObject = {"scripts": ["CREATE TABLE t (n); INSERT INTO t VALUES (1)"]}
SHELL: JsonObject = {"mode": "execution"}


class CountingSandbox:
    """The real sandbox, with the number of programs that it was given; its next calls may fail."""

    def __init__(self) -> None:
        self._sandbox = sandboxed.shared_sandbox
        self.num_programs = 0
        self.num_failures = 0
        """Number of calls that fail before one is answered."""

    async def run_many(self, programs: Sequence[Program], *, deadline_seconds: float) -> list[Result]:
        self.num_programs += len(programs)
        if self.num_failures > 0:
            self.num_failures -= 1
            await asyncio.sleep(0.01)
            raise SandboxError("no node answers")
        return await (await self._sandbox()).run_many(programs, deadline_seconds=deadline_seconds)

    async def shared(self) -> "CountingSandbox":
        """Replacement of `shared_sandbox`."""
        return self


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> CountingSandbox:
    use_service(monkeypatch)
    counting = CountingSandbox()
    monkeypatch.setattr(sandboxed, "shared_sandbox", counting.shared)
    return counting


def block(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"```\n{text}\n```")


async def score_samples(name: str, options: JsonObject, expert: Message, samples: list[Message]) -> list[Verdict]:
    verifier = get_verifier(name, options)
    return await asyncio.gather(*(verifier(sample, make_turn(expert=expert)) for sample in samples))


@needs_sandbox
@pytest.mark.parametrize(
    ("name", "options", "expert", "sample"),
    [
        ("sql", SQL, "SELECT n FROM t WHERE n = 1", "SELECT n FROM t WHERE 1 = n"),
        ("shell", SHELL, "echo first > out", "printf 'first\\n' > out"),
    ],
)
async def test_the_experts_program_is_run_once_for_all_samples_of_a_row(
    name: str, options: JsonObject, expert: str, sample: str, sandbox: CountingSandbox
) -> None:
    verdicts = await score_samples(name, options, block(expert), [block(sample)] * NUM_SAMPLES)

    assert [verdict.score for verdict in verdicts] == [1.0] * NUM_SAMPLES
    assert sandbox.num_programs == 1 + NUM_SAMPLES

    await score_samples(name, options, block(expert), [block(sample)])
    assert sandbox.num_programs == 1 + NUM_SAMPLES + 1


@needs_sandbox
@pytest.mark.parametrize(
    ("name", "options", "expert", "sample"),
    [
        ("sql", SQL, "SELECT n + 1 FROM t", "SELECT 1 + n FROM t"),
        ("shell", SHELL, "echo second > out", "printf 'second\\n' > out"),
    ],
)
async def test_a_failure_of_the_sandbox_is_not_kept(
    name: str, options: JsonObject, expert: str, sample: str, sandbox: CountingSandbox
) -> None:
    sandbox.num_failures = 1
    failed = await score_samples(name, options, block(expert), [block(sample)] * NUM_SAMPLES)

    assert {(verdict.score, verdict.reason) for verdict in failed} == {(None, "sandbox_failed")}
    assert sandbox.num_programs == 1

    verdicts = await score_samples(name, options, block(expert), [block(sample)] * NUM_SAMPLES)
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert sandbox.num_programs == 2 + NUM_SAMPLES


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
        judge.failures = [503] * 4  # both questions about the action, and the control questions, unless one is ended
        failed = await score_samples("judge", options, say("On its way."), samples)
        judge.failures, num_failed = [], len(judge.requests)
        verdicts = await score_samples("judge", options, say("On its way."), samples)

    assert {(verdict.score, verdict.reason) for verdict in failed} == {(None, "judge_failed")}
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert 2 <= num_failed <= 4
    assert len(judge.requests) == num_failed + 2
