"""Greedy evaluation on held-out tasks: a policy -> accuracy of single turns and success on whole tasks."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from rich.progress import Progress
from transformers import PreTrainedTokenizerBase

from examples.quickstart.policy import MAX_PROMPT_TOKENS
from examples.quickstart.shop import TOOLS
from examples.quickstart.tasks import Task, make_task, record_logs
from verl_pivot.data.actions import parse_action
from verl_pivot.data.turns import turns as expert_turns
from verl_pivot.statistics import Interval, wilson_interval
from verl_pivot.types import Json, JsonObject, Malformed, Message, Role, Turn
from verl_pivot.verifiers.registry import get_verifier

Generate: TypeAlias = Callable[[list[int]], Awaitable[list[int]]]
"""A policy: prompt ids -> completion ids, sampled greedily, with the end token if the policy wrote one."""

MAX_TURNS = 8
_CONCURRENCY = 32
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Outcomes of a policy on held-out questions, which are the same for every policy."""

    outcomes: tuple[bool, ...]
    """[num_questions] whether each was a success."""

    @property
    def value(self) -> float:
        return sum(self.outcomes) / len(self.outcomes)

    @property
    def interval(self) -> Interval:
        return wilson_interval(self.value, len(self.outcomes))

    def as_dict(self) -> JsonObject:
        low, high = self.interval
        num_right, num_all = sum(self.outcomes), len(self.outcomes)
        return {"value": self.value, "low": low, "high": high, "num_right": num_right, "num_all": num_all}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Accuracy of a policy on held-out tasks."""

    turns: Accuracy
    """Share of actions that the verifier accepts, each sampled from a state of the expert."""
    tasks: Accuracy
    """Share of tasks that the policy solves from beginning to end."""
    tasks_by_family: dict[str, Accuracy]

    def as_dict(self) -> JsonObject:
        by_family: dict[str, Json] = {family: each.as_dict() for family, each in self.tasks_by_family.items()}
        return {"turns": self.turns.as_dict(), "tasks": self.tasks.as_dict(), "tasks_by_family": by_family}


async def evaluate(
    generate: Generate, tokenizer: PreTrainedTokenizerBase, *, num_tasks: int = 300, num_turn_tasks: int = 100
) -> Evaluation:
    """Evaluate a policy on the first held-out tasks, which are always the same.

    Args:
        generate: The policy; up to 32 calls run at once.
        tokenizer: Tokenizer of the policy, with its chat template.
        num_tasks: Number of whole tasks to solve.
        num_turn_tasks: Number of tasks whose expert turns are judged one by one.
    """
    policy = _Policy(generate=generate, tokenizer=tokenizer)
    turns = [turn for log in record_logs(range(num_turn_tasks), held_out=True) for turn in expert_turns(log)]
    tasks = [make_task(seed, held_out=True) for seed in range(num_tasks)]
    with Progress() as progress:
        right = await _all("Held-out turns", [is_right(policy, turn) for turn in turns], progress)
        solved = await _all("Held-out tasks", [solves(policy, task) for task in tasks], progress)
    families = defaultdict(list)
    for task, success in zip(tasks, solved, strict=True):
        families[task.family].append(success)
    return Evaluation(
        turns=Accuracy(tuple(right)),
        tasks=Accuracy(tuple(solved)),
        tasks_by_family={family: Accuracy(tuple(families[family])) for family in sorted(families)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """A policy that takes messages and gives an action."""

    generate: Generate
    tokenizer: PreTrainedTokenizerBase

    async def act(self, messages: Sequence[Message]) -> Message | Malformed:
        text = self.tokenizer.apply_chat_template(
            [message.as_dict() for message in messages], tools=list(TOOLS), add_generation_prompt=True, tokenize=False
        )
        prompt_ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(prompt_ids) > MAX_PROMPT_TOKENS:
            return Malformed(reason="prompt_too_long", detail=f"{len(prompt_ids)} tokens")
        completion = await self.generate(prompt_ids)
        ended = completion[-1:] == [self.tokenizer.eos_token_id]
        return parse_action(self.tokenizer.decode(completion[:-1] if ended else completion), ended=ended)


async def is_right(policy: _Policy, turn: Turn) -> bool:
    """Whether the policy's action does what the expert's does.

    Raises:
        ValueError: If the verifier cannot decide, which no held-out turn should cause.
    """
    action = await policy.act(turn.state)
    if isinstance(action, Malformed):
        return False
    verdict = await get_verifier(turn.verifier, turn.verifier_options)(action, turn)
    if verdict.score is None:
        raise ValueError(f"turn {turn.id} cannot be judged: {verdict.reason}, {verdict.detail}")
    return verdict.score == 1.0


async def solves(policy: _Policy, task: Task) -> bool:
    """Whether the policy solves a task; it acts until it answers the user, for at most MAX_TURNS turns."""
    messages = list(task.opening)
    with task.open_shop() as shop:
        for _ in range(MAX_TURNS):
            action = await policy.act(messages)
            if isinstance(action, Malformed):
                return False
            messages.append(action)
            if not action.tool_calls:
                return task.passed(action, shop.dump())
            messages += [
                Message(role=Role.TOOL, content=shop.call(call).text, name=call.name) for call in action.tool_calls
            ]
    return False


async def _all(title: str, jobs: list[Coroutine[None, None, ResultT]], progress: Progress) -> list[ResultT]:
    """Run the jobs, at most 32 at once; returns their results in order."""
    bar = progress.add_task(title, total=len(jobs))
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def run(job: Coroutine[None, None, ResultT]) -> ResultT:
        async with slots:
            result = await job
        progress.advance(bar)
        return result

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(run(job)) for job in jobs]
    return [task.result() for task in running]
