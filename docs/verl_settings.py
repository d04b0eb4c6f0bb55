"""Writes docs/verl_settings.md from the table of the launch check: `python docs/reference.py`."""

from pathlib import Path

from verl_pivot.configuration import config_groups
from verl_pivot.launch_checks.owned_settings import OWNED_SETTINGS, OwnedSetting

ROOT = Path(__file__).resolve().parents[1]
INTRODUCTION = """# Settings of verl

A method replaces parts of verl. A launch stops before Ray starts, and names the remedy, if it sets one of these keys of
verl to a value that would do nothing, or that would switch off what the method consists of. Keys of your own YAML count
like those of the command line, as far as they differ from verl's default. Every other key works as in verl; what a
method sets is in its file in `configs/method/`, and your command line wins. This page is written by
`python docs/reference.py` from `verl_pivot/launch_checks/owned_settings.py`.

| key, or section of keys | beside | what it does there | instead |
|---|---|---|---|
"""


def table() -> str:
    """The text of docs/verl_settings.md."""
    rows = [f"| `{each.key}` | {_parts(each)} | {each.effect} | {each.remedy} |\n" for each in OWNED_SETTINGS]
    return INTRODUCTION + "".join(rows)


def _parts(setting: OwnedSetting) -> str:
    is_every = len(setting.parts) == len(config_groups()["method"])
    return "every method" if is_every else ", ".join(f"`{part}`" for part in setting.parts)


def write() -> None:
    """Write docs/verl_settings.md."""
    (ROOT / "docs" / "verl_settings.md").write_text(table())
