"""Archives of images: what is unpacked as a root file system, and hostile or damaged archives, which are refused."""

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, start_service
from tests.support.task_roots import give_to_service, make_root
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.sandbox.image_unpacking import UnpackedImage, unpack_image

Entry = tuple[str, str, str]
"""(type, name, content or target)."""
_TYPES = {"link": tarfile.LNKTYPE, "symlink": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE, "pipe": tarfile.FIFOTYPE}
_TYPES |= {"file": tarfile.REGTYPE, "device": tarfile.CHRTYPE, "strange": b"Z"}


def layer(*entries: Entry, mode: int = 0o644) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind, name, content in entries:
            header = tarfile.TarInfo(name)
            header.type, header.mode, header.mtime = _TYPES[kind], mode, 1_000_000
            if kind in ("link", "symlink"):
                header.linkname = content
            if kind == "file":
                header.size = len(content.encode())
            tar.addfile(header, io.BytesIO(content.encode()))
    return file.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
        for name, target in (links or {}).items():
            header = tarfile.TarInfo(name)
            header.type, header.linkname = tarfile.SYMTYPE, target
            tar.addfile(header)
    return file.getvalue()


def config_of(layers: tuple[bytes, ...]) -> bytes:
    return json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest(each)}" for each in layers]}}).encode()


def docker_save(*layers: bytes) -> bytes:
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["a:b"], "Layers": names}]
    files = {"manifest.json": json.dumps(manifest).encode(), "config.json": config_of(layers)}
    return archive(files | dict(zip(names, layers, strict=True)))


def oci_layout(*layers: bytes) -> bytes:
    files: dict[str, bytes] = {"oci-layout": b"{}"}

    def blob(data: bytes, **fields: object) -> dict[str, object]:
        files[f"blobs/sha256/{digest(data)}"] = data
        return {"digest": f"sha256:{digest(data)}", "size": len(data), **fields}

    packed = [blob(gzip.compress(each)) for each in layers]
    manifest = blob(json.dumps({"config": blob(config_of(layers)), "layers": packed}).encode())
    inner = blob(json.dumps({"manifests": [manifest]}).encode())
    return archive(files | {"index.json": json.dumps({"manifests": [inner]}).encode()})


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., Path]:
    """Function that unpacks an archive beside a file that no archive may change, and checks that nothing is left."""

    def run(data: bytes, max_bytes: int = 10_000_000) -> Path:
        (tmp_path / "image.tar").write_bytes(data)
        (tmp_path / "secret").write_text("outside")
        try:
            unpack_image(tmp_path / "image.tar", tmp_path / "root", max_bytes=max_bytes)
        finally:
            assert (tmp_path / "secret").read_text() == "outside"
            assert {path.name for path in tmp_path.iterdir()} <= {"image.tar", "secret", "root"}
        return tmp_path / "root"

    return run


def listed(root: Path) -> dict[str, str]:
    """{path: content, or target of a link, or "/" for a folder}."""
    found = {}
    for path in sorted(root.rglob("*")):
        is_folder = path.is_dir() and not path.is_symlink()
        content = f"-> {path.readlink()}" if path.is_symlink() else "/" if is_folder else path.read_text()
        found[str(path.relative_to(root))] = content
    return found


LOWER = layer(
    ("folder", "usr/bin", ""), ("symlink", "bin", "usr/bin"), ("file", "etc/a", "1"), ("file", "etc/b", "2"),
    ("file", "opt/x/deep", "3"), ("link", "etc/same", "etc/a"),
)  # fmt: skip
UPPER = layer(
    ("file", "bin/tool", "new"), ("file", "etc/.wh.a", ""), ("file", "opt/kept", "4"), ("file", "opt/.wh..wh..opq", ""),
    ("file", "etc/b", "5"),
)  # fmt: skip


@pytest.mark.parametrize("form", [docker_save, oci_layout])
def test_layers_lie_over_each_other_and_whiteouts_remove_what_is_below(
    unpack: Callable[..., Path], form: Callable[..., bytes]
) -> None:
    assert listed(unpack(form(LOWER, UPPER))) == {
        "bin": "-> usr/bin", "etc": "/", "etc/b": "5", "etc/same": "1", "opt": "/", "opt/kept": "4",
        "usr": "/", "usr/bin": "/", "usr/bin/tool": "new",
    }  # fmt: skip


