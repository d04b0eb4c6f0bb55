"""Packaging: the wheel's contents, its metadata, and the packages of each extra."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.support.launching import MINIMAL
from tests.support.paths import ROOT
from tests.support.tiny_model import write_tokenizer
from verl_pivot.extras import OF_VERL, install_command
from verl_pivot.sandbox.service.backend import BackendSettings

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WITH_VERL = OF_VERL | {"huggingface_hub", "omegaconf", "packaging", "tokenizers", "transformers"}
"""Modules that come with verl's requirements, also through hydra-core and transformers."""


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_configs_and_the_search_path_plugin_and_nothing_else(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "verl_pivot", "hydra_plugins", "configs"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == {f"verl_pivot/{name}" if name.startswith("configs/") else name for name in tracked}


@pytest.mark.slow
def test_the_stock_trainer_finds_the_method_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+method=pivotrl", "+local=cpu", "--cfg", "job"]

    done = subprocess.run(
        [*command, "--resolve"],
        cwd=tmp_path,
        env={**MINIMAL, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "pkg://verl_pivot.data.dataset" in done.stdout
    assert f"agent_loop_config_path: {installed}/verl_pivot/configs/agent_loops.yaml" in done.stdout
    assert (installed / "verl_pivot" / "local" / "shims" / "sitecustomize.py").is_file()


def test_every_import_is_of_a_dependency_of_verl_or_stands_under_its_extra() -> None:
    """Imports inside functions count too; `with extra("data"):` names the extra of the imports in its block."""
    always = {"verl_pivot", "verl_pivot_search_path"} | WITH_VERL | _modules_of(PROJECT["dependencies"])
    wrong = []
    for path in (ROOT / "verl_pivot").rglob("*.py"):
        if "runners" in path.parts or "shims" in path.parts or path.name == "verifiers_process.py":
            continue  # files that run inside the sandbox, inside SGLang, or in the Python of verifiers
        for module, extra in _imports(ast.parse(path.read_text())):
            brought = always | (_modules_of(EXTRAS[extra]) if extra else set())
            if module not in sys.stdlib_module_names and module not in brought:
                wrong.append(f"{path.relative_to(ROOT)}: {module} (extra {extra})")

    assert wrong == []


def _imports(node: ast.AST, extra: str | None = None) -> Iterator[tuple[str, str | None]]:
    """(top-level module, the extra that it stands under) of each import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name.split(".")[0], extra) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").split(".")[0], extra
        elif isinstance(child, ast.With) and (found := re.fullmatch(r"extra\('(\w+)'\)", ast.unparse(child.items[0]))):
            yield from _imports(child, found[1])
        else:
            yield from _imports(child, extra)


def test_every_declared_package_is_imported() -> None:
    """The extras verl and vllm are left out, since they are for the trainer; of miniwob only the pages are read."""
    paths = [*(ROOT / "verl_pivot").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")]
    imported = {module for path in paths for module, _ in _imports(ast.parse(path.read_text()))}
    extras = {name: lines for name, lines in EXTRAS.items() if name not in ("all", "dev", "verifiers", "verl", "vllm")}

    unused = [
        line
        for line in (*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines))
        if not imported & _modules_of([line])
    ]

    assert unused == ["miniwob>=1.1"]
    assert BackendSettings().preload == ("numpy", "sympy", "math_verify", "duckdb")


def test_no_link_of_the_readme_as_a_package_index_shows_it_leads_into_the_source_tree(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        text = archive.read(name).decode()

    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) >= 3
    assert [link for link in links if not link.startswith("https://")] == []
    assert "Architecture (`docs/architecture.md`)" in text


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def _modules_of(requirements: list[str]) -> set[str]:
    """Top-level modules of the required distributions, and of two that come with pydantic and jsonschema."""
    names = {Requirement(line).name.lower().replace("_", "-") for line in requirements}
    names |= {"pydantic-core", "referencing"} if {"pydantic", "jsonschema"} & names else set()
    return {
        module for module, dists in _installed().items() if {dist.lower().replace("_", "-") for dist in dists} & names
    }


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("verl_pivot.data.files", "ijson", "data"),
        ("verl_pivot.selection.selecting", "duckdb", "data"),
        ("verl_pivot.selection.plots", "matplotlib", "data"),
        ("verl_pivot.quality.near_duplicates", "datasketch", "data"),
        ("verl_pivot.verifiers.search_query", "bm25s", "search"),
        ("verl_pivot.verifiers.sql", "sqlglot", "sql"),
        ("verl_pivot.tools.search_words", "bm25s", "search"),
        ("verl_pivot.inspect.terminal", "textual", "inspect"),
        ("verl_pivot.tools.mcp_servers", "mcp", "mcp"),
        ("verl_pivot.environments.gymnasium_source", "gymnasium", "gymnasium"),
        ("verl_pivot.sandbox.service.metrics", "prometheus_client", "sandbox"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(module: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    last = done.stderr.splitlines()[-1]
    assert last == (
        f"verl_pivot.errors.ConfigError: the Python package {package} is not installed: {install_command(extra)}"
    )


def test_a_command_that_needs_verl_says_so_where_it_is_not_installed(tmp_path: Path) -> None:
    """The environment is like that of `pip install '.[data,verifiers]'` alone."""
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    command = "import sys; sys.modules['jinja2'] = None; from verl_pivot.cli import app; app(sys.argv[1:])"
    imported = ["import", "rows.jsonl", "--out", "t.jsonl"]
    profiled = ["profile", "t.jsonl", "--model", str(write_tokenizer(tmp_path / "model")), "--out", "p.jsonl"]

    for arguments in (imported, profiled):
        done = subprocess.run(
            [sys.executable, "-c", command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: this needs verl, and the Python package jinja2 is not installed: {install_command('verl')}"
    ]


def test_the_math_verifier_names_its_extra_before_any_program_runs() -> None:
    code = (
        "import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'math_verify' else find(name, *rest); "
        "from verl_pivot.verifiers.registry import get_verifier; get_verifier('math')"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].endswith("math_verify is not installed: " + install_command("math"))
