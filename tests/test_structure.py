"""The shape of the house: what is pure imports nothing heavy, and the README knows every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = (
    "verl_pivot.types",
    "verl_pivot.errors",
    "verl_pivot.cli",
    "verl_pivot.configuration",
    "verl_pivot.data.curriculum",
    "verl_pivot.selection.decisions",
    "verl_pivot.profiling.profiler",
    "verl_pivot.data.prompts",
    "verl_pivot.resampling.groups",
    "verl_pivot.resampling.oversampled",
    "verl_pivot.rollout.actions",
    "verl_pivot.routing.comparison",
    "verl_pivot.verifiers.scoring",
    "verl_pivot.verifiers.tool_call",
    "verl_pivot.local.environment",
    "verl_pivot.sandbox.client",
    "verl_pivot.node.service",
    "verl_pivot.node.zygote",
    "verl_pivot.cluster.placement",
    "verl_pivot.cluster.profile_worker",
    "verl_pivot.cluster.worker_pool",
    "verl_pivot.quality.filtering",
    "verl_pivot.formats.importing",
    "verl_pivot.selection.selecting",
)


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_import_neither_torch_nor_ray_nor_verl(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'ray', 'verl', 'sglang', 'transformers'}} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_the_readme_has_a_line_for_every_module() -> None:
    readme = (ROOT / "README.md").read_text()
    modules = [path for path in (ROOT / "verl_pivot").rglob("*.py") if path.name != "__init__.py"]

    missing = [
        str(path.relative_to(ROOT)) for path in modules if f"`{path.relative_to(ROOT / 'verl_pivot')}`" not in readme
    ]

    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "verl_pivot" / "lane").glob("*.py")), ids=lambda path: path.name)
def test_what_runs_inside_bubblewrap_needs_the_standard_library_alone(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")

    others = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}

    assert [name for name in others if not name.startswith("verl_pivot.lane")] == []


def test_packages_import_nothing_by_themselves() -> None:
    inits = list((ROOT / "verl_pivot").rglob("__init__.py"))

    assert [path for path in inits if "import" in path.read_text().replace("imports nothing", "")] == []
