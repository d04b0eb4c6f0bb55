"""User ids for programs: whose they are, and how many each lane gets."""

import pwd

import pytest

from verl_pivot.sandbox.bubblewrap.user_range import UserRange, subordinate_ids

MARY = pwd.struct_passwd(("mary", "x", 1007, 1007, "", "/home/mary", "/bin/sh"))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("mary:100000:65536\n", (100_000, 65_536)),
        ("john:100000:65536\nmary:165536:65536\n", (165_536, 65_536)),
        ("1007:200000:1000\n", (200_000, 1000)),
        ("mary:100000:10\nmary:300000:65536\n", (300_000, 65_536)),
        ("john:100000:65536\n", (0, 0)),
        ("mary:some:65536\nmary:100000\n\n# none\n", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_a_user_has_its_largest_range_by_name_or_by_number(text: str, ids: tuple[int, int]) -> None:
    assert subordinate_ids(text, MARY) == ids


def test_lanes_have_ids_apart_from_each_other_and_from_those_that_they_follow() -> None:
    ids = UserRange(fd=-1, num_ids=65_536)

    taken = [ids.of_lane(lane, num_lanes=16, num_at_once=256) for lane in range(32)]

    assert taken[:2] == [(1, 2048), (2049, 2048)]
    assert len({first for first, _ in taken}) == 32
    assert taken[-1][0] + taken[-1][1] - 1 == 65_536


def test_a_lane_has_none_where_its_programs_would_have_to_share_some() -> None:
    assert UserRange(fd=-1, num_ids=1000).of_lane(0, num_lanes=2, num_at_once=126) == (0, 0)
    assert UserRange(fd=-1, num_ids=1000).of_lane(0, num_lanes=2, num_at_once=125) == (1, 250)
