"""Layers of an image -> a folder that programs can have as their root; entries that lead out of it are refused.

Links inside an image are followed as for a program whose root is the image. Files get ordinary permissions: no setuid
bits, and the owner may always read and write. Device nodes are not made.
"""

import os
import posixpath
import shutil
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.sandbox.image_archive import BoundedHeader, ByteBound, Layer, open_archive

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MAX_LINKS = 40
_MAX_DEPTH = 256
"""Most folders above a file: Python removes and walks folders by recursion."""
_ENTRY_BYTES = 4096
"""Bytes that are counted for each file or folder in addition to its content."""
_LATEST_TIME = 2**33


@dataclass(slots=True, kw_only=True)
class UnpackedImage:
    """Numbers of layers, entries and bytes that were unpacked from an image."""

    num_layers: int = 0
    num_entries: int = 0
    num_bytes: int = 0
    num_devices: int = 0
    """Device nodes in /dev, which are left out: each sandbox mounts its own."""


def unpack_image(archive: Path, root: Path, *, max_bytes: int, owner: tuple[int, int] | None = None) -> UnpackedImage:
    """Unpack the one image of an archive into a new folder, which appears when it is complete.

    Args:
        archive: File of `docker save`, or of an OCI layout.
        root: The new folder.
        max_bytes: Most bytes that the folder may take; each file and folder in it counts 4 KiB more.
        owner: Ids of the user and group that will own everything in it; None for those of this process.

    Raises:
        DataError: If the archive is no image, is damaged, or holds something that is not allowed; the folder is not
            made then.
        ConfigError: If the folder exists, or cannot be written.
    """
    if root.is_symlink() or root.exists():
        raise ConfigError(f"{root} exists already; remove it, or give another folder")
    partial = root.with_name(f".{root.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"{root.parent} cannot be written: {error.strerror}") from error
    try:
        found = _unpack(archive, partial, ByteBound(max_bytes))
        if owner is not None:
            _give(partial, owner)
        partial.chmod(0o755)
        partial.rename(root)
    except OSError as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
    finally:
        if partial.exists():
            shutil.rmtree(partial)
    return found


def _unpack(archive: Path, folder: Path, bound: ByteBound) -> UnpackedImage:
    found = UnpackedImage()
    with open_archive(archive) as image:
        for name, digest in image.layers:
            found.num_layers += 1
            with image.open_layer(name, digest, bound) as layer:
                _Unpacking(folder, found, bound).apply(layer)
                layer.check()
    found.num_bytes = bound.num_bytes
    return found


def _give(folder: Path, owner: tuple[int, int]) -> None:
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(place, name), *owner, follow_symlinks=False)


