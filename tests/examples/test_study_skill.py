"""The study's evaluation in one process: an expert solves all, a careless clerk fails where a fault is possible."""

import random
from collections.abc import Iterator, Sequence

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.study.domains.known import GROUPS  # noqa: E402
from examples.study.domains.protocol import Clerk  # noqa: E402
from examples.study.recording import held_out_tasks  # noqa: E402
from examples.study.skill import PlayedTask, play, skill_lines  # noqa: E402
from tests.support.sandbox_services import use_service  # noqa: E402
from verl_pivot.types import Malformed, Message, Role  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    """The suite's service, instead of one that each event loop would start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_service(monkeypatch)
        yield


class ClerkPlayer:
    """Player that follows the plan of the clerk of each task's domain."""

    def __init__(self, carelessness: float) -> None:
        self._carelessness = carelessness

    def act(self, played: Sequence[PlayedTask]) -> list[Message | Malformed]:
        return [self._next(each) for each in played]

    def _next(self, played: PlayedTask) -> Message:
        plan = GROUPS[played.task.domain].plan(
            played.task, Clerk(rng=random.Random(0), carelessness=self._carelessness)
        )
        return plan[sum(message.role is Role.ASSISTANT for message in played.messages)]


class SilentPlayer:
    """Player whose answers are all malformed, so that none is an action."""

    def act(self, played: Sequence[PlayedTask]) -> list[Message | Malformed]:
        return [Malformed(reason="truncated", detail="") for _ in played]


@pytest.mark.parametrize("group", GROUPS)
async def test_an_expert_solves_all_tasks_and_silence_none(group: str) -> None:
    tasks = held_out_tasks(group, 6, 1)

    assert await play(ClerkPlayer(0.0), tasks) == [True] * 6
    assert await play(SilentPlayer(), tasks) == [False] * 6


async def test_a_careless_clerk_fails_where_its_fault_is_possible() -> None:
    tasks = held_out_tasks("search", 12, 1)

    solved = await play(ClerkPlayer(1.0), tasks)

    assert solved == ["population" not in task.family for task in tasks]
    assert skill_lines("search", tasks, solved)[0] == f"search: {sum(solved)} of 12"


def test_a_line_for_each_family_counts_its_tasks() -> None:
    tasks = held_out_tasks("shell", 5, 1)

    lines = skill_lines("shell", tasks, [True] * 5)

    assert lines[0] == "shell: 5 of 5"
    assert sum(int(line.split(" of ")[1]) for line in lines[1:]) == 5
