"""What the tests of one file share while they are read: helper functions, fixtures, asserts, and how much is read."""

import ast
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_STATEMENTS = 5_000
"""Most statements of a file that are read, with those of loops and helper functions, and that stand before asserts."""
_MAX_NODES = 200_000
"""Most parts of expressions that are put in place of names."""


@dataclass(slots=True, kw_only=True)
class TestFile:
    """What the tests of one file share while they are read."""

    entry_point: str
    taken: set[str]
    """Names that no variable of the sandbox may have."""
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    """{name: helper function}"""
    fixtures: dict[str, ast.FunctionDef] = field(default_factory=dict)
    """{name: fixture}"""
    imports: dict[str, str] = field(default_factory=dict)
    """{name: import that gives it}"""
    asserts: list[str] = field(default_factory=list)
    num_statements: int = 0
    num_nodes: int = 0

    def count(self, *, statements: int = 0, nodes: int = 0) -> None:
        """Count what is read.

        Raises:
            ValueError: If it is too much.
        """
        self.num_statements += statements
        self.num_nodes += nodes
        if self.num_statements > _MAX_STATEMENTS or self.num_nodes > _MAX_NODES:
            raise ValueError("the tests are too large when loops and functions are written out")

    def new_name(self, name: str) -> str:
        """The name, or one like it that is not taken."""
        number, new = 1, name
        while new in self.taken:
            new, number = f"{name}_{number}", number + 1
        self.taken.add(new)
        return new


class Told(NamedTuple):
    """One statement that the sandbox runs."""

    statement: ast.stmt
    text: str
    variables: frozenset[str]
    """Variables of the sandbox in it."""
    names: frozenset[str]
    """All names in it."""
