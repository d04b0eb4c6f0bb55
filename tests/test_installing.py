"""Installing: every pip command that the project gives can be resolved, and none changes an installed verl."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.resolving import compiled, environment_of, pins, pip_commands, resolved, with_requirements
from verl_pivot.extras import install_argument

VERL = {"verl": "0.9.1", "torch": "2.11.0", "transformers": "5.9.0"}
"""Versions of verl and of packages that it pins, the same with either engine."""


def test_the_pip_commands_of_the_docs_are_found() -> None:
    assert {"'.[data,verifiers]'", "'.[vllm,data,verifiers]'", "--no-deps -r requirements/sglang.txt"} < set(
        pip_commands()
    )


@pytest.mark.parametrize("file", ["docs/installing.md", "docker/Dockerfile"])
def test_docker_is_started_with_the_options_that_the_sandbox_needs(file: str) -> None:
    table = re.findall(r"^\| Docker \|.*$", (ROOT / "docs" / "sandbox.md").read_text(), re.MULTILINE)
    (command,) = re.findall(r"docker run (?:.*\\\n)*.*", (ROOT / file).read_text())

    options = re.findall(r"--security-opt [\w=]+", " ".join(table))
    assert len(options) == 3
    assert re.findall(r"--(?:security-opt|cap-add|privileged)\S* ?[\w=]*", command) == options


@pytest.mark.slow
@pytest.mark.parametrize("command", pip_commands())
def test_every_pip_command_of_the_docs_resolves(command: str, wheel: Path) -> None:
    versions = resolved(shlex.split(command), wheel)

    if "vllm" in command:
        assert versions.items() >= (VERL | {"vllm": "0.24.0"}).items()
    if "sglang" in command:
        assert versions.items() >= (VERL | {"sglang": "0.5.12"}).items()
    if "sandbox" in command:
        assert versions.keys() & {"verl", "torch"} == set()


@pytest.mark.slow
def test_the_locked_file_for_sglang_is_what_its_inputs_resolve_to() -> None:
    """Run `make lock` where this fails."""
    locked = ["--constraint", "requirements/sglang.txt", "--override", "requirements/overrides.txt"]
    extras = ["--extra", "data", "--extra", "sandbox", "--extra", "verifiers"]

    versions = compiled([*locked, *extras, "requirements/sglang.in", "pyproject.toml"])

    assert versions == pins((ROOT / "requirements" / "sglang.txt").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.9.1", "0.10.0.dev0"])
def test_pip_installs_the_package_beside_any_verl_and_changes_nothing_that_verl_requires(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    """pip's own resolver runs in an environment that holds only the metadata of verl and of its requirements."""
    verl = {dist.name.lower(): dist for dist in with_requirements("verl")}
    python = environment_of(verl.values(), tmp_path / "environment")
    (metadata,) = (tmp_path / "environment").glob("lib/*/site-packages/verl-*/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 0.9.1\n", f"Version: {version}\n"))
    metadata.parent.rename(metadata.parents[1] / f"verl-{version}.dist-info")
    report = tmp_path / "report.json"

    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run", "--quiet"]
    subprocess.run(
        [*command, "--report", report, f"verl-pivot[data,verifiers,verl] @ {wheel.as_uri()}"],
        check=True,
        env=os.environ,
    )

    changed = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert len(verl) > 60
    assert changed >= {"verl-pivot", "duckdb", "sqlglot"}
    assert changed & verl.keys() == set()
    assert changed & {"torch", "sglang", "vllm"} == set()


@pytest.mark.slow
def test_the_package_adds_nothing_but_itself_to_the_locked_file_for_sglang(wheel: Path) -> None:
    """The extras data, sandbox and verifiers need no package or version that the file lacks."""
    locked = pins((ROOT / "requirements" / "sglang.txt").read_text())

    versions = compiled(
        ["--constraint", "requirements/sglang.txt", "-"], f"verl-pivot[data,sandbox,verifiers] @ {wheel.as_uri()}"
    )

    assert versions.items() <= locked.items()
    assert len(versions) > 60


@pytest.mark.parametrize(
    ("direct_url", "argument"),
    [
        (None, "'verl-pivot[sql]'"),
        ('{"url": "file:///home/me/my%20clone", "dir_info": {}}', "'/home/me/my clone[sql]'"),
        ('{"url": "file:///src", "dir_info": {"editable": true}}', "--editable '/src[sql]'"),
        ('{"url": "file:///a/p.whl", "archive_info": {}}', "'/a/p.whl[sql]'"),
        (
            '{"url": "https://host/p.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}',
            "'verl-pivot[sql] @ git+https://host/p.git@c0ffee'",
        ),
        ('{"url": "https://host/p.whl", "archive_info": {}}', "'verl-pivot[sql] @ https://host/p.whl'"),
    ],
)  # fmt: skip
def test_the_command_for_an_extra_installs_from_where_the_package_came(direct_url: str | None, argument: str) -> None:
    assert install_argument("sql", direct_url) == argument


def test_the_dockerfile_builds_on_verls_image_and_installs_what_lies_in_the_repository() -> None:
    """Tests above resolve its `pip install` commands; no test builds the image."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]

    assert [line.split()[0] for line in lines] == [
        "ARG",
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "RUN",
        "RUN",
        "WORKDIR",
        "CMD",
    ]
    assert lines[:2] == ["ARG IMAGE=verlai/verl:sgl0512.latest", "FROM ${IMAGE}"]
    assert [path for path in re.findall(r"requirements/\S+", text) if not (ROOT / path).is_file()] == []
    versions = pins((ROOT / "requirements" / "sglang.txt").read_text())
    assert f"verl=={versions['verl']} TransferQueue=={versions['transferqueue']}" in text
    assert f"transformers=={versions['transformers']}" in (ROOT / "requirements" / "overrides.txt").read_text()


def python_3_12() -> Path | None:
    """An interpreter on the path or among pyenv's, but not pyenv's shim on the path, which may not run."""
    found = [Path(shutil.which("python3.12") or "/nowhere"), *Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")]
    return next((path for path in found if path.is_file() and ".pyenv/shims" not in str(path)), None)


@pytest.mark.skipif(python_3_12() is None, reason="there is no Python 3.12 on this machine")
def test_every_source_file_compiles_on_python_3_12() -> None:
    code = "import sys, pathlib; [compile(pathlib.Path(p).read_bytes(), p, 'exec') for p in sys.stdin.read().split()]"
    folders = ("verl_pivot", "hydra_plugins", "examples", "benchmarks", "tests", "docs")
    sources = [str(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]

    command = [str(python_3_12()), "-W", "error", "-c", code]
    done = subprocess.run(command, input="\n".join(sources), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(sources) > 300
