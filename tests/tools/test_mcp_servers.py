"""Real MCP servers of a tools file, honest and hostile, over both transports: outcomes, sessions, what they leave."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.chat_server import chat_server, said
from tests.support.launching import cli
from tests.support.paths import ROOT
from tests.support.processes import descendants
from verl_pivot.errors import ConfigError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.mcp_connection import _session_folder
from verl_pivot.tools.mcp_session import McpSession
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import ErrorKind, Json, JsonObject, ToolCall

pytestmark = pytest.mark.heavy  # each test starts processes
SHOP = str(ROOT / "tests/support/mcp_shop.py")
HOSTILE = str(ROOT / "tests/support/mcp_hostile.py")


def toolset(*entries: JsonObject) -> Toolset:
    made = Toolset("tools.yaml")
    for entry in entries:
        made.add_entry(entry)
    return made


def shop(**options: Json) -> JsonObject:
    return {"mcp": {"command": [sys.executable, SHOP]}, **options}


def hostile(kind: str, *words: str, **options: Json) -> JsonObject:
    return {"mcp": {"command": [sys.executable, HOSTILE, kind, *words]}, **options}


async def ask(tools: RolloutTools, name: str, **arguments: Json) -> CallOutcome:
    (outcome,) = await tools.toolbox.run([ToolCall(name=name, arguments=arguments)])
    return outcome


async def told(tools: RolloutTools, name: str, **arguments: Json) -> str:
    outcome = await ask(tools, name, **arguments)
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


async def once(entry: JsonObject, name: str = "t", **arguments: Json) -> CallOutcome:
    async with toolset(entry).open({}) as tools:
        return await ask(tools, name, **arguments)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    files = len(os.listdir("/proc/self/fd"))
    yield
    deadline = time.monotonic() + 5.0
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert len(os.listdir("/proc/self/fd")) <= files + 2, "files or sockets are left"


def processes() -> list[str]:
    """Command lines of servers that run on stdin and stdout, and of processes that a hostile server started."""
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [
        line for line in lines if (SHOP in line and "--http" not in line) or HOSTILE in line or "sleep 61.27" in line
    ]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from serving()


@pytest.fixture(scope="module")
def stateless_url() -> Iterator[str]:
    yield from serving("--stateless")


def serving(*options: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, SHOP, "--http", str(port), *options], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    server.kill()
    server.wait()


async def test_a_trajectory_has_a_process_of_its_own_whose_mistakes_the_policy_reads() -> None:
    made = toolset(shop(max_characters=100))
    async with made.open({}) as first, made.open({}) as second:
        assert await told(first, "order", item="tea", amount=2) == "1"
        assert await told(second, "left", item="tea") == "3"
        assert await told(first, "look_at") == "[image image/png, not shown]"
        assert (
            await told(first, "long", characters=1000) == "x" * 50 + "\n... [900 characters left out] ...\n" + "x" * 50
        )
        refused = await ask(first, "order", item="gold")
        wrong = await ask(first, "order", item="tea", amount=0)

    assert refused.observation is not None
    assert refused.observation.error is ErrorKind.REFUSED
    assert "there is no gold left" in refused.observation.text
    assert wrong.observation is not None
    assert wrong.observation.error is ErrorKind.INVALID_ARGUMENT


async def test_the_schema_of_a_tools_results_is_compiled_once_for_all_sessions() -> None:
    made = toolset(hostile("typed"))
    validators = made.servers[0]._output_validators
    compiled: list[object] = []
    for _ in range(2):
        async with made.open({}) as tools:
            assert await told(tools, "t") == "done"
        compiled += validators.values()
    async with toolset(hostile("lies")).open({}) as tools:
        failure = (await ask(tools, "t")).failure

    assert len(compiled) == 2
    assert compiled[0] is compiled[1]
    assert "broke the protocol: RuntimeError: Invalid structured content returned by tool t" in failure


async def test_a_process_gets_the_named_variables_and_a_copy_of_a_folder_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOP_KEY", "secret")
    monkeypatch.setenv("OTHER_KEY", "secret")
    (tmp_path / "price").write_text("7")

    outcome = await once(hostile("shows", "{folder}", variables=["SHOP_KEY"], folder_from=str(tmp_path)))

    assert outcome.observation is not None
    assert outcome.observation.text == "{'SHOP_KEY': 'secret'} ['price']"


async def test_a_folder_that_a_server_made_too_deep_for_python_is_removed() -> None:
    async with _session_folder(None) as folder:
        await (await asyncio.create_subprocess_exec("mkdir", "-p", "/".join([folder, *"a" * 1200]))).wait()

    assert not await asyncio.to_thread(os.path.exists, folder)


async def test_a_folder_is_removed_where_its_session_is_given_up_while_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling does not stop the thread that copies, and that makes folders again which were removed under it."""
    origin, sessions = tmp_path / "origin", tmp_path / "sessions"
    sessions.mkdir()
    for number in range(20):
        (origin / str(number)).mkdir(parents=True)
        (origin / str(number) / "file").write_text("x")

    def slow(source: str, target: str) -> None:
        time.sleep(0.2)
        shutil.copyfile(source, target)

    monkeypatch.setattr(shutil, "copy2", slow)
    monkeypatch.setattr(tempfile, "tempdir", str(sessions))
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), _session_folder(origin):
            pass
    seconds = time.monotonic() - began
    await asyncio.sleep(0.5)

    assert os.listdir(sessions) == []
    assert seconds < 2.0


