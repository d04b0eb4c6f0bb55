"""DraftStore: drafts of finished items in a journal; written in the order of completion, read in the order of items."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import msgspec

from verl_pivot.data.journal import Journal
from verl_pivot.data.json_values import encode_json
from verl_pivot.quality.contract import Finding
from verl_pivot.synthesis.drafts import Draft, StepTrace, draft_as_dict, parse_draft, parse_trace, trace_as_dict

_FILE = "drafts.jsonl"
_SCHEMA = """
create table if not exists items (number integer primary key, place integer not null, length integer not null,
                                  is_cut_short integer not null);
create temp table rivals (rival_group text, number integer, position integer);
create temp table choices (number integer, position integer, trace text, reason text, detail text);
create index temp.choices_of_item on choices (number);
"""


class StoredDraft(NamedTuple):
    """One draft, with its place in the store."""

    number: int
    """Number of the item."""
    position: int
    """Position among the drafts of the item."""
    draft: Draft


class _Choice(NamedTuple):
    """Decision of a step across items about a draft."""

    trace: StepTrace
    finding: Finding | None
    """Reason for the rejection; None if the draft is kept."""


class DraftStore:
    """Drafts of finished items on disk; memory holds one item, or one group, at a time."""

    def __init__(self, journal: Journal) -> None:
        """Open the items of a journal; items that the budget cut short are deleted, so that they are made again."""
        self._database = journal.database
        self._database.executescript(_SCHEMA)
        self._database.execute("delete from items where is_cut_short")
        self._file = journal.append_to(_FILE)
        self._path = journal.folder / _FILE

    def has(self, number: int) -> bool:
        """Whether an item is finished."""
        return self._database.execute("select 1 from items where number = ?", (number,)).fetchone() is not None

    @property
    def num_items(self) -> int:
        """Number of finished items."""
        (count,) = self._database.execute("select count(*) from items").fetchone()
        return int(count)

    def add(self, number: int, drafts: Iterable[Draft], *, is_cut_short: bool) -> None:
        """Add the drafts of an item; they are stored for good at the journal's next commit.

        Args:
            number: Number of the item.
            drafts: All drafts of the item after the steps, including rejected drafts.
            is_cut_short: Whether the end of the budget interrupted the item.
        """
        line = encode_json([draft_as_dict(draft) for draft in drafts]).encode() + b"\n"
        place = self._file.tell()
        self._file.write(line)
        self._database.execute("insert into items values (?, ?, ?, ?)", (number, place, len(line), is_cut_short))

    def drafts(self) -> Iterator[Draft]:
        """All drafts, in the order of the items, with the decisions that `choose` recorded."""
        for number, drafts in self._items():
            choices = self._choices(number)
            for position, draft in enumerate(drafts):
                for choice in choices[position]:
                    draft = replace(draft, finding=choice.finding, traces=(*draft.traces, choice.trace))
                yield draft

    def groups(self) -> Iterator[list[StoredDraft]]:
        """The drafts that are not rejected, one `Draft.group` after the other; memory holds one group."""
        self._database.execute("delete from rivals")
        for number, drafts in self._items():
            rows = [(draft.group or draft.item, number, at) for at, draft in enumerate(drafts) if draft.finding is None]
            self._database.executemany("insert into rivals values (?, ?, ?)", rows)
        query = (
            "select rival_group, rivals.number, position, place, length from rivals join items using (number) "
            "where (rivals.number, position) not in (select number, position from choices where reason is not null) "
            "order by rival_group, number, position"
        )
        with self._path.open("rb") as file:
            for _, found in groupby(self._database.execute(query), key=lambda row: str(row[0])):
                group: list[StoredDraft] = []
                for _, number, position, place, length in found:
                    file.seek(place)
                    draft = parse_draft(msgspec.json.decode(file.read(length))[position])
                    group.append(StoredDraft(number, position, draft))
                yield group

    def choose(self, place: StoredDraft, left: Draft) -> None:
        """Record the decision about one draft by a step that compares drafts of several items.

        Args:
            place: The draft, with its place in the store.
            left: The draft after the step; its last trace is the step's.
        """
        trace = encode_json(trace_as_dict(left.traces[-1]))
        reason, detail = (None, None) if left.finding is None else (left.finding.reason, left.finding.detail)
        row = (place.number, place.position, trace, reason, detail)
        self._database.execute("insert into choices values (?, ?, ?, ?, ?)", row)

    def _items(self) -> Iterator[tuple[int, list[Draft]]]:
        self._file.flush()
        rows = self._database.execute("select number, place, length from items order by number")
        with self._path.open("rb") as file:
            for number, place, length in rows:
                file.seek(place)
                yield number, list(map(parse_draft, msgspec.json.decode(file.read(length))))

    def _choices(self, number: int) -> dict[int, list[_Choice]]:
        """{position: decisions that `choose` recorded} for the drafts of an item."""
        query = "select position, trace, reason, detail from choices where number = ? order by rowid"
        found: dict[int, list[_Choice]] = defaultdict(list)
        for position, trace, reason, detail in self._database.execute(query, (number,)):
            finding = None if reason is None else Finding(reason=reason, detail=detail)
            found[position].append(_Choice(parse_trace(msgspec.json.decode(trace)), finding))
        return found
