"""RunIndex -> the list of rollouts that a filter leaves, with the picked rollout and up to two marked ones."""

import shlex
from collections.abc import Sequence

import msgspec
import numpy

from verl_pivot.errors import ConfigError
from verl_pivot.inspect.filter_values import FilterT, filter_from
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.queries import ListedRollout, OrderedRollouts, RolloutPlace, RunIndex


class RolloutListing:
    """State of a view that has no URL to keep it: filter, order, picked rollout and marks."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self.filter, self.order = RolloutFilter(), RolloutOrder()
        self.at = 0
        """Position of the picked rollout."""
        self.marks: list[RolloutPlace] = []
        """[at most 2] marked rollouts, the newest mark last."""
        self.mean_score: float | None = None
        self._ids = self._groups = numpy.zeros(0, numpy.uint32)

    def __len__(self) -> int:
        return len(self._ids)

    def show(self, wanted: RolloutFilter, order: RolloutOrder, found: OrderedRollouts) -> None:
        """Show another list; the picked rollout stays picked if the list has it."""
        picked = self._ids[self.at : self.at + 1]
        self.filter, self.order, self.mean_score = wanted, order, found.mean_score
        self._ids = numpy.frombuffer(found.ids, numpy.uint32)
        self._groups = numpy.frombuffer(found.groups, numpy.uint32)
        again = numpy.flatnonzero(numpy.isin(self._ids, picked))
        self.at = int(again[0]) if len(again) else 0

    def rows(self, first: int, number: int) -> list[ListedRollout | None]:
        """[number, fewer at the end] rollouts from a position on; None for one that was replaced meanwhile."""
        ids = [int(each) for each in self._ids[first : first + number]]
        found = {row.id: row for row in self.index.rows(ids)}
        return [found.get(each) for each in ids]

    def picked(self) -> ListedRollout | None:
        rows = self.rows(self.at, 1)
        return rows[0] if rows else None

    def other_group(self, direction: int) -> int:
        """Position of the first rollout of the next group (direction 1) or of the previous one (-1)."""
        if not len(self):
            return self.at
        starts = numpy.flatnonzero(numpy.diff(self._groups, prepend=self._groups[:1] + 1))
        group = int(numpy.searchsorted(starts, self.at, side="right")) - 1 + direction
        return int(starts[group]) if 0 <= group < len(starts) else self.at

    def other_step(self, now: int | None, direction: int) -> RolloutFilter | None:
        """The filter with the step after (direction 1) or before (-1) that has rollouts; None if there is none."""
        steps = self.index.steps()
        if now is None:
            beyond: Sequence[int] = steps if direction > 0 else steps[::-1]
        else:
            beyond = [step for step in steps if step > now] if direction > 0 else [s for s in steps[::-1] if s < now]
        return msgspec.structs.replace(self.filter, step=beyond[0]) if beyond else None

    def toggle_mark(self, row: ListedRollout) -> None:
        """Mark a rollout, or take its mark away; with a third mark, the oldest one is taken away."""
        place = place_of(row)
        is_marked = place in self.marks
        self.marks = [each for each in self.marks if each != place] if is_marked else [*self.marks, place][-2:]


def place_of(row: ListedRollout) -> RolloutPlace:
    return RolloutPlace(row.run, row.file_name, row.row.line)


def filter_text(wanted: msgspec.Struct) -> str:
    """The filter as `parse_filter` reads it.

    Example:
        filter_text(RolloutFilter(step=12, condition="num_calls > 2"))  # step=12 condition='num_calls > 2'
    """
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in given.items())


def parse_filter(text: str, kind: type[FilterT]) -> FilterT:
    """The filter of this kind that a line such as step=12 reason=wrong_value gives.

    Raises:
        ConfigError: If a part has no name, the filter has no field of this name, or the value has another type.
    """
    try:
        parts = [part.partition("=") for part in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"the filter cannot be read: {error}; put values with spaces in quotes") from error
    if bare := [name for name, sign, _ in parts if not sign]:
        raise ConfigError(
            f"the filter cannot be read: {bare[0]!r} is not name=value; write words={bare[0]} to search for a word"
        )
    return filter_from({name: value for name, _, value in parts}, kind)


def parse_order(text: str) -> RolloutOrder:
    """The order by a column such as score, or -score for the highest first; an empty text is the order as read.

    Raises:
        ConfigError: If rollouts cannot be sorted by this column.
    """
    name = text.strip()
    if not name:
        return RolloutOrder()
    fields = {"sort": name.removeprefix("-"), "is_descending": name.startswith("-")}
    try:
        return msgspec.convert(fields, RolloutOrder)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot sort rollouts by {fields['sort']!r}: {error}") from error
