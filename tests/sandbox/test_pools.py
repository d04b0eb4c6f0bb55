"""Foreign pools: SandboxFusion's and code-judge's answers as Results, and our service as SandboxFusion's."""

import base64
import contextlib
import json
import random
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_backend import TOKEN, FakeBackend, serving
from tests.support.pool_servers import pool_server
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import KINDS, Kind, service
from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError, UnsupportedLanguageError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.code_judge import read_submission_answer
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.sandbox.pool_answers import PoolFailure
from verl_pivot.sandbox.pool_settings import PoolSettings, pool_of_environment
from verl_pivot.sandbox.sandbox_fusion import RunCodeBody, read_run_code_answer
from verl_pivot.sandbox.service.run_code import run_code_response
from verl_pivot.sandbox.wire import encode_line

PROGRAM = Program(code="x", fetch=("out.txt",))


def pool(protocol: str, *urls: str, **options: Any) -> PoolSettings:
    return PoolSettings(protocol=protocol, urls=urls, **options)


def ran(code: int | None, *, status: str = "Finished", **fields: Any) -> dict[str, Any]:
    """Answer of SandboxFusion to a program that was run."""
    result = {"status": status, "execution_time": 0.5, "return_code": code, "stdout": "", "stderr": "", **fields}
    return {"status": "Success" if code == 0 else "Failed", "message": "", "run_result": result, "files": {}}


def judged(**fields: Any) -> dict[str, Any]:
    """Answer of code-judge to one submission."""
    result = {"sub_id": "1", "success": True, "run_success": True, "cost": 0.25, "reason": "", "stdout": "", **fields}
    return {"sub_id": "0", "results": [{"stderr": "", **result}]}


def ending(result: Result) -> tuple[str, int | None, int | None]:
    return result.status.value, result.exit_code, result.signal


async def test_a_program_goes_to_sandbox_fusion_with_its_limits_and_files_and_comes_back_with_its_output() -> None:
    content = base64.b64encode(b"\x00made").decode()
    answer = {**ran(0, stdout="42\n", stderr="w"), "files": {"out.txt": content}, "executor_pod_name": "pod-3"}
    async with (
        pool_server(x=[(200, answer)]) as server,
        Sandbox(pool=pool("sandbox_fusion", server.url), token="secret of the pool") as sandbox,
    ):
        result = await sandbox.run(
            "x", language="javascript", stdin="in", files={"a": b"\xff"}, fetch=["out.txt", "gone"],
            limits=Limits(wall_seconds=3.0, memory_bytes=256 * MIB), compile_seconds=7.0,
        )  # fmt: skip

    assert server.bodies == [
        {
            "code": "x", "language": "nodejs", "stdin": "in", "run_timeout": 3.0, "compile_timeout": 7.0,
            "memory_limit_MB": 256, "files": {"a": "/w=="}, "fetch_files": ["out.txt", "gone"], "args": [],
        }
    ]  # fmt: skip
    assert server.authorizations == ["Bearer secret of the pool"]
    assert ending(result) == ("ok", 0, None)
    assert (result.stdout, result.stderr, result.files) == ("42\n", "w", {"out.txt": b"\x00made"})
    assert (list(result.file_errors), result.node, result.timing.wall_seconds) == (["gone"], "pod-3", 0.5)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ran(3), ("error", 3, None)),
        (ran(-11), ("signaled", None, 11)),
        (ran(None, status="TimeLimitExceeded"), ("timeout", None, None)),
        ({"status": "Failed", "compile_result": {"status": "Finished", "return_code": 1}}, ("compile_error", 1, None)),
        ({"status": "Failed", "compile_result": {"status": "TimeLimitExceeded"}}, ("compile_timeout", None, None)),
    ],
)
def test_each_end_of_sandbox_fusion_has_its_status(answer: Any, expected: tuple[str, int, int]) -> None:

    assert ending(read_run_code_answer(PROGRAM, json.dumps(answer).encode())) == expected


