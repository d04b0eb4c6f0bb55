"""Root file systems of tasks: what programs and sessions see of an image, what they change, and what is refused."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import IS_ROOT, Kind, Service, service, start_service
from tests.support.task_roots import give_to_service, make_root
from verl_pivot.errors import ConfigError, SandboxRequestError, ToolFailureError
from verl_pivot.sandbox.execution import MIB, Limits, Program
from verl_pivot.sandbox.service import task_roots
from verl_pivot.sandbox.service.task_roots import TaskRoots, exists_in

pytestmark = needs_sandbox
MASKED = ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", "/proc/bus", "--")
"""Command under which parts of /proc are covered, as in containers."""
LIES = {"tmp": "/etc", "dev": "/usr", "proc": "../../..", "sandbox": "/", "etc": "/roots"}
"""{name: target} of links that an image has where a sandbox mounts its own folders, and in one other place, /etc."""


@pytest.fixture(scope="module")
def roots() -> Iterator[Path]:
    """Folder with the images `plain` and `lying`, which has the links of LIES, and with an empty folder and a link."""
    folder = Path(tempfile.mkdtemp(prefix="roots-", dir="/var/tmp"))
    folder.chmod(0o755)
    make_root(folder / "plain")
    lying = make_root(folder / "lying")
    for name, target in LIES.items():
        (lying / name).symlink_to(target)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("plain")
    give_to_service(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def rooted(roots: Path) -> Iterator[Service]:
    started = start_service(Kind.ZYGOTE, "--roots", str(roots), lanes=1)
    yield started
    started.stop()


def bash(service: Service, code: str, *, root: str = "plain", **options: Any) -> str:
    return service.output(code, language="bash", root=root, **options)


def test_a_program_runs_in_the_image_with_the_images_tools(rooted: Service) -> None:
    assert bash(rooted, "cat /testbed/code.txt; id -u") == "from the image\n1000\n"
    assert rooted.output("import nothing", root="plain") == "python of the image: import nothing\n"
    assert rooted.output("import os; print(os.path.exists('/testbed'))") == "False\n"


def test_a_program_in_an_image_has_its_variables_its_folder_and_its_files(rooted: Service) -> None:
    place = {"environment": {"A": "1 \u00e4", "HOME": "/testbed"}, "folder": "work/in"}
    result = rooted.run(
        'echo "$A" "$HOME" "$PWD" "$(pwd)"; cat note.txt /testbed/code.txt; echo 5 > out.txt; cd; pwd',
        language="bash",
        root="plain",
        files={"work/in/note.txt": b"note\n"},
        fetch=("work/in/out.txt",),
        **place,
    )

    assert (result.status, result.stderr) == ("ok", "")
    assert result.stdout == "1 \u00e4 /testbed /tmp/work/in /tmp/work/in\nnote\nfrom the image\n/testbed\n"
    assert result.files == {"work/in/out.txt": b"5\n"}
    assert bash(rooted, 'echo "${A-none}" "$PWD"') == "none /tmp\n"


async def test_a_session_in_an_image_has_its_variables_and_its_folder_in_every_epoch(rooted: Service) -> None:
    show = "import os, subprocess\ncommand = ['bash', '-c', 'echo $A; pwd; cat /testbed/code.txt']\n"
    show += "(os.environ['A'], os.getcwd(), subprocess.check_output(command, text=True))"
    seen = "('1', '/tmp/work', '1\\n/tmp/work\\nfrom the image\\n')"
    async with (
        rooted.client() as sandbox,
        await sandbox.open(root="plain", environment={"A": "1"}, folder="work") as session,
    ):
        first = await session.run(show)
        async with await session.fork() as branch:
            branched = await branch.run(show)
        await session.run("import os; os._exit(1)")
        again = await session.run(show)

    assert [first.error, first.value, branched.value, again.value] == [None, *[seen] * 3]


@pytest.mark.parametrize("place", [{"folder": "../testbed"}, {"folder": "/testbed"}, {"environment": {"PATH": "/"}}])
def test_an_image_opens_no_other_places(rooted: Service, place: dict[str, Any]) -> None:
    with pytest.raises(SandboxRequestError):
        rooted.run("pwd", language="bash", root="plain", **place)


def test_a_program_changes_its_own_copy_of_the_image(rooted: Service, roots: Path) -> None:
    change = "echo mine > /testbed/code.txt; rm -r /testbed; mkdir /testbed /new; echo mine > /testbed/a; ls /testbed /"
    listed = bash(rooted, change).split()

    assert listed[:2] == ["/:", "bin"]
    assert {"new", "testbed"} <= set(listed)
    assert listed[-2:] == ["/testbed:", "a"]
    assert bash(rooted, "cat /testbed/code.txt; ls /testbed") == "from the image\ncode.txt\n"
    assert (roots / "plain/testbed/code.txt").read_text() == "from the image\n"


def test_what_is_written_anywhere_counts_for_the_limits_on_tmp(rooted: Service) -> None:
    flood = "head -c 3000000 /dev/zero > /big || head -c 3000000 /dev/zero > /tmp/big || echo full; ls -l /big"
    full = rooted.run(flood, language="bash", root="plain", limits=Limits(tmp_bytes=2 * MIB))
    many = rooted.run(
        "for i in {1..200}; do mkdir /d$i || exit 9; done", language="bash", root="plain",
        limits=Limits(num_tmp_files=16),
    )  # fmt: skip

    least = rooted.run("echo 1 > /one", language="bash", root="plain", limits=Limits(tmp_bytes=MIB, num_tmp_files=16))

    assert least.status == "ok"
    assert full.stdout.startswith("full\n")
    assert int(full.stdout.split()[5]) < 2 * MIB
    assert many.exit_code == 9


def test_files_go_into_a_rooted_program_and_come_back(rooted: Service) -> None:
    code = "cat a/in.txt; echo made > out.txt"
    program = Program(code=code, language="bash", root="plain", files={"a/in.txt": b"in\n"}, fetch=("out.txt",))
    (result,) = rooted.run_many([program])

    assert (result.stdout, result.files) == ("in\n", {"out.txt": b"made\n"})


def test_the_links_of_an_image_lead_nowhere(rooted: Service) -> None:
    code = "for i in tmp dev proc sandbox; do readlink /$i; done; ls /tmp /etc/ 2>&1; cat /dev/null"
    shown = bash(rooted, code, root="lying")

    assert shown == "ls: cannot access '/etc/': No such file or directory\n/tmp:\nmain.sh\n"
    assert rooted.output("import os; print(os.listdir('/roots'), os.path.isdir('/etc'))") == "[] True\n"


def test_a_program_without_a_root_sees_no_image(rooted: Service) -> None:
    assert rooted.output("import os; print(os.listdir('/roots'))") == "[]\n"
    assert bash(rooted, "ls /roots 2>/dev/null || echo none") == "none\n"


WAYS_OUT = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def fails(outcome):
    return outcome == -1
print(fails(libc.umount2(b"/tmp", 2)), fails(libc.umount2(b"/", 2)), fails(libc.pivot_root(b"/tmp", b"/tmp")))
print(fails(libc.chroot(b"/tmp")), fails(libc.mount(b"/roots", b"/tmp", None, 0x1000, None)))
os.chdir("/")
for _ in range(20):
    os.chdir("..")
print(sorted({"roots", "venv", "testbed"} & set(os.listdir("."))))
print([fd for fd in os.listdir("/proc/self/fd") if os.path.isdir(f"/proc/self/fd/{fd}/usr")])
for path in ("/proc/1/root/usr", "/proc/1/cwd", "/tmp/upper", "/tmp/view", "/roots"):
    try:
        print("reached", os.listdir(path))
    except OSError:
        pass
"""


