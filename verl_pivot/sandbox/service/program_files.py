"""Program -> the files to write before its start, checked against its limits."""

from pathlib import PurePosixPath

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.service.languages import Language

_PAGE_BYTES = 4096


def program_files(program: Program, language: Language) -> dict[str, bytes]:
    """Code and files of a program: {name: content}.

    Raises:
        SandboxRequestError: If two names collide, or the files do not fit into /tmp.
    """
    contents = {language.file: utf8_bytes(program.code), **program.files}
    if language.file in program.files:
        raise SandboxRequestError(f"files may not name {language.file!r}, which holds the code")
    folders = {str(folder) for name in contents for folder in PurePosixPath(name).parents}
    collisions = sorted(folders & contents.keys())
    if collisions:
        raise SandboxRequestError(f"files name {collisions[0]!r} both as a file and as a folder")
    needed_bytes = sum(-(-len(content) // _PAGE_BYTES) * _PAGE_BYTES for content in contents.values())
    if needed_bytes > program.limits.tmp_bytes:
        raise SandboxRequestError(
            f"code and files take {needed_bytes} bytes, more than limits.tmp_bytes of {program.limits.tmp_bytes}"
        )
    num_entries = len(contents) + len(folders)
    if num_entries > program.limits.num_tmp_files:
        raise SandboxRequestError(
            f"code, files and folders are {num_entries} entries of /tmp, itself included, more than "
            f"limits.num_tmp_files of {program.limits.num_tmp_files}"
        )
    return contents


def utf8_bytes(text: str) -> bytes:
    """Text as UTF-8; a lone surrogate, which UTF-8 cannot hold, becomes bytes that the program's decoder refuses."""
    return text.encode("utf-8", "surrogatepass")