async def test_a_server_that_dies_masks_the_trajectory_and_another_trajectory_goes_on() -> None:
    made = toolset(shop())
    async with made.open({}) as tools:
        died = await ask(tools, "die")
        after = await ask(tools, "left", item="tea")
    async with made.open({}) as tools:
        assert await told(tools, "left", item="tea") == "3"

    assert died.failure.endswith("its process ended with exit code 3; its stderr ends with 'the shop burns'")
    assert after.failure.endswith("ended, and what the trajectory had changed there is lost")


async def test_a_call_that_changes_nothing_is_made_again_by_a_new_server(tmp_path: Path) -> None:
    made = toolset(shop(sandbox=False))  # the server leaves a marker in a folder of the machine
    async with made.open({}) as tools:
        assert await told(tools, "die_once", marker=str(tmp_path / "first")) == "alive"
        await told(tools, "order", item="tea")
        lost = await ask(tools, "die_once", marker=str(tmp_path / "second"))

    assert lost.failure.endswith("its process ended with exit code 3")


async def test_a_server_killed_in_a_shared_session_is_replaced_and_its_readers_are_answered() -> None:
    made = toolset(shop(session="shared"))
    async with made.open({}) as first, made.open({}) as second:
        pid = int((await told(first, "who")).split()[0])
        waiting = [asyncio.create_task(told(tools, "wait", seconds=0.5)) for tools in (first, second)]
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*waiting) == ["waited", "waited"]
        assert await told(first, "left", item="tea") == "3"
    await close_shared(made)


async def close_shared(made: Toolset) -> None:
    for server in made.servers:
        await (await server._of_loop.get()).shared.close()


async def test_calls_of_a_shared_session_run_at_once_or_one_after_the_other() -> None:
    seconds = {}
    for max_calls in (8, 1):
        made = toolset(shop(session="shared", max_calls=max_calls))
        async with made.open({}) as tools:
            await told(tools, "left", item="tea")
            began = time.monotonic()
            await asyncio.gather(*(told(tools, "wait", seconds=0.3) for _ in range(4)))
            seconds[max_calls] = time.monotonic() - began
        await close_shared(made)

    assert seconds[8] < 1.1
    assert seconds[1] >= 1.2


async def test_a_timeout_masks_or_is_told_as_the_entry_says() -> None:
    masked = await once(hostile("hangs", timeout_seconds=0.3))
    seen = await once(hostile("hangs", timeout_seconds=0.3, on_timeout="tell_policy"))

    assert masked.failure.endswith("did not answer within 0.3 s")
    assert seen.observation is not None
    assert seen.observation.error is ErrorKind.TIME_LIMIT