async def test_a_session_finds_no_way_out_of_its_root(rooted: Service) -> None:
    async with rooted.client() as sandbox, await sandbox.open(root="plain") as session:
        result = await session.run(WAYS_OUT)

    assert (result.status, result.stderr) == ("ok", "")
    assert result.stdout == "True True True\nTrue True\n['testbed']\n[]\n"


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["without /proc", *(["by root"] if IS_ROOT else [])])
async def test_roots_are_there_however_the_service_was_started(way: str, roots: Path) -> None:
    kind = Kind.BY_ROOT if way == "by root" else Kind.ZYGOTE
    wrapper = () if way == "by root" else MASKED
    running = start_service(kind, "--roots", str(roots), lanes=1, wrapper=wrapper)
    try:
        async with running.client() as sandbox, await sandbox.open(root="plain") as session:
            cell = await session.run("open('/testbed/code.txt', 'a').write('b'); open('/testbed/code.txt').read()")
            program = await sandbox.run("cat /testbed/code.txt", language="bash", root="plain")
    finally:
        running.stop()

    assert (cell.value, program.stdout) == ("'from the image\\nb'", "from the image\n")


async def test_a_session_runs_in_the_image_and_keeps_what_it_changes(rooted: Service) -> None:
    async with rooted.client() as sandbox, await sandbox.open(root="plain") as session:
        command = "['bash', '-c', 'cat /testbed/code.txt; echo x > /n']"
        first = await session.run(f"import subprocess; subprocess.run({command})")
        again = await session.run("import numpy, xml.dom.minidom; open('/n').read(), numpy.arange(3).sum().item()")
        await session.write_file("a/b.txt", b"1")
        async with await session.fork() as branch:
            forked = await branch.run("open('/n').read() + open('a/b.txt').read()")
        content = await session.read_file("a/b.txt")

    assert (first.status, first.stdout) == ("ok", "from the image\n")
    assert (again.value, forked.value, content) == ("('x\\n', 3)", "'x\\n1'", b"1")


