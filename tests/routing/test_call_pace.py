"""routing.call_pace: how often a process may call an actor of the router."""

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.routing.call_pace import CallPace


def test_calls_come_more_rarely_while_the_actor_is_busy_and_more_often_again_when_it_is_not() -> None:
    pace = CallPace()
    assert pace.period_ms == 3

    periods = []
    for share in (0.4, 0.4, 0.3, 0.1, 0.9, 0.9, 0.2, 0.05, 0.05, 0.05, 0.05):
        pace.observe(2 * share, 2.0)
        periods.append(pace.period_ms)

    assert periods == [6, 12, 12, 12, 24, 24, 24, 12, 6, 3, 3]


@given(st.lists(st.floats(0.0, 20.0)))
def test_a_turn_never_waits_longer_than_24_ms_for_other_messages(cpu_seconds: list[float]) -> None:
    pace = CallPace()
    for each in cpu_seconds:
        pace.observe(each, 2.0)
        assert 3 <= pace.period_ms <= 24
