"""`verl-pivot inspect --terminal`: every key, what is listed, and hostile texts, by Textual's own pilot at 80 x 24."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.dumped_runs import make_line, write_run
from verl_pivot.data.rollout_dumps import without_texts
from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.inspect.queries import RunIndex
from verl_pivot.inspect.terminal import TerminalView
from verl_pivot.runs.run import TrainingRun


def shown(pilot: Pilot[None]) -> str:
    """The text on the terminal's screen."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Pilot[None], holds: Callable[[str], bool]) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        await pilot.pause(0.01)
        if holds(text := shown(pilot)):
            return text
    raise AssertionError(f"never shown:\n{text}")


async def press(pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause()
    return shown(pilot)


async def seen(pilot: Pilot[None], expected: str, *keys: str) -> str:
    """Press keys, wait until the screen holds the expected text, and return all text on the screen."""
    await pilot.press(*keys)
    return await until(pilot, lambda text: expected in text)


@asynccontextmanager
async def viewing(*folders: Path) -> AsyncIterator[Pilot[None]]:
    index = RunIndex([TrainingRun(folder) for folder in folders])
    async with TerminalView(index).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda text: index.generation > 0 and f": {index.num_rollouts} rollouts" in text)
        yield pilot


def two_groups(folder: Path) -> Path:
    """Write a run with two groups of two rollouts in step 1 and one such group in step 2."""
    lines = {
        1: [
            make_line("a_0_0", 1.0, ["first of a"]),
            make_line("a_1_0", 0.0, ["second of a", "and on"]),
            make_line("b_0_0", 0.0, ["first of b"]),
            make_line("b_1_0", None, ["second of b"], reason="no_answer"),
        ],
        2: [make_line("c_0_0", 0.5, ["first of c"], step=2), make_line("c_1_0", 1.0, ["second of c"], step=2)],
    }
    return write_run(folder, lines)


async def opened(pilot: Pilot[None], expected: str, *keys: str) -> None:
    """Press keys in the list, open the rollout, wait until it shows the expected text, and go back to the list."""
    await seen(pilot, expected, *keys, "enter")
    await seen(pilot, "/ words", "escape")


