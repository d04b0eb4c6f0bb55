"""Languages from YAML; each language that ships with the package is run for real, by one bubblewrap per program."""

from pathlib import Path
from typing import get_args

import pytest

from tests.support.sandbox_machine import needs_sandbox, run
from verl_pivot.errors import ConfigError, SandboxRequestError
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import MIB, Limits, Program, Status
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend
from verl_pivot.sandbox.service.language_options import ZygoteChoice
from verl_pivot.sandbox.service.languages import LanguageTable, load_languages

VIEW = PythonView(executable="/venv/bin/python", bases=(Path("/usr"),), environment=None, site_packages=())


def load(folder: Path, yaml: str) -> LanguageTable:
    (folder / "languages.yaml").write_text(yaml)
    return load_languages(folder / "languages.yaml", python=VIEW)


def known(languages: LanguageTable) -> set[str]:
    return {*languages.available, *languages.missing}


def test_the_package_describes_five_languages() -> None:
    assert known(load_languages(python=VIEW)) == {"python", "bash", "javascript", "c", "cpp"}


def test_a_users_file_changes_single_fields_and_adds_and_removes_languages(tmp_path: Path) -> None:
    languages = load(tmp_path, "python: {zygote: standard}\nlua: {file: main.lua, run: [sh, main.lua]}\nbash: null\n")

    assert known(languages) == {"python", "javascript", "c", "cpp", "lua"}
    assert (languages.available["python"].zygote, languages.available["python"].run) == (
        "standard",
        ("python", "main.py"),
    )
    assert languages.available["lua"].compile is None


def test_a_users_warm_up_is_one_line_and_null_removes_one(tmp_path: Path) -> None:
    shipped = load_languages(python=VIEW)
    added = load(tmp_path, "python: {warm: {colorsys: import colorsys, sympy: null}}")

    assert set(shipped.warm_ups) == {"datetime", "math_verify", "numpy", "pandas", "sympy"}
    assert set(added.warm_ups) == {"datetime", "math_verify", "numpy", "pandas", "colorsys"}
    assert (shipped.warmed_modules, added.warmed_modules) == ((), ("colorsys",))
    assert load(tmp_path, "python: {warm: null}").warm_ups == {}


def test_a_users_warm_up_has_its_module_imported_in_the_full_zygote_and_found_in_programs(tmp_path: Path) -> None:
    (tmp_path / "languages.yaml").write_text("python: {warm: {colorsys: import colorsys}}")
    backend = ZygoteBackend(BackendSettings(languages_file=tmp_path / "languages.yaml"))
    plans = backend._lane_settings(has_proc=True)["zygotes"]

    assert "colorsys" in plans["full"]["modules"]
    assert {name: set(plan["warm_ups"]) for name, plan in plans.items()} == {
        "bare": set(),
        "standard": {"datetime"},
        "full": {"datetime", "numpy", "math_verify", "sympy", "colorsys"},
    }
    python = backend._languages.get("python")
    assert backend._zygotes.choose(Program(code="import colorsys"), python) == "full"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert known(load(tmp_path, "")) == known(load_languages(python=VIEW))


def test_the_zygotes_that_a_language_may_name_are_those_of_a_lane() -> None:
    zygotes = ZygoteBackend(BackendSettings())._lane_settings(has_proc=True)["zygotes"]

    assert {*zygotes, "auto"} == set(get_args(ZygoteChoice))


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("go: {file: main.go}", r"languages\.yaml: go\.run: Field required"),
        ("go: {file: main.go, run: []}", r"go\.run: .*at least 1 item"),
        ("go: {file: main.go, run: [go], speed: 1}", r"go\.speed: unknown key, got 1"),
        ("go: {file: ../main.go, run: [go]}", r"file name '\.\./main\.go' must be relative"),
        ("go: {file: main.go, run: [go], compile_limits: {wall_seconds: -1}}", r"limits\.wall_seconds must be from"),
        (
            "python: {zygote: numpy}",
            r"python\.zygote: Input should be 'auto', 'bare', 'standard' or 'full', got 'numpy'",
        ),
        ("c: {warm: {math: import math}}", r"c: warm needs a zygote"),
        ("python: {warm: {math: 'x ='}}", r"python\.warm\.math: is not valid Python: invalid syntax, line 1"),
        ("python: {warm: {a b: import a}}", r"python\.warm\..*String should match pattern"),
        ("python: {warm: {no_such: import no_such}}", r"yaml: warm\.no_such: no such package is installed"),
        ("python: {warm: {math: 'x = \"" + "y" * 40_000 + "\"'}}", r"together have 4\d+ bytes, more than 32768"),
        (
            "other: {file: a.py, run: [python, a.py], zygote: full, warm: {datetime: import datetime}}",
            r"other\.warm\.datetime: another language has a different one; keep one",
        ),
        ("Go!: {file: main.go, run: [go]}", r"Go!: String should match pattern"),
        ("- go", "must map names of languages to their fields"),
        ("go: [", "languages cannot be read from"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, yaml)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="languages cannot be read from"):
        load_languages(tmp_path / "none.yaml", python=VIEW)


def test_a_language_that_is_not_installed_is_refused_with_what_is(tmp_path: Path) -> None:
    languages = load(
        tmp_path, "zig: {file: main.zig, run: [zig-of-nowhere]}\nbash: null\njavascript: null\nc: null\ncpp: null"
    )

    assert languages.missing == {"zig": "zig-of-nowhere"}
    with pytest.raises(SandboxRequestError, match=r"'zig' cannot run here, since zig-of-nowhere is missing: .* python"):
        languages.get("zig")
    with pytest.raises(SandboxRequestError, match="language 'cobol': use python, or define it in languages_file"):
        languages.get("cobol")


SUM = {
    "python": "import sys; a, b = map(int, input().split()); print(a + b); sys.exit(3)",
    "bash": "read a b; echo $((a + b)); exit 3",
    "javascript": "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);"
    "console.log(a + b); process.exitCode = 3",
    "c": '#include <stdio.h>\nint main() { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 3; }',
    "cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; return 3; }",
}


@needs_sandbox
@pytest.mark.parametrize("language", SUM)
async def test_each_language_reads_prints_and_exits(language: str) -> None:
    result = await run(Program(code=SUM[language], language=language, stdin="40 2"))

    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.ERROR, 3, "42\n", "")


@needs_sandbox
async def test_javascript_runs_under_the_smallest_limits() -> None:
    limits = Limits(memory_bytes=64 * MIB, num_processes=1, num_open_files=16)

    result = await run(Program(code="console.log([1, 2].map(x => x * 2))", language="javascript", limits=limits))

    assert (result.status, result.stdout) == (Status.OK, "[ 2, 4 ]\n")
