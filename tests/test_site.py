"""The documentation as a site: generated pages are what the code says, keys exist, and the site builds."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from verl_pivot.configuration import config_groups, configs_dir
from verl_pivot.smoke.composing import SmokeMachine
from verl_pivot.smoke.launch_script import launch_of
from verl_pivot.smoke.shortening import shortened
from verl_pivot.verifiers.registry import known_verifiers, verifier_options

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").glob("*/*.md")))
GENERATED = {
    "cli": "cli_reference",
    "compatibility": "compatibility_reference",
    "options": "options_reference",
    "settings": "settings_reference",
}
"""{page: the module beside it that writes it}."""
METHOD_PAGES = (
    "pivotrl",
    "tools",
    "tree_search",
    "grpo_roc",
    "l0",
    "ppr",
    "mcp_rl",
    "web_agent",
    "rubrics",
    "search",
    "interpreter",
    "routing",
)


@pytest.fixture(autouse=True)
def _generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_what_the_code_says(page: str) -> None:
    """Run `python docs/reference.py` where this fails. A new process is free of the verifiers and tools of tests."""
    code = f"import sys, {GENERATED[page]} as page; sys.stdout.write(page.page())"
    written = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(DOCS)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert written.stdout == (DOCS / f"{page}.md").read_text(), written.stderr


def test_commands_stand_in_blocks_of_code_on_every_page() -> None:
    """Elsewhere Markdown folds lines that end in a backslash, and takes `<your overrides>` for a tag."""
    blocks, words = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL), re.compile(r"`[^`\n]+`")
    pages = {page: words.sub("", blocks.sub("", page.read_text())) for page in PAGES}
    lines = [(page.name, line) for page, text in pages.items() for line in text.splitlines()]

    assert [(name, line) for name, line in lines if line.endswith("\\") or "<your " in line] == []
    assert [page.name for page in PAGES if "\b" in page.read_text()] == []


def test_a_key_without_a_meaning_ends_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = import_module("settings_reference")
    option = import_module("option_tables").Option("pivot.trial_steps", "whole number", "2", "")
    assert "steps of a trial" in settings.row_of(option)

    monkeypatch.setattr(settings, "all_keys", dict)
    with pytest.raises(ValueError, match=r"^pivot\.trial_steps has no meaning: write a comment beside it in configs/"):
        settings.row_of(option)


def test_a_key_that_no_model_holds_ends_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = import_module("settings_reference")
    keys = {Path("x.yaml"): list(settings.keys_of("pivot:\n  rollout:\n    max_turn: 3\n"))}

    monkeypatch.setattr(settings, "all_keys", lambda: keys)
    with pytest.raises(ValueError, match=r"^configs/ set pivot\.rollout\.max_turn, which no model holds: add"):
        settings.own_keys()


def test_every_config_group_is_on_the_page_of_settings() -> None:
    assert sorted(import_module("settings_reference").GROUPS) == sorted(config_groups())


def test_comments_belong_to_the_key_that_they_stand_beside_or_above() -> None:
    text = (
        "a:\n"
        "  b: 1      # first line,\n"
        "            # and its second\n"
        "  # above c\n"
        "  c: '#'\n"
        "  d: {e: 2}\n"
        "f: text  # of f\n"
    )  # fmt: skip

    assert list(import_module("settings_reference").keys_of(text)) == [
        ("f", "text", "of f"),
        ("a.b", "1", "first line, and its second"),
        ("a.c", "'#'", "above c"),
        ("a.d", "{e: 2}", ""),
    ]


def test_no_page_names_a_key_that_does_not_exist() -> None:
    known = {option.key for option in import_module("settings_reference").own_keys()}
    sections = {key.rsplit(".", number)[0] for key in known for number in (1, 2)}
    named = {
        (page.name, key.rstrip("."))
        for page in PAGES
        for key in re.findall(r"(?<![\w./-])\+?(pivot\.[a-z_]+(?:\.[a-z_]+)*)(?![\w*/-])", page.read_text())
    }

    wrong = {
        (page, key) for page, key in named if key not in known | sections and not key.startswith("pivot.rollout.tags")
    }
    assert wrong == set()


def test_no_page_shows_an_option_that_a_verifier_does_not_have() -> None:
    wrong = {
        (page.name, name, option)
        for page in PAGES
        for name, options in verifiers_of(page.read_text())
        for option in options.keys() - {"..."} - fields_of(name)
    }

    assert wrong == set()


def verifiers_of(text: str) -> Iterator[tuple[str, dict[str, object]]]:
    """(name, options) of each verifier in the JSON blocks and the inline code of a page."""
    blocks = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for block in [*blocks, *re.findall(r"`(\{[^`\n]*\})`", text)]:
        try:
            waiting = [json.loads(block.replace("[...]", "[]").replace("{...}", "{}"))]
        except json.JSONDecodeError:  # a part of an object, or several rows
            continue
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict) and value.get("name") in known_verifiers():
                yield value["name"], value.get("options", {})
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def fields_of(verifier: str) -> set[str]:
    model = verifier_options(verifier)
    return set() if model is None else set(model.model_fields)


def test_every_tools_file_that_ships_is_on_the_page_of_tools() -> None:
    section = (DOCS / "tools.md").read_text().partition("## Tools files")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+\.yaml)`", "".join(re.findall(r"^\| `.*", section, re.MULTILINE))))

    assert named == {path.name for path in (configs_dir() / "tools").glob("*.yaml")}


def test_every_picture_that_a_page_names_exists_and_every_picture_is_named() -> None:
    named = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }

    assert [path for path in named if not path.is_file()] == []
    assert set((DOCS / "images").glob("*")) - named == set()


def test_every_method_is_in_the_overview_and_every_page_of_one_begins_in_short() -> None:
    overview = (DOCS / "methods.md").read_text()
    labels = ["claim", "formula", "here", "where we differ", "shown here", "not shown"]

    assert [name for name in config_groups()["method"] if f"`+method={name}`" not in overview] == []
    for page in METHOD_PAGES:
        text = (DOCS / f"{page}.md").read_text()
        assert f"]({page}.md)" in overview
        section = re.search(r"^## In short\n\n\| \| \|\n\|---\|---\|\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
        assert section is not None, page
        assert re.findall(r"^\| ([^|]+) \| [^|]", section[1], re.MULTILINE) == labels


def test_the_replacements_of_the_dry_run_are_those_that_smoke_prints(tmp_path: Path) -> None:
    page = (DOCS / "tutorial_dry_run.md").read_text()
    script = re.search(r'title="train.sh"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    printed = re.search(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert script is not None
    assert printed is not None
    (tmp_path / "train.sh").write_text(script[1].replace("$(date +%F)", "1"))
    cpu = SmokeMachine(has_accelerator=False, num_workers=1, engine="sglang")

    folder = Path("outputs/smoke/train")
    short = shortened(launch_of(tmp_path / "train.sh"), folder, folder / "model", cpu)

    assert printed[1].splitlines() == [f"  {each}" for each in short.replacements]


def test_mkdocs_and_zensical_both_know_the_plugins() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    assert [next(iter(plugin)) if isinstance(plugin, dict) else plugin for plugin in config["plugins"]] == [
        "search",
        "mkdocstrings",
    ]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    mkdocs = Path(sys.prefix) / "docs" / "bin" / "mkdocs"
    if not mkdocs.is_file():
        pytest.skip("mkdocs is not installed: sh requirements/install.sh")
    pages, config = tmp_path / "pages", yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    import_module("site_pages").collect(pages)
    config |= {"docs_dir": str(pages), "site_dir": str(tmp_path / "site")}
    config["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))

    command = [mkdocs, "build", "--strict", "--config-file", tmp_path / "mkdocs.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    built = tmp_path / "site" / "docs"
    assert "pivot.rollout.max_turns" in (built / "settings.html").read_text()
    assert "draw_as_in_paper" in (built / "algorithms.html").read_text()  # mkdocstrings has read the package
    assert {path.stem for path in built.glob("*.html")} == {path.stem for path in DOCS.glob("*.md")}
