"""Command lines of bubblewrap, and what a program that they start sees."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.command_line import (
    BwrapCommand,
    DataFile,
    exec_command,
    find_bwrap,
    lane_command,
    parse_version,
    with_limits,
)
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import MIB, Limits
from verl_pivot.sandbox.lane.seccomp import filter_bytes

VIEW = PythonView(
    executable="/venv/bin/python",
    bases=(Path("/opt/python"),),
    environment=Path("/home/me/env"),
    site_packages=("/venv/lib/python3.11/site-packages",),
)
LOOK = """
import json, os, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def tried(path):
    try:
        open(path, "w").close()
        return "written"
    except OSError as error:
        return error.strerror
print(json.dumps({
    "environment": dict(os.environ), "root": sorted(os.listdir("/")), "etc": sorted(os.listdir("/etc")),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], "ids": [os.getuid(), os.getgid()],
    "capabilities": status["CapBnd"] + status["CapPrm"] + status["CapEff"], "seccomp": status["Seccomp"],
    "no_new_privs": status["NoNewPrivs"], "pid_1": open("/proc/1/environ").read(), "host": socket.gethostname(),
    "interfaces": [line.split(":")[0].strip() for line in list(open("/proc/net/dev"))[2:]],
    "folder": os.getcwd(), "is_pid_1": os.getpid() == 1,
    "write": [tried(f"{folder}/x") for folder in ("/tmp", "/dev/shm", "/", "/dev", "/usr", "/etc", "/venv")],
    "sizes": [os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize for folder in ("/tmp", "/dev/shm")],
}))
"""


def run(command: BwrapCommand) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command.argv, env={}, pass_fds=command.pass_fds, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        command.close()


def hardened(*payload: str, files: tuple[DataFile, ...] = (), mount_proc: bool = True) -> BwrapCommand:
    return exec_command(
        PythonView.of(),
        payload,
        bwrap=find_bwrap(),
        version=(0, 8, 0),
        tmp_bytes=8 * MIB,
        seccomp=filter_bytes(),
        files=files,
        mount_proc=mount_proc,
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [("bubblewrap 0.8.0\n", (0, 8, 0)), ("bubblewrap 0.11", (0, 11, 0)), ("bubblewrap 1.2.3-rc1", (1, 2, 3))],
)
def test_the_version_is_read_from_what_bwrap_says(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


def test_an_answer_without_a_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="answered 'what', which holds no version: reinstall bubblewrap"):
        parse_version("what\n")


def test_bwrap_is_looked_for_in_trusted_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="bwrap was not found in /nowhere: sudo apt-get install -y bubblewrap"):
        find_bwrap([Path("/nowhere")])


def test_a_lane_is_root_of_its_namespaces_with_three_capabilities_and_may_make_more_namespaces() -> None:
    command = lane_command(VIEW, ["a", "7"], bwrap=Path("/usr/bin/bwrap"), keep_fds=[7])
    command.close()

    argv = list(map(str, command.argv))
    argv = argv[argv.index("/usr/bin/bwrap") :]  # test_privileges.py tests what root puts before
    assert " ".join(argv[:18]) == (
        "/usr/bin/bwrap --unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --uid 0 --gid 0 "
        "--cap-drop ALL --cap-add CAP_SYS_ADMIN "
        "--cap-add CAP_SETFCAP --cap-add CAP_SYS_CHROOT"
    )
    assert {"--seccomp", "--disable-userns", "--as-pid-1"} & set(argv) == set()
    assert argv[argv.index("--") + 1 :][:5] == ["/venv/bin/python", "-P", "-s", "-S", "-B"]
    assert argv[-2:] == ["a", "7"]
    assert command.pass_fds == (*command.own_fds, 7)


def test_a_lane_sees_the_lane_package_and_nothing_else_of_ours() -> None:
    command = lane_command(VIEW, bwrap=Path("/usr/bin/bwrap"))
    command.close()

    ours = [str(word) for word in command.argv if str(word).startswith("/sandbox")]
    assert ours == [
        "/sandbox",
        "/sandbox/verl_pivot",
        "/sandbox/verl_pivot/sandbox",
        "/sandbox/verl_pivot/sandbox/lane",
        "/sandbox/verl_pivot/__init__.py",
        "/sandbox/verl_pivot/sandbox/__init__.py",
    ]


def test_a_lane_shows_no_single_file_of_the_machine_since_its_mount_would_tell_where_it_lies() -> None:
    command = lane_command(VIEW, bwrap=Path("/usr/bin/bwrap"))
    command.close()

    words = list(map(str, command.argv))
    bound = [words[place + 1] for place, word in enumerate(words) if word in ("--ro-bind", "--ro-bind-try")]
    assert [path for path in bound if Path(path).is_file()] == []


def test_an_old_bwrap_gets_no_option_that_it_does_not_know() -> None:
    python = VIEW
    for version, expected in (((0, 7, 0), False), ((0, 8, 0), True)):
        command = exec_command(
            python, ["true"], bwrap=Path("/usr/bin/bwrap"), version=version, tmp_bytes=MIB, seccomp=b"12345678"
        )
        command.close()
        assert ("--disable-userns" in command.argv) is expected


@given(
    names=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=5)
)
@settings(max_examples=25, deadline=None)
def test_whatever_a_file_is_called_it_is_no_option_of_bwrap(names: list[str]) -> None:
    files = [DataFile(destination=b"/tmp/" + name.encode(), content=b"") for name in names]
    command = exec_command(
        VIEW, ["true"], bwrap=Path("/usr/bin/bwrap"), version=(0, 8, 0), tmp_bytes=MIB, seccomp=b"12345678", files=files
    )
    command.close()

    written = [command.argv[i + 2] for i, word in enumerate(command.argv) if word == "--file"]
    assert written == [file.destination for file in files]


def test_a_commands_descriptors_are_closed_with_it() -> None:
    before = os.listdir("/proc/self/fd")
    lane_command(VIEW, bwrap=Path("/usr/bin/bwrap")).close()

    assert os.listdir("/proc/self/fd") == before


@needs_sandbox
def test_a_program_sees_these_folders_and_processes_and_no_others() -> None:
    done = run(hardened("python", "-c", LOOK))

    seen = json.loads(done.stdout)
    assert seen.pop("environment") == {
        "PATH": f"{Path(PythonView.of().executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "PWD": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }
    assert {"home", "mnt", "opt", "run", "srv", "sys", "var"} & set(seen.pop("root")) <= {
        base.parts[1] for base in PythonView.of().bases
    }
    known = {*("ssl", "pki"), "alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd"}
    assert set(seen.pop("etc")) <= known
    assert seen == {
        "fds": [0, 1, 2],
        "ids": [1000, 1000],
        "capabilities": "0" * 48,
        "seccomp": "2",
        "no_new_privs": "1",
        "pid_1": "",
        "host": "box",
        "interfaces": ["lo"],
        "folder": "/tmp",
        "is_pid_1": False,
        "write": ["written", "written", *["Read-only file system"] * 5],
        "sizes": [8 * MIB, 16 * MIB],
    }


@needs_sandbox
def test_without_proc_python_still_runs() -> None:
    done = run(hardened("python", "-c", "import os, numpy; print(os.path.exists('/proc'))", mount_proc=False))

    assert (done.returncode, done.stdout) == (0, "False\n")


@needs_sandbox
def test_files_are_written_with_their_folders_before_the_program_starts() -> None:
    files = (
        DataFile(destination=b"/tmp/a/b/c.txt", content=b"\x00\xff"),
        DataFile(destination=b"/tmp/-d e", content=b"2"),
    )

    done = run(hardened("python", "-c", "print(open('a/b/c.txt', 'rb').read(), open('-d e').read())", files=files))

    assert done.stdout == "b'\\x00\\xff' 2\n"


@needs_sandbox
def test_limits_hold_from_the_first_instruction_of_the_program() -> None:
    names = ("NPROC", "CPU", "DATA")
    look = f"import resource as r; print([r.getrlimit(getattr(r, 'RLIMIT_' + name)) for name in {names}])"

    done = run(hardened(*with_limits(Limits(cpu_seconds=3, memory_bytes=512 * MIB), ["python", "-c", look])))

    assert done.stdout == f"[(64, 64), (3, 4), ({512 * MIB}, {512 * MIB})]\n"


@needs_sandbox
def test_a_lane_finds_our_package_and_gets_its_descriptor(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("42")
    look = "import os, sys; sys.path[:0] = ['/sandbox']; import verl_pivot.sandbox.lane; "
    look += "print(os.read(int(sys.argv[1]), 9))"
    with open(tmp_path / "data", "rb") as stream:
        command = lane_command(PythonView.of(), [str(stream.fileno())], bwrap=find_bwrap(), keep_fds=[stream.fileno()])
        argv = [look if "verl_pivot.sandbox.lane.supervisor" in str(word) else word for word in command.argv]
        done = run(BwrapCommand(argv=tuple(argv), pass_fds=command.pass_fds, own_fds=command.own_fds))

    assert done.stdout == "b'42'\n", done.stderr


def fake_python(folder: Path, base: str, prefix: str) -> str:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\necho \'["{base}", "{prefix}", []]\'\n')
    path.chmod(0o755)
    return str(path)


def test_a_python_below_tmp_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"in /tmp/python, which the sandbox covers .* install it elsewhere"):
        PythonView.of(fake_python(tmp_path, "/tmp/python", "/tmp/python"))


def test_an_environment_whose_python_leads_elsewhere_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bin").mkdir()
    real = fake_python(tmp_path / "elsewhere", "/opt/python", str(tmp_path / "bin"))
    (tmp_path / "bin" / "python").symlink_to(real)

    with pytest.raises(ConfigError, match=rf"links to {real}, which is neither .* `/opt/python/bin/python3 -m venv`"):
        PythonView.of(str(tmp_path / "bin" / "python"))


def test_a_file_that_is_no_python_is_refused() -> None:
    with pytest.raises(ConfigError, match="/bin/false does not run as a Python interpreter"):
        PythonView.of("/bin/false")


def test_a_python_without_an_environment_is_seen_at_its_own_path(tmp_path: Path) -> None:
    executable = fake_python(tmp_path, "/usr", "/usr")

    assert PythonView.of(executable) == PythonView(
        executable=executable, bases=(Path("/usr"),), environment=None, site_packages=()
    )
