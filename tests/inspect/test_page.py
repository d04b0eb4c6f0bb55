"""The page of `verl-pivot inspect` in a real browser: keys, addresses, a training that goes on, and hostile texts."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium, inspecting
from tests.support.dumped_runs import make_line, write_run
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RoutingCost

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.heavy

SELECTED = ".row.selected"
SCRIPT = "<script>document.title = 'pwned'; window.pwned = 1</script>"
HOSTILE = {
    "script": SCRIPT,
    "handler": "<img src=x onerror='window.pwned=1'><svg onload='window.pwned=1'><body onload=window.pwned=1>",
    "link": "<a href='javascript:window.pwned=1'>click</a> [click](javascript:window.pwned=1)",
    "attribute": '"><input autofocus onfocus=window.pwned=1><div x="',
    "style": "<style>body{display:none}</style><link rel=stylesheet href=//evil.example/x.css>",
    "frame": "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe><base href=//evil.example/>",
    "refresh": "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "end": "</div></pre></textarea></script></title></body></html><h1>pwned</h1>",
    "comment": "<!-- --!> <![CDATA[ ]]> <?xml ?> <plaintext>",
    "escape": "\x1b[2J\x1b]0;pwned\x07\x1b]8;;javascript:pwned\x1b\\click\x1b]8;;\x1b\\",
    "right_to_left": "\u202egnp.exe\u202c \u2066\u2067 \u200f\u200e \u061c",
    "nul": "before\x00after\x08\x7f\x9b",
    "invisible": "a\u200bb\ufeffc\u2060d\u00ade\U000e0041\U000e0042",
    "surrogate": "lone \ud800 and \udfff",
    "zalgo": "Z" + "\u0300\u0316\u035e" * 3000,
    "wide": "x" * 200_000,
    "template": "${window.pwned=1} {{constructor.constructor('window.pwned=1')()}} `${1}`",
    "separators": "a\u2028b\u2029c\x0bd\x0ce\r\nf",
    "name": "__proto__ constructor toString",
    "entity": "&lt;script&gt; &#x3c;script&#x3e; %3Cscript%3E",
}


def hostile_line(name: str, text: str) -> bytes:
    call = CallRecord(
        turn=0, name=text[:300], arguments={text[:300]: text[:300]}, status=CallStatus.OK, detail=text[:300]
    )
    return make_line(
        f"{name}_0_0", 0.0, [text], step=3, observations=[[text]], calls=(call,), reason=text[:300], detail=text,
        data_source=text[:300], reward_info={text[:300]: text[:300]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder: steps 1 and 2 have three groups of four rollouts, step 3 has hostile texts, step 4 long texts."""
    steps = {
        step: [
            make_line(
                f"{step}{group}_{session}_0", float(session % 2), ["I add 2.", f"It is {session}."], step=step,
                observations=[["5"], []], prompt_id=f"prompt {group}",
            )
            for group in "abc"
            for session in range(4)
        ]
        for step in (1, 2)
    }  # fmt: skip
    steps[3] = [hostile_line(name, text) for name, text in HOSTILE.items()]
    steps[4] = [
        make_line("long_0_0", 1.0, ["begin " + "y" * 10_000_000 + " end"], step=4),
        make_line("many_0_0", 1.0, [f"Text of turn {number}." for number in range(1000)], step=4),
    ]
    metrics = [{"step": step, "critic/score/mean": step / 10, "timing_s/step": 3.0} for step in range(1, 5)]
    return write_run(tmp_path_factory.mktemp("runs") / "shop", steps, metrics)


@pytest.fixture(scope="module")
def address(folder: Path, browser: "Browser") -> Iterator[str]:
    with inspecting(folder) as address:
        yield address


