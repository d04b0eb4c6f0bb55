"""`verl-pivot init`: the files that it writes pass their own test and mypy, and the commands that it prints work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.launching import MINIMAL
from tests.support.paths import ROOT
from verl_pivot.cli import app

FILES = {
    "verifier": ["{}.py", "test_{}.py", "{}_trajectories.jsonl"],
    "tool": ["{}.py", "test_{}.py", "{}.yaml"],
    "environment": ["{}.py", "test_{}.py", "{}.yaml", "{}_problems.jsonl"],
    "format": ["{}.py", "test_{}.py", "{}_example.jsonl"],
}
TYPED = "I have nothing for you.\n" * 2
"""Input of a person in `verl-pivot play --human` who answers each problem at once, without a call."""


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of mypy that all kinds share, since mypy reads mostly the package itself."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folder in which the commands run, with the programs of this Python environment on the PATH."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["init", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["init", *arguments])
    assert done.exit_code == 1, done.output
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("error: ").strip()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", FILES)
def test_what_is_written_runs_and_every_printed_command_works_as_it_stands(
    kind: str, folder: Path, mypy_cache: Path
) -> None:
    variables = {
        **MINIMAL,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "MYPY_CACHE_DIR": str(mypy_cache),
    }
    said = init(kind, "refund_check")

    names = [name.format("refund_check") for name in FILES[kind]]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert said.startswith(f"Wrote {', '.join(names)}. Next:\n  python -m pytest test_refund_check.py\n")
    commands = [line.strip() for line in said.splitlines() if line.startswith("  ")]
    assert len(commands) == {"verifier": 4, "tool": 3, "environment": 3, "format": 3}[kind]
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], env=variables, input=TYPED, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "my_" not in done.stdout


@pytest.mark.parametrize("kind", FILES)
def test_no_word_of_the_template_is_left(kind: str, folder: Path) -> None:
    init(kind, "http2_log")

    for path in folder.iterdir():
        text = path.read_text()
        assert [word for word in ("my_", "My", "templates") if word in text] == []
    assert "Http2Log" in "".join(path.read_text() for path in folder.iterdir()) or kind in ("tool", "format")


def test_commands_name_the_environment_that_the_shell_would_not_find(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    commands = [line for line in init("verifier", "refund_check").splitlines() if line.startswith("  ")]

    programs = Path(sys.executable).parent
    assert [line.split()[0] for line in commands] == [f"{programs}/python"] * 2 + [f"{programs}/verl-pivot"] * 2


def test_a_class_of_the_template_takes_no_name_away_from_a_tool(folder: Path) -> None:
    init("tool", "basket")

    assert (folder / "basket.py").is_file()


def test_names_of_the_templates_themselves_may_be_taken(folder: Path) -> None:
    for kind in FILES:
        init(kind, f"my_{kind}")

    assert len(list(folder.iterdir())) == sum(map(len, FILES.values()))


@pytest.mark.parametrize("there", ["refund_check.py", "test_refund_check.py", "refund_check.yaml"])
def test_nothing_is_overwritten_and_nothing_is_half_written(folder: Path, there: str) -> None:
    (folder / there).write_text("mine")

    message = refusal("tool", "refund_check")

    assert message == f"existing files are not overwritten: {there}; choose another name"
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(there, "mine")]


def test_a_link_that_leads_nowhere_is_not_written_through(folder: Path) -> None:
    (folder / "refund_check.py").symlink_to(folder / "elsewhere.py")

    assert refusal("tool", "refund_check").startswith("existing files are not overwritten")
    assert not (folder / "elsewhere.py").exists()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("verifier", "Refund", "'Refund' must consist of lower-case letters, digits and single underscores"),
        ("verifier", "refund-check", "'refund-check' must consist of lower-case letters"),
        ("verifier", "../refund", "'../refund' must consist of lower-case letters"),
        ("verifier", "", "'' must consist of lower-case letters"),
        ("verifier", "class", "'class' is a keyword or built-in of Python; choose another, such as my_class"),
        ("tool", "sum", "'sum' is a keyword or built-in of Python"),
        ("tool", "json", "the file would hide the Python package 'json'"),
        ("tool", "numpy", "the file would hide the Python package 'numpy'"),
        ("tool", "test_refund", "'test_refund' is a name with a meaning for pytest"),
        ("tool", "jupyter_code", "tool 'jupyter_code' comes with verl-pivot already"),
        (
            "verifier",
            "tool_call",
            "verifier 'tool_call' comes with verl-pivot already; choose another, such as my_tool",
        ),
        ("format", "sharegpt", "format 'sharegpt' comes with verl-pivot already"),
        ("verifier", "turn", "'turn' has another use in the template; choose another, such as my_turn"),
        ("environment", "environment", "'environment' has another use in the template"),
    ],
)
def test_a_name_that_would_not_work_is_refused(folder: Path, kind: str, name: str, said: str) -> None:
    assert refusal(kind, name).startswith(said)
    assert list(folder.iterdir()) == []


def test_a_folder_that_takes_no_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()

    assert refusal("tool", "refund_check") == (
        "refund_check.py cannot be written: No such file or directory; go to another folder"
    )
