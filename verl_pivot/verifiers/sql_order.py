"""The expert's query -> how its rows may be ordered: a query that also shows the sort keys, and the LIMIT."""

from typing import NamedTuple

from verl_pivot.extras import extra
from verl_pivot.verifiers.sql_program import TieAtLimit
from verl_pivot.verifiers.sql_rows import Rows, SortedRows

with extra("sql"):
    from sqlglot import exp

_KEY = "verl_pivot_key_"
_CLOCKS = frozenset({"currenttimestamp", "currenttime", "currentdatetime", "localtime", "localtimestamp"})
"""Keys of sqlglot's expressions for the current time."""
_CLOCK_NAMES = frozenset({"now", "get_current_timestamp", "get_current_time", "transaction_timestamp"})
_CLOCK_NAMES |= {"current_localtime", "current_localtimestamp", "uuidv7"}
_CLOCKS_WITHOUT_TIME = frozenset({"datetime", "time", "unixepoch", "julianday"})
"""Functions of SQLite that take the current time if they are given no time."""


class SqlOrder(NamedTuple):
    """Order and LIMIT of a query."""

    query: str | None
    """The query without LIMIT, with added columns of sort keys at the end; None if the rows show all keys already."""
    num_keys: int
    """Number of the added columns."""
    columns: tuple[int, ...]
    """Indices of the query's own columns that it is sorted by."""
    num_skipped: int
    """Rows that the query leaves out at the beginning."""
    tie: TieAtLimit | None = None
    """Where reading `query` ends; None if it has to be read to its end."""

    def sorted_rows(self, rows: Rows, every: Rows | None) -> SortedRows | None:
        """All rows that the query may give, with their keys.

        Args:
            rows: Rows of the query.
            every: Rows of `query`, at least up to the end of the tie that LIMIT cuts through; None if it failed or
                gives too many rows.
        """
        if self.query is None:
            return SortedRows(rows, [[row[column] for column in self.columns] for row in rows], 0)
        if every is None:
            return None
        width = len(every[0]) - self.num_keys if every else 0
        keys = [[*(row[column] for column in self.columns), *row[width:]] for row in every]
        return SortedRows([row[:width] for row in every], keys, self.num_skipped)


def order_of(parsed: exp.Expr, dialect: str) -> SqlOrder | None:
    """Order and LIMIT of a query; None if it has neither, or if added columns cannot show its sort keys."""
    limit, order = parsed.args.get("limit"), parsed.args.get("order")
    num_skipped = _number(parsed.args.get("offset"))
    if (limit is None and order is None) or not isinstance(parsed, exp.Query) or num_skipped is None:
        return None
    if limit is not None and not isinstance(limit, exp.Limit):
        return None
    terms = (
        [] if order is None else [term.this if isinstance(term, exp.Ordered) else term for term in order.expressions]
    )
    places = [_column(term, parsed) for term in terms]
    hidden = [term for term, place in zip(terms, places, strict=True) if place is None]
    if hidden and (not isinstance(parsed, exp.Select) or parsed.args.get("distinct")):
        return None
    if any(isinstance(term, exp.Literal) for term in hidden):
        return None
    columns = tuple(place for place in places if place is not None)
    if limit is None and not num_skipped and not hidden:
        return SqlOrder(None, 0, columns, 0)
    whole = parsed.copy()
    for clause in ("limit", "offset"):
        whole.set(clause, None)
    for number, term in enumerate(hidden):
        whole = whole.select(exp.alias_(term.copy(), f"{_KEY}{number}"))
    num_rows = None if limit is None else _number(limit)
    tie = None if num_rows is None else TieAtLimit(num_skipped + num_rows, columns, len(hidden))
    return SqlOrder(whole.sql(dialect=dialect), len(hidden), columns, num_skipped, tie)


def clock_in(parsed: exp.Expr) -> str:
    """Part of a query that asks for the current time; empty if there is none."""
    for node in parsed.walk():
        if node.key in _CLOCKS or (isinstance(node, exp.Anonymous) and _is_clock(node)):
            return node.sql()
        if isinstance(node, exp.Literal) and node.is_string and node.name.lower() == "now":
            function = node.find_ancestor(exp.Func)
            if (
                isinstance(function, exp.Func)
                and function.name.lower() != "date"
                and not isinstance(function, exp.Date)
            ):
                return function.sql()
    return ""


def _is_clock(function: exp.Anonymous) -> bool:
    name, given = function.name.lower(), [each.name.lower() for each in function.expressions[:1]]
    is_without_time = not given or given[0] in ("subsec", "subsecond")
    return name in _CLOCK_NAMES or (name in _CLOCKS_WITHOUT_TIME and is_without_time)


def _number(clause: exp.Expr | None) -> int | None:
    """Number in a LIMIT or OFFSET clause; 0 if there is no clause, None if the number is not a literal."""
    if clause is None:
        return 0
    value = clause.args.get("expression")
    return _whole(value) if isinstance(value, exp.Literal) else None


def _column(term: exp.Expr, parsed: exp.Query) -> int | None:
    """Index of the result column that a term of ORDER BY names; None if it names none, or the query has a `*`."""
    selected = parsed.selects
    if any(each.find(exp.Star) and not each.find(exp.Count) for each in selected):
        return None
    if isinstance(term, exp.Literal):
        position = (_whole(term) or 0) - 1
        return position if 0 <= position < len(selected) else None
    names = [each.alias_or_name.lower() for each in selected]
    if isinstance(term, exp.Column) and not term.table and names.count(term.name.lower()) == 1:
        return names.index(term.name.lower())
    if not isinstance(parsed, exp.Select):
        return None
    texts = [each.unalias().sql() for each in selected]
    return texts.index(term.sql()) if term.sql() in texts else None


def _whole(literal: exp.Literal) -> int | None:
    """Whole number of a literal; None for any other literal, and for a number too long for a database."""
    return int(literal.name) if literal.name.isdecimal() and len(literal.name) < 20 else None
