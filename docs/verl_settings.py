"""Writes docs/verl_settings.md from the table of the launch check: `python docs/reference.py`."""

from pathlib import Path

from verl_pivot.configuration import config_groups
from verl_pivot.launch_checks.owned_setting import OwnedSetting
from verl_pivot.launch_checks.owned_settings import OWNED_SETTINGS
from verl_pivot.launch_checks.void_settings import VOID_SETTINGS

ROOT = Path(__file__).resolve().parents[1]
INTRODUCTION = """# Settings of verl

A method replaces parts of verl. A launch stops before Ray starts, and names the remedy, if it sets one of these keys of
verl to a value that would do nothing, or that would switch off what the method consists of. Keys of your own YAML count
like those of the command line, as far as they differ from verl's default, and `++key=value` and `section={key: value}`
count like `key=value`. Every other key works as in verl; what a method sets is in its file in `configs/method/`, and
your command line wins. A launch also stops where a setting of its method is taken out (`~key`), or one of the sections
that hold them is null. This page is written by `python docs/reference.py` from `owned_settings.py`,
`step_settings.py` and `void_settings.py` in `verl_pivot/launch_checks/`.

| key, or section of keys | beside | what it does there | instead |
|---|---|---|---|
"""
OWN_SETTINGS = """
## Settings of this package that apply in some modes only

Under `pivot`, too, a launch stops where a setting would do nothing: one that the command line names, with whatever
value, or one of your own YAML, as far as its value stands in no config of this package. All other settings under
`pivot` have an effect in every mode. A setting of a method or of `+local=cpu` that the launch does not have is refused
as well, such as `pivot.curriculum` beside `+method=tool_rollout`; `+method=pivotrl` takes `pivot.rollout` for
validation on whole tasks. Whether rollouts have a single turn is known from the agent loops that the rows of the data
files name, in trainer mode `sync`; in the others new weights interrupt turns, which then come back.

| key | does nothing beside | instead |
|---|---|---|
"""
LOOPS = """
verl takes the agent loop of a row from its column `agent_name`. A launch with another method than `+method=pivotrl`
stops if rows name verl's own loop `tool_agent` there, as rows of verl's examples do, and with
`+method=grpo_roc` training rows may name no other loop than `pivot_tools`, with `+method=l0` no other than
`pivot_notebook`. `pivot.rollout` is refused where no loop of
the rows reads it.
"""


def table() -> str:
    """The text of docs/verl_settings.md."""
    rows = [f"| `{each.key}` | {_parts(each)} | {each.effect} | {each.remedy} |\n" for each in OWNED_SETTINGS]
    own = [
        f"| {', '.join(f'`{key}`' for key in each.keys)} | {each.beside} | {each.remedy} |\n" for each in VOID_SETTINGS
    ]
    return INTRODUCTION + "".join(rows) + OWN_SETTINGS + "".join(own) + LOOPS


def _parts(setting: OwnedSetting) -> str:
    is_every = len(setting.parts) == len(config_groups()["method"])
    return "every method" if is_every else ", ".join(f"`{part}`" for part in setting.parts)


def write() -> None:
    """Write docs/verl_settings.md."""
    (ROOT / "docs" / "verl_settings.md").write_text(table())