@pytest.mark.parametrize(
    "answer",
    [
        {**ran(0), "status": "SandboxError", "message": "no pod"},
        ran(None, status="Error"),
        {"status": "Failed", "compile_result": {"status": "Error"}},
        {"status": "Failed", "compile_result": {"status": "Finished"}},
        {"status": "Success"},
        ran(None),
        {"detail": "not found"},
    ],
)
def test_what_sandbox_fusion_got_wrong_is_no_result(answer: Any) -> None:

    with pytest.raises(PoolFailure):
        read_run_code_answer(PROGRAM, json.dumps(answer).encode())


KEYS = st.sampled_from(["status", "run_result", "results", "reason", "return_code"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(JSON)
def test_whatever_a_pool_answers_is_a_result_or_its_failure(value: Any) -> None:

    text = json.dumps(value).encode()
    for read in (
        lambda: read_run_code_answer(PROGRAM, text),
        lambda: read_submission_answer(PROGRAM, text, max_characters=1000),
    ):
        with contextlib.suppress(PoolFailure):
            assert isinstance(read(), Result)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stdout": "9\n"}, ("ok", 0, None)),
        ({"success": False, "run_success": False, "stderr": "Traceback"}, ("error", None, None)),
        ({"success": False, "run_success": None, "stderr": "of a server before run_success"}, ("error", None, None)),
        ({"success": False, "run_success": False, "reason": "worker_timeout"}, ("timeout", None, None)),
    ],
)
async def test_each_end_of_code_judge_has_its_status(
    fields: dict[str, Any], expected: tuple[str, int | None, None]
) -> None:
    async with (
        pool_server(x=[(200, judged(**fields))]) as server,
        Sandbox(pool=pool("code_judge", server.url)) as sandbox,
    ):
        result = await sandbox.run("x", language="cpp", stdin="9")

    assert server.bodies == [{"type": "batch", "submissions": [{"type": "cpp", "solution": "x", "input": "9"}]}]
    assert server.authorizations == [None]
    assert ending(result) == expected
    assert (result.stdout, result.stderr) == (fields.get("stdout", ""), fields.get("stderr", ""))


@pytest.mark.parametrize("reason", ["queue_timeout", "internal_error", "a reason of a later server"])
async def test_what_code_judge_got_wrong_is_tried_again_and_then_no_result(reason: str) -> None:
    failed = judged(success=False, run_success=False, reason=reason)
    async with (
        pool_server(late=[(200, failed), (200, judged(stdout="1"))], never=[(200, failed)]) as server,
        Sandbox(pool=pool("code_judge", server.url, retries=1)) as sandbox,
    ):
        assert (await sandbox.run("late")).stdout == "1"
        with pytest.raises(SandboxError, match=rf"the pool failed 2 times; .*could not run the program: {reason}"):
            await sandbox.run("never")


async def test_a_server_that_answers_500_or_is_gone_is_left_for_another() -> None:
    async with pool_server(x=[(500, "oops")]) as broken, pool_server(x=[(200, ran(0, stdout="1"))]) as whole:
        urls = (broken.url, whole.url, "http://127.0.0.1:1")
        async with Sandbox(pool=pool("sandbox_fusion", *urls), rng=random.Random(0)) as sandbox:
            results = await sandbox.run_many([Program(code="x")] * 20)

    assert [result.stdout for result in results] == ["1"] * 20
    assert len(whole.bodies) == 20


@pytest.mark.parametrize("status", [401, 404, 422])
async def test_a_pool_that_refuses_is_not_asked_again_and_its_refusal_is_no_result(status: int) -> None:
    async with (
        pool_server(x=[(status, {"detail": "no"})]) as server,
        Sandbox(pool=pool("sandbox_fusion", server.url)) as sandbox,
    ):
        with pytest.raises(SandboxError, match=rf"refused the request with {status}: .*token"):
            await sandbox.run("x")

    assert len(server.bodies) == 1


