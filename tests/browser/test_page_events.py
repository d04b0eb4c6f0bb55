"""Events of a page: what counts as a flood."""

from verl_pivot.browser.page_events import MOST_INTERRUPTIONS, MOST_REFUSED, PageEvents


def test_refused_requests_and_dialogs_are_a_flood_after_one_action_and_not_after_many() -> None:
    events = PageEvents()
    floods = []
    for _ in range(3):
        before = events.copy()
        for number in range(max(MOST_REFUSED, MOST_INTERRUPTIONS)):
            events.add_refused(f"https://evil.example/{number}")
        for _ in range(MOST_INTERRUPTIONS):
            events.add_dialog("alert", "hello")
        floods.append(events.is_flooding(before))

    assert floods == [False] * 3
    events.add_refused("https://evil.example/")
    assert events.is_flooding(before)