async def test_trajectories_over_max_sessions_wait_for_their_turn() -> None:
    made = toolset(hostile("prints", max_sessions=1))
    order: list[str] = []

    async def play(name: str) -> None:
        async with made.open({}) as tools:
            order.append(f"{name} begins")
            await told(tools, "t")
            order.append(f"{name} ends")

    await asyncio.gather(play("a"), play("b"))

    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def sessions_ahead(made: Toolset) -> list[McpSession]:
    """Sessions started ahead of trajectories, once all of them are ready."""
    (server,) = made.servers
    ahead = (await server._of_loop.get()).ahead
    assert ahead._filling is not None
    await ahead._filling
    return list(ahead._waiting)


async def test_processes_are_started_ahead_and_each_is_handed_out_once() -> None:
    made = toolset(shop(started_ahead=2))
    (server,) = made.servers
    async with made.open({}):
        pass
    first = await sessions_ahead(made)
    for _ in range(2):
        async with made.open({}) as tools:
            assert await told(tools, "order", item="tea") == "2"

    assert [session.is_retired for session in first] == [True, True]
    assert [session.is_retired for session in await sessions_ahead(made)] == [False, False]
    await (await server._of_loop.get()).ahead.close()


async def test_a_process_that_ended_while_it_waited_is_not_handed_out() -> None:
    made = toolset(shop(started_ahead=1))
    async with made.open({}):
        pass
    (waiting,) = await sessions_ahead(made)
    waiting.retire()
    await asyncio.wait({waiting._task})
    async with made.open({}) as tools:
        assert await told(tools, "left", item="tea") == "3"
    await (await made.servers[0]._of_loop.get()).ahead.close()


async def test_a_server_that_starts_no_more_is_not_started_ahead_again_and_again(tmp_path: Path) -> None:
    made = toolset(hostile("changes", str(tmp_path / "marker"), sandbox=False, started_ahead=8))
    async with made.open({}) as tools:
        assert "its tools have changed since" in (await ask(tools, "t")).failure

    assert len(await sessions_ahead(made)) <= 1


async def test_a_cancelled_trajectory_leaves_no_process() -> None:
    made = toolset(hostile("hangs"))

    async def play() -> None:
        async with made.open({}) as tools:
            await told(tools, "t")

    playing = asyncio.create_task(play())
    await asyncio.sleep(0.3)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    # The fixture `_nothing_is_left` checks that no process is left.


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("floods", "it printed a line of more than 1048576 bytes"),
        ("notifies", "it printed more than 1048576 bytes without an answer"),
        ("garbage", "it printed more than 1000 lines on stdout that are not messages"),
        ("hangs", "did not answer within 3 s"),
        ("wrong_result", "broke the protocol: ValidationError: 1 validation error for CallToolResult"),
        ("closes", "did not answer within 3 s"),
        ("errs", "disk full (code -32603)"),
    ],
)
async def test_a_hostile_server_is_a_failure_of_the_system(kind: str, failure: str) -> None:
    outcome = await once(hostile(kind, timeout_seconds=3.0, max_message_mib=1))

    assert outcome.observation is None
    assert failure in outcome.failure


@pytest.mark.parametrize(("kind", "text"), [("prints", "done"), ("forges", "done"), ("asks", "refused with -32600")])
async def test_a_careless_server_is_answered_all_the_same(kind: str, text: str) -> None:
    outcome = await once(hostile(kind))

    assert outcome.observation is not None
    assert outcome.observation.text == text


async def test_a_server_without_a_sandbox_that_closes_its_output_is_noticed_at_once() -> None:
    outcome = await once(hostile("closes", sandbox=False))

    assert outcome.failure.endswith("Connection closed (code -32000); its process ended with exit code -15")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private file of the machine; a variable tells the server its path."""
    path = tmp_path / "private" / "key"
    path.parent.mkdir()
    path.write_text("secret")
    monkeypatch.setenv("FILE", str(path))
    return path


async def escaped(folder: str = "{folder}", **options: Json) -> JsonObject:
    """Results of a server's attempts to leave its sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        outcome = await once(hostile("escapes", port, folder, variables=["FILE"], **options))
    assert outcome.observation is not None, outcome.failure
    got: JsonObject = json.loads(outcome.observation.text)
    return got


