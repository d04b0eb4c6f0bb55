"""Runs of recipes: no draft is lost, nothing undecided passes, and the bytes do not depend on the order of the work."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.workshops import FunctionWriter
from verl_pivot.data.journal import journal_path
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import EngineError, UserCodeError
from verl_pivot.synthesis import running
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import SynthesisReport
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import run_synthesis
from verl_pivot.synthesis.seeds import seed_of
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, Writer, WriterQuestion

STEPS = "tests.support.synthesis_steps"
NUM_ITEMS = 12


def made(
    folder: Path,
    recipe: str,
    *,
    name: str = "out",
    concurrency: int = 4,
    writer: Writer | None = None,
    on_items: Callable[[int], object] = lambda count: None,
    **limits: Any,
) -> SynthesisReport:
    """Run a recipe over numbered items."""
    (folder / "recipe.yaml").write_text(f"- numbers: {{num: {NUM_ITEMS}}}\n{recipe}")
    job = SynthesisJob(
        recipe=read_recipe(str(folder / "recipe.yaml"), {}, [STEPS]),
        inputs=Inputs(),
        writers={"writer": writer or ProgramWriter(f"{STEPS}:number")},
        out=folder / name,
        identity={},
        limits=BudgetLimits(**limits),
        retries=Retries(num_attempts=1),
        concurrency=concurrency,
    )
    return run_synthesis(job, on_items)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def digits() -> dict[str, int]:
    """{draft id: digit} of the drafts of the step `copies`, computed by the seed rule."""
    drafts = {(str(item), k): seed_of(0, str(item), "copies", k) % 10 for item in range(NUM_ITEMS) for k in range(2)}
    return {f"{item}/{k}": digit for (item, k), digit in drafts.items()}


def test_a_check_passes_with_score_1_alone(tmp_path: Path) -> None:
    report = made(tmp_path, "- copies\n- digit: {least: 3, undecided: [7]}\n")

    small, unclear = [name for name, each in digits().items() if each < 3], list(digits().values()).count(7)
    assert report.rejected == {"digit": {"too_small": len(small), "cannot_tell": unclear}}
    assert report.num_drafts == 2 * NUM_ITEMS == report.num_kept + len(small) + unclear
    rejected = lines(tmp_path / "out" / "rejected.jsonl")
    assert [row["id"] for row in rejected if row["reason"] == "too_small"] == small
    assert report.asked == {"copies": {"num_calls": 24, "num_prompt_tokens": 0, "num_completion_tokens": 0}}


def test_what_a_step_does_not_give_back_is_rejected(tmp_path: Path) -> None:
    report = made(tmp_path, "- copies\n- by_digit\n- largest\n")

    zeros = list(digits().values()).count(0)
    groups = {(name.partition("/")[0], each) for name, each in digits().items() if each}
    lost = 2 * NUM_ITEMS - zeros - len(groups)
    assert report.rejected == {"by_digit": {"nothing_made": zeros}} | (
        {"largest": {"not_chosen": lost}} if lost else {}
    )
    assert report.num_kept == len(groups)


def test_a_step_across_items_compares_drafts_of_one_group(tmp_path: Path) -> None:
    report = made(tmp_path, "- copies\n- by_digit\n- largest_of_all\n")

    groups = Counter(each for each in digits().values() if each)
    assert report.num_kept == len(groups)
    assert report.rejected["largest_of_all"] == {"not_chosen": groups.total() - len(groups)}
    assert report.num_drafts == report.num_kept + report.num_rejected == 2 * NUM_ITEMS


def test_questions_of_steps_across_items_and_before_the_first_item_are_counted_once(tmp_path: Path) -> None:
    report = made(tmp_path, "- probed: {num: 3}\n- copies\n- by_digit\n- largest_of_all: {asks: true}\n")

    groups = {each for each in digits().values() if each}
    calls = {step: counts["num_calls"] for step, counts in report.asked.items()}
    assert calls == {"probed": 3, "copies": 2 * NUM_ITEMS, "largest_of_all": len(groups)}


def test_what_a_step_across_items_keeps_says_so_in_its_provenance(tmp_path: Path) -> None:
    made(tmp_path, "- copies\n- by_digit\n- largest_of_all\n- largest_of_all\n")

    rows = pyarrow.parquet.read_table(tmp_path / "out" / "tasks.parquet").to_pylist()
    for row in rows:
        traces = [(each["step"], each["made_from"]) for each in json.loads(row["provenance"])["steps"]]
        group = traces[-1][1]
        assert traces[-2:] == [("largest_of_all", group), ("largest_of_all 2", group)]
        assert group.startswith("digit ")


def test_the_bytes_do_not_depend_on_the_concurrency_nor_on_the_cache(tmp_path: Path) -> None:
    recipe = "- copies\n- by_digit\n- digit\n- largest_of_all\n"
    for name, concurrency in (("one", 1), ("many", 7), ("one", 3)):
        made(tmp_path, recipe, name=name, concurrency=concurrency)

    for path in (tmp_path / "one").iterdir():
        assert path.is_dir() or path.read_bytes() == (tmp_path / "many" / path.name).read_bytes(), path.name


def test_code_that_never_worked_ends_the_run_and_later_rejects_one_draft(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="the checker broke at 0/0"):
        made(tmp_path, "- copies\n- digit: {least: 0, breaks_at: [0/0]}\n", name="first", concurrency=1)

    report = made(tmp_path, "- copies\n- digit: {least: 0, breaks_at: [3/1]}\n", name="later", concurrency=1)
    assert report.rejected == {"digit": {"user_code_failed": 1}}


class FailingWriter(FunctionWriter):
    """A writer whose server fails at item 3, once a test wants it to."""

    def __init__(self, until: Callable[[], bool]) -> None:
        super().__init__(lambda question: str(question.seed % 10))
        self.until = until

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        for _ in range(5_000 if question.messages[0]["content"] == "3" else 0):
            if self.until():
                raise EngineError("the server is gone")
            await asyncio.sleep(0.001)
        return await super().answer(question)


def test_items_that_had_finished_when_the_run_failed_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_COMMIT_SECONDS", 600.0)
    done: list[int] = []
    writer = FailingWriter(lambda: sum(done) == NUM_ITEMS - 1)

    with pytest.raises(EngineError, match="the server is gone"):
        made(tmp_path, "- copies\n", writer=writer, on_items=done.append)
    later: list[int] = []
    made(tmp_path, "- copies\n", writer=FunctionWriter(writer.respond), on_items=later.append)

    assert later == [NUM_ITEMS - 1, 1]


def test_a_run_begins_anew_with_another_model_of_the_same_name(tmp_path: Path) -> None:
    done: list[int] = []
    writer = FailingWriter(lambda: sum(done) == NUM_ITEMS - 1)
    with pytest.raises(EngineError, match="the server is gone"):
        made(tmp_path, "- copies\n", writer=writer, on_items=done.append)

    later: list[int] = []
    asked: list[WriterQuestion] = []
    trained = FunctionWriter(lambda question: asked.append(question) or "9", identity="function, trained")  # type: ignore[func-returns-value]
    made(tmp_path, "- copies\n", writer=trained, on_items=later.append)

    assert later == [0, *[1] * NUM_ITEMS]
    assert len(asked) == 2 * NUM_ITEMS


def test_a_resumed_run_knows_that_the_users_code_has_worked(tmp_path: Path) -> None:
    recipe = "- copies\n- digit: {least: 0, breaks_at: [3/1]}\n"
    writer = FailingWriter(lambda: True)

    with pytest.raises(EngineError, match="the server is gone"):
        made(tmp_path, recipe, concurrency=1, writer=writer)
    report = made(tmp_path, recipe, concurrency=1, writer=FunctionWriter(writer.respond))

    assert report.rejected == {"digit": {"user_code_failed": 1}}
    assert report.num_kept == 2 * NUM_ITEMS - 1


def test_finished_items_outlive_a_kill_while_a_later_one_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database tells how many items a new process would find, while item 3 is still being made."""
    monkeypatch.setattr(running, "_COMMIT_SECONDS", 0.01)

    def are_kept() -> bool:
        with closing(sqlite3.connect(journal_path(tmp_path / "out") / "journal.sqlite")) as database:
            return bool(database.execute("select count(*) from items").fetchone()[0] == NUM_ITEMS - 1)

    with pytest.raises(EngineError, match="the server is gone"):
        made(tmp_path, "- copies\n", writer=FailingWriter(are_kept))