async def test_a_pool_that_does_not_answer_in_time_is_no_result() -> None:
    async with (
        pool_server(x=[(503, "busy")]) as server,
        Sandbox(pool=pool("sandbox_fusion", server.url, retries=100)) as sandbox,
    ):
        with pytest.raises(SandboxError, match=r"before the deadline; the latest: .*503"):
            await sandbox.run("x", deadline_seconds=0.4)


async def test_what_a_protocol_cannot_express_is_the_callers_error() -> None:
    async with Sandbox(pool=pool("code_judge", "http://127.0.0.1:1")) as judge:
        for options in ({"files": {"a": b""}}, {"environment": {"A": "1"}}, {"folder": "a"}):
            with pytest.raises(SandboxRequestError, match="no files, arguments, environment variables or folder"):
                await judge.run("x", **options)
        with pytest.raises(UnsupportedLanguageError, match="not support language 'bash': use python or cpp"):
            await judge.run("x", language="bash")
        with pytest.raises(SandboxRequestError, match="code_judge pools do not support sessions"):
            await judge.open()
    async with Sandbox(pool=pool("sandbox_fusion", "http://127.0.0.1:1")) as fusion:
        for option in ({"environment": {"A": "1"}}, {"folder": "a"}):
            with pytest.raises(SandboxRequestError, match="neither environment variables nor a folder to start in"):
                await fusion.run("x", **option)
        with pytest.raises(UnsupportedLanguageError, match="SandboxFusion does not support language 'c'"):
            await fusion.run("x", language="c")


async def test_an_output_as_long_as_code_judge_keeps_counts_as_cut() -> None:
    async with (
        pool_server(x=[(200, judged(stdout="a" * 1000))], y=[(200, judged(stdout="a" * 999))]) as server,
        Sandbox(pool=pool("code_judge", server.url)) as sandbox,
    ):
        long, short = await sandbox.run_many([Program(code="x"), Program(code="y")])

    assert (long.stdout_truncated, short.stdout_truncated) == (True, False)


