"""Preloaded modules and warm-ups -> plans of a lane's zygotes, and which of them a program is forked from."""

import re
from collections.abc import Sequence

from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.lane.messages import ZygotePlan
from verl_pivot.sandbox.service.languages import Language, LanguageTable

SESSION_MODULES = ("verl_pivot.sandbox.lane.repl",)
"""Modules that the zygote of sessions imports besides the user's."""
STANDARD_MODULES = (
    *("bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools"),
    *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "threading", "typing"),
)
"""Modules of the standard library that programs often import."""


class ZygotePlanner:
    """The zygotes of each lane, by the names that a language may give."""

    def __init__(self, preload: Sequence[str], languages: LanguageTable) -> None:
        """Plan zygotes; `full` imports the packages of `preload`, and those for which the user's file has a warm-up."""
        packages = tuple(dict.fromkeys((*preload, *languages.warmed_modules)))
        modules = {
            "bare": (),
            "standard": STANDARD_MODULES,
            "full": (*STANDARD_MODULES, *SESSION_MODULES, *packages),
        }
        self.session_zygote = "full"
        """Name of the zygote that forks interpreters of sessions; a separate one if `startup` or `prewarm` is set."""
        if languages.session.startup or languages.session.prewarm:
            self.session_zygote = "session"
            modules["session"] = modules["full"]
        self.plans = {name: _plan(imported, languages) for name, imported in modules.items()}
        self.plans[self.session_zygote]["startup"] = languages.session.startup
        self._imports = {"full": _imports_of(packages), "standard": _imports_of(STANDARD_MODULES)}

    def choose(self, program: Program, language: Language) -> str:
        """Name of the zygote to fork a program from; "auto" takes the first with a module that the program imports."""
        if program.root:
            return "bare"
        if language.zygote != "auto":
            return language.zygote or "bare"
        return next((name for name, imports in self._imports.items() if imports.search(program.code)), "bare")


def _plan(modules: tuple[str, ...], languages: LanguageTable) -> ZygotePlan:
    import_from = [path for language in languages.available.values() for path in language.import_from]
    warm_ups = {name: code for name, code in languages.warm_ups.items() if name in modules}
    return {"modules": [*modules], "warm_ups": warm_ups, "import_from": import_from, "startup": ""}


def _imports_of(modules: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern that finds an import of one of these modules.

    If it misses an import, the program is forked from a smaller zygote, and only loses the time of the import.
    """
    if not modules:
        return re.compile(r"(?!)")  # matches nothing
    return re.compile(
        rf"^\s*(?:import|from)\s+(?:[\w., ]*,\s*)?(?:{'|'.join(map(re.escape, modules))})\b", re.MULTILINE
    )