@pytest.mark.parametrize(
    ("root", "language", "message"),
    [
        ("missing", "bash", r"root 'missing' is not a folder in .*; unpack its image there"),
        ("link", "bash", r"root 'link' is not a folder in"),
        ("empty", "bash", r"root 'empty' has no /bin: .* is not an unpacked image"),
        ("plain", "cpp", r"root 'plain' has no 'g\+\+' in /usr/local/bin, /usr/bin, /bin"),
        ("../plain", "bash", r"root '\.\./plain' must be one name"),
        ("a,b", "bash", r"root 'a,b' must be one name"),
    ],
)
def test_a_root_that_is_missing_or_broken_is_the_callers_error(
    rooted: Service, root: str, language: str, message: str
) -> None:
    with pytest.raises(SandboxRequestError, match=message):
        rooted.run("x", language=language, root=root)


async def test_a_node_without_roots_refuses_them_for_programs_and_sessions() -> None:
    async with service().client() as sandbox:
        with pytest.raises(SandboxRequestError, match=r"root 'plain': this node has no roots: start .*--roots"):
            await sandbox.open(root="plain")


def test_a_backend_without_roots_refuses_them() -> None:
    with pytest.raises(SandboxRequestError, match="backend bwrap_exec does not support root file systems"):
        service(Kind.BWRAP_EXEC).run("x", root="plain")


async def test_a_row_names_its_root_for_its_session(rooted: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_pivot.tools.workspace import Workspace

    monkeypatch.setenv("VERL_PIVOT_SANDBOX_URLS", rooted.url)
    monkeypatch.setenv("VERL_PIVOT_SANDBOX_TOKEN", rooted.token)
    workspace = Workspace({"sandbox_root": "plain"})
    found = await workspace.run_cell("open('/testbed/code.txt').read()", Limits())
    await workspace.close()

    assert found.value == "'from the image\\n'"
    for wrong in ("missing", 7):
        with pytest.raises(ToolFailureError, match="root"):
            await Workspace({"sandbox_root": wrong}).run_cell("1", Limits())


def test_a_root_of_another_owner_is_refused_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_root(tmp_path / "img")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(SandboxRequestError, match=r"and the service runs as 12345:\d+: chown -R 12345:\d+ .*/img"):
        TaskRoots(tmp_path).check("img", ())


def test_a_folder_of_roots_that_cannot_be_read_or_a_kernel_that_is_too_old_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--roots .*/missing: uid \d+ cannot read this folder"):
        TaskRoots(tmp_path / "missing")
    monkeypatch.setattr(task_roots, "MINIMUM_KERNEL", (99, 0))
    with pytest.raises(ConfigError, match=r"--roots needs Linux 99\.0 or later, and this is \d+\.\d+"):
        TaskRoots(tmp_path)


def test_links_are_followed_as_within_the_root(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/sh").touch()
    for name, target in {
        "bin": "/usr/bin", "up": "../../../usr/bin/sh", "loop": "loop", "out": "/etc/passwd",
    }.items():  # fmt: skip
        (tmp_path / name).symlink_to(target)

    assert [exists_in(tmp_path, path) for path in ("bin/sh", "up", "usr/../bin/sh")] == [True] * 3
    assert [exists_in(tmp_path, path) for path in ("loop", "out", "bin/bash")] == [False] * 3