def test_the_settings_of_a_pool_are_one_line_of_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PIVOT_SANDBOX_POOL", "{protocol: sandbox_fusion, urls: [http://a:8080], parallel: 8}")
    assert pool_of_environment() == pool("sandbox_fusion", "http://a:8080", parallel=8)

    monkeypatch.setenv("VERL_PIVOT_SANDBOX_POOL", "{protocol: sandbox_fusion, urls: [http://a:8080], paralel: 8}")
    with pytest.raises(ConfigError, match=r"VERL_PIVOT_SANDBOX_POOL.paralel: unknown key; known: max_output_char"):
        pool_of_environment()

    monkeypatch.setenv("VERL_PIVOT_SANDBOX_POOL", "http://a:8080")
    with pytest.raises(ConfigError, match="must be a mapping such as"):
        pool_of_environment()

    monkeypatch.setenv("VERL_PIVOT_SANDBOX_URLS", "http://b:8650")
    with pytest.raises(ConfigError, match="are both set"):
        pool_of_environment()


async def post(url: str, token: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and answer of /run_code; the token stands in the URL, where users of SandboxFusion's client put it."""
    address = url.replace("http://", f"http://any:{token}@")
    async with aiohttp.ClientSession() as session, session.post(f"{address}/run_code", json=body) as answer:
        return answer.status, await answer.json()


async def test_our_service_answers_run_code_in_sandbox_fusions_words() -> None:
    async with serving(FakeBackend(), node="node-7") as ours:
        ok = await post(ours.url, TOKEN, code="print 42", language="python")
        failed = await post(ours.url, TOKEN, code="exit 3", language="python")
        broken = await post(ours.url, TOKEN, code="break", language="python")
        unknown = await post(ours.url, TOKEN, code="klingon", language="klingon")
        refused = await post(ours.url, TOKEN, code="print 1", language="python", run_timeout=-1)
        endless = await post(ours.url, TOKEN, code="print 1", language="python", compile_timeout=0)
        stranger = await post(ours.url, "another token", code="print 42", language="python")

    command = {"status": "Finished", "execution_time": 0.001, "return_code": 0, "stdout": "42", "stderr": ""}
    assert ok == (
        200,
        {
            "status": "Success", "message": "", "compile_result": None, "run_result": command,
            "executor_pod_name": "node-7", "files": {},
        },
    )  # fmt: skip
    assert (failed[1]["status"], failed[1]["run_result"]["return_code"]) == ("Failed", 3)
    assert (broken[0], broken[1]["status"], broken[1]["run_result"]) == (200, "SandboxError", None)
    assert broken[1]["message"] == "sandbox_error: the lane died"
    assert unknown == (422, {"detail": "language 'klingon' is not known"})
    assert refused == (422, {"detail": "limits.wall_seconds must be from 0.01 to 600.0, got -1.0"})
    assert endless == (422, {"detail": "compile_seconds must be from 0.01 to 600.0, got 0.0"})
    assert stranger[0] == 401


async def test_a_full_service_answers_run_code_with_504_so_that_clients_come_again() -> None:
    async with serving(FakeBackend(num_slots=1), drain_seconds=0.0) as ours:
        ours._executions._draining = True
        status, answer = await post(ours.url, TOKEN, code="print 1", language="python")

    assert (status, answer["status"]) == (504, "SandboxError")


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.COMPILE_TIMEOUT])
def test_a_program_that_had_no_core_is_no_answer_of_run_code_but_asks_clients_to_come_again(status: Status) -> None:
    body = RunCodeBody(code="while True: pass", language="python")

    answers = [
        run_code_response(body, encode_line("1", Result(status=status, had_no_core=had_no_core)))
        for had_no_core in (True, False)
    ]

    assert [answer.status for answer in answers] == [504, 200]
    assert [json.loads(answer.body)["status"] for answer in answers] == ["SandboxError", "Failed"]


PROGRAMS = (
    Program(code="print(input())", stdin="42"),
    Program(code="import sys; sys.exit(3)"),
    Program(code="import os; os.kill(os.getpid(), 9)"),
    Program(code="1/0"),
    Program(code="while True: pass", limits=Limits(wall_seconds=0.5)),
    Program(
        code="print(open('a/in.txt').read()); open('out.txt', 'w').write('x')",
        files={"a/in.txt": b"deep"},
        fetch=("out.txt", "no"),
    ),
    Program(code="echo $0 $1", language="bash"),
    Program(code="int main() { return 5; }", language="cpp"),
    Program(code="int main() { return }", language="cpp"),
)


@pytest.mark.heavy
@needs_sandbox
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Kind.BY_ROOT])
async def test_programs_end_alike_by_our_protocol_and_by_sandbox_fusions(kind: Kind) -> None:
    ours = service(kind)
    async with ours.client() as native, Sandbox(pool=pool("sandbox_fusion", ours.url), token=ours.token) as fusion:
        expected = await native.run_many(PROGRAMS)
        found = await fusion.run_many(PROGRAMS)

    assert [ending(result) for result in found] == [ending(result) for result in expected]
    assert [result.stdout for result in found] == [result.stdout for result in expected]
    assert [result.files for result in found] == [result.files for result in expected]
    assert [bool(result.compile_output) for result in found] == [bool(result.compile_output) for result in expected]


@needs_sandbox
async def test_a_compiler_gets_the_time_that_its_program_asks_for() -> None:
    endless = "template<int N> struct A { enum { v = A<N-1>::v + A<N-2>::v + sizeof(A<N>) }; }; " + "".join(
        f"struct B{i} {{ int a[{i + 1}]; }}; " for i in range(40_000)
    )
    program = Program(code=endless + "int main() {}", language="cpp", compile_seconds=0.05)
    async with service().client() as native:
        (result,) = await native.run_many([program])

    assert result.status == "compile_timeout"
