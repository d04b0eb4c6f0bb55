"""Environment variables and working folder of programs and sessions, on every kind of service."""

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, on_every_kind, service
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import Limits, Program

pytestmark = needs_sandbox

SHOW = """import os, sys
print(os.environ['A'], os.environ.get('HOME'), os.getcwd(), os.environ['PWD'], sys.argv[0], sys.path[0])
"""
PLACE = {"environment": {"A": "1 \u00e4", "HOME": "/tmp/home"}, "folder": "repo/src"}


@on_every_kind
def test_a_program_starts_in_its_folder_with_its_variables(kind: Kind) -> None:
    assert service(kind).output(SHOW, **PLACE) == "1 \u00e4 /tmp/home /tmp/repo/src /tmp/repo/src /tmp/main.py /tmp\n"


@on_every_kind
def test_without_a_folder_a_program_starts_in_tmp_and_the_next_one_has_no_variables(kind: Kind) -> None:
    assert service(kind).output(SHOW, environment={"A": "2"}) == "2 /tmp /tmp /tmp main.py /tmp\n"
    assert service(kind).output("import os\nprint('A' in os.environ, os.listdir())") == "False ['main.py']\n"


@on_every_kind
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", 'echo "$A" "$PWD" "$0"; cat note.txt; echo 5 > out.txt'),
        (
            "c",
            "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\nint main(int n, char **a) {"
            'char b[99]; printf("%s %s %s\\n", getenv("A"), getcwd(b, 99), "/tmp/main.sh");'
            'int c; FILE *f = fopen("note.txt", "r"); while ((c = getc(f)) != EOF) putchar(c);'
            'f = fopen("out.txt", "w"); fputs("5\\n", f); return 0; }',
        ),
    ],
)
def test_programs_of_other_languages_do_too_and_names_of_files_stay_relative_to_tmp(
    kind: Kind, language: str, code: str
) -> None:
    result = service(kind).run(
        code, language=language, files={"repo/src/note.txt": b"note\n"}, fetch=("repo/src/out.txt",), **PLACE
    )

    assert (result.status, result.stdout, result.stderr) == ("ok", "1 \u00e4 /tmp/repo/src /tmp/main.sh\nnote\n", "")
    assert result.files == {"repo/src/out.txt": b"5\n"}


@on_every_kind
def test_the_time_zone_is_that_of_the_variable(kind: Kind) -> None:
    assert service(kind).output("import time\nprint(time.tzname)", environment={"TZ": "XYZ-2"}) == "('XYZ', 'XYZ')\n"


@on_every_kind
def test_a_linkers_variable_reaches_the_program_and_no_trusted_part(kind: Kind) -> None:
    result = service(kind).run("echo $LD_PRELOAD; exit 3", language="bash", environment={"LD_PRELOAD": "/tmp/no.so"})

    assert (result.status, result.exit_code, result.stdout) == ("error", 3, "/tmp/no.so\n")
    assert "/tmp/no.so" in result.stderr, "the linker says that it cannot load it"


@on_every_kind
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": {"PYTHONPATH": "/tmp"}}, "PYTHONPATH has no effect in language 'python'"),
        ({"environment": {"LD_PRELOAD": "x"}}, "LD_PRELOAD has no effect"),
        ({"folder": "main.py"}, "both as a file and as a folder"),
        ({"folder": "a", "files": {"a": b""}}, "both as a file and as a folder"),
    ],
)
def test_what_a_program_cannot_have_is_the_callers_error(kind: Kind, options: dict[str, object], message: str) -> None:
    with pytest.raises(SandboxRequestError, match=message):
        service(kind).run("print(1)", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": {"A=B": "1"}}, "'A=B' cannot be set: use a valid name"),
        ({"environment": {"": "1"}}, "'' cannot be set"),
        ({"environment": {"A\n": "1"}}, "cannot be set"),
        ({"environment": {"PATH": "/none"}}, "'PATH' cannot be set: .* not PATH or PWD"),
        ({"environment": {"PWD": "/"}}, "'PWD' cannot be set"),
        ({"environment": {"A": "b\0c"}}, "the value of A holds a NUL byte"),
        ({"environment": {"A": "b" * 65536}}, "environment of 65537 bytes is larger than 65536"),
        ({"folder": "../up"}, r"'\.\./up' must be relative"),
        ({"folder": "/etc"}, "'/etc' must be relative"),
        ({"folder": "a/./b"}, "must be relative"),
        ({"folder": "a/b/"}, "must be relative"),
        ({"folder": "/".join("abcdefghi")}, "has more than 8 parts"),
    ],
)
def test_names_that_cannot_be_used_are_refused_before_anything_is_sent(options: dict[str, str], message: str) -> None:
    with pytest.raises(SandboxRequestError, match=message):
        Program(code="", **options)  # type: ignore[arg-type]


async def test_a_session_and_its_branch_and_its_next_epoch_start_there() -> None:
    show = "import os; (os.environ['A'], os.getcwd(), os.environ['PWD'])"
    there = "('1 \u00e4', '/tmp/repo/src', '/tmp/repo/src')"
    async with (
        service().client() as sandbox,
        await sandbox.open(
            environment=PLACE["environment"], folder="repo/src", limits=Limits(num_tmp_files=16)
        ) as session,
    ):
        await session.write_file("repo/src/in.txt", b"7")
        first = await session.run(show + "\nopen('in.txt').read()")
        async with await session.fork() as branch:
            branched = await branch.run(show)
        await session.run("import os; os._exit(1)")
        again = await session.run(show)

    assert first.value == "'7'"
    assert (branched.value, again.value) == (there, there)
    assert again.session is not None
    assert again.session.epoch == 2


async def test_a_session_is_refused_what_a_program_is_refused() -> None:
    async with service().client() as sandbox:
        for environment, folder in (({"PYTHONPATH": "/tmp"}, ""), ({"A=": ""}, ""), ({}, "../a"), ({}, "/")):
            with pytest.raises(SandboxRequestError):
                await sandbox.open(environment=environment, folder=folder)
