"""State that the tests of one file share while they are read: helper functions, fixtures, asserts and counts."""

import ast
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_STATEMENTS = 5_000
"""Most statements read from a file; those in loops, in helper functions and before asserts count each time."""
_MAX_NODES = 200_000
"""Most syntax nodes that are put in place of names."""


@dataclass(slots=True, kw_only=True)
class TestFile:
    """State that the tests of one file share while they are read."""

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
        """Add to the counts of statements and syntax nodes.

        Raises:
            ValueError: If a count is above its limit.
        """
        self.num_statements += statements
        self.num_nodes += nodes
        if self.num_statements > _MAX_STATEMENTS or self.num_nodes > _MAX_NODES:
            raise ValueError("the tests are too large after loops and helper functions are unrolled; shorten them")

    def new_name(self, name: str) -> str:
        """`name` if it is free, or else `name` with a number."""
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
    """Variables of the sandbox in the statement."""
    names: frozenset[str]
    """All names in the statement."""