async def test_a_server_reads_and_writes_its_own_folder_alone_and_has_no_network(file: Path) -> None:
    got = await escaped()

    assert got == {
        "read": "FileNotFoundError",
        "write": "FileNotFoundError",
        "create": "FileNotFoundError",
        "connect": "ConnectionRefusedError",
        "processes": False,
        "own": None,
        "tmp": None,
    }
    assert "own" not in os.listdir("/tmp")


async def test_a_server_reads_what_show_names_and_has_the_network_where_the_file_says_so(file: Path) -> None:
    got = await escaped(show=[str(file.parent)], network=True)

    assert got["read"] == "secret"
    assert [got[name] for name in ("write", "create", "connect")] == [
        "OSError",
        "OSError",
        None,
    ]  # a read-only file system


async def test_a_server_without_a_sandbox_has_the_rights_of_the_worker(file: Path) -> None:
    got = await escaped(folder=str(file.parent), sandbox=False)

    assert [got[name] for name in ("read", "write", "create", "processes")] == ["secret", None, None, True]
    os.unlink("/tmp/own")


async def test_what_a_server_leaves_ends_with_its_sandbox() -> None:
    outcome = await once(hostile("leaves"))

    assert outcome.observation is not None
    # The fixture `_nothing_is_left` checks that no process is left.


async def test_arguments_that_the_server_refuses_are_the_policys_mistake() -> None:
    outcome = await once(hostile("refuses"))

    assert outcome.observation is not None
    assert outcome.observation.error is ErrorKind.INVALID_ARGUMENT
    assert "x must be even" in outcome.observation.text


