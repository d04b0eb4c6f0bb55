"""The example mcp_rl: its server behind the real client, tasks and outcome, its judge, and every arm's command."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from aiohttp.test_utils import TestClient, TestServer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.mcp_rl.judge import DONE, NOT_DONE, PER_CALL, answering  # noqa: E402
from examples.mcp_rl.outcome import is_done, outcome  # noqa: E402
from examples.mcp_rl.run import make_arm  # noqa: E402
from examples.mcp_rl.tasks import make_tasks, write_rows, write_tools  # noqa: E402
from examples.mcp_rl.training import ARMS, JUDGE, RULER, overrides_of  # noqa: E402
from examples.quickstart.shop import TOOLS  # noqa: E402
from examples.quickstart.tasks import Task, make_task, record  # noqa: E402
from examples.scripted_judge import endpoint  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.letters import Letters  # noqa: E402
from tests.support.scripted_engine import Said, make_loop, row  # noqa: E402
from verl_pivot.data.labels import has_label  # noqa: E402
from verl_pivot.data.rollout_records import RECORD_FIELD  # noqa: E402
from verl_pivot.rewards.principles import ShownTurn, task_text  # noqa: E402
from verl_pivot.rewards.ruler import GroupQuestion, group_question, scores_of_group  # noqa: E402
from verl_pivot.tools.toolset import Toolset, load_toolset  # noqa: E402
from verl_pivot.types import ErrorKind, Message, Role, ToolCall, Trajectory  # noqa: E402

TASKS = make_tasks(range(100))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tools(tmp_path_factory.mktemp("mcp_rl") / "tools.yaml")


@pytest.fixture(scope="module")
def toolset(tools: Path) -> Toolset:
    return load_toolset(str(tools))


def worked_on(task: Task, carelessness: float = 0.0, seed: int = 0) -> Trajectory:
    """Trajectory of the quickstart's clerk for a task."""
    return record(task, random.Random(f"{task.id} {seed}"), carelessness=carelessness)


def calls_and_answer(trajectory: Trajectory) -> tuple[list[ToolCall], str]:
    calls = [call for message in trajectory.messages for call in message.tool_calls]
    return calls, trajectory.messages[-1].content or ""


def said(message: Message) -> str:
    """Text of a turn of the clerk, as the policy writes it."""
    calls = [json.dumps({"name": each.name, "arguments": each.arguments}) for each in message.tool_calls]
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in calls) or message.content


def turns(trajectory: Trajectory) -> list[Message]:
    return [message for message in trajectory.messages if message.role is Role.ASSISTANT]


def one_of_each_family() -> list[Task]:
    return list({task.family: task for task in TASKS}.values())


def test_no_two_tasks_have_one_request() -> None:
    assert len(TASKS) > 95
    assert len({task.request for task in TASKS}) == len(TASKS)


def test_the_server_offers_the_tools_that_the_policy_learnt(toolset: Toolset) -> None:
    assert toolset.schemas == [*TOOLS]


async def test_an_expert_sees_at_the_server_what_the_shop_of_the_row_shows(toolset: Toolset) -> None:
    for task in [*one_of_each_family(), make_task(0, held_out=True)]:
        expert = worked_on(task)
        async with toolset.open({"metadata": json.dumps({"seed": task.seed, "held_out": task.held_out})}) as tools:
            calls, _ = calls_and_answer(expert)
            observations = [outcome.observation for call in calls for outcome in await tools.toolbox.run([call])]

        recorded = [message.content for message in expert.messages if message.role is Role.TOOL]
        assert [each and each.text for each in observations] == recorded


async def test_the_shop_refuses_at_the_server_as_it_does_in_the_quickstart(toolset: Toolset) -> None:
    async with toolset.open({"metadata": '{"seed": 0, "held_out": false}'}) as tools:
        (refused,) = await tools.toolbox.run([ToolCall(name="run_sql", arguments={"query": "drop table orders"})])

    assert refused.observation is not None
    assert refused.observation.error is ErrorKind.REFUSED


@pytest.mark.parametrize("held_out", [False, True])
def test_the_oracle_does_every_task_and_a_careless_clerk_what_was_recorded_as_done(held_out: bool) -> None:
    tasks = make_tasks(range(100), held_out=held_out)
    careless = [worked_on(task, carelessness=0.9) for task in tasks]

    assert all(is_done(task, *calls_and_answer(worked_on(task))) for task in tasks)
    done = [is_done(task, *calls_and_answer(each)) for task, each in zip(tasks, careless, strict=True)]
    assert done == [each.passed for each in careless]
    assert 0.2 < sum(done) / len(done) < 0.9