async def test_the_list_has_all_rollouts_with_their_mean_score(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        text = shown(pilot)
        assert text.startswith("run: 6 rollouts, mean score 0.5 ")
        assert "       1 train a             1 accepted" in text
        assert "       1 train b             ? no_answer" in text


WAYS = {
    (): "first of a",
    ("j",): "second of a",
    ("down", "down", "up"): "second of a",
    ("n",): "first of b",
    ("n", "n", "n"): "first of c",
    ("end", "p"): "first of b",
    ("end", "j"): "second of c",
    ("pagedown",): "second of c",
    ("end", "pageup"): "first of a",
}


async def test_keys_go_through_the_list(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        for keys, expected in WAYS.items():
            await opened(pilot, expected, "home", *keys)


async def test_keys_go_through_rollouts_in_the_order_of_the_list(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await seen(pilot, "first of a", "enter")
        await seen(pilot, "second of a", "j")
        await seen(pilot, "first of b", "n")
        await seen(pilot, "second of a", "k")
        assert "Group: 1 [0]" in shown(pilot)
        assert "Rollout 2 of 6 in the list" in shown(pilot)
        await seen(pilot, "first of b", "escape", "j", "enter")


async def test_brackets_list_the_step_after_and_before(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await press(pilot, "]")
        assert "4 of 6 rollouts, mean score 0.3333; step=1" in await until(pilot, lambda text: "step=1" in text)
        await press(pilot, "]")
        await until(pilot, lambda text: "step=2" in text)
        await press(pilot, "]")
        assert "2 of 6 rollouts" in shown(pilot)
        await press(pilot, "enter")
        await press(pilot, "[")
        assert "4 of 6 rollouts" in await until(pilot, lambda text: "step=1" in text)
        await press(pilot, "escape")
        await until(pilot, lambda text: "run: 6 rollouts" in text)


TYPED = [
    ("slash", "SECOND of", "run: 3 of 6 rollouts, mean score 0.5; words='SECOND of'"),
    ("f", "score_to=0 step=1", "run: 2 of 6 rollouts, mean score 0; step=1 score_to=0.0"),
    ("f", "condition='num_turns > 1'", "run: 1 of 6 rollouts, mean score 0; condition='num_turns > 1'"),
    ("f", "is_kept=false", "No rollout passes the filter; Esc clears it."),
    ("f", "colour=red", "the filter cannot be used: Object contains unknown field `colour`"),
    ("f", "step=x", "the filter cannot be used: step must be a whole number, not 'x'"),
    ("f", "wrong", "'wrong' is not name=value; write words=wrong"),
    ("f", "words='a", "the filter cannot be read: No closing quotation"),
    ("f", "condition='DROP TABLE rollouts'", "the condition is not valid SQL"),
    ("f", "", "run: 6 rollouts, mean score 0.5 "),
    ("s", "-score", "run: 6 rollouts, mean score 0.5; sorted by -score"),
    ("s", "colour", "cannot sort rollouts by 'colour'"),
]


async def test_what_is_typed_filters_or_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        for key, typed, expected in TYPED:
            await press(pilot, key)
            pilot.app.screen.query_one(Input).value = typed
            await press(pilot, "enter")
            await until(pilot, lambda text, expected=expected: expected in text)


async def test_a_sorted_list_begins_with_the_highest_and_keeps_the_picked_rollout(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await press(pilot, "j", "s", "minus", *"sampled_tokens", "enter")
        await until(pilot, lambda text: "sorted by -sampled_tokens" in text)
        await seen(pilot, "Rollout 1 of 6 in the list", "enter")
        assert "second of a" in shown(pilot)


async def test_escape_leaves_a_question_without_an_answer(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await press(pilot, "slash", "q", "escape")
        assert "run: 6 rollouts" in shown(pilot)


async def test_two_marked_rollouts_stand_side_by_side_from_where_they_differ(tmp_path: Path) -> None:
    lines = [make_line("a_0_0", 1.0, ["same", "left"]), make_line("a_1_0", 0.0, ["same", "right", "more"])]
    async with viewing(write_run(tmp_path / "run", {1: lines})) as pilot:
        await seen(pilot, "Mark two rollouts with x before comparing them with c.", "c")
        await seen(pilot, "*      1 train a", "x", "j", "x")
        text = await seen(pilot, "They differ from turn 2 on.", "c")
        assert f"{'left':38} | right" in text
        assert f"{'-- no turn 3 ':-<38} | -- Turn 3, 5 tokens ---" in text
        assert "same\n" not in text
        await seen(pilot, "2 rollouts", "escape")


async def test_rollouts_without_texts_are_not_called_the_same(tmp_path: Path) -> None:
    lines = [make_line("a_0_0", 1.0, ["left"]), make_line("a_1_0", 0.0, ["right"])]
    run = write_run(tmp_path / "run", {1: [without_texts(line) + b"\n" for line in lines]})
    async with viewing(run) as pilot:
        await press(pilot, "x", "j", "x")
        text = await seen(pilot, "pivot.record left texts out, so it is unknown where the rollouts differ.", "c")
        assert "(pivot.record left this text out)" in text


async def test_a_group_and_a_prompt_are_listed_from_a_rollout(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await press(pilot, "n", "enter", "g")
        assert "2 of 6 rollouts" in await until(pilot, lambda text: "group_name=b" in text)
        await press(pilot, "enter", "t")
        assert "6 rollouts" in await until(pilot, lambda text: "prompt_id=" in text)


async def test_long_texts_are_folded_until_o_unfolds_them_and_tab_goes_to_the_next_turn(tmp_path: Path) -> None:
    line = make_line("a_0_0", 1.0, ["x" * 2_500 + " middle " + "y" * 2_500, "the second turn"])
    async with viewing(write_run(tmp_path / "run", {1: [line]})) as pilot:
        await press(pilot, "enter", "tab")
        await until(pilot, lambda text: "-- Turn 1" in text.splitlines()[1])
        await press(pilot, "pagedown")
        await seen(pilot, "[2,408 more characters: press o to show them]", "pagedown")
        await press(pilot, "o", "home", "tab")
        await seen(pilot, "middle", "space")
        await seen(pilot, "-- Turn 2", "tab")
        await press(pilot, "shift+tab")
        await until(pilot, lambda text: "-- Turn 1" in text.splitlines()[1])


async def test_question_mark_shows_the_keys(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await seen(pilot, "next and previous group", "question_mark")
        await seen(pilot, "run: 6 rollouts", "escape")


async def test_q_ends_it(tmp_path: Path) -> None:
    async with viewing(two_groups(tmp_path / "run")) as pilot:
        await press(pilot, "q")
        assert pilot.app._exit


async def test_a_training_that_goes_on_is_followed_and_the_picked_rollout_stays(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "run")
    async with viewing(folder) as pilot:
        await press(pilot, "end")
        write_run(folder, {3: [make_line("d_0_0", 1.0, ["first of d"], step=3)]})
        await until(pilot, lambda text: "7 rollouts" in text)
        await opened(pilot, "second of c")


async def test_an_opened_rollout_keeps_its_place_while_the_list_grows(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "run")
    async with viewing(folder) as pilot:
        await seen(pilot, "second of a", "enter", "j")
        write_run(folder, {3: [make_line("d_0_0", 1.0, ["first of d"], step=3)]})
        await until(pilot, lambda _: len(pilot.app._list.listing) == 7)
        await seen(pilot, "Rollout 2 of 7 in the list", "x")
        await seen(pilot, "first of b", "j")


async def test_a_rollout_has_the_prompt_that_stands_in_the_first_line_of_its_group(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "What is 2 + 3?"}]
    lines = [make_line("a_0_0", 1.0, ["first of a"], prompt=prompt), make_line("a_1_0", 0.0, ["second of a"])]
    async with viewing(write_run(tmp_path / "run", {1: lines})) as pilot:
        assert "What is 2 + 3?" in await seen(pilot, "second of a", "j", "enter")


async def test_a_dump_that_went_away_is_a_sentence(tmp_path: Path) -> None:
    folder = two_groups(tmp_path / "run")
    async with viewing(folder) as pilot:
        (folder / "rollouts" / "pivot" / "1.jsonl").unlink()
        await press(pilot, "enter")
        await until(pilot, lambda text: "cannot be read: No such file" in " ".join(text.split()))


async def test_an_empty_run_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {}, metrics=[{"step": 1, "score": 0.5}])
    async with viewing(folder) as pilot:
        text = await press(pilot, "j", "n", "p", "enter", "x", "]", "end")
        assert "There are no dumps of rollouts: set trainer.rollout_data_dir in the launch." in text


HOSTILE = {
    "escape": ("\x1b[2J\x1b]0;pwned\x07", "⟨U+001B⟩[2J⟨U+001B⟩]0;pwned⟨U+0007⟩"),
    "c1": ("\x9b31m", "⟨U+009B⟩31m"),
    "right_to_left": ("\u202egnp.exe\u202c", "⟨U+202E⟩gnp.exe⟨U+202C⟩"),
    "nul": ("a\x00b\x08\x7f", "a⟨U+0000⟩b⟨U+0008⟩⟨U+007F⟩"),
    "return": ("shown\rhidden", "shown⟨U+000D⟩hidden"),
    "markup": ("[red]a[/red] [@click=app.quit]b[/]", "[red]a[/red] [@click=app.quit]b[/]"),
    "invisible": ("a\u200bb\ufeffc", "a⟨U+200B⟩b⟨U+FEFF⟩c"),
}


async def test_hostile_texts_are_shown_as_text_wherever_they_stand(tmp_path: Path) -> None:
    lines = []
    for at, (text, _) in enumerate(HOSTILE.values()):
        call = CallRecord(turn=0, name=text, status=CallStatus.OK, arguments={"a": text}, seconds=0.1)
        lines.append(make_line(f"a_{at}_0", 0.0, [text], reason=text, detail=text, calls=[call], observations=[[text]]))
    async with viewing(write_run(tmp_path / "run", {1: lines})) as pilot:
        screens = [shown(pilot)]
        await press(pilot, "enter")
        for text, sign in HOSTILE.values():
            screens.append(await until(pilot, lambda text, sign=sign: text.count(sign) >= 4))
            assert text == sign or text not in "".join(screens)
            await press(pilot, "j")


async def test_a_hostile_filter_is_shown_as_text_where_it_is_changed_and_stays_unless_it_is(tmp_path: Path) -> None:
    lines = [make_line("a_0_0", prompt_id="\x1b[2J\x9b"), make_line("b_0_0", prompt_id="p")]
    async with viewing(write_run(tmp_path / "run", {1: lines})) as pilot:
        await press(pilot, "enter", "t")
        await until(pilot, lambda text: "1 of 2 rollouts" in text)
        await press(pilot, "f")
        assert pilot.app.screen.query_one(Input).value == "prompt_id='⟨U+001B⟩[2J⟨U+009B⟩'"
        await press(pilot, "enter")
        await until(pilot, lambda text: "1 of 2 rollouts" in text)


async def test_hostile_sizes_take_a_second_of_the_processor_at_most(tmp_path: Path) -> None:
    lines = [
        make_line("a_0_0", 0.0, ["x" * 10_000_000]),
        make_line("a_1_0", 0.0, ["turn"] * 1_000),
        make_line("a_2_0", 0.0, ["Z" + "\u0300" * 9_000]),
        make_line("a_3_0", 0.0, ["\u4e2d" * 5_000 + "\n" * 3_000]),
    ]
    async with viewing(write_run(tmp_path / "run", {1: lines})) as pilot:
        for _ in lines:
            began = time.thread_time()
            await press(pilot, "enter", "o", "end", "escape", "j")
            assert time.thread_time() - began < 1
