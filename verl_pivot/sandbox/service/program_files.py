"""Program -> the files to write before its start, checked against its limits."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.service.languages import Language

_PAGE_BYTES = 4096
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
"""Beginnings of names of variables that Python, the linker and the C library read once, at the start."""


def program_files(program: Program, language: Language) -> dict[str, bytes]:
    """Code and files of a program: {name: content}.

    Raises:
        SandboxRequestError: If two names collide, or the files do not fit into /tmp.
    """
    check_variables(program.environment, language)
    contents = {language.file: utf8_bytes(program.code), **program.files}
    if language.file in program.files:
        raise SandboxRequestError(f"files: the name {language.file!r} is used for the code; choose another name")
    folders = {str(folder) for name in contents for folder in PurePosixPath(name).parents}
    if program.folder:
        folders |= {program.folder, *map(str, PurePosixPath(program.folder).parents)}
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
            f"code, files and folders take {num_entries} entries of /tmp, including /tmp itself, more than "
            f"limits.num_tmp_files of {program.limits.num_tmp_files}"
        )
    return contents


def check_variables(environment: Mapping[str, str], language: Language) -> None:
    """Check that a program can be given these variables.

    Raises:
        SandboxRequestError: If a variable works only at the start of the interpreter, and a zygote has started already.
    """
    for name in environment:
        if language.zygote is not None and name.startswith(_READ_AT_START):
            raise SandboxRequestError(
                f"environment: {name} has no effect in language {language.name!r}, whose interpreter is "
                "already running; set the option inside the program instead"
            )


def utf8_bytes(text: str) -> bytes:
    """Text as UTF-8; a lone surrogate, which UTF-8 cannot hold, becomes bytes that the program's decoder refuses."""
    return text.encode("utf-8", "surrogatepass")