class _Unpacking:
    """Unpacks one layer on top of the lower ones."""

    def __init__(self, root: Path, found: UnpackedImage, bound: ByteBound) -> None:
        self._root = root
        self._found = found
        self._bound = bound
        self._own: set[str] = set()
        """Paths that this layer wrote, and the folders above them: its whiteouts remove only paths of lower layers."""

    def apply(self, layer: Layer) -> None:
        """Unpack a layer.

        Raises:
            DataError: If something in it is not allowed.
        """
        stream: object = layer  # tarfile calls only `read`
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedHeader) as members:  # type: ignore[call-overload]
            while (member := members.next()) is not None:
                self._found.num_entries += 1
                self._bound.take(_ENTRY_BYTES)
                try:
                    self._apply(members, member)
                except (OSError, DataError) as error:
                    what = f"layer {self._found.num_layers}, {member.name[:200]!r}"
                    raise DataError(f"{what}: {getattr(error, 'strerror', None) or error}") from error
                members.members = []  # else tarfile keeps every header in memory

    def _apply(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return
        *folders, name = parts
        if name.startswith(_WHITEOUT):
            self._remove(folders, name)
            return
        if member.isdev():
            self._leave_out(parts)
            return
        folder = self._folder(folders)
        place = posixpath.join(folder, name)
        self._own |= {place, *_above(place)}
        self._make(members, member, self._path(place))

    def _make(self, members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        if not (member.isdir() and path.is_dir() and not path.is_symlink()):
            _erase(path)
        if member.isdir():
            path.mkdir(exist_ok=True)
            path.chmod(stat.S_IMODE(member.mode) & 0o755 | 0o700)
        elif member.issym():
            path.symlink_to(member.linkname)
        elif member.islnk():
            self._link(member.linkname, path)
        elif member.isreg():
            self._write(members, member, path)
        else:
            raise DataError(f"it is of an unknown type {member.type!r}")

    def _leave_out(self, parts: list[str]) -> None:
        if parts[0] != "dev":
            raise DataError("it is a device node or a pipe outside of /dev, which is not allowed")
        self._found.num_devices += 1

    def _remove(self, folders: list[str], name: str) -> None:
        """Apply a whiteout: remove what lower layers have at this path."""
        place = self._resolved(folders)
        if place is None:
            return
        if name == _OPAQUE:
            names = os.listdir(self._path(place))
        elif name.startswith(_WHITEOUT * 2):
            return  # metadata of the file system that made the layer
        else:
            names = [name.removeprefix(_WHITEOUT)]
        for each in names:
            if each in ("", ".", ".."):
                raise DataError("it is a whiteout (a mark of deletion) without the name of a file")
            if (below := posixpath.join(place, each)) not in self._own:
                _erase(self._path(below))

    def _write(self, members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        if member.issparse():
            self._bound.take(member.size)
        source = members.extractfile(member)
        assert source is not None, "a regular file has content"
        with open(path, "xb") as file:
            shutil.copyfileobj(source, file, 1024**2)
        path.chmod(stat.S_IMODE(member.mode) & 0o755 | 0o600)
        if 0 <= member.mtime < _LATEST_TIME:
            os.utime(path, (member.mtime, member.mtime))

    def _link(self, target: str, path: Path) -> None:
        *folders, name = _parts(target) or [""]
        folder = self._resolved(folders)
        source = None if folder is None else self._path(posixpath.join(folder, name))
        if source is None or source == self._root or not (source.is_symlink() or source.is_file()):
            raise DataError(f"it is a link to {target[:200]!r}, which is not a file of the image")
        os.link(source, path, follow_symlinks=False)

    def _folder(self, parts: list[str]) -> str:
        """Path of a folder below the root; the folder is made if it is missing."""
        place = self._resolved(parts, makes=True)
        assert place is not None, "a folder was made"
        return place

    def _resolved(self, parts: list[str], *, makes: bool = False) -> str | None:
        """Path of a folder below the root, with links followed as inside the image; None if it does not exist."""
        left, place, num_links = parts[::-1], "", 0
        while left:
            part = left.pop()
            if part in ("", ".", ".."):
                place = posixpath.dirname(place) if part == ".." else place
                continue
            below = posixpath.join(place, part)
            path = self._path(below)
            if path.is_symlink():
                num_links += 1
                if num_links > _MAX_LINKS:
                    raise DataError("its folder is a link that leads through too many other links")
                target = os.readlink(path)
                place = "" if target.startswith("/") else place
                left += target.split("/")[::-1]
                continue
            if not (path.exists() or makes):
                return None
            self._check_folder(below)
            place = below
        return place

    def _check_folder(self, place: str) -> None:
        """Make the folder if it is missing; raises DataError if it cannot be a folder, or lies too deep."""
        path = self._path(place)
        if place.count("/") >= _MAX_DEPTH:
            raise DataError(f"it lies more than {_MAX_DEPTH} folders deep")
        if not path.exists():
            path.mkdir(mode=0o755)
        elif not path.is_dir():
            raise DataError(f"{place[:200]!r} is not a folder")

    def _path(self, place: str) -> Path:
        return self._root / place


def _parts(name: str) -> list[str]:
    """Parts of a path below the root.

    Raises:
        DataError: If the path leads out of the root.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise DataError("it leads out of the image by '..'")
    return parts


def _above(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _erase(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