async def test_the_agent_loop_plays_a_task_whose_outcome_pays(tools: Path) -> None:
    for task in one_of_each_family()[:2]:
        expert = turns(worked_on(task))
        for num_turns, reward in ((len(expert), 1.0), (len(expert) - 1, 0.0)):
            limit = f"pivot.rollout.max_turns={num_turns}"
            loop = make_loop([Said(said(each)) for each in expert], f"pivot.rollout.tools={tools}", limit)
            metadata = json.dumps({"seed": task.seed, "held_out": False})
            output = await loop.run({"temperature": 1.0}, **row(task.request, metadata=metadata))
            text = loop.tokenizer.decode(output.response_ids, skip_special_tokens=True)
            info = {RECORD_FIELD: output.extra_fields[RECORD_FIELD]}

            assert outcome("shop", text, json.dumps(task.metadata), info) == reward


def test_rows_have_a_label_where_the_outcome_pays_and_none_where_a_judge_does(tmp_path: Path) -> None:
    for labelled in (True, False):
        path = write_rows(tmp_path / "rows.parquet", TASKS[:2], labelled=labelled)
        first, _ = pyarrow.parquet.read_table(path).to_pylist()
        assert has_label(first) is labelled
        assert json.loads(first["metadata"]) == {"seed": TASKS[0].seed, "held_out": False}
        assert TASKS[0].request == first["prompt"][-1]["content"]


def asked(task: Task, group: Sequence[Trajectory]) -> GroupQuestion:
    shown = [
        [ShownTurn(text=said(message), observation="seen" if message.tool_calls else "") for message in turns(each)]
        for each in group
    ]
    prompt = [{"role": message.role.value, "content": message.content} for message in task.opening]
    return group_question(task_text(prompt), TOOLS, shown, max_tokens=100_000, tokenizer=Letters())


def test_the_judge_ranks_as_the_outcome_does_and_fewer_calls_higher() -> None:
    answered = answering(TASKS)
    for task in TASKS[:40]:
        group = [worked_on(task), *(worked_on(task, carelessness=0.9, seed=seed) for seed in range(3))]
        question = asked(task, group)
        scores = scores_of_group(answered(question.messages), question)  # type: ignore[arg-type]  # JSON objects of texts

        assert scores == [
            pytest.approx(DONE - PER_CALL * len(calls_and_answer(each)[0])) if each.passed else NOT_DONE
            for each in group
        ]


def test_the_judge_errs_in_the_share_that_was_asked_for_and_always_the_same() -> None:
    answered, erring = answering(TASKS), answering(TASKS, 0.2)
    questions = [asked(task, [worked_on(task)]) for task in TASKS]
    right, wrong = ([each(question.messages) for question in questions] for each in (answered, erring))  # type: ignore

    assert 8 <= sum(a != b for a, b in zip(right, wrong, strict=True)) <= 34
    assert wrong == [erring(question.messages) for question in questions]  # type: ignore[arg-type]


async def test_the_endpoint_of_the_judge_refuses_a_task_that_it_does_not_know() -> None:
    async with TestClient(TestServer(endpoint(answering(TASKS[:1])))) as client:
        statuses = []
        for task in TASKS[:2]:
            body = {"model": JUDGE, "messages": asked(task, [worked_on(task)]).messages}
            statuses.append((await client.post("/v1/chat/completions", json=body)).status)

    assert statuses == [200, 400]


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm(name, tmp_path / "policy", tmp_path, 1, num_steps=10)
    launched = replace(arm, overrides=overrides_of(name, "http://127.0.0.1:7/v1"))
    config = checked_config(launched.command[3:])
    training, held_out = (pyarrow.parquet.read_table(path).to_pylist() for path in (arm.rows, arm.held_out))

    assert ("ruler" in config.pivot) is (name == RULER)
    if name == RULER:
        assert (config.pivot.ruler.base_url, config.pivot.ruler.model) == ("http://127.0.0.1:7/v1", JUDGE)
    assert config.pivot.rollout.tools == str(arm.tools)
    assert [any(map(has_label, each)) for each in (training, held_out)] == [name != RULER, True]
    assert not {each["metadata"] for each in training} & {each["metadata"] for each in held_out}
