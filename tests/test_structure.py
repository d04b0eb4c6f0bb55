"""The package's structure: which rooms (folders) may import which, which files import verl, and unique names."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT
from verl_pivot.hooks import HOOKS

PACKAGE = ROOT / "verl_pivot"
ROOMS = (
    *(
        "errors",
        "types",
        "loop_local",
        "off_loop",
        "all_at_once",
        "child_process",
        "extras",
        "validation",
        "user_code",
        "user_modules",
        "registry",
        "objective",
        "configuration",
        "statistics",
        "hooks",
        "hook_check",
    ),
    *("data", "local", "engines"),
    *(
        "sandbox/lane",
        "sandbox/in_session",
        "sandbox",
        "sandbox/bubblewrap",
        "sandbox/egress",
        "sandbox/service",
        "sandbox/cluster",
        "sandbox/bench",
        "sandbox/audit",
        "browser",
    ),
    *(
        "verifiers/runners",
        "verifiers",
        "workers",
        "profiling",
        "formats",
        "quality",
        "selection",
        "planning",
        "exports",
    ),
    *(
        "tools",
        "environments",
        "routing",
        "routing/simulator",
        "advantages",
        "rewards",
        "rollout",
        "playing",
        "synthesis",
        "resampling",
        "runs",
        "inspect",
    ),
    *("launch_checks", "launch", "plugin", "templates", "diagnosis", "smoke", "commands", "interrupts", "cli", "start"),
)
"""Folders, and files beside them, from the lowest: each imports from itself and from those before it alone."""
ADAPTERS = {
    "advantages/estimators.py",
    "data/dataset.py",
    "diagnosis/installation.py",
    "engines/model_facts.py",
    "engines/rendering.py",
    "exports/sft_dataset.py",
    "launch.py",
    "launch_checks/verl_names.py",
    "local/attention.py",
    "local/callback.py",
    "local/environment.py",
    "local/platform.py",
    "objective/action_objective.py",
    "objective/policy_loss.py",
    "plugin.py",
    "resampling/lost_nodes.py",
    "resampling/marking_manager.py",
    "resampling/replay_buffer.py",
    "resampling/roc_replay_buffer.py",
    "resampling/step_replay_buffer.py",
    "resampling/workflow_manager.py",
    "rewards/manager.py",
    "rewards/step_returns.py",
    "rewards/turn_rewards.py",
    "rollout/fault_reporting.py",
    "rollout/loop_parts.py",
    "rollout/pivot_turn.py",
    "rollout/notebook_loop.py",
    "rollout/text_difference.py",
    "rollout/tool_loop.py",
    "rollout/tracing.py",
    "rollout/turn_sampler.py",
    "routing/gauges.py",
    "routing/router_actor.py",
    "routing/router_calls.py",
    "routing/server_memory.py",
    "sandbox/cluster/ray_supervisor.py",
    "sandbox/ray_discovery.py",
    "smoke/tiny_model.py",
    "synthesis/ray_running.py",
    "tools/search_encoder.py",
    "workers/ray_connection.py",
    "workers/ray_workers.py",
}
"""The files that import verl, torch or ray, also those that do so inside of a function."""
PURE = (
    "verl_pivot.types",
    "verl_pivot.errors",
    "verl_pivot.cli",
    "verl_pivot.configuration",
    "verl_pivot.data.curriculum",
    "verl_pivot.selection.decisions",
    "verl_pivot.profiling.profiler",
    "verl_pivot.data.prompts",
    "verl_pivot.rewards.ruler_judge",
    "verl_pivot.rollout.meeting",
    "verl_pivot.rollout.training_workflows",
    "verl_pivot.rewards.checklist_judge",
    "verl_pivot.advantages.steps",
    "verl_pivot.resampling.undecided",
    "verl_pivot.resampling.groups",
    "verl_pivot.data.actions",
    "verl_pivot.routing.simulator.comparison",
    "verl_pivot.verifiers.scoring",
    "verl_pivot.verifiers.tool_call",
    "verl_pivot.local.environment",
    "verl_pivot.sandbox.client",
    "verl_pivot.sandbox.service.service",
    "verl_pivot.sandbox.service.lane_backend",
    "verl_pivot.sandbox.cluster.placement",
    "verl_pivot.profiling.worker",
    "verl_pivot.workers.worker_pool",
    "verl_pivot.profiling.turn_pool",
    "verl_pivot.quality.filtering",
    "verl_pivot.formats.importing",
    "verl_pivot.selection.selecting",
    "verl_pivot.playing.running",
    "verl_pivot.playing.human_player",
    "verl_pivot.playing.notebook_play",
    "verl_pivot.synthesis.running",
    "verl_pivot.commands.play_display",
    "verl_pivot.planning.plan",
    "verl_pivot.planning.trial",
)


def modules() -> dict[str, Path]:
    """{dotted name: file} of the package; the shims belong to other programs."""
    paths = [path for path in PACKAGE.rglob("*.py") if "shims" not in path.parts and path.name != "__init__.py"]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports: at its top, inside of functions, and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    """Folder of a module, or its own name where it lies at the top."""
    folder = path.relative_to(PACKAGE).parent.as_posix()
    return path.stem if folder == "." else folder


def test_every_room_has_its_place_and_every_place_its_room() -> None:
    assert sorted(ROOMS) == sorted({room(path) for path in modules().values()})


def test_no_import_goes_up() -> None:
    known, wrong = modules(), []
    for path in known.values():
        for name in imported(path):
            if name in known and ROOMS.index(room(known[name])) > ROOMS.index(room(path)):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")

    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {name: {other for other in imported(path) if other in known} for name, path in known.items()}

    order = list(TopologicalSorter(graph).static_order())  # raises CycleError if there is a circle

    assert len(order) == len(known)


def test_only_adapters_import_verl_torch_or_ray() -> None:
    heavy = {"verl", "torch", "ray"}
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules().values()
        if heavy & {name.split(".")[0] for name in imported(path)}
    }

    assert found == ADAPTERS


FIRST_IMPURE = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if found := {"torch", "ray", "verl", "sglang", "transformers"} & set(sys.modules):
        sys.exit(f"{module} imports {found}")
"""