def test_what_the_budget_does_not_cover_is_rejected_and_made_later_by_a_larger_one(tmp_path: Path) -> None:
    recipe = "- copies\n- digit: {least: 0}\n"

    report = made(tmp_path, recipe, calls=10, concurrency=1)
    assert report.rejected == {"copies": {"out_of_budget": NUM_ITEMS - 5}}
    assert (report.num_kept, report.num_drafts) == (10, 10 + NUM_ITEMS - 5)

    more = made(tmp_path, recipe, calls=2 * NUM_ITEMS - 10)
    assert (more.num_kept, more.num_rejected) == (2 * NUM_ITEMS, 0)


def test_a_budget_of_nothing_makes_nothing_and_says_so(tmp_path: Path) -> None:
    report = made(tmp_path, "- copies\n", calls=0)

    assert report.rejected == {"copies": {"out_of_budget": NUM_ITEMS}}
    assert report.examples == {"out_of_budget": "0: the budget of 0 calls is used up"}


def test_a_draft_that_no_line_can_hold_is_rejected_alone(tmp_path: Path) -> None:
    report = made(tmp_path, "- halves\n")

    assert report.rejected == {"halves": {"not_json": NUM_ITEMS}}
    assert report.num_kept == NUM_ITEMS
    assert lines(tmp_path / "out" / "rejected.jsonl")[0]["id"] == "0/0"


def test_a_draft_that_could_not_be_read_again_is_rejected_alone(tmp_path: Path) -> None:
    report = made(tmp_path, "- unnamed\n")

    assert report.rejected == {"unnamed": {"bad_tool_call": NUM_ITEMS}}
    assert report.num_kept == NUM_ITEMS
    first = lines(tmp_path / "out" / "rejected.jsonl")[0]
    assert (first["id"], first["detail"]) == ("0/0", "a tool call needs a name, got ''")


def test_a_detail_with_half_a_character_is_written_as_an_escape(tmp_path: Path) -> None:
    report = made(tmp_path, "- halves: {refuses: true}\n")

    assert report.rejected == {"halves": {"wrong_value": NUM_ITEMS}}
    assert lines(tmp_path / "out" / "rejected.jsonl")[0]["detail"] == "\\ud800"
