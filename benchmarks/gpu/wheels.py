"""Pinned requirements and an environment -> the packages that it lacks; wheels -> smaller wheels in pieces of 60 MB.

It needs the standard library alone, so that it runs on a bare machine: `python benchmarks/gpu/wheels.py --help`.
"""

import argparse
import hashlib
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PIECE_BYTES = 60_000_000
_PINNED = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;#]+)", re.MULTILINE)
_NEEDLESS = ("*/tests/*", "*/test/*", "*.a", "*.pyi", "*.js.map", "ray/jars/*")
"""Files that no GPU run needs. Headers stay: SGLang, FlashInfer and Triton compile with them when they start."""
_CONTAINER = struct.Struct("<IHHQ")
"""Head of CUDA's container of device code: magic, version, bytes of this head, bytes of the entries."""
_CONTAINER_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<HHIQ12xI")
"""Head of an entry: kind, version, bytes of this head, bytes of the code, 12 bytes of other fields, architecture."""
_MACHINE_CODE = 2
"""Kind of an entry that runs on one architecture; PTX, which the driver compiles, is of another kind and stays."""
_ARCHITECTURE = re.compile(r"(?:^|[/_.-])sm_?(\d+)[a-z]?(?=[/_.-]|$)")
_MANIFEST = "manifest.json"


def missing(requirements: Path) -> list[str]:
    """Lines of pinned requirements whose package is not installed here in that version."""
    return [
        f"{name}=={wanted}" for name, wanted in _PINNED.findall(requirements.read_text()) if _installed(name) != wanted
    ]


def _installed(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]  # 2.11.0+cu130 is PyTorch's name of 2.11.0
    except PackageNotFoundError:
        return None


def is_needed(name: str, architecture: int) -> bool:
    """Whether a file of a wheel is needed on one GPU architecture; tests and code for other architectures are not.

    Args:
        name: Path inside the wheel.
        architecture: 90 for sm_90.
    """
    if any(fnmatchcase(name, pattern) for pattern in _NEEDLESS):
        return False
    architectures = {int(number) for number in _ARCHITECTURE.findall(name)}
    return not architectures or any(runs_on(each, architecture) for each in architectures)


def runs_on(compiled_for: int, architecture: int) -> bool:
    """Whether a GPU runs machine code for an architecture, which must be of its generation and not newer."""
    return compiled_for // 10 == architecture // 10 and compiled_for <= architecture


def without_other_architectures(library: bytes, architecture: int) -> bytes:
    """A library in which machine code for other GPU architectures is replaced by zeros, which compress well in a wheel.

    Args:
        library: Content of the file.
        architecture: 90 for sm_90.
    """
    kept = bytearray(library)
    magic = _CONTAINER_MAGIC.to_bytes(4, "little")
    start = kept.find(magic)
    while start >= 0:
        _, version, head, size = _CONTAINER.unpack_from(kept, start)
        end = start + head + size
        if version != 1 or head != _CONTAINER.size or end > len(kept):
            start = kept.find(magic, start + 4)  # the same four bytes in other data
            continue
        entry = start + head
        while entry < end:
            kind, _, entry_head, code, compiled_for = _ENTRY.unpack_from(kept, entry)
            if kind == _MACHINE_CODE and not runs_on(compiled_for, architecture):
                kept[entry + entry_head : entry + entry_head + code] = bytes(code)
            entry += entry_head + code
        start = kept.find(magic, end)
    return bytes(kept)


def trim(wheel: Path, out: Path, architecture: int, without: Iterable[str] = ()) -> Path:
    """Write a smaller wheel, without the files and the machine code that are not needed.

    Its RECORD lists the files that are kept, with the hashes of the original files; pip does not compare them.

    Args:
        wheel: The wheel.
        out: Folder for the smaller wheel.
        architecture: 90 for sm_90.
        without: Patterns of further files to leave out.
    """
    without = tuple(without)

    def is_kept(name: str) -> bool:
        return is_needed(name, architecture) and not any(fnmatchcase(name, pattern) for pattern in without)

    out.mkdir(parents=True, exist_ok=True)
    smaller = out / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if info.filename.endswith(".dist-info/RECORD"):
                lines = source.read(info).decode().splitlines(keepends=True)
                kept = [line for line in lines if is_kept(line.rsplit(",", 2)[0].strip('"'))]
                target.writestr(info, "".join(kept), zipfile.ZIP_DEFLATED)
            elif is_kept(info.filename):
                content = source.read(info)
                if ".so" in info.filename:
                    content = without_other_architectures(content, architecture)
                target.writestr(info, content, zipfile.ZIP_DEFLATED)
    return smaller


