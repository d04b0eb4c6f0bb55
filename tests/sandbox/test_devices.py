"""Devices that programs of one language may use; a network device without a network stands for a GPU."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import IS_ROOT, Kind, Service, start_service
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import Limits
from verl_pivot.sandbox.service.languages import load_languages

TUN = Path("/dev/net/tun")
VIEW = PythonView(executable="/venv/bin/python", bases=(Path("/opt/py"),), environment=None, site_packages=())
LIMITS = Limits(wall_seconds=10.0)
ASK = """
import errno, fcntl, os, pty, sys
def said(request, fd):
    try:
        return fcntl.ioctl(fd, request, bytes(4))
    except OSError as error:
        return errno.errorcode[error.errno]
try:
    fd = os.open("DEVICE", os.O_RDWR)
except OSError as error:
    fd = None
    print(errno.errorcode[error.errno])
if fd is not None:
    print(said(0x800454CF, fd) not in ("ENOTTY", "EPERM"))  # TUNGETFEATURES, which is no request of terminals or files
terminal, _ = pty.openpty()
print(said(0x5412, terminal))  # TIOCSTI
print(sorted(os.listdir("/dev")))
try:
    os.mknod("/dev/shm/other", 0o20666, os.makedev(1, 8))
except OSError as error:
    print(errno.errorcode[error.errno])
"""
OF_EVERY_SANDBOX = [
    *("core", "fd", "full", "null", "ptmx", "pts", "random"),
    *("shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"),
]


@pytest.fixture(scope="module")
def device() -> Iterator[Path]:
    """A device that every user may use, and that has ioctl requests of its own."""
    if not IS_ROOT or not TUN.exists():
        pytest.skip("only root makes a device that every user may use")
    path = Path(f"/dev/verl-pivot-test-{os.getpid()}")
    os.mknod(path, stat.S_IFCHR, TUN.stat().st_rdev)
    path.chmod(0o666)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def languages(device: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="devices-", dir="/var/tmp"))
    folder.chmod(0o755)
    file = folder / "languages.yaml"
    file.write_text(f"python_gpu: {{file: main.py, run: [python, main.py], devices: [{device}]}}\n")
    yield file
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=[Kind.BWRAP_EXEC, Kind.BWRAP_EXEC_BY_ROOT])
def lending(request: pytest.FixtureRequest, languages: Path) -> Iterator[Service]:
    started = start_service(request.param, "--languages", str(languages))
    yield started
    started.stop()


@needs_sandbox
@pytest.mark.heavy
def test_programs_use_the_devices_of_their_language_and_those_of_others_do_not(lending: Service, device: Path) -> None:
    code = ASK.replace("DEVICE", str(device))

    given = lending.output(code, language="python_gpu", limits=LIMITS).splitlines()
    others = lending.output(code, limits=LIMITS).splitlines()

    assert given == ["True", "EPERM", str(sorted([*OF_EVERY_SANDBOX, device.name])), "EPERM"]
    assert others == ["ENOENT", "EPERM", str(OF_EVERY_SANDBOX), "EPERM"]


@needs_sandbox
@pytest.mark.heavy
def test_a_service_with_zygotes_refuses_devices_with_the_remedy(languages: Path) -> None:
    with pytest.raises(RuntimeError, match=r"python_gpu\.devices: only --backend bwrap_exec gives programs devices"):
        start_service(Kind.ZYGOTE, "--languages", str(languages))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/dev/nvidia-none", "not a character device"),
        ("/dev/null", "every sandbox already has"),
        ("/dev/pts/0", "every sandbox already has"),
        ("/dev/stdin", "not a character device"),
        ("/dev/shm", "every sandbox already has"),
        ("/dev", "below /dev"),
        ("/dev/../etc/passwd", "below /dev"),
        ("/etc/passwd", "below /dev"),
        ("dev/nvidia0", "below /dev"),
        ("/dev/net", "not a character device"),
    ],
)
def test_what_is_no_device_for_programs_is_refused_with_its_place(tmp_path: Path, name: str, reason: str) -> None:
    file = tmp_path / "languages.yaml"
    file.write_text(f"python_gpu: {{file: main.py, run: [python, main.py], devices: [{name}]}}\n")

    with pytest.raises(ConfigError, match=rf"languages\.yaml: python_gpu\.devices: .*{reason}"):
        load_languages(file, python=VIEW)


@pytest.mark.skipif(not IS_ROOT or not TUN.exists(), reason="only root makes a device that no other user may use")
def test_a_device_that_the_services_user_may_not_use_is_refused(
    languages: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != device)

    with pytest.raises(ConfigError, match=r"user \(uid 0\) cannot read and write .*: give that user access"):
        load_languages(languages, python=VIEW)
