"""The shop as an environment: its tools, their observations, and the outcome of a whole task."""

import json

import pytest

from examples.quickstart.shop import TOOLS
from examples.quickstart.tasks import Order, Task, make_task
from tests.support.paths import ROOT
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import ErrorKind, Message, Role, ToolCall, Verdict

SEED = next(seed for seed in range(100) if make_task(seed, held_out=False).family == "refund_item")
TASK = make_task(SEED, held_out=False)
TOOLSET = load_toolset(str(ROOT / "examples/tool_rollout/tools.yaml"))
ROW = {"metadata": json.dumps(TASK.metadata)}
DONE = Message(role=Role.ASSISTANT, content="Done.")


def requested(task: Task) -> Order:
    (order,) = task.requested
    return order


async def test_tools_and_parameters_have_the_names_that_the_policy_learnt() -> None:
    """The policy learnt these names from the quickstart's chat template, which shows tools and their parameters."""
    async with TOOLSET.open(ROW) as tools:
        functions = [schema["function"] for schema in tools.toolbox.schemas]

    shown = [(function["name"], list(function["parameters"]["properties"])) for function in functions]  # type: ignore
    known = [tool["function"] for tool in TOOLS]
    assert shown == [(tool["name"], list(tool["parameters"]["properties"])) for tool in known]  # type: ignore


async def test_calls_act_on_the_shop_and_refusals_are_errors() -> None:
    async with TOOLSET.open(ROW) as tools:
        outcomes = await tools.toolbox.run(
            [
                ToolCall(name="find_customer", arguments={"name": TASK.name}),
                ToolCall(name="find_customer", arguments={}),
                ToolCall(name="list_orders", arguments={"customer_id": TASK.customer_id, "item": requested(TASK).item}),
                ToolCall(name="run_sql", arguments={"query": "drop table orders"}),
                ToolCall(name="refund", arguments={"order_id": requested(TASK).id, "amount": "much"}),
            ]
        )

    observations = [outcome.observation for outcome in outcomes if outcome.observation is not None]
    kinds = [None, ErrorKind.REFUSED, None, ErrorKind.REFUSED, ErrorKind.INVALID_ARGUMENT]
    assert [observation.error for observation in observations] == kinds
    assert json.loads(observations[0].text) == [[TASK.customer_id, TASK.name, TASK.email]]
    assert json.loads(observations[2].text) == [[requested(TASK).item, requested(TASK).id, requested(TASK).amount]]


@pytest.mark.parametrize(
    ("refunds", "answer", "verdict"),
    [
        (1, DONE, Verdict.accept(reason="solved")),
        (0, DONE, Verdict.refuse("not_solved")),
        (1, None, Verdict.refuse("no_answer")),
    ],
)
async def test_the_outcome_depends_on_the_state_of_the_shop_and_on_the_answer(
    refunds: int, answer: Message | None, verdict: Verdict
) -> None:
    async with TOOLSET.open(ROW) as tools:
        await tools.toolbox.run([ToolCall(name="refund", arguments={"order_id": requested(TASK).id})] * refunds)

        assert await tools.score(answer) == verdict
