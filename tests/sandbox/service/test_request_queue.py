"""The service's queue, byte budget and kept results, and the client's choice of nodes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.sandbox.nodes import Breaker, Node, Window, backoff_seconds, choose_node
from verl_pivot.sandbox.service.outbox import KeptLine, KeptResults
from verl_pivot.sandbox.service.request_queue import ByteBudget, FairQueue, ServiceRate, num_ahead, retry_after_seconds
from verl_pivot.sandbox.service.settings import ServiceLimits


def make_queue(*waiting: str) -> FairQueue[str]:
    """Queue with these pieces of work; the first letter of each names its client."""
    queue: FairQueue[str] = FairQueue()
    for work in waiting:
        queue.push(work[0], work, work)
    return queue


def pop_all(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def make_node(url: str = "http://node", *, slots: int = 4, num_in_flight: int = 0) -> Node:
    node = Node(url)
    node.learn(slots)
    node.num_in_flight = num_in_flight
    return node


def test_clients_take_turns_and_each_is_served_in_its_order() -> None:
    queue = make_queue("a1", "a2", "a3", "a4", "b1", "b2", "c1")

    assert pop_all(queue) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_client_that_comes_later_waits_for_one_round_only() -> None:
    queue = make_queue("a1", "a2", "a3")
    assert queue.pop() == "a1"
    queue.push("b", "b1", "b1")

    assert num_ahead(queue, "c") == 2
    assert pop_all(queue) == ["a2", "b1", "a3"]


def test_removed_work_is_not_popped() -> None:
    queue = make_queue("a1", "b1", "a2")

    assert queue.remove("a", "a1") == "a1"
    assert queue.remove("a", "a1") is None
    assert queue.remove("z", "z1") is None
    assert pop_all(queue) == ["a2", "b1"]


def test_room_is_made_by_the_newest_work_of_the_longest_queue() -> None:
    queue = make_queue("a1", "b1", "a2", "a3")

    assert queue.pop_newest_of_longest(than=2) == "a3"
    assert queue.pop_newest_of_longest(than=2) is None
    assert len(queue) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["push", "pop", "remove", "drop"])), max_size=80))
def test_each_work_leaves_the_queue_once(steps: list[tuple[str, str]]) -> None:
    queue: FairQueue[str] = FairQueue()
    pushed: list[str] = []
    gone: list[str] = []
    for number, (client, step) in enumerate(steps):
        if step == "push":
            pushed.append(f"{client}{number}")
            queue.push(client, pushed[-1], pushed[-1])
        elif step == "pop" and queue:
            gone.append(queue.pop())
        elif step == "remove":
            taken = queue.remove(client, next((work for work in pushed if work[0] == client), ""))
            gone += [taken] if taken else []
        elif step == "drop":
            dropped = queue.pop_newest_of_longest(than=1)
            gone += [dropped] if dropped else []
        assert len(queue) + len(gone) == len(pushed)

    assert sorted(gone + pop_all(queue)) == sorted(pushed)


def test_wait_is_the_queue_ahead_over_the_measured_rate() -> None:
    rate = ServiceRate(num_slots=4)
    assert rate.wait_seconds(1000) == 0.0  # nothing measured yet

    for seconds in (1.0, 3.0):
        rate.observe(seconds)

    assert rate.mean_seconds == 2.0
    assert rate.wait_seconds(10) == 5.0


@pytest.mark.parametrize(("wait", "retry_after"), [(0.0, 0.05), (1.0, 0.5), (100.0, 5.0)])
def test_retry_is_asked_for_after_half_the_queue(wait: float, retry_after: float) -> None:
    assert retry_after_seconds(wait) == retry_after


def test_budget_takes_no_more_than_it_has_but_books_what_exists() -> None:
    budget = ByteBudget(10)

    assert budget.reserve(8)
    assert not budget.reserve(3)
    budget.add(5)
    assert budget.used == 13
    budget.release(13)
    with pytest.raises(AssertionError, match="1 bytes released that were not held"):
        budget.release(1)


def test_results_are_kept_for_a_time() -> None:
    kept = KeptResults(ServiceLimits(kept_seconds=60.0))
    kept.put(("client", "1"), 7, b"line", now=100.0)

    assert kept.get(("client", "1"), now=159.0) == KeptLine(7, b"line", 160.0)
    assert kept.get(("client", "1"), now=160.0) is None
    assert kept.get(("other", "1"), now=100.0) is None
    kept.put(("client", "2"), 7, b"x", now=160.0)
    assert kept.num_bytes == 1


@pytest.mark.finding("results that are kept", where="no service")
def test_a_result_that_is_given_anew_is_kept_once_and_counted_once() -> None:
    kept = KeptResults(ServiceLimits(kept_seconds=60.0))
    for now in (100.0, 160.0, 220.0):
        kept.put(("client", "1"), 7, b"line", now=now)
        assert (kept.num_bytes, kept.get(("client", "1"), now=now)) == (4, KeptLine(7, b"line", now + 60.0))
    kept.put(("client", "1"), 7, b"longer line", now=221.0)
    assert (kept.num_bytes, kept.get(("client", "1"), now=221.0)) == (11, KeptLine(7, b"longer line", 281.0))


@pytest.mark.finding("results that are kept", where="no service")
def test_a_result_is_kept_as_long_as_its_client_may_ask_again() -> None:
    kept = KeptResults(ServiceLimits(kept_seconds=60.0))
    kept.put(("client", "1"), 7, b"line", now=100.0, deadline=700.0)
    kept.put(("client", "2"), 7, b"line", now=100.0, deadline=110.0)

    assert kept.get(("client", "1"), now=699.0) == KeptLine(7, b"line", 700.0)
    assert kept.get(("client", "2"), now=159.0) == KeptLine(7, b"line", 160.0)
    assert [kept.get(("client", number), now=700.0) for number in ("1", "2")] == [None, None]
    kept.put(("client", "3"), 7, b"x", now=700.0)
    assert kept.num_bytes == 1


@pytest.mark.finding("results that are kept", where="no service")
def test_results_that_are_kept_for_no_time_are_dropped_at_once() -> None:
    kept = KeptResults(ServiceLimits(kept_seconds=0.0))
    kept.put(("client", "1"), 7, b"line", now=100.0)

    assert (kept.num_bytes, kept.get(("client", "1"), now=100.0)) == (0, None)


@pytest.mark.finding("results that are kept", where="no service")
def test_oldest_kept_results_give_way_to_the_bytes_of_new_ones() -> None:
    kept = KeptResults(ServiceLimits(max_kept_bytes=10))
    kept.put(("c", "1"), 0, b"12345", now=0.0)
    kept.put(("c", "2"), 0, b"12345", now=0.0)
    kept.put(("c", "3"), 0, b"1", now=0.0)
    kept.put(("c", "4"), 0, b"12345678901", now=0.0)  # larger than all kept results may be together

    found = [kept.get(("c", str(number)), now=1.0) for number in range(1, 5)]

    assert found == [None, KeptLine(0, b"12345", 60.0), KeptLine(0, b"1", 60.0), None]
    assert kept.num_bytes == 6


def test_window_grows_by_one_for_each_full_window_answered() -> None:
    window = Window(4.0)
    for _ in range(4):
        window.answered(num_in_flight=4)

    assert 4.9 < window.size < 5.0


def test_window_does_not_grow_where_it_holds_nothing_back() -> None:
    window = Window(100.0)
    window.answered(num_in_flight=49)

    assert window.size == 100.0


def test_window_is_halved_once_for_all_that_was_sent_before() -> None:
    window = Window(16.0)
    window.overloaded(sent_at=1.0, now=2.0)
    window.overloaded(sent_at=1.5, now=2.1)
    assert window.size == 8.0

    window.overloaded(sent_at=2.0, now=3.0)
    assert window.size == 4.0


def test_window_never_closes() -> None:
    window = Window(2.0)
    for second in range(10):
        window.overloaded(sent_at=float(second), now=float(second))

    assert window.size == 1.0


def test_breaker_opens_after_three_failures_in_a_row() -> None:
    breaker = Breaker()
    for failed in (True, True, False, True, True):
        if failed:
            breaker.failed()
        else:
            breaker.succeeded()
    assert not breaker.is_open

    breaker.failed()
    assert breaker.is_open
    breaker.succeeded()
    assert not breaker.is_open


def test_probes_of_a_node_that_stays_down_become_rare() -> None:
    breaker, rng = Breaker(), random.Random(0)
    bounds = []
    for _ in range(3):
        breaker.trip()
        breaker.failed()
        bounds.append(max(breaker.probe_seconds(rng) for _ in range(500)))

    assert [round(bound, 1) for bound in bounds] == [0.5, 1.0, 2.0]
    breaker.num_failures = 1000
    assert 5.0 <= breaker.probe_seconds(rng) <= 10.0


def test_backoff_has_full_jitter_below_a_bound_that_doubles() -> None:
    rng = random.Random(0)
    most = [max(backoff_seconds(attempt, None, rng) for _ in range(500)) for attempt in (1, 2, 3, 50)]
    least = min(backoff_seconds(3, None, rng) for _ in range(500))

    assert [round(seconds, 1) for seconds in most] == [0.1, 0.2, 0.4, 5.0]
    assert least < 0.02


def test_backoff_comes_after_what_the_node_asked_for() -> None:
    assert 2.0 <= backoff_seconds(1, 2.0, random.Random(0)) <= 2.1


def test_the_less_loaded_of_two_nodes_is_chosen_by_load_per_slot() -> None:
    busy, idle = make_node("http://a", slots=10, num_in_flight=5), make_node("http://b", slots=100, num_in_flight=40)
    rng = random.Random(0)

    assert {choose_node([busy, idle], rng, now=0.0) for _ in range(20)} == {idle}


def test_load_of_others_counts_and_fades() -> None:
    node = make_node(slots=10, num_in_flight=4)
    node.report(24, now=100.0)  # requests that the node reports, of which 4 are ours

    assert node.load(now=100.0) == 2.4
    assert node.load(now=101.0) == 1.4
    assert node.load(now=200.0) == pytest.approx(0.4)


def test_many_nodes_share_the_load_evenly() -> None:
    nodes, rng = [make_node(f"http://{number}") for number in range(10)], random.Random(0)
    for _ in range(1000):
        choose_node(nodes, rng, now=0.0).num_in_flight += 1

    assert sum(node.num_in_flight for node in nodes) == 1000
    assert max(node.num_in_flight for node in nodes) - min(node.num_in_flight for node in nodes) <= 6


def test_a_node_begins_with_two_requests_per_slot() -> None:
    node = make_node(slots=8)

    assert node.room == 16
    node.num_in_flight = 16
    assert node.room == 0


@pytest.mark.parametrize(
    ("num_pending", "num_in_flight", "has_room"),
    [(1, 15, True), (2, 15, False), (100, 13, False), (100, 12, True), (1, 16, False)],
)
def test_a_full_window_is_refilled_by_quarters(num_pending: int, num_in_flight: int, has_room: bool) -> None:
    assert make_node(slots=8, num_in_flight=num_in_flight).has_room(num_pending) is has_room


def test_a_node_that_refuses_counts_as_full_for_a_while() -> None:
    node = make_node(slots=8)
    node.refused(sent_at=1.0, now=2.0)

    assert node.window.size == 8.0
    assert [node.load(now=second) for second in (2.0, 3.0)] == [2.0, 1.0]
