"""Sessions in interpreters made ahead, in which a startup cell ran before the session was opened."""

import os
import resource
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, Service, on_zygotes, parts, start_service, until
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import MIB, Limits
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend
from verl_pivot.sandbox.service.languages import LanguageTable, load_languages

VIEW = PythonView(executable="/venv/bin/python", bases=(Path("/usr"),), environment=None, site_packages=())
NUM_PREWARMED = 3
YAML = """
python:
  session:
    prewarm: %d
    startup: |
      import json, os
      from dataclasses import dataclass

      @dataclass
      class Point:
          x: int = 1

      items = [1]

      def num_items(more):
          return len(items) + more

      def fails():
          raise ValueError("here")

      os.environ["STARTED"] = "1"
      os.chdir("/")
      print("not seen")
"""


def started(kind: Kind, folder: Path, yaml: str) -> Service:
    (folder / "languages.yaml").write_text(yaml)
    return start_service(kind, "--languages", str(folder / "languages.yaml"), lanes=1)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Folder that the user of a service can read."""
    made = Path(tempfile.mkdtemp(prefix="prewarmed-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def prewarmed(folder: Path) -> Iterator[Service]:
    service = started(Kind.ZYGOTE, folder, YAML % NUM_PREWARMED)
    yield service
    service.stop()


def has_spares(service: Service, *, num_sessions: int = 0) -> bool:
    """Whether NUM_PREWARMED interpreters wait within some seconds, besides those of `num_sessions` open sessions."""
    return until(lambda: len(parts(service).programs) == NUM_PREWARMED + num_sessions)


def num_opened(service: Service) -> dict[str, float]:
    """{"yes": sessions opened so far in an interpreter made ahead, "no": sessions opened so far in another one}."""
    with urllib.request.urlopen(f"{service.url}/metrics") as answer:
        page = answer.read().decode()
    lines = [line.split() for line in page.splitlines() if line.startswith("sandbox_sessions_opened_total{")]
    return {name.split('"')[1]: float(value) for name, value in lines}


@needs_sandbox
async def test_each_session_has_the_names_of_the_startup_and_its_own_copy_of_them(prewarmed: Service) -> None:
    async with prewarmed.client() as sandbox, await sandbox.open() as first, await sandbox.open() as second:
        changed = await first.run("items.append(2); num_items(1), Point(), __name__, Point.__module__, json.dumps({})")
        untouched = await second.run(
            "import os\nnum_items(1), items, os.getcwd(), os.environ.get('STARTED'), os.listdir()"
        )

    assert (changed.value, changed.stdout) == ("(3, Point(x=1), '__main__', '__main__', '{}')", "")
    assert untouched.value == "(2, [1], '/tmp', None, [])"


@needs_sandbox
async def test_the_startup_is_cell_0_of_tracebacks_and_snapshots(prewarmed: Service) -> None:
    async with prewarmed.client() as sandbox:
        async with await sandbox.open() as session:
            failed = await session.run("fails()")
            await session.run("items.append(2)\npoint = Point(5)")
            snapshot = await session.snapshot()
        async with await sandbox.open(snapshot=snapshot.content) as session:
            result = await session.run("num_items(1), point == Point(5), isinstance(point, Point)")

    assert failed.error is not None
    assert 'File "<cell 0>", line 14, in fails\n    raise ValueError("here")' in failed.error
    assert (snapshot.lost, result.value) == ((), "(3, True, True)")


@needs_sandbox
def test_programs_have_none_of_its_names(prewarmed: Service) -> None:
    code = "print([name for name in ('items', 'Point', 'json') if name in globals()])"

    assert prewarmed.output(code) == "[]\n"


@needs_sandbox
async def test_a_session_that_lost_its_interpreter_begins_with_the_names_again(prewarmed: Service) -> None:
    async with prewarmed.client() as sandbox, await sandbox.open() as session:
        await session.run("items.clear()\nimport os\nos._exit(1)")

        assert (await session.run("items")).value == "[1]"


@needs_sandbox
async def test_sessions_take_interpreters_made_ahead_which_are_made_again_and_counted(prewarmed: Service) -> None:
    before = num_opened(prewarmed)
    assert has_spares(prewarmed)
    async with prewarmed.client() as sandbox, await sandbox.open() as first, await sandbox.open() as second:
        values = [(await session.run("num_items(0)")).value for session in (first, second)]
        assert has_spares(prewarmed, num_sessions=2)
        async with await sandbox.open(limits=Limits(memory_bytes=300 * MIB)):
            pass

    after = num_opened(prewarmed)
    assert values == ["1", "1"]
    assert (after["yes"] - before["yes"], after["no"] - before.get("no", 0.0)) == (2.0, 1.0)


@needs_sandbox
async def test_no_interpreter_made_ahead_serves_two_sessions(prewarmed: Service) -> None:
    look = "seen = os.listdir('/tmp') + os.listdir('/dev/shm'), 'mine' in globals()"
    leave = f"import os\n{look}\nmine = open('/tmp/left', 'w')\nseen"
    async with prewarmed.client() as sandbox:
        values = []
        for _ in range(2 * NUM_PREWARMED + 1):
            async with await sandbox.open() as session:
                values.append((await session.run(leave)).value)

    assert values == ["([], False)"] * (2 * NUM_PREWARMED + 1)


@needs_sandbox
async def test_interpreters_made_ahead_that_are_killed_cost_no_session(prewarmed: Service) -> None:
    assert has_spares(prewarmed)
    for pid in parts(prewarmed).programs:
        os.kill(pid, signal.SIGKILL)
    async with prewarmed.client() as sandbox, await sandbox.open() as session:
        assert (await session.run("num_items(0)")).value == "1"
        assert has_spares(prewarmed, num_sessions=1)


@needs_sandbox
async def test_when_the_limits_of_sessions_change_the_interpreters_made_ahead_do(prewarmed: Service) -> None:
    other = Limits(memory_bytes=200 * MIB)
    async with prewarmed.client() as sandbox:
        for limits in (other, other):
            async with await sandbox.open(limits=limits):
                pass
        assert has_spares(prewarmed)
        before = num_opened(prewarmed)["yes"]
        async with await sandbox.open(limits=other) as session:
            assert (await session.run("len(bytearray(150 << 20)) >> 20")).value == "150"
            assert "MemoryError" in str((await session.run("bytearray(400 << 20)")).error)

    assert num_opened(prewarmed)["yes"] - before == 1.0


@needs_sandbox
@on_zygotes
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "'session.startup' failed: it raised ZeroDivisionError: division by zero"),
        ("import os; os._exit(0)", "'session.startup' ended the interpreter"),
    ],
)
def test_a_service_whose_startup_fails_does_not_start(folder: Path, kind: Kind, code: str, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        started(kind, folder, f"python: {{session: {{startup: {code!r}}}}}")


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], LanguageTable]:
    def loaded(yaml: str) -> LanguageTable:
        (tmp_path / "languages.yaml").write_text(yaml)
        return load_languages(tmp_path / "languages.yaml", python=VIEW)

    return loaded


@pytest.mark.parametrize(
    ("yaml", "sentence"),
    [
        ("bash: {session: {prewarm: 1}}", "bash.session: only Python has sessions; set this in `python`"),
        ("python: {session: {prewarm: -1}}", "python.session.prewarm.*-1"),
        ("python: {session: {prewarm: many}}", "python.session.prewarm.*many"),
        ("python: {session: {startup: 'x ='}}", "python.session.startup.*is not valid Python: .*line 1"),
        ("python: {session: {start: 'x = 1'}}", "python.session.start"),
    ],
)
def test_what_sessions_cannot_begin_with_is_refused(
    load: Callable[[str], LanguageTable], yaml: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(yaml)


def test_interpreters_made_ahead_take_slots(tmp_path: Path) -> None:
    (tmp_path / "languages.yaml").write_text("python: {session: {prewarm: 7}}")
    plain = ZygoteBackend(BackendSettings(num_lanes=2))
    prewarming = ZygoteBackend(BackendSettings(num_lanes=2, languages_file=tmp_path / "languages.yaml"))

    assert plain.num_slots - prewarming.num_slots == 2 * 4


def test_more_interpreters_than_half_of_the_slots_are_refused(tmp_path: Path) -> None:
    (tmp_path / "languages.yaml").write_text("python: {session: {prewarm: 1024}}")
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 1024

    with pytest.raises(ConfigError, match=r"session.prewarm: 1024 interpreters of each lane .* more than half"):
        ZygoteBackend(BackendSettings(num_lanes=1, languages_file=tmp_path / "languages.yaml"))
