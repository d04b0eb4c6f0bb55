"""Pages for people and tools that read the code: all names in them exist, and llms.txt lists every page."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import verl_pivot
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.runs.run import RunPart, TrainingRun

GUIDES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "docs/installing.md")


def test_llms_txt_lists_every_page() -> None:
    """Run `python docs/reference.py` where this fails."""
    code = "import llms; print(llms.page_list(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True)

    assert (ROOT / "llms.txt").read_text() == done.stdout
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in done.stdout


@pytest.mark.parametrize("guide", GUIDES)
def test_files_make_targets_and_commands_that_a_guide_names_exist(guide: str) -> None:
    text = (ROOT / guide).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    files = re.findall(r"(?<![/\w.])((?:docs|tests|verl_pivot|requirements|docker|examples|configs)/[\w./]*)", text)

    assert set(re.findall(r"\bmake ([a-z][a-z-]*)\b", text)) - targets == set()
    assert set(re.findall(r"\bverl-pivot ([a-z][a-z-]*)\b", text)) - commands == set()
    assert [name for name in files if not (ROOT / name.rstrip(".")).exists()] == []


def test_links_of_the_guides_lead_somewhere() -> None:
    for guide in (*GUIDES, "llms.txt"):
        page = ROOT / guide
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert (citation["version"], citation["license"]) == (verl_pivot.__version__, "Apache-2.0")
    assert [reference["url"] for reference in citation["references"]] == [
        "https://arxiv.org/abs/2603.21383",
        "https://arxiv.org/abs/2508.20722",
    ]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_every_form_for_issues_has_a_name_a_description_and_fields_with_their_own_ids(path: Path) -> None:
    form = yaml.safe_load(path.read_text())

    ids = [field["id"] for field in form["body"]]
    assert set(form) == {"name", "description", "body"}
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])


PAGES = sorted({*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/*.md"), *ROOT.glob("[CR]*.md")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_sentences_that_say_what_the_reader_gets(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("its title says it")
    title, blank, first, *_ = page.read_text().split("\n")

    assert title.startswith("# ")
    assert blank == ""
    assert re.match(r"[A-Z`\[*]", first), first
    assert not first.startswith("```"), "a page does not begin with a command"


@pytest.mark.parametrize("page", ["tutorial_run", "tutorial_grpo_roc"])
def test_the_launch_line_of_a_page_puts_everything_where_a_run_is_read(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    places = {key: tmp_path / rest.lstrip("/") for key, rest in re.findall(r"([\w.]+)=\$RUN([\w/]*)", text)}
    (log,) = re.findall(r"\| tee -a \$RUN/(\S+)", text)
    files = {
        "hydra.run.dir": ".hydra/config.yaml", "trainer.default_local_dir": "global_step_5/data.pt",
        "trainer.rollout_data_dir": "pivot/1.jsonl", "trainer.validation_data_dir": "pivot/0.jsonl",
    }  # fmt: skip
    for key, name in files.items():
        (places[key] / name).parent.mkdir(parents=True)
        (places[key] / name).write_text("trainer: {total_epochs: 2}\n")
    (tmp_path / log).write_text("step:1 - critic/score/mean:0.5\n")

    run = TrainingRun(tmp_path)

    assert (run.settings, run.checkpoints, run.metrics) == ({"trainer.total_epochs": "2"}, [5], tmp_path / log)
    assert [(dump.part, dump.step) for dump in run.dumps] == [(RunPart.TRAINING, 1), (RunPart.VALIDATION, 0)]


def test_the_page_of_installing_says_what_each_extra_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "installing.md").read_text().partition("## Extras")[2].partition("\n## ")[0]

    assert {*re.findall(r"`([a-z]+)`", table)} >= {*extras} - {"dev"}