async def test_a_server_that_offers_other_tools_later_masks(tmp_path: Path) -> None:
    outcome = await once(hostile("changes", str(tmp_path / "marker"), sandbox=False))

    assert "its tools have changed since they were listed at the launch, but the prompt must" in outcome.failure


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            hostile("dead"),
            "its process ended with exit code 1; its stderr ends with 'no key for the shop'; in its sandbox",
        ),
        (hostile("mute", start_seconds=0.5), "it was not ready within 0.5 s (start_seconds)"),
        (hostile("none"), "it offers no tools"),
        (hostile("many"), "it offers 500 tools"),
        (hostile("illegal"), "are both called 'a_b' here"),
        (hostile("no_schema"), "its tool 't' has a schema that cannot be used"),
        (shop(only=["gone"]), "`only` names 'gone', which it does not offer; it offers order, left"),
        (shop(variables=["NOT_SET"]), "the environment variable NOT_SET is not set"),
        ({"mcp": {"command": ["no-such-program"]}}, "the program 'no-such-program' was not found"),
        ({"mcp": {"url": "http://127.0.0.1:9/mcp"}}, "All connection attempts failed"),
        ({"mcp": {}}, "give either `command: [program, argument, ...]` or `url: https://host/mcp`"),
        (shop(headers={"A": "B"}), "headers do nothing for a server that is started by `command`"),
        (shop(session="shared", started_ahead=2), "started_ahead does nothing with `session: shared`"),
        (shop(session="shared", max_sessions=2), "max_sessions does nothing with `session: shared`"),
        (shop(sandbox=False, network=True), "network does nothing with `sandbox: false`"),
        (shop(show=["gone"]), "show: gone does not exist"),
        (shop(show=["/tmp"]), "the sandbox has its own /tmp; show folders below it"),
        ({"mcp": {"url": "http://127.0.0.1:9/mcp"}, "sandbox": False}, "sandbox does nothing for a server at a url"),
        (shop(folder_from="."), "folder_from does nothing without {folder} in `command`"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_a_server_that_cannot_be_used_stops_the_launch(entry: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toolset(entry)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tools_of_one_name_are_refused_and_a_prefix_is_the_remedy() -> None:
    made = toolset(hostile("prints"), hostile("forges", prefix="my_"))
    assert [server.offered[0].name for server in made.servers] == ["t", "t"]

    with pytest.raises(ConfigError, match=r"another tool is called 't', too; write `prefix: \.\.\.`"):
        made.add_entry(hostile("asks"))


async def test_trajectories_have_http_sessions_of_their_own_and_stateless_servers_are_shared(
    url: str, stateless_url: str
) -> None:
    made = toolset({"mcp": {"url": url}, "max_message_mib": 1})
    async with made.open({}) as tools:
        assert await told(tools, "left", item="coffee") == "0"
        long = await ask(tools, "long", characters=3_000_000)
    async with toolset({"mcp": {"url": stateless_url}, "session": "shared"}).open({}) as tools:
        assert await told(tools, "left", item="coffee") == "0"
    with pytest.raises(ConfigError, match="opened no HTTP session for this trajectory; write `session: shared`"):
        toolset({"mcp": {"url": stateless_url}})

    assert "it answered with more than 1048576 bytes" in long.failure


@pytest.mark.parametrize(
    ("number", "failure"),
    [(signal.SIGKILL, "failed: "), (signal.SIGSTOP, "did not answer within 1 s")],
    ids=["killed", "stopped"],
)
async def test_a_server_at_an_address_that_dies_or_stops_in_a_call_masks(number: signal.Signals, failure: str) -> None:
    serving_one = serving()
    made = toolset({"mcp": {"url": next(serving_one)}, "timeout_seconds": 1.0, "start_seconds": 2.0})
    pid = max(each.pid for each in descendants("--http"))
    async with asyncio.timeout(20), made.open({}) as tools:
        await told(tools, "order", item="tea")
        waiting = asyncio.create_task(ask(tools, "wait", seconds=30))
        await asyncio.sleep(0.2)
        os.kill(pid, number)
        outcome = await waiting
    assert next(serving_one, None) is None

    assert outcome.observation is None
    assert failure in outcome.failure


def test_the_command_lists_tools_and_names_every_server_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(
        f"- tool: python_code_with_standard_io\n- mcp: {{command: [{sys.executable}, {SHOP}]}}\n"
        "- mcp: {command: [no-such-program]}\n"
    )

    done = cli("mcp", "list", str(path))

    assert done.returncode == 1
    assert "8 tools, session: trajectory" in done.stdout
    assert "  order(item: string, amount: integer = ...)\n" in done.stdout
    assert "  left(item: string)  (failed calls are retried)\n      How many are left.\n" in done.stdout
    assert f"{path}, entry 2: MCP server no-such-program: the program 'no-such-program' was not found" in done.stderr


def test_a_model_plays_with_the_tools_of_a_server(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(f"- mcp: {{command: [{sys.executable}, {SHOP}]}}\n")
    answers = (said(None, ("order", {"item": "tea", "amount": 2})), said("Done."))

    with chat_server(answers) as server:
        done = cli("play", str(path), "--openai", server.url, "--prompt", "Two packs of tea.")

    assert "tool order: 1\n" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr


def test_frozen_tools_stop_a_launch_whose_server_offers_others(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(
        f"- mcp: {{command: [{sys.executable}, {HOSTILE}, changes, {tmp_path}/marker]}}\n  sandbox: false\n"
    )

    frozen = cli("mcp", "freeze", str(path))
    listed = cli("mcp", "list", str(path))
    again = cli("mcp", "freeze", str(path))

    assert frozen.stdout == f"Wrote {tmp_path}/tools.mcp.json: 1 tools of 1 servers.\n"
    assert listed.returncode == 1
    assert f"tool 'later' was changed, added or removed after {tmp_path}/tools.mcp.json was written" in listed.stderr
    assert f"run `verl-pivot mcp freeze {path}` again" in listed.stderr
    assert "2 tools of 1 servers" in again.stdout
    assert cli("mcp", "list", str(path)).returncode == 0