def test_an_archive_may_be_compressed_and_name_a_layer_by_a_link(unpack: Callable[..., Path]) -> None:
    manifest = json.dumps([{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]).encode()
    files = {"manifest.json": manifest, "c.json": config_of((LOWER, LOWER)), "a/layer.tar": LOWER}

    root = unpack(gzip.compress(archive(files, {"b/layer.tar": "../a/layer.tar"})))

    assert (root / "etc/b").read_text() == "2"


def test_files_are_ordinary_ones_with_their_times(unpack: Callable[..., Path]) -> None:
    root = unpack(
        docker_save(layer(("file", "a", "x"), ("folder", "closed", ""), mode=0o6000), layer(("file", "closed/in", "y")))
    )

    assert [stat.S_IMODE((root / name).stat().st_mode) for name in ("a", "closed")] == [0o600, 0o700]
    assert [stat.S_IMODE(root.stat().st_mode), (root / "a").stat().st_mtime] == [0o755, 1_000_000]
    wide = layer(("file", "b", "x"), mode=0o7777)
    shutil.rmtree(root)
    assert stat.S_IMODE((unpack(docker_save(wide)) / "b").stat().st_mode) == 0o755


def test_device_nodes_of_dev_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(docker_save(layer(("device", "dev/null", ""), ("pipe", "./dev/initctl", ""))))

    found = unpack_image(tmp_path / "image.tar", tmp_path / "root", max_bytes=100_000)

    assert found == UnpackedImage(num_layers=1, num_entries=2, num_bytes=found.num_bytes, num_devices=2)
    assert listed(tmp_path / "root") == {}


OUTSIDE = [
    layer(("symlink", "out", "/"), ("file", "out/secret", "in the image")),
    layer(("symlink", "out", "../../../.."), ("file", "out/secret", "in the image")),
    layer(("symlink", "a", "/b"), ("symlink", "b", "/.."), ("file", "a/secret", "in the image")),
    layer(("file", "/secret", "in the image")),
]


@pytest.mark.parametrize("hostile", OUTSIDE)
def test_links_and_absolute_names_lead_to_the_images_own_root(unpack: Callable[..., Path], hostile: bytes) -> None:
    assert (unpack(docker_save(hostile)) / "secret").read_text() == "in the image"


DEEP = [entry for number in range(9) for entry in (
    ("file", "/".join([f"link{number - 1}"] * (number > 0) + ["a"] * 100 + ["x"]), ""),
    ("symlink", f"link{number}", "/".join([f"link{number - 1}"] * (number > 0) + ["a"] * 100)),
)]  # fmt: skip
"""Files and links whose real paths are deeper than any name in the archive, since names lead through links."""
REFUSED = [
    (layer(("file", "../secret", "x")), "leads out of the image"),
    (layer(("file", "a/../../secret", "x")), "leads out of the image"),
    (layer(("folder", "..", "")), "leads out of the image"),
    (layer(("link", "mine", "../secret")), "leads out of the image"),
    (layer(("symlink", "out", "../secret"), ("link", "mine", "out/x")), "not a file of the image"),
    (layer(("link", "mine", "/etc/passwd")), "not a file of the image"),
    (layer(("link", "mine", "")), "not a file of the image"),
    (layer(("file", ".wh...", "")), "without the name of a file"),
    (layer(("file", "a/b", ""), ("file", "a/.wh..", "")), "without the name of a file"),
    (layer(("file", "a/b", ""), ("file", "a/.wh.", "")), "without the name of a file"),
    (layer(("symlink", "up", ".."), ("file", "up/.wh...", "")), "without the name of a file"),
    (layer(("device", "etc/sda", "")), "device node or a pipe"),
    (layer(("pipe", "run/pipe", "")), "device node or a pipe"),
    (layer(("symlink", "x", "dev"), ("device", "x/null", "")), "device node or a pipe"),
    (layer(("strange", "x", "")), "unknown type"),
    (layer(("symlink", "a", "b"), ("symlink", "b", "a"), ("file", "a/x", "")), "too many other links"),
    (layer(("file", "a", ""), ("file", "a/b", "")), "is not a folder"),
    (layer(("file", "a" * 300, "")), "File name too long"),
    (layer(("file", "/".join("a" * 2500), "")), "more than 256 folders deep"),
    (layer(*DEEP), "more than 256 folders deep"),
    (layer(("file", "a\nb", "1"), ("link", "c", "\x1b[31m")), r"'\\x1b\[31m', which is not a file"),
]  # fmt: skip


@pytest.mark.parametrize(("hostile", "reason"), REFUSED)
def test_what_is_not_allowed_is_refused_and_leaves_nothing(
    unpack: Callable[..., Path], tmp_path: Path, hostile: bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        unpack(docker_save(LOWER, hostile))
    assert not (tmp_path / "root").exists()


def sized(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Header of an entry that promises `size` bytes, which do not follow."""
    header = tarfile.TarInfo("large")
    header.type, header.size = kind, size
    return header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def sparse(size: int) -> bytes:
    """An empty file that says it is `size` bytes long, in the form of PAX 1.0."""
    header = tarfile.TarInfo("hole")
    header.size = 512
    header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    return header.tobuf(tarfile.PAX_FORMAT) + f"1\n{size}\n0\n".encode().ljust(512, b"\0") + bytes(1024)


BOMBS = [
    (oci_layout(layer(*[("file", "zeros", "0" * 3_000_000)] * 4)), "more than 10000000 bytes"),
    (docker_save(layer(*[("folder", f"d{number}", "") for number in range(2600)])), "more than 10000000 bytes"),
    (docker_save(sparse(10**15)), "more than 10000000 bytes"),
    (docker_save(sized(10**12)), "unexpected end of data|damaged"),
    (docker_save(sized(10**12, tarfile.XHDTYPE)), "longer than the limit of 1048576"),
    (docker_save(sized(10**12, tarfile.GNUTYPE_LONGNAME)), "longer than the limit of 1048576"),
    (sized(10**12, tarfile.XGLTYPE), "longer than the limit of 1048576"),
]


@pytest.mark.parametrize(("hostile", "reason"), BOMBS)
def test_what_is_too_large_is_refused_before_it_is_there(
    unpack: Callable[..., Path], hostile: bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        unpack(hostile)


def with_files(**files: object) -> bytes:
    return archive({name.replace("_", "."): json.dumps(content).encode() for name, content in files.items()})


NO_LAYERS = {"rootfs": {"diff_ids": []}}
DAMAGED = [
    (b"", "empty file|could not be opened"),
    (b"no archive" * 100, "could not be opened|damaged"),
    (archive({"a": b""}), "neither manifest.json nor index.json"),
    (docker_save(LOWER)[:6000], "damaged|unexpected end"),
    (docker_save(LOWER).replace(b"etc/b", b"etc/c"), "damaged"),
    (docker_save(LOWER[:1024] + b"!" * 512 + LOWER[1536:]), "damaged"),
    (docker_save(gzip.compress(LOWER)[:-20]), "damaged"),
    (docker_save(b"\x28\xb5\x2f\xfd" + bytes(100)), "zstd"),
    (with_files(manifest_json=[]), "it holds 0 images"),
    (with_files(manifest_json=[{"Config": "c", "Layers": [], "RepoTags": ["a:1"]}] * 2), "holds 2 images"),
    (with_files(manifest_json=[{"Config": "c.json", "Layers": ["x"]}], c_json=NO_LAYERS), "1 layers"),
    (with_files(manifest_json=[{"Config": "../../etc/passwd", "Layers": []}]), "is missing"),
    (with_files(manifest_json={"a": 1}), "cannot be read"),
    (with_files(index_json={"manifests": [{"digest": "sha256:../../index.json"}]}), "does not lead to a manifest"),
    (with_files(index_json={"manifests": [{"digest": "a"}, {"digest": "b"}]}), "names 2 images"),
    (archive({"manifest.json": b"[" * 100_000}), "cannot be read"),
    (archive({}, {"manifest.json": "a", "a": "manifest.json"}), "too many other links"),
    (archive({}, {"manifest.json": "/etc/passwd"}), "its file '/etc/passwd' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("hostile", "reason"), DAMAGED)
def test_what_is_no_image_is_refused_with_the_reason(unpack: Callable[..., Path], hostile: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        unpack(hostile)


def test_a_folder_that_exists_is_left_as_it_is(unpack: Callable[..., Path], tmp_path: Path) -> None:
    for make in (lambda path: path.mkdir(), lambda path: path.symlink_to("/nowhere")):
        make(tmp_path / "root")
        with pytest.raises(ConfigError, match="exists already"):
            unpack(docker_save(LOWER))
        (tmp_path / "root").unlink() if (tmp_path / "root").is_symlink() else (tmp_path / "root").rmdir()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Folder that the service's user can read."""
    made = Path(tempfile.mkdtemp(prefix="roots-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@needs_sandbox
@pytest.mark.heavy
def test_a_program_runs_in_what_the_command_unpacked(folder: Path) -> None:
    make_root(folder / "made")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder / "made", ".")
    (folder / "image.tar").write_bytes(oci_layout(packed.getvalue()))
    (folder / "roots").mkdir()
    give_to_service(folder / "roots")

    command = ["sandbox", "unpack", str(folder / "image.tar"), str(folder / "roots/py")]
    done = subprocess.run([sys.executable, "-m", "verl_pivot.cli", *command], capture_output=True, text=True, cwd=ROOT)
    service = start_service(Kind.ZYGOTE, "--roots", str(folder / "roots"), lanes=1)

    assert (done.returncode, done.stderr) == (0, "")
    assert "entries of 1 layers" in done.stdout
    assert service.output("cat /testbed/code.txt; id -u", language="bash", root="py") == "from the image\n1000\n"
    assert os.listdir(folder / "roots") == ["py"]
    service.stop()
