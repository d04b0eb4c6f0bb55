"""The study's domains: every expert trajectory is executed and solves its task, and faults do not."""

import json
import random
from collections import Counter

import pytest

from examples.study.domains.known import DOMAINS, GROUPS, OUTSIDE, domain_of
from examples.study.domains.protocol import StudyTask
from examples.study.recording import held_out_tasks, record, record_all
from tests.support.paths import ROOT
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory
from verl_pivot.verifiers.registry import get_verifier

TOOLSET = load_toolset(str(ROOT / "examples/study/tools.yaml"))


def make_tasks(group: str, number: int, *, held_out: bool = False) -> list[StudyTask]:
    return [GROUPS[group].make_task(seed, held_out=held_out) for seed in range(number)]


def task_of_family(group: str, family: str) -> StudyTask:
    return next(task for task in make_tasks(group, 200, held_out=True) if task.family == family)


async def clerk(task: StudyTask, carelessness: float = 0.0, seed: int = 0) -> Trajectory:
    return await record(task, random.Random(seed), carelessness=carelessness)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("held_out", [False, True])
async def test_every_trajectory_of_the_expert_solves_its_task(group: str, held_out: bool) -> None:
    assert all([(await clerk(task)).passed for task in make_tasks(group, 40, held_out=held_out)])


@pytest.mark.parametrize("group", DOMAINS)
async def test_a_trajectory_has_four_to_ten_turns(group: str) -> None:
    numbers = Counter([len(turns(await clerk(task))) for task in make_tasks(group, 60, held_out=True)])

    assert min(numbers) == 4
    assert max(numbers) <= 10


@pytest.mark.parametrize("group", DOMAINS)
async def test_a_third_of_the_turns_has_equivalent_ways(group: str) -> None:
    """Two ways differ in their calls; other words of the last message do not count."""
    several = total = 0
    for task in make_tasks(group, 30):
        ways = [[turn.expert for turn in turns(await clerk(task, seed=seed))] for seed in range(12)]
        for position in range(len(ways[0])):
            total += 1
            several += len({repr([(c.name, c.arguments) for c in way[position].tool_calls]) for way in ways}) > 1

    assert several / total > 1 / 3


@pytest.mark.parametrize("group", DOMAINS)
async def test_the_careless_clerk_fails_where_the_fault_is_possible_and_nowhere_else(group: str) -> None:
    failed = Counter([(task.family, (await clerk(task, 1.0)).passed) for task in make_tasks(group, 80)])

    faulty = {"shop": ("refund_total", "refund_count"), "sql": ("count_kind",)}[group]
    assert DOMAINS[group].fault
    assert {family for (family, passed) in failed if not passed} == {*faulty}


@pytest.mark.parametrize("group", DOMAINS)
def test_held_out_tasks_share_no_name_and_no_request_with_training_and_have_families_of_their_own(group: str) -> None:
    training, held_out = (make_tasks(group, 300, held_out=flag) for flag in (False, True))

    assert not {task.request for task in training} & {task.request for task in held_out}
    assert {task.family for task in training} < {task.family for task in held_out}
    names = [{_name(task) for task in tasks} for tasks in (training, held_out)]
    assert not names[0] & names[1]


def _name(task: StudyTask) -> str:
    people = task.metadata.get("people")
    return str(people[0][1]) if isinstance(people, list) and isinstance(people[0], list) else str(task.metadata["name"])


def test_the_held_out_tasks_are_always_the_same_and_each_has_an_id_of_its_own() -> None:
    tasks = [task for group in GROUPS for task in held_out_tasks(group, 50)]

    assert tasks == [task for group in GROUPS for task in held_out_tasks(group, 50)]
    assert len({task.id for task in tasks}) == len(tasks)


@pytest.mark.parametrize("group", GROUPS)
async def test_the_environment_of_a_launch_scores_the_experts_trajectory_1(group: str) -> None:
    """Calls of `sql` run in the sandbox here, and their results are those that were recorded without it."""
    task = make_tasks(group, 3, held_out=True)[-1]
    trajectory = await clerk(task)
    async with TOOLSET.open({"metadata": json.dumps(task.metadata)}) as tools:
        assert tools.toolbox.schemas == list(DOMAINS[group].tools if group in DOMAINS else [])
        recorded = iter([message.content for message in trajectory.messages if message.role is Role.TOOL])
        for turn in turns(trajectory):
            for outcome in await tools.toolbox.run(list(turn.expert.tool_calls)):
                assert outcome.observation is not None
                assert outcome.observation.text == next(recorded)
        verdict = await tools.score(trajectory.messages[-1])

    assert verdict is not None
    assert verdict.score == 1.0


@pytest.mark.parametrize(("group", "family"), [("shop", "refund_two_total"), ("sql", "sum_kind")])
async def test_the_verifier_accepts_the_expert_and_another_way_and_refuses_the_fault(group: str, family: str) -> None:
    task = task_of_family(group, family)
    expert, other = await clerk(task), await clerk(task, seed=7)
    careless = turns(await clerk(task, 1.0))
    verifier = get_verifier(expert.verifier, expert.verifier_options)

    for turn, way in zip(turns(expert), turns(other), strict=True):
        assert (await verifier(turn.expert, turn)).score == 1.0
        assert (await verifier(way.expert, turn)).score == 1.0
    position = len(careless) - (2 if group == "sql" else 1)
    fault = careless[position].expert
    assert (await verifier(fault, turns(expert)[position])).score == 0.0


async def test_a_guess_that_happens_to_be_right_solves_nothing() -> None:
    for task in (task_of_family("shop", "refund_two_total"), task_of_family("sql", "sum_kind")):
        world = GROUPS[task.domain].open(task.metadata, trusted=True)
        actions = GROUPS[task.domain].plan(task, random.Random(0), 0.0)
        for action in [*actions[:-2], actions[-1]]:
            for call in action.tool_calls:
                await world.call(call)

        assert not world.passed(actions[-1])
        world.close()


async def test_a_query_that_writes_is_an_error_that_the_policy_reads() -> None:
    task = make_tasks("sql", 1)[0]
    async with TOOLSET.open({"metadata": json.dumps(task.metadata)}) as tools:
        query = "delete from " + str(task.metadata["script"]).split()[2]
        (outcome,) = await tools.toolbox.run([ToolCall(name="sql", arguments={"query": query})])

    assert outcome.observation is not None
    assert outcome.observation.error is not None


@pytest.mark.parametrize("metadata", [{}, {"domain": "chess"}, {"domain": 3}])
def test_a_task_of_no_domain_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(DataError, match="must be one of shop, sql, adding"):
        domain_of({**metadata})


def test_a_call_is_no_answer_outside_of_the_domains() -> None:
    task = make_tasks("adding", 1)[0]
    world = OUTSIDE["adding"].open(task.metadata)
    answer = str(task.metadata["answer"])

    assert world.passed(Message(role=Role.ASSISTANT, content=answer))
    assert not world.passed(Message(role=Role.ASSISTANT, content=f"{answer}."))
    assert not world.passed(
        Message(role=Role.ASSISTANT, content=answer, tool_calls=(ToolCall(name="sql", arguments={}),))
    )


async def test_equal_seeds_give_equal_trajectories() -> None:
    assert await record_all(list(GROUPS), range(12)) == await record_all(list(GROUPS), range(12))