@pytest.fixture
def page(browser: "Browser", address: str) -> "Iterator[Page]":
    """A browser tab; the test fails if the page asks another machine for anything, or if an error happens in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(15_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: None if request.url.startswith("http://127.0.0.1") else problems.append(request.url)
    )
    page.goto(address)
    page.wait_for_selector(".curve svg")
    wait_until(page, "document.body.innerText.includes('46 rollouts')")
    yield page
    context.close()
    assert problems == []


def press(page: "Page", keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def wait_until(page: "Page", expression: str) -> None:
    """Wait until a JavaScript expression is true; playwright's own way uses eval, which the page's policy forbids."""
    end = time.monotonic() + 15.0
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression} at {page.url}: {page.evaluate('document.body.innerText')}"
        page.wait_for_timeout(20)


def open_list(page: "Page", query: str = "") -> None:
    page.evaluate(f"location.hash = '#/rollouts{query}'")
    page.wait_for_selector(f"{SELECTED} .cell.number")
    wait_until(page, "document.querySelector('.grid') === document.activeElement")


def at(page: "Page") -> int:
    """Position of the selected row in the list, counted from 1."""
    return int(page.locator(SELECTED).get_attribute("aria-rowindex") or 0) - 1


def test_keys_move_by_rollout_and_by_group(page: "Page") -> None:
    press(page, "l")
    page.wait_for_selector(f"{SELECTED} .cell.number")

    positions = []
    for key in ["j", "j", "k", "n", "n", "p", "p", "End", "Home", "ArrowDown"]:
        press(page, key)
        positions.append(at(page))

    assert positions == [2, 3, 2, 5, 9, 5, 1, 46, 1, 2]


def test_a_rollout_is_opened_read_and_left_by_keys_and_back_returns_to_its_row(page: "Page") -> None:
    open_list(page, "?step=2")
    press(page, "j j Enter")
    page.wait_for_selector(".turn")

    assert page.locator("h1").inner_text() == "Rollout, step 2"
    assert page.locator(".turn .text").all_inner_texts() == ["I add 2.", "5", "It is 2."]
    assert page.locator(".strip a").all_inner_texts() == ["0", "1", "0", "1"]
    assert "3 in the list" in page.locator(".position").inner_text()
    press(page, "j")
    wait_until(page, "document.querySelector('.position').innerText.includes('4 in the list')")
    press(page, "n")
    wait_until(page, "document.querySelector('.position').innerText.includes('5 in the list')")
    page.go_back()
    page.wait_for_selector(f"{SELECTED}[aria-rowindex='4']")  # rows are drawn before the place in the list is restored
    assert (at(page), page.locator(".count").inner_text()) == (3, "12 of 46 rollouts, mean score 0.5")
    page.go_forward()
    page.wait_for_selector(".turn")
    press(page, "Escape")
    wait_until(page, "document.querySelector('.row.selected')?.getAttribute('aria-rowindex') === '6'")


def test_an_address_leads_to_the_same_place_in_another_tab(page: "Page") -> None:
    open_list(page, "?step=2&sort=score&is_descending=true")
    press(page, "j Enter")
    page.wait_for_selector(".turn")

    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".turn")

    assert other.locator(".position").inner_text() == page.locator(".position").inner_text()
    assert "2 in the list" in other.locator(".position").inner_text()


def test_two_marked_rollouts_are_compared_from_the_turn_in_which_they_differ(page: "Page") -> None:
    open_list(page)
    press(page, "c")
    assert "mark two rollouts with x" in page.locator("#message").inner_text()

    press(page, "x j x c")
    page.wait_for_selector(".pair")

    assert "The first turn is the same; both have the same prompt." in page.locator("main").inner_text()
    assert page.locator(".pair mark").all_inner_texts() == ["0", "1"]
    press(page, "Escape")
    page.wait_for_selector(".row.marked")


def test_words_filters_conditions_and_steps_narrow_the_list(page: "Page") -> None:
    open_list(page)
    press(page, "/")
    page.keyboard.type("it is 3")
    press(page, "Enter")
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('6 of 46')")
    press(page, "]")
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('3 of 46')")
    assert "words=it+is+3" in page.url
    assert "step=1" in page.url
    page.locator("[name=score_to]").fill("0")
    press(page, "Enter")
    wait_until(page, "document.body.innerText.includes('No rollout passes these filters.')")
    page.locator(".clear").click()
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('46 rollouts')")
    page.locator("[name=condition]").fill("num_turns > 100")
    press(page, "Enter")
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('1 of 46')")


def test_a_condition_that_is_none_is_told_in_its_sentence(browser: "Browser", address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}#/rollouts?condition=score+%3E")
    page.wait_for_selector("#message:not([hidden])")

    assert "the condition is not valid SQL" in page.locator("#message").inner_text()
    page.close()


def test_a_column_sorts_by_its_head(page: "Page") -> None:
    open_list(page, "?step=1")
    page.get_by_role("button", name="score").click()
    wait_until(page, "document.querySelector('[aria-sort=ascending]') !== null")
    wait_until(page, "document.querySelectorAll('.canvas .cell.wrong').length === 6")
    page.get_by_role("button", name="score").click()
    wait_until(page, "document.querySelector('.canvas .row .cell.number ~ .cell.number')?.innerText === '1'")

    scores = page.locator(".canvas .row .right, .canvas .row .wrong").all_inner_texts()
    assert scores == ["1"] * 6 + ["0"] * 6


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_change_nothing_in_the_page(page: "Page", name: str) -> None:
    number = list(HOSTILE).index(name)
    open_list(page, "?step=3")
    press(page, " ".join(["j"] * number) + " Enter")
    page.wait_for_selector(".turn")
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    page.wait_for_timeout(50)

    assert page.evaluate("window.pwned") is None
    assert page.title() == "Rollout, step 3 - verl-pivot inspect"
    assert page.url.startswith("http://127.0.0.1")
    assert page.locator("main script, main img, main iframe, main style, main link, main meta, main base").count() == 0
    assert page.evaluate("document.body.scrollWidth <= window.innerWidth")
    text = page.locator(".turn .text").first.evaluate("node => node.firstChild.data")
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text) is None
    if name == "escape":
        assert text.startswith("\u27e8U+001B\u27e9[2J\u27e8U+001B\u27e9]0;pwned\u27e8U+0007\u27e9")
    if name == "script":
        assert text == SCRIPT
    press(page, "Escape")
    page.wait_for_selector(SELECTED)


def test_ten_megabytes_and_a_thousand_turns_are_shown_a_part_at_a_time(page: "Page") -> None:
    open_list(page, "?step=4")
    press(page, "Enter")
    page.wait_for_selector(".turn .fold")
    assert page.locator(".turn .text .fold").inner_text() == "9,996,510 more characters"
    page.locator(".fold").click()
    assert page.locator(".turn .text .fold").inner_text() == "9,896,510 more characters"
    press(page, "j")
    wait_until(page, "document.querySelectorAll('.turn').length === 40")
    page.get_by_text("40 of 960 more turns").click()
    assert page.locator(".turn").count() == 80
    assert page.evaluate("document.querySelectorAll('*').length") < 3000


def test_curves_are_read_by_arrow_keys_and_lead_to_the_rollouts_of_a_step(page: "Page") -> None:
    curve = page.locator("figure[data-metric='critic/score/mean']")
    curve.focus()
    press(page, "Home ArrowRight")
    assert curve.locator("figcaption").inner_text() == "critic/score/mean 0.2 at step 2"
    press(page, "Enter")
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('12 of 46')")
    press(page, "r")
    page.wait_for_selector(".curve")
    press(page, "/")
    page.keyboard.type("timing")
    wait_until(page, "document.querySelectorAll('.curve').length === 1")
    assert "metrics=timing" in page.url


def test_a_verdict_is_marked_as_wrong_by_key_in_the_list_and_in_a_rollout(page: "Page", folder: Path) -> None:
    open_list(page, "?step=2")
    press(page, "w")
    wait_until(page, "document.querySelector('.row.selected').innerText.includes('marked wrong: wrong_value')")
    marks = folder / "marked_verdicts.jsonl"
    assert [(line["uid"], line["score"]) for line in map(json.loads, marks.read_text().splitlines())] == [("2a_0_0", 1)]

    press(page, "Enter")
    page.wait_for_selector(".turn")
    assert page.locator(".verdict strong").inner_text() == "Marked as wrong: it should have scored 1."
    press(page, "r")
    wait_until(page, "document.body.innerText.includes('One verdict is marked as wrong')")
    page.go_back()
    page.wait_for_selector(".verdict button[aria-pressed=true]")
    press(page, "w")
    page.wait_for_selector(".verdict button[aria-pressed=false]")
    assert not marks.exists()


def test_a_prompt_is_followed_through_training_with_two_steps_side_by_side(page: "Page") -> None:
    open_list(page, "?step=1")
    press(page, "h")
    page.wait_for_selector(".side .rollout")

    assert page.locator("h1").inner_text() == "Prompt prompt a"
    heads = "[...document.querySelectorAll('.side > h2')].map((each) => each.querySelector('select').value).join(' ')"
    wait_until(page, f"{heads} === '1 2'")
    page.locator(".side .rollout summary").nth(1).click()
    page.wait_for_selector(".side .turn")
    assert page.locator(".side .turn .text").all_inner_texts() == ["I add 2.", "5", "It is 1."]
    press(page, "[")
    wait_until(page, f"{heads} === '1 1'")
    assert "right=1" in page.url
    press(page, "Escape")
    wait_until(page, "document.querySelector('.count')?.innerText.startsWith('8 of 46')")


def test_two_runs_tell_which_of_their_prompts_became_better_and_which_worse(browser: "Browser", tmp_path: Path) -> None:
    """The second run scores higher on one of 12 prompts and lower on two, so its mean score is 1 / 12 lower."""
    for name, right in (("before", {0, 1, 2, 3}), ("after", {2, 3, 4})):
        lines = [make_line(f"p{n}_0_0", float(n in right), ["Text."], prompt_id=f"prompt {n}") for n in range(12)]
        write_run(tmp_path / name, {1: lines})
    with inspecting(tmp_path / "before", tmp_path / "after") as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector(".changes details")
        told = page.locator(".changes").inner_text()
        assert "Training, step 1, 12 prompts: after has 0.25 where before has 0.3333, -0.08333 [" in told
        assert "1 prompt became better" in told
        page.get_by_text("2 prompts became worse").click()
        worse = page.locator(".changes details").last
        assert worse.locator("tbody tr").all_inner_texts() == ["prompt 0\t1\t0", "prompt 1\t1\t0"]
        page.get_by_role("link", name="prompt 1", exact=True).click()
        wait_until(page, "document.querySelector('h1').innerText === 'Prompt prompt 1'")
        page.close()


def test_a_rollout_that_cannot_be_opened_beside_others_is_told_in_a_sentence(
    browser: "Browser", tmp_path: Path
) -> None:
    folder = write_run(tmp_path, {1: [make_line("a_0_0", prompt_id="p")]})
    with inspecting(folder) as address:
        page = browser.new_page()
        page.goto(f"{address}#/history?prompt_id=p")
        page.wait_for_selector(".side .rollout")
        (folder / "rollouts" / "pivot" / "1.jsonl").unlink()
        page.locator(".side .rollout summary").first.click()
        wait_until(page, "document.getElementById('message').innerText.includes('cannot be read: No such file')")
        page.close()


def test_time_and_tokens_of_a_rollout_are_drawn_and_told_in_tables(browser: "Browser", tmp_path: Path) -> None:
    call = CallRecord(turn=0, name="add", arguments={}, status=CallStatus.OK, seconds=0.25)
    line = make_line(
        "a_0_0", 1.0, ["I add.", "It is 5."], observations=[["5"], []], calls=(call,), seconds=[1.5, 0.5],
        tool_waits=[0.25, None], mask=[1] * 3 + [0] * 2 + [1] * 4, turn_ends=[3, 9],
        prompt=[{"role": "user", "content": "2 + 3?"}], journey=RoutingCost(wait_seconds=0.75),
    )  # fmt: skip
    with inspecting(write_run(tmp_path, {1: [line]})) as address:
        page = browser.new_page()
        page.goto(f"{address}#/rollouts")
        page.wait_for_selector(f"{SELECTED} .cell.number")
        press(page, "Enter")
        page.wait_for_selector(".turn")

        assert (
            page.locator(".timeline > summary").inner_text() == "Time: 2.25 s, of which 0.75 s waiting for the router"
        )
        assert [round(float(bar.get_attribute("width") or 0)) for bar in page.locator(".timeline rect").all()] == [
            667,
            111,
            222,
            333,
        ]
        press(page, "m")
        assert page.locator(".tokens tbody tr").all_inner_texts() == [
            "0 to 3\t3\tsampled, turn 1", "3 to 5\t2\tread, masked", "5 to 9\t4\tsampled, turn 2",
        ]  # fmt: skip
        assert page.locator(".message .text").inner_text() == "2 + 3?"
        page.close()


def test_help_names_the_keys_and_closes(page: "Page") -> None:
    press(page, "?")
    assert page.locator("#help").is_visible()
    press(page, "Escape")
    assert not page.locator("#help").is_visible()


def test_everything_is_reached_by_tab_and_seen_at_twice_the_size(page: "Page") -> None:
    page.set_viewport_size({"width": 640, "height": 400})  # what a zoom of 200 % leaves of 1280 x 800
    open_list(page)
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(40):
        press(page, "Tab")
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.innerText.split('\\n')[0]"))

    assert {"Run", "Rollouts", "step", "words", "condition", "score", "tokens", "clear", "Apply"} <= reached
    assert page.evaluate("document.body.scrollWidth <= window.innerWidth")
    assert page.locator(SELECTED).is_visible()


def test_a_training_that_goes_on_is_followed_without_losing_the_row(browser: "Browser", tmp_path: Path) -> None:
    lines = [make_line(f"a_{session}_0", 0.0) for session in range(4)]
    folder = write_run(tmp_path, {1: lines}, [{"step": 1, "critic/score/mean": 0.0}])
    with inspecting(folder) as address:
        page = browser.new_page()
        page.goto(f"{address}#/rollouts?sort=score&is_descending=true")
        page.wait_for_selector(f"{SELECTED} .cell.number")
        press(page, "j j")
        write_run(folder, {2: [make_line("b_0_0", 1.0, step=2)]}, [{"step": 1, "critic/score/mean": 0.0}, {"step": 2}])
        wait_until(page, "document.querySelector('.count').innerText.startsWith('5 rollouts')")

        assert at(page) == 4
        assert page.locator("[name=reason] option").all_inner_texts() == ["all", "wrong_value (4)", "accepted (1)"]
        page.close()
