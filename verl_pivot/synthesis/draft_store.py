"""DraftStore: the drafts of finished items in a journal, in the order of their ends, read back in that of the items."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import msgspec

from verl_pivot.data.journal import Journal
from verl_pivot.data.json_values import encode_json
from verl_pivot.quality.contract import Finding
from verl_pivot.synthesis.drafts import Draft, StepKind, StepTrace, draft_as_dict, parse_draft

_FILE = "drafts.jsonl"
_SCHEMA = """
create table if not exists items (number integer primary key, place integer not null, length integer not null,
                                  is_cut_short integer not null);
create temp table rivals (rival_group text, number integer, position integer);
create temp table losers (number integer, position integer, step text, reason text, detail text,
                          primary key (number, position));
"""


class StoredDraft(NamedTuple):
    """One draft, and where it stands."""

    number: int
    """Number of its item."""
    position: int
    """Number among the drafts of the item."""
    draft: Draft


class DraftStore:
    """Drafts of finished items on disk; memory holds one item, or one group, at a time."""

    def __init__(self, journal: Journal) -> None:
        """Open what the journal has; items that the budget cut short are forgotten, so that they are made again."""
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
        """Keep the drafts of an item; they count from the journal's next commit on.

        Args:
            number: Number of the item.
            drafts: All that the steps left of it, the rejected ones included.
            is_cut_short: Whether the budget ended it.
        """
        line = encode_json([draft_as_dict(draft) for draft in drafts]).encode() + b"\n"
        place = self._file.tell()
        self._file.write(line)
        self._database.execute("insert into items values (?, ?, ?, ?)", (number, place, len(line), is_cut_short))

    def drafts(self) -> Iterator[Draft]:
        """All drafts, in the order of the items; those that `reject` named have its finding."""
        for number, drafts in self._items():
            losers = self._losers(number)
            yield from (_lost(draft, *losers[at]) if at in losers else draft for at, draft in enumerate(drafts))

    def groups(self) -> Iterator[list[StoredDraft]]:
        """The drafts that are not rejected, one `Draft.group` after the other; memory holds one group."""
        self._database.execute("delete from rivals")
        for number, drafts in self._items():
            rows = [(draft.group or draft.item, number, at) for at, draft in enumerate(drafts) if draft.finding is None]
            self._database.executemany("insert into rivals values (?, ?, ?)", rows)
        query = (
            "select rival_group, rivals.number, position, place, length from rivals join items using (number) "
            "left join losers using (number, position) where step is null order by rival_group, number, position"
        )
        with self._path.open("rb") as file:
            for _, found in groupby(self._database.execute(query), key=lambda row: str(row[0])):
                group: list[StoredDraft] = []
                for _, number, position, place, length in found:
                    file.seek(place)
                    draft = parse_draft(msgspec.json.decode(file.read(length))[position])
                    group.append(StoredDraft(number, position, draft))
                yield group

    def reject(self, place: StoredDraft, step: str, finding: Finding) -> None:
        """Note that a step which compares drafts of several items does not keep one."""
        row = (place.number, place.position, step, finding.reason, finding.detail)
        self._database.execute("insert into losers values (?, ?, ?, ?, ?)", row)

    def _items(self) -> Iterator[tuple[int, list[Draft]]]:
        self._file.flush()
        rows = self._database.execute("select number, place, length from items order by number")
        with self._path.open("rb") as file:
            for number, place, length in rows:
                file.seek(place)
                yield number, list(map(parse_draft, msgspec.json.decode(file.read(length))))

    def _losers(self, number: int) -> dict[int, tuple[str, Finding]]:
        """{position: step and finding} of the drafts of an item that `reject` named."""
        query = "select position, step, reason, detail from losers where number = ?"
        rows = self._database.execute(query, (number,))
        return {position: (step, Finding(reason=reason, detail=detail)) for position, step, reason, detail in rows}


def _lost(draft: Draft, step: str, finding: Finding) -> Draft:
    trace = StepTrace(step=step, kind=StepKind.CHOOSE, made_from=draft.id)
    return replace(draft, finding=finding, traces=(*draft.traces, trace))
