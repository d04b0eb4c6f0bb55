"""Archive of `docker save` or of an OCI layout -> the layers of its one image, each checked against its digest.

Nothing in an archive is trusted: sizes are bounded before anything is read, and links are followed only inside it.
"""

import gzip
import hashlib
import platform
import posixpath
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from verl_pivot.errors import DataError

MAX_MEMBERS = 100_000
"""Most files of an archive, which holds a few for each layer."""
_MAX_JSON_BYTES = 8 * 1024**2
_MAX_LINKS = 8
_MAX_LAYERS = 1000
_MAX_HEADER_BYTES = 1024**2
"""Most bytes of a header with a long name or with attributes, which tarfile reads into memory."""
_LONG_HEADERS = frozenset((b"x", b"g", b"X", b"L", b"K"))
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
StructT = TypeVar("StructT")


class _SavedImage(msgspec.Struct):
    """One image in the manifest.json of `docker save`."""

    Config: str
    Layers: list[str]
    RepoTags: list[str] | None = None


class _Platform(msgspec.Struct):
    architecture: str = ""


class _Descriptor(msgspec.Struct):
    """Reference of an OCI layout to one of its blobs."""

    digest: str
    mediaType: str = ""
    platform: _Platform | None = None


class _OciDocument(msgspec.Struct):
    """An index, which has manifests, or a manifest, which has a config and layers."""

    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _FileSystem(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    """Configuration of an image, with the digest of each unpacked layer."""

    rootfs: _FileSystem


class BoundedHeader(tarfile.TarInfo):
    """Header of a tar archive; it is refused if tarfile would read too much of it into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "BoundedHeader":
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if bytes(buf).strip(b"\0"):  # tarfile would take a damaged header for the end of the archive
                raise DataError(f"a header of the archive is damaged: {error}") from error
            raise
        if header.type in _LONG_HEADERS and header.size > _MAX_HEADER_BYTES:
            raise DataError(f"a header of {header.size} bytes is longer than the limit of {_MAX_HEADER_BYTES}")
        return header


class ByteBound:
    """Bound on the bytes that are unpacked from an archive, with their number so far."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count bytes.

        Raises:
            DataError: If there are more than `max_bytes` now.
        """
        self.num_bytes += num_bytes
        if self.num_bytes > self.max_bytes:
            raise DataError(f"it unpacks to more than {self.max_bytes} bytes; raise --max-gib if the image needs more")


class Layer:
    """An unpacked layer as a stream, whose bytes are counted and hashed."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, bound: ByteBound, digest: str) -> None:
        self._stream = stream
        self._bound = bound
        self._digest = digest
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._bound.take(len(data))
        self._hash.update(data)
        return data

    def check(self) -> None:
        """Read the rest of the layer, and compare its digest with that in the image's configuration.

        Raises:
            DataError: If the digests differ.
        """
        while self.read(1024**2):
            pass
        if (found := f"sha256:{self._hash.hexdigest()}") != self._digest:
            raise DataError(f"a layer is damaged: its digest is {found}, not {self._digest} as in the configuration")


class ImageArchive:
    """The image in an archive."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        """Read the manifest and the configuration.

        Raises:
            DataError: If it holds no image, or several.
        """
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            self._members[posixpath.normpath(member.name)] = member
            if len(self._members) > MAX_MEMBERS:
                raise DataError(f"it has more than {MAX_MEMBERS} files, so it is not an archive of an image")
        config, layers = self._docker_save() if "manifest.json" in self._members else self._oci_layout()
        digests = self._json(config, _Config).rootfs.diff_ids
        if len(layers) != len(digests) or len(layers) > _MAX_LAYERS:
            raise DataError(
                f"it has {len(layers)} layers, but its configuration lists {len(digests)}; both must be the same "
                f"number, at most {_MAX_LAYERS}"
            )
        self.layers = list(zip(layers, digests, strict=True))
        """[num_layers] (name of the layer's file in the archive, digest), from the lowest layer up."""

    @contextmanager
    def open_layer(self, name: str, digest: str, bound: ByteBound) -> Iterator[Layer]:
        """Unpacked stream of a layer.

        Raises:
            DataError: If the layer is missing, damaged, or compressed by zstd.
        """
        stream = self._open(name)
        start = stream.read(4)
        stream.seek(0)
        if start == _ZSTD:
            raise DataError(
                f"layer {name!r} is compressed by zstd: convert it by `skopeo copy --dest-compress-format gzip "
                "--dest-force-compress-format oci-archive:OLD oci-archive:NEW`"
            )
        try:
            yield Layer(gzip.GzipFile(fileobj=stream) if start.startswith(_GZIP) else stream, bound, digest)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"layer {name!r} is damaged: {error}") from error

    def _docker_save(self) -> tuple[str, list[str]]:
        images = self._json("manifest.json", list[_SavedImage])
        if len(images) != 1:
            tags = [tag for image in images for tag in image.RepoTags or ()]
            raise DataError(f"it holds {len(images)} images, {tags!s:.300}; save a single image")
        return images[0].Config, images[0].Layers

    def _oci_layout(self) -> tuple[str, list[str]]:
        if "index.json" not in self._members:
            raise DataError("it holds neither manifest.json nor index.json: give an archive of `docker save`, or of "
                            "skopeo in the form docker-archive: or oci-archive:")  # fmt: skip
        document = self._json("index.json", _OciDocument)
        for _ in range(_MAX_LINKS):
            if document.manifests is None:
                break
            document = self._json(_blob(_chosen(document.manifests)), _OciDocument)
        if document.config is None or document.layers is None:
            raise DataError("its index does not lead to a manifest with a configuration and layers")
        return _blob(document.config), [_blob(layer) for layer in document.layers]

    def _json(self, name: str, kind: type[StructT]) -> StructT:
        with self._open(name) as file:
            text = file.read(_MAX_JSON_BYTES + 1)
        if len(text) > _MAX_JSON_BYTES:
            raise DataError(f"its {name!r} is longer than {_MAX_JSON_BYTES} bytes")
        try:
            return msgspec.json.decode(text, type=kind)
        except (ValueError, RecursionError) as error:
            raise DataError(f"its {name!r} cannot be read: {error}") from error

    def _open(self, name: str) -> IO[bytes]:
        """File of the archive; links are followed, since `docker save` writes one where two layers are the same."""
        place = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            member = self._members.get(place)
            if member is None:
                raise DataError(f"its file {place!r} is missing")
            if member.isreg() and not member.issparse():
                file = self._archive.extractfile(member)
                assert file is not None, "a regular file has content"
                return file
            if not (member.issym() or member.islnk()):
                raise DataError(f"its file {place!r} is not a regular file")
            folder = posixpath.dirname(place) if member.issym() else ""
            place = posixpath.normpath(posixpath.join(folder, member.linkname))
        raise DataError(f"its file {name!r} is a link that leads through too many other links")


def _blob(descriptor: _Descriptor) -> str:
    return f"blobs/{descriptor.digest.replace(':', '/')}"


def _chosen(manifests: list[_Descriptor]) -> _Descriptor:
    """The manifest for this machine, or the only one."""
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    fitting = [each for each in manifests if each.platform is not None and each.platform.architecture == own]
    if len(manifests) == 1 or len(fitting) == 1:
        return (fitting or manifests)[0]
    raise DataError(f"its index names {len(manifests)} images, {len(fitting)} of them for {own}; save a single image")


@contextmanager
def open_archive(path: Path) -> Iterator[ImageArchive]:
    """The image in a file.

    Raises:
        DataError: If the file cannot be read, or is no archive of one image.
    """
    try:
        with tarfile.open(path, "r:*", tarinfo=BoundedHeader) as archive:
            yield ImageArchive(archive)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
