"""A node that is lost while the trainer waits for rollouts ends the run, wherever Ray moves its placement groups."""

from collections.abc import Iterator

import pytest

from verl_pivot.errors import NodeLostError
from verl_pivot.resampling.lost_nodes import LostNodes, Places


def looking_at(*looks: Places) -> LostNodes:
    answers: Iterator[Places] = iter(looks)
    return LostNodes(lambda: next(answers), seconds=0.0)


@pytest.mark.parametrize("after", [{0: "a", 1: ""}, {0: "a"}, {0: "a", 1: "spare"}])
def test_a_bundle_that_is_no_longer_where_it_was_tells_that_its_node_was_lost(after: dict[int, str]) -> None:
    nodes = looking_at({"engines": {0: "a"}, "workers": {0: "a", 1: "b"}}, {"engines": {0: "a"}, "workers": after})
    nodes.check()

    with pytest.raises(NodeLostError, match=r"^node b of the cluster was lost.*resume_mode=auto it continues"):
        nodes.check()


def test_groups_that_come_and_go_tell_nothing() -> None:
    nodes = looking_at({"a": {0: "x"}}, {"a": {0: "x"}, "b": {0: ""}}, {"b": {0: "y"}}, {})

    for _ in range(4):
        nodes.check()


def test_the_cluster_is_asked_now_and_then_alone() -> None:
    looks: Iterator[Places] = iter([{}])
    nodes = LostNodes(lambda: next(looks), seconds=60.0)

    for _ in range(3):
        nodes.check()

    with pytest.raises(StopIteration):
        nodes.look()