def test_no_module_can_compare_the_clocks_of_two_nodes_since_hardly_any_asks_for_the_time_of_day() -> None:
    asks = re.compile(r"\b(?:time\.time(?:_ns)?|datetime\.now|utcnow)\b")
    found = {str(path.relative_to(PACKAGE)) for path in modules().values() if asks.search(path.read_text())}

    assert found == {
        "rollout/chat_completions.py", "rollout/responses_api.py",  # OpenAI's answers have a time
        "routing/router_actor.py",  # a number that differs at each start of the actor
        "sandbox/bench/run.py",  # the date of the measurement
    }  # fmt: skip


def test_sglang_and_vllm_are_imported_nowhere_in_the_package() -> None:
    """Engines are programs behind HTTP or behind verl's client; `local/shims` replaces parts of SGLang by name."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules().values()
        if {"sglang", "vllm"} & {name.split(".")[0] for name in imported(path)}
    }

    assert found == set()


def test_pure_modules_import_neither_torch_nor_ray_nor_verl() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_IMPURE, *PURE], cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


INSIDE = [path for name in ("lane", "in_session") for path in sorted((PACKAGE / "sandbox" / name).glob("*.py"))]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.name)
def test_what_runs_inside_bubblewrap_needs_the_standard_library_alone(path: Path) -> None:
    others = {name for name in imported(path) if name.split(".")[0] not in sys.stdlib_module_names}

    assert [name for name in others if not name.startswith(f"verl_pivot.sandbox.{path.parent.name}")] == []


def test_packages_import_nothing_by_themselves() -> None:
    inits = list(PACKAGE.rglob("__init__.py"))

    assert [path for path in inits if "import" in path.read_text().replace("imports nothing", "")] == []


def test_a_class_name_is_used_once_and_never_beside_its_plural() -> None:
    names = Counter(
        node.name
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in names if f"{name}s" in names] == []


def test_docstrings_begin_with_their_noun() -> None:
    """No docstring begins with a stump such as "Of the engine." or "Its url.", which only its author can complete."""
    stump = re.compile(r'"""(Of|Its|Who|Whose|Nor|Likewise|It|Them|Those) ')
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in modules().values()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if stump.search(line)
    ]

    assert found == []


def test_words_that_the_glossary_replaces_are_in_no_name() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]*)\|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    replaced = {word for row in rows for word in row.strip().split(", ") if word} - {"not"}
    found = defaultdict(set)
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            for name in (getattr(node, "name", None), getattr(node, "arg", None)):
                for part in str(name).lower().strip("_").split("_"):
                    if part in replaced:
                        found[part].add(f"{path.relative_to(PACKAGE)}: {name}")

    assert len(replaced) >= 2
    assert found == {}


def test_every_hook_names_a_file_that_uses_it() -> None:
    assert [hook for hook in HOOKS if hook.used_by.endswith(".py") and not (PACKAGE / hook.used_by).is_file()] == []


@cache
def generator(name: str) -> ModuleType:
    """A module beside the docs that writes pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_files_is_what_the_modules_say_of_themselves() -> None:
    """Run `python docs/reference.py` where this fails."""
    listed = {PACKAGE / folder for folder in generator("reference").FOLDERS}
    assert {path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"} <= listed
    assert (ROOT / "docs" / "files.md").read_text() == generator("reference").file_list()


def test_the_reference_is_what_the_code_says() -> None:
    """Run `python docs/reference.py` where this fails."""
    page = generator("api_reference").api()

    assert (ROOT / "docs" / "api.md").read_text() == page
    assert "| `score` | `float \\| None` |  | Score in [0, 1]; None is undecided" in page
    assert "| `recording` | string, or nothing | JSON list of" in page
    assert "```python\nasync def score(self, answer: Message | None) -> Verdict | float | None\n```" in page


def test_the_page_on_settings_of_verl_is_the_table_of_the_launch_check() -> None:
    """Run `python docs/reference.py` where this fails."""
    assert (ROOT / "docs" / "verl_settings.md").read_text() == generator("verl_settings").table()


def test_every_metric_is_explained_once_and_every_explained_metric_exists() -> None:
    """A metric is a text such as "rollout/masked_rate" in a room that reports to the trainer; parts in braces vary."""
    named = {
        text
        for path in modules().values()
        if room(path) in REPORTING_ROOMS
        for text in texts(path)
        if re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_*]+)+", text) and not text.startswith(NOT_METRICS)
    }
    page = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    explained = [re.sub(r"<[^>]*>", "*", metric) for metric in page if not metric.startswith("critic/")]

    assert sorted(explained) == sorted(named)


REPORTING_ROOMS = {"data", "rewards", "rollout", "resampling", "routing"}
NOT_METRICS = ("verl/", "verl_pivot/", "training/")
"""Names of verl's parsers, data sources of rows, and verl's own metrics."""


def texts(path: Path) -> Iterator[str]:
    """String literals of a module; each part in braces becomes "*"."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    templates = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(part) for template in templates for part in template.values}
    for template in templates:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in template.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield node.value


def test_links_of_the_readme_and_the_docs_lead_somewhere() -> None:
    broken = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")

    assert broken == []


def test_the_readme_fits_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
