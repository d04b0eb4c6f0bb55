"""Writes docs/options.md: options of verifiers, filters, tools and synthesis steps; docs/reference.py calls it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from option_tables import options_of, table
from pydantic import BaseModel

from verl_pivot.quality.registry import filter_options, known_filters
from verl_pivot.synthesis.steps import known_steps, step_options
from verl_pivot.tools.registry import known_tools, tool_options
from verl_pivot.verifiers.registry import known_verifiers, verifier_options

ROOT = Path(__file__).resolve().parents[1]
INTRODUCTION = """# Options

What rows, rules files, tools files and recipes may say about a verifier, a filter, a tool or a step of synthesis,
written by `python docs/reference.py` from the models that check it. An option without a default must be given. An
unknown option is refused with the known ones. Entries of tools files that are no built-in tools stand in the
[Reference](api.md#a-tool).
"""


class Kind(NamedTuple):
    """One kind of thing that takes options."""

    title: str
    about: str
    names: Callable[[], tuple[str, ...]]
    options: Callable[[str], type[BaseModel] | None]
    page: str
    """Page that describes these things, with a heading for each."""


KINDS = (
    Kind(
        "Verifiers",
        "A row names its verifier as `{{name: ..., options: {{...}}}}`; an import gives it by `--verifier` and "
        "`--verifier-options`. [Verifiers]({page}) says what each accepts.",
        known_verifiers,
        verifier_options,
        "verifiers.md",
    ),
    Kind(
        "Filters",
        "A rules file lists filters for `verl-pivot filter`; [Quality]({page}) says what each drops wrongly.",
        known_filters,
        filter_options,
        "quality.md",
    ),
    Kind("Tools", "Entries `- tool: NAME` of a [tools file]({page}).", known_tools, tool_options, "tools.md"),
    Kind(
        "Synthesis steps",
        "A recipe of `verl-pivot synthesize` lists steps as `- NAME: {{...}}`. [Synthesis]({page}) says what they are, "
        "and the pages of the methods say what each does.",
        known_steps,
        step_options,
        "synthesis.md",
    ),
)


def page() -> str:
    """The text of docs/options.md.

    Raises:
        ValueError: If an option has no meaning.
    """
    return "\n".join([INTRODUCTION, *(line for kind in KINDS for line in chapter(kind))]).rstrip() + "\n"


def chapter(kind: Kind) -> Iterator[str]:
    """The lines about one kind."""
    yield from (f"## {kind.title}", "", kind.about.format(page=kind.page), "")
    for name in kind.names():
        model = kind.options(name)
        yield from (f"### `{name}`", "")
        yield from table(options_of(model)) if model and model.model_fields else ("It takes no options.",)
        yield ""


def write() -> None:
    """Write docs/options.md."""
    (ROOT / "docs" / "options.md").write_text(page())
