"""routing.engine_load: when servers are polled; what they answer is tested with the router's actor."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.routing.engine_load import poll_share


@given(st.integers(2, 1_000))
def test_polls_of_any_number_of_servers_are_spread_over_the_period(num_servers: int) -> None:
    """The longest time without a poll is not three times that of equal distances, and no two come together."""
    shares = sorted(poll_share(number) for number in range(num_servers))
    gaps = [later - earlier for earlier, later in pairwise([*shares, 1.0 + shares[0]])]

    assert max(gaps) < 2.7 / num_servers
    assert min(gaps) > 0.38 / num_servers
