"""routing.shards: which shard a conversation belongs to, and what shards exchange."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.routing.settings import parse_router
from verl_pivot.routing.shards import ConversationShards, Demand, Transfer, plan_exchange, split


def test_conversations_of_a_prompt_begin_eight_at_a_time_on_the_shard_with_the_fewest() -> None:
    shards = ConversationShards(3, first=1)

    begun = [shards.begin(f"{prompt}-{number}", prompt) for prompt in "ab" for number in range(20)]

    assert begun == [1] * 8 + [2] * 8 + [0] * 4 + [0] * 8 + [1] * 8 + [2] * 4
    assert shards.find("a-0") == 1
    for number in range(8, 16):
        assert shards.end(f"a-{number}") == 2
    assert shards.begin("c-0", "c") == 2


def test_a_conversation_that_moved_is_found_where_it_is() -> None:
    shards = ConversationShards(2, first=0)
    assert shards.begin("a", "prompt") == 0

    shards.move("a", 1)

    assert shards.find("a") == 1
    assert shards.begin("b", "other prompt") == 0
    assert shards.end("a") == 1
    assert shards.find("a") is None
    assert shards.end("a") == 0


def test_with_one_shard_nothing_is_remembered_that_nobody_asks_for() -> None:
    assert ConversationShards(1, first=0).find("never begun") == 0


CALLS = st.lists(
    st.tuples(st.sampled_from(["begin", "move", "end"]), st.integers(0, 8), st.integers(0, 3), st.integers(0, 2))
)


@given(calls=CALLS)
def test_whatever_happens_a_conversation_is_where_it_was_put_last(calls: list[tuple[str, int, int, int]]) -> None:
    shards, places = ConversationShards(3, first=2), dict[str, int]()
    for kind, number, prompt, shard in calls:
        name = f"{number}"
        if kind == "begin" and name not in places:
            counts = Counter(places.values())
            places[name] = shards.begin(name, f"{prompt}")
            if shards._prompts[f"{prompt}"].num_begun == 1:
                assert counts[places[name]] == min(counts[each] for each in range(3))
        elif kind == "move":
            shards.move(name, shard)
            places |= {name: shard} if name in places else {}
        elif kind == "end":
            assert shards.end(name) == places.pop(name, 0)
        assert {each: shards.find(each) for each in places} == places
        assert len(shards) == len(places)


def test_a_process_remembers_a_bounded_number_of_conversations() -> None:
    """verl's own agent loops do not report the end of a conversation, so that the oldest ones are forgotten."""
    shards = ConversationShards(2, first=0)

    for number in range(100_010):
        shards.begin(f"{number}", f"{number // 8}")

    assert len(shards) == 100_000
    assert shards.find("9") is None
    assert shards.find("10") == 1


def test_a_shard_without_waiting_conversations_gets_its_equal_share_from_the_one_with_most() -> None:
    assert plan_exchange([Demand(10, 2), Demand(0, 2), Demand(2, 2)]) == [Transfer(0, 1, 4)]
    assert plan_exchange([Demand(0, 1), Demand(0, 3), Demand(8, 4)]) == [Transfer(2, 0, 1), Transfer(2, 1, 3)]
    assert plan_exchange([Demand(1, 64), Demand(0, 64)]) == [Transfer(0, 1, 1)]
    assert plan_exchange([Demand(100_000, 64), Demand(0, 64)]) == [Transfer(0, 1, 256)]
    assert plan_exchange([Demand(5, 64), Demand(3, 64)]) == []
    assert plan_exchange([Demand(5, 64), Demand(0, 0)]) == []


def test_conversations_leave_a_shard_whose_servers_are_all_gone() -> None:
    assert plan_exchange([Demand(5, 0), Demand(0, 1)]) == [Transfer(0, 1, 5)]
    assert plan_exchange([Demand(5, 0), Demand(0, 0)]) == []


@given(st.lists(st.builds(Demand, st.integers(0, 500), st.integers(0, 8)), max_size=8))
def test_an_exchange_goes_to_shards_without_waiting_conversations_and_takes_no_more_than_there_are(
    demands: list[Demand],
) -> None:
    waiting = [each.num_waiting for each in demands]
    for source, target, number in plan_exchange(demands):
        assert demands[target].num_waiting == 0
        assert demands[target].num_servers > 0
        assert 0 < number <= waiting[source]
        waiting[source] -= number
        waiting[target] += number
    assert sum(waiting) == sum(each.num_waiting for each in demands)


@given(st.integers(0, 600), st.integers(1, 12))
def test_engines_are_split_into_runs_of_equal_size(num_engines: int, num_shards: int) -> None:
    names = [f"{number}" for number in range(num_engines)]

    shards = split(names, num_shards)

    assert [name for shard in shards for name in shard] == names
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_settings_that_count_conversations_of_all_engines_are_divided_among_shards() -> None:
    settings = parse_router({"max_response_tokens": 10, "static": {"num_conversations": 100}}, "test").for_shard(8)

    assert settings.static.num_conversations == 13
    assert settings.least_inflight.max_sessions == 1_250
    unbounded = parse_router({"max_response_tokens": 10, "least_inflight": {"max_sessions": None}}, "test")
    assert unbounded.for_shard(8).least_inflight.max_sessions is None
    assert unbounded.for_shard(1) == unbounded
