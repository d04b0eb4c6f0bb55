"""Writes docs/settings.md: the keys that configs/ set, with comments there and the models that check them.

`python docs/reference.py` calls it. A key under `pivot` without a meaning is an error.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from option_tables import Option, code, options_of, prose, row

from verl_pivot.data.curriculum import CurriculumOptions
from verl_pivot.objective.settings import OBJECTIVES
from verl_pivot.resampling.settings import ResamplingSettings
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.rubric_settings import RubricSettings
from verl_pivot.rewards.ruler_settings import RulerSettings
from verl_pivot.rollout.notebook_settings import NotebookSettings
from verl_pivot.rollout.settings import RolloutSettings
from verl_pivot.rollout.tree_search_settings import TreeSearchSettings
from verl_pivot.routing.settings import RouterSettings

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
GROUPS = ("method", "stage", "tail", "router", "tool_format", "local")
"""Folders of configs/ that Hydra reads, in the order of the page."""
MODELS = {
    "pivot.curriculum": CurriculumOptions,
    "pivot.rollout": RolloutSettings,
    "pivot.resampling": ResamplingSettings,
    "pivot.notebook": NotebookSettings,
    "pivot.process": ProcessSettings,
    "pivot.rubrics": RubricSettings,
    "pivot.ruler": RulerSettings,
    "pivot.router": RouterSettings,
    "pivot.tree_search": TreeSearchSettings,
}
WITHOUT_MODEL = {
    "pivot.verifier_modules": "list of text",
    "pivot.max_undecided_batches": "whole number",
    "pivot.browser.path": "text",
    "pivot.rewards": "text, or null",
    "pivot.record": "`all`, `kept`, `calls`",
    "pivot.objective": ", ".join(f"`{name}`" for name in OBJECTIVES),
    "pivot.max_turn_tokens": "whole number, or null",
    "pivot.allow_other_sampling": "True or False",
    "pivot.trial_steps": "whole number, or null",
}
"""{key that no model holds: its type}."""
INTRODUCTION = """# Settings

Every key that the configs of this package set, written by `python docs/reference.py` from `configs/` and from the
models that check the keys. A launch adds the configs by name: `+method=pivotrl`, `+stage=rstar2_1`,
`+router=kv_forecast`. Your command line wins over them, as with every key of Hydra. The prefix of a key says what
happens to it: `key=value` changes one that the configs have, and `+key=value` adds one.

[Settings of verl](verl_settings.md) lists keys of verl that a method needs, or that do nothing beside others, and
[Options](options.md) what rows, rules files and tools files may hold.

## Settings of this package

The default is that of the first config that the last column names; behind the others stands their value where it
differs. A value such as `${data.seed}` follows another key.
"""
OF_VERL = """
## Settings of verl that a config makes

