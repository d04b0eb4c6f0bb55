"""The study's domains: every expert trajectory is executed and solves its task, and one with a fault does not."""

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from examples.study.domains.known import DOMAINS, GROUPS, OUTSIDE, domain_of
from examples.study.domains.protocol import Clerk, StudyTask, family_of
from examples.study.domains.shell import _read_snapshot
from examples.study.recording import LESSONS_USUAL, held_out_tasks, record, record_all, tasks_of
from tests.support.paths import ROOT
from tests.support.sandbox_services import use_service
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import Message, Role, ToolCall, Trajectory
from verl_pivot.verifiers.registry import get_verifier

TOOLSET = load_toolset(str(ROOT / "examples/study/tools.yaml"))

FAULTY = {
    "shop": ("refund_total", "refund_count"),
    "sql": ("count_kind",),
    "search": ("founder_population",),
    "shell": ("move",),
}
"""{domain: families of training in which its fault is possible}"""


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    """The suite's service, instead of one that each event loop would start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_service(monkeypatch)
        yield


def make_tasks(group: str, number: int, *, held_out: bool = False) -> list[StudyTask]:
    return [GROUPS[group].make_task(seed, held_out=held_out) for seed in range(number)]


def task_of_family(group: str, family: str) -> StudyTask:
    return next(task for task in make_tasks(group, 200, held_out=True) if task.family == family)


async def clerk(task: StudyTask, carelessness: float = 0.0, seed: int = 0, usual: float = 0.5) -> Trajectory:
    return await record(task, Clerk(rng=random.Random(seed), carelessness=carelessness, usual=usual))


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
    """Ways count as different only if their calls differ, not if the last message has other words."""
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

    assert DOMAINS[group].fault
    assert {family for (family, passed) in failed if not passed} == {*FAULTY[group]}


@pytest.mark.parametrize("group", DOMAINS)
async def test_the_fault_occurs_with_its_chance(group: str) -> None:
    tasks = [task for task in make_tasks(group, 400) if task.family in FAULTY[group]][:100]

    faults = [has_fault(await clerk(task, 0.3, seed)) for seed, task in enumerate(tasks)]

    assert len(tasks) == 100
    assert 16 < sum(faults) < 44  # within 3 standard deviations of 30
    assert not any([has_fault(await clerk(task, 0.0, seed)) for seed, task in enumerate(tasks)])


def has_fault(trajectory: Trajectory) -> bool:
    """Whether the fault of its domain can be seen in a trajectory."""
    metadata, *_, last_call, last = trajectory.metadata, *[turn.expert for turn in turns(trajectory)]
    arguments = [call.arguments for turn in turns(trajectory) for call in turn.expert.tool_calls]
    match metadata["domain"]:
        case "shop":
            return last.content.startswith("About")
        case "sql":
            return f"'{metadata['kind']}'" not in str(last_call.tool_calls[0].arguments)
        case "search":
            return str(metadata["name"]) in str(last_call.tool_calls[0].arguments)
        case _:
            return any(str(each["command"]).startswith("cp ") for each in arguments)


@pytest.mark.parametrize("group", DOMAINS)
def test_held_out_tasks_share_no_name_and_no_request_with_training_and_have_families_of_their_own(group: str) -> None:
    training, held_out = (make_tasks(group, 300, held_out=flag) for flag in (False, True))

    assert not {task.request for task in training} & {task.request for task in held_out}
    assert {task.family for task in training} < {task.family for task in held_out}
    names = [{str(task.metadata["name"]) for task in tasks} for tasks in (training, held_out)]
    assert not names[0] & names[1]


@pytest.mark.parametrize("group", GROUPS)
def test_lessons_have_the_families_of_held_out_tasks_with_names_and_numbers_of_training(group: str) -> None:
    lessons = [GROUPS[group].make_task(seed, held_out=False, every_family=True) for seed in range(300)]
    held_out = make_tasks(group, 300, held_out=True)

    assert {task.family for task in lessons} == {task.family for task in held_out}
    assert {family_of(task.id) for task in lessons} == {task.family for task in lessons}
    if group in DOMAINS:
        assert not {task.metadata["name"] for task in lessons} & {task.metadata["name"] for task in held_out}


@pytest.mark.parametrize("group", DOMAINS)
async def test_the_expert_works_in_other_ways_than_the_lessons(group: str) -> None:
    """Where the usual and the unusual way differ, experts mostly take the unusual one, lessons the usual one."""
    usual = unusual = total = 0
    for task in make_tasks(group, 40):
        ways = [await clerk(task, usual=share) for share in (1.0, 0.0)]
        (expert,) = await record_all([task])
        (lesson,) = await record_all([task], usual=LESSONS_USUAL)
        for first, second, mine, taught in zip(*map(_calls, (*ways, expert, lesson)), strict=True):
            if first != second:
                total += 1
                unusual += mine != first
                usual += taught == first

    assert total >= 40
    assert unusual / total > 0.65
    assert usual / total > 0.65


def _calls(trajectory: Trajectory) -> list[str]:
    return [repr([(c.name, c.arguments) for c in turn.expert.tool_calls]) for turn in turns(trajectory)]


def test_the_held_out_tasks_are_always_the_same_and_each_has_an_id_of_its_own() -> None:
    tasks = [task for group in GROUPS for task in held_out_tasks(group, 50, 1)]

    assert tasks == [task for group in GROUPS for task in held_out_tasks(group, 50, 1)]
    assert len({task.id for task in tasks}) == len(tasks)


@pytest.mark.parametrize("group", GROUPS)
async def test_the_environment_of_a_launch_scores_the_experts_trajectory_1(group: str) -> None:
    """Calls of `sql` run in the sandbox here and have the results that were recorded without it."""
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


@pytest.mark.parametrize(
    ("group", "family", "position"),
    [("shop", "refund_two_total", -1), ("sql", "sum_kind", -2), ("search", "employer_population", -2),
     ("shell", "move_remove", 2)],
)  # fmt: skip
async def test_the_verifier_accepts_the_expert_and_another_way_and_refuses_the_fault(
    group: str, family: str, position: int
) -> None:
    task = task_of_family(group, family)
    expert, other = await clerk(task), await clerk(task, seed=7)
    careless = turns(await clerk(task, 1.0))
    verifier = get_verifier(expert.verifier, expert.verifier_options)

    for turn, way in zip(turns(expert), turns(other), strict=True):
        assert (await verifier(turn.expert, turn)).score == 1.0
        assert (await verifier(way.expert, turn)).score == 1.0
    position %= len(careless)
    fault = careless[position].expert
    assert (await verifier(fault, turns(expert)[position])).score == 0.0


async def test_a_guess_that_happens_to_be_right_solves_nothing() -> None:
    families = {"shop": "refund_two_total", "sql": "sum_kind", "search": "mayor_year", "shell": "size_next"}
    for task in (task_of_family(group, family) for group, family in families.items()):
        world = GROUPS[task.domain].open(task.metadata, trusted=True)
        actions = GROUPS[task.domain].plan(task, Clerk(rng=random.Random(0)))
        for action in [*actions[:-2], actions[-1]]:
            for call in action.tool_calls:
                await world.call(call)

        assert not world.passed(actions[-1])
        await world.close()


async def test_a_query_that_writes_is_an_error_that_the_policy_reads() -> None:
    task = make_tasks("sql", 1)[0]
    async with TOOLSET.open({"metadata": json.dumps(task.metadata)}) as tools:
        query = "delete from " + str(task.metadata["script"]).split()[2]
        (outcome,) = await tools.toolbox.run([ToolCall(name="sql", arguments={"query": query})])

    assert outcome.observation is not None
    assert outcome.observation.error is not None


@pytest.mark.parametrize("metadata", [{}, {"domain": "chess"}, {"domain": 3}])
def test_a_task_of_no_domain_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(DataError, match="must be one of shop, sql, search, shell, adding"):
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
    tasks = tasks_of(list(GROUPS), range(12))
    assert await record_all(tasks) == await record_all(tasks)


@pytest.mark.parametrize("group", DOMAINS)
async def test_nothing_but_the_task_counts(group: str) -> None:
    """A world where nothing was done is not solved, whatever the last message says."""
    for task in make_tasks(group, 12, held_out=True):
        world = GROUPS[group].open(task.metadata, trusted=True)
        assert not world.passed((await clerk(task)).messages[-1])
        await world.close()


async def test_a_copy_of_a_project_goes_on_from_its_commands_and_leaves_the_first_one_alone() -> None:
    task = task_of_family("shell", "move")
    calls = [call for turn in turns(await clerk(task)) for call in turn.expert.tool_calls]
    world = GROUPS["shell"].open(task.metadata)
    try:
        for call in calls[:-1]:
            await world.call(call)
        before, twin = world.state(), world.fork()
        try:
            await twin.call(calls[-1])
            assert twin.passed(Message(role=Role.ASSISTANT, content="Done."))
        finally:
            await twin.close()
        assert world.state() == before == task.metadata["files"]
        assert not world.passed(Message(role=Role.ASSISTANT, content="Done."))
    finally:
        await world.close()


@pytest.mark.parametrize(
    "command",
    ["ls nowhere", "ln -s / root && mkfifo pipe", "head -c 100000 /dev/zero > src/big", "kill -9 $PPID", "rm -r ./*",
     "printf '\\377' > src/bytes", "mkdir old/deep && cp -r src old/deep"],
)  # fmt: skip
async def test_a_hostile_command_solves_nothing_and_breaks_nothing(command: str) -> None:
    task = task_of_family("shell", "move")
    calls = [call for turn in turns(await clerk(task)) for call in turn.expert.tool_calls]
    world = GROUPS["shell"].open(task.metadata)
    try:
        await world.call(ToolCall(name="bash", arguments={"command": command}))
        state = world.state()
        assert not world.passed(Message(role=Role.ASSISTANT, content="Done."))
        for call in calls:
            await world.call(call)
        is_harmless = state == task.metadata["files"]
        assert world.passed(Message(role=Role.ASSISTANT, content="Done.")) is is_harmless
    finally:
        await world.close()


@pytest.mark.parametrize("value", [None, "", "3", "'{'", "'['*9", "(", "'" + "[" * 100_000 + "'"])
def test_what_a_command_forges_in_place_of_the_files_is_no_project(value: str | None) -> None:
    assert _read_snapshot(Result(status=Status.OK, value=value)) is None
    assert _read_snapshot(Result(status=Status.SESSION_KILLED, value="'{}'")) is None