def split(wheels: Iterable[Path], out: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Write wheels one after the other into pieces of equal size, and a manifest by which `join` finds them again.

    Args:
        wheels: The wheels.
        out: Folder for the pieces, which must be empty or new.
        piece_bytes: Size of each piece but the last.
    """
    out.mkdir(parents=True, exist_ok=True)
    manifest: list[dict[str, object]] = []
    pieces: list[Path] = []
    piece = b""
    for wheel in sorted(wheels):
        content = wheel.read_bytes()
        manifest.append({"name": wheel.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        piece += content
        while len(piece) >= piece_bytes:
            pieces.append(_write_piece(out, len(pieces), piece[:piece_bytes]))
            piece = piece[piece_bytes:]
    if piece:
        pieces.append(_write_piece(out, len(pieces), piece))
    (out / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return pieces


def _write_piece(out: Path, number: int, content: bytes) -> Path:
    path = out / f"piece-{number:03}"
    path.write_bytes(content)
    return path


def join(pieces: Path, out: Path) -> list[Path]:
    """Put the pieces of a folder together again; returns the wheels.

    Args:
        pieces: Folder with all pieces and the manifest.
        out: Folder for the wheels.

    Raises:
        ValueError: If a piece is missing or was changed on its way.
    """
    out.mkdir(parents=True, exist_ok=True)
    content = _Stream(path.read_bytes() for path in sorted(pieces.glob("piece-*")))
    written = []
    for entry in json.loads((pieces / _MANIFEST).read_text()):
        wheel = content.take(entry["bytes"])
        if hashlib.sha256(wheel).hexdigest() != entry["sha256"]:
            raise ValueError(f"{entry['name']} did not arrive whole: carry all pieces of {pieces} again")
        (out / entry["name"]).write_bytes(wheel)
        written.append(out / entry["name"])
    return written


class _Stream:
    """Bytes of several pieces, taken in order."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def take(self, number: int) -> bytes:
        while len(self._left) < number and (piece := next(self._pieces, None)) is not None:
            self._left += piece
        taken, self._left = self._left[:number], self._left[number:]
        return taken


def main() -> None:
    """Run the subcommand of the command line."""
    parser = argparse.ArgumentParser(description="Wheels for a machine without a network.")
    commands = parser.add_subparsers(dest="command", required=True)
    lacking = commands.add_parser("missing", help="print the requirements that this environment lacks")
    lacking.add_argument("requirements", type=Path, nargs="?", default=Path("requirements/sglang.txt"))
    cutting = commands.add_parser("pieces", help="make wheels smaller, and cut them into pieces of 60 MB")
    cutting.add_argument("wheels", type=Path)
    cutting.add_argument("--out", type=Path, default=Path("outputs/gpu/carried"))
    cutting.add_argument("--architecture", type=int, default=90, help="GPU architecture, 90 for sm_90")
    cutting.add_argument("--without", action="append", default=[], help="pattern of files to leave out; repeatable")
    joining = commands.add_parser("join", help="put the pieces together again")
    joining.add_argument("pieces", type=Path)
    joining.add_argument("--out", type=Path, default=Path("wheels"))
    given = parser.parse_args()
    match given.command:
        case "missing":
            print("\n".join(missing(given.requirements)))
        case "pieces":
            smaller = [
                trim(wheel, given.out / "wheels", given.architecture, given.without)
                for wheel in sorted(given.wheels.glob("*.whl"))
            ]
            pieces = split(smaller, given.out / "pieces")
            print(f"{sum(wheel.stat().st_size for wheel in smaller) / 1e6:.0f} MB in {len(pieces)} pieces")
        case "join":
            print(f"{len(join(given.pieces, given.out))} wheels in {given.out}")


if __name__ == "__main__":
    main()