What they do is said in verl's own documentation; a comment tells why the value stands here.
"""


class Key(NamedTuple):
    """A key with the value that a config gives it."""

    name: str
    value: str
    comment: str
    """Comment beside the key, or on the lines above; "" for none."""


def page() -> str:
    """The text of docs/settings.md.

    Raises:
        ValueError: If a key has no meaning.
    """
    lines = [INTRODUCTION]
    for section, options in by_section().items():
        lines += [
            f"### `{section}`",
            "",
            "| key | type | default | meaning | set by |",
            "|---|---|---|---|---|",
            *options,
            "",
        ]
    return "\n".join([*lines, OF_VERL.lstrip(), *of_verl()]).rstrip() + "\n"


def by_section() -> dict[str, list[str]]:
    """{section: rows of its table}, the keys that no model holds first."""
    sections: dict[str, list[str]] = {"pivot": []}
    for option in own_keys():
        section = next((name for name in MODELS if option.key.startswith(f"{name}.")), "pivot")
        sections.setdefault(section, []).append(row_of(option))
    return sections


def row_of(option: Option) -> str:
    """The row of one key.

    Raises:
        ValueError: If nothing explains the key.
    """
    places = {path: key for path, keys in all_keys().items() for key in keys if key.name == option.key}
    meaning = prose(next((key.comment for key in places.values() if key.comment), option.meaning))
    if not meaning:
        raise ValueError(
            f"{option.key} has no meaning: write a comment beside it in configs/, or a text under its field"
        )
    default = next((key.value for key in places.values()), option.default)
    set_by = [_link(path) + (f" {code(key.value)}" if key.value != default else "") for path, key in places.items()]
    return row(f"`{option.key}`", option.type, code(default), meaning, ", ".join(set_by))


def own_keys() -> list[Option]:
    """Every key of this package, in the order of the page.

    Raises:
        ValueError: If a config sets a key under `pivot` that nothing reads.
    """
    options = [Option(key, kind, "", "") for key, kind in WITHOUT_MODEL.items()]
    for section, model in MODELS.items():
        options += options_of(model, section)
    known = {option.key for option in options}
    written = {key.name for keys in all_keys().values() for key in keys if key.name.startswith("pivot.")}
    if unknown := sorted(
        key for key in written if not any(key == each or key.startswith(f"{each}.") for each in known)
    ):
        raise ValueError(
            f"configs/ set {', '.join(unknown)}, which no model holds: add the model of the section to MODELS, or "
            "mend the key"
        )
    return options


def of_verl() -> Iterator[str]:
    """A table for each config that sets keys of verl."""
    for path, keys in all_keys().items():
        rows = [key for key in keys if not key.name.startswith(("pivot.", "hydra."))]
        if not rows:
            continue
        yield from (f"### `+{path.parent.name}={path.stem}`", "", f"{_about(path)} ({_link(path)})", "")
        yield from ("| key | value | why |", "|---|---|---|")
        yield from (row(f"`{key.name}`", code(key.value), prose(key.comment)) for key in rows)
        yield ""


@cache
def all_keys() -> dict[Path, list[Key]]:
    """{config: its keys}, the configs that others build on first."""
    paths = [path for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
    bases = [CONFIGS / "method" / f"{name}.yaml" for name in ("pivotrl", "tool_rollout", "grpo_roc")]
    bases.append(CONFIGS / "router" / "kv_forecast.yaml")
    return {path: list(keys_of(path.read_text())) for path in (*bases, *(path for path in paths if path not in bases))}


def keys_of(text: str) -> Iterator[Key]:
    """The keys of a config whose values are not sections."""
    root, lines = yaml.compose(text), text.splitlines()
    assert isinstance(root, yaml.MappingNode)
    sections = [("", root)]
    while sections:
        prefix, section = sections.pop(0)
        inner = []
        for key, value in section.value:
            name = f"{prefix}{key.value}"
            if name == "defaults":
                continue
            if isinstance(value, yaml.MappingNode) and not value.flow_style:
                inner.append((f"{name}.", value))
            else:
                yield Key(name, _value(text, value), _comment(lines, key, value))
        sections = inner + sections


def _value(text: str, node: yaml.Node) -> str:
    return " ".join(text[node.start_mark.index : node.end_mark.index].split())


def _comment(lines: list[str], key: yaml.Node, value: yaml.Node) -> str:
    """The comment behind a value, with its continuation in the same column, or else the comment above the key."""
    line, column = value.start_mark.line, key.start_mark.column
    behind = re.search(r"(?:^|\s)# ?(.*)", lines[line][value.end_mark.column if value.end_mark.line == line else 0 :])
    if behind:
        place, texts = lines[line].rindex(f"# {behind[1]}"), [behind[1]]
        for other in lines[line + 1 :]:
            if not other.lstrip().startswith("#") or other.index("#") != place:
                break
            texts.append(other.lstrip(" #"))
        return " ".join(texts)
    above = []
    for other in reversed(lines[: key.start_mark.line]):
        if not other.startswith(f"{' ' * column}# ") or not column:
            break
        above.insert(0, other.strip(" #"))
    return " ".join(above)


def _about(path: Path) -> str:
    """The comment in the first lines of a config, which describes it."""
    comments = [line[2:] for line in path.read_text().split("\n\n")[0].splitlines() if line.startswith("# ")]
    said = " ".join(line for line in comments if not line.startswith("@package"))
    return prose(said)


def _link(path: Path) -> str:
    return f"[{path.parent.name}={path.stem}](../{path.relative_to(ROOT)})"


def write() -> None:
    """Write docs/settings.md."""
    (ROOT / "docs" / "settings.md").write_text(page())
