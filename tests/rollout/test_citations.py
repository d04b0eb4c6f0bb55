"""Citations: ids that tools showed count, and words of the policy, of errors and of templates do not."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.test_tool_loop import play, record, tools_file
from tests.support.scripted_engine import call, make_loop
from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.rollout.citations import CitableTurn, cited_ids

FOUND = "doc S_1 and doc S_20"


def answered(result: str, status: CallStatus = CallStatus.OK, **arguments: Any) -> CitableTurn:
    """A turn with one call."""
    return CitableTurn([CallRecord(turn=0, name="search", arguments=arguments, status=status)], [result])


def shares(last_turn: str, *turns: CitableTurn) -> tuple[int, int]:
    """Numbers of cited ids, and of those that were shown."""
    num_cited, num_shown = cited_ids(last_turn, turns)
    return num_cited, num_shown


def test_ids_that_a_result_shows_count_as_whole_words() -> None:
    turn = answered(FOUND, query="rivers")

    assert shares('<cite id="S_1,S_9">x</cite>', turn) == (2, 1)
    assert shares('<cite id=\'S_20\'>x</cite><cite id="S_1">y</cite><cite id="S_1">z</cite>', turn) == (2, 2)
    assert shares('<cite id="S_2">a part of an id</cite>', turn) == (1, 0)
    assert shares("S_1", turn) == (0, 0)
    assert shares('<cite id=",">', turn) == (0, 0)
    assert shares('<cite id="S_1">x</cite>') == (1, 0)


NAMING = [{"query": "S_1"}, {"query": 'on\n"S_1"'}, {"filters": [{"ids": ["S_1"]}]}, {"S_1": True}, {"ids": "S_1, S_9"}]


@pytest.mark.parametrize("arguments", NAMING)
def test_an_id_that_the_policy_names_first_is_an_echo(arguments: dict[str, Any]) -> None:
    cites = '<cite id="S_1">x</cite>'

    assert shares(cites, answered("no results for S_1", **arguments)) == (1, 0)
    assert shares(cites, answered("noted", **arguments), answered("your notes: S_1")) == (1, 0)


def test_an_id_that_was_shown_may_be_named_afterwards() -> None:
    opened = answered("S_1: the Nile", id="S_1")

    assert shares('<cite id="S_1">x</cite>', answered(FOUND, query="rivers"), opened) == (1, 1)


def test_a_number_within_another_word_of_a_query_hides_no_id() -> None:
    assert shares('<cite id="1">x</cite>', answered("[1] The Nile", query="rivers of 2019, top-1")) == (1, 1)


def test_an_id_with_blanks_and_signs_counts_as_a_whole_too() -> None:
    turn = answered("see doi:10.1/x2 and Act 3, scene 1.", query="rivers")

    assert shares('<cite id="doi:10.1/x2">x</cite><cite id="Act 3">y</cite>', turn) == (2, 2)
    assert shares('<cite id="doi:10.1/x">a part</cite><cite id="ct 3">a part</cite>', turn) == (2, 0)


def test_thousands_of_ids_take_little_time() -> None:
    ids = ",".join(str(number) for number in range(3000))
    turns = [answered(f"{'1' * 50_000} {number}", query=f"{number}9" * 2000) for number in range(10)]
    began = time.process_time()

    counts = shares(f'<cite id="{ids[:190]}">x</cite>' + "".join(f'<cite id="{n},{n}.">' for n in range(3000)), *turns)

    assert counts == (6000, 10)
    assert time.process_time() - began < 5.0


def test_a_call_beside_another_does_not_show_its_ids() -> None:
    first, second = answered("no results for x", query="x"), answered("noted", text="S_1")
    both = CitableTurn([*first.calls, *second.calls], ["no results, beside S_1", "noted"])

    assert shares('<cite id="S_1">x</cite>', both) == (1, 0)


def test_an_error_shows_no_ids() -> None:
    refused = answered("there is no tool 'S17'; the tools are search", CallStatus.TOOL_ERROR, query="x")

    assert shares('<cite id="S17,search">x</cite>', refused) == (2, 0)


async def test_a_rollout_counts_what_its_tools_showed_and_no_word_around_it(tmp_path: Path) -> None:
    """The tool adds its arguments: 5 is a result of it, and 2 is not."""
    around = "user,assistant,tool_response,S17"
    script = [call("S17"), call("add", a=2, b=3), f'<cite id="5,2,{around}">x</cite>']
    output = await play(make_loop(script, tools_file(tmp_path, "add")))

    assert (record(output)["num_citations"], record(output)["num_shown_citations"]) == (6, 1)
