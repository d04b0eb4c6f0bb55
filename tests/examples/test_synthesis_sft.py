"""SFT on synthesized data, with a clerk in Python as the policy: portions, their calls, and each method's results."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.quickstart.policy import IGNORED, build_tokenizer, encode  # noqa: E402
from examples.quickstart.tasks import make_task, record  # noqa: E402
from examples.synthesis.clerk import careful  # noqa: E402
from examples.synthesis_sft.narrator import narrate  # noqa: E402
from examples.synthesis_sft.portions import METHODS, Portions, families  # noqa: E402
from verl_pivot.data.messages import parse_message  # noqa: E402
from verl_pivot.engines.chat import AnswerFormat, ChatAnswer  # noqa: E402
from verl_pivot.synthesis.writer import WriterQuestion  # noqa: E402
from verl_pivot.types import Message, Role, ToolCall  # noqa: E402

TASKS = {task.request: task for task in (make_task(seed, held_out=False) for seed in range(500_000, 500_060))}


@dataclass
class ConfusedClerk:
    """Careful policy that, in three of four draws, counts where the task asks for a sum."""

    name: str = "clerk"
    identity: str = "clerk"
    answer_format: AnswerFormat = "text"

    def most_tokens(self, question: WriterQuestion) -> int:
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        messages = [parse_message(each) for each in question.messages]
        action = careful(TASKS[messages[1].content], messages)
        if question.seed % 4:
            action = replace(action, tool_calls=tuple(map(_counting, action.tool_calls)))
        return ChatAnswer(message=action.as_dict(), finish_reason="stop", num_prompt_tokens=0, num_completion_tokens=0)

    async def close(self) -> None:
        """Do nothing: this policy holds no connection."""


def _counting(call: ToolCall) -> ToolCall:
    return replace(
        call, arguments={key: str(value).replace("sum(amount)", "count(*)") if key == "query" else value
                         for key, value in call.arguments.items()}
    )  # fmt: skip


def test_methods_make_what_they_can_within_the_calls_and_no_more_when_run_again(tmp_path: Path) -> None:
    portions = Portions(folder=tmp_path, policy=ConfusedClerk(), seed=0)

    alone, with_hindsight = portions.within(METHODS[:1], 120), portions.within(METHODS[:2], 120)

    assert alone
    assert all(each.passed for each in [*alone, *with_hindsight])
    assert sum(families(alone).values()) == len(alone)
    assert [each for each in with_hindsight if "goal" in each.metadata]
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectories.jsonl")}
    assert portions.within(METHODS[:1], 120) == alone
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("trajectories.jsonl")} == made


def test_the_narrator_tells_the_last_result() -> None:
    def told(results: str) -> str:
        text = f"A user said.\n\nThe results, one line for each turn:\n{results}\n\nWrite the last message."
        return narrate(WriterQuestion(messages=({"role": "user", "content": text},), seed=0, max_tokens=9))

    assert told('["[[7, \\"Ana\\", \\"a@b.de\\"]]"]\n["[[3]]"]') == "It is 3."
    assert told('["{\\"refunded\\": 40}"]') == "Done."


def test_a_turn_that_is_not_the_expert_s_is_no_label() -> None:
    tokenizer = build_tokenizer()
    log = record(make_task(3, held_out=False), random.Random(0))
    num_turns = sum(message.role is Role.ASSISTANT for message in log.messages)
    whole = encode(tokenizer, log)
    rest = encode(tokenizer, replace(log, expert_turns=tuple(range(1, num_turns))))

    first = next(message for message in log.messages if message.role is Role.ASSISTANT)
    dropped = [token for token, kept in zip(whole.labels, rest.labels, strict=True) if kept == IGNORED != token]
    assert first.tool_calls[0].name in tokenizer.decode(dropped)
    assert rest.input_ids == whole.input_ids
    assert isinstance(first, Message)


class SilentClerk(ConfusedClerk):
    """Policy that answers every task at once, without a call."""

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        message = Message(role=Role.ASSISTANT, content="It is done.").as_dict()
        return ChatAnswer(message=message, finish_reason="stop", num_prompt_tokens=0, num_completion_tokens=0)


@pytest.mark.parametrize("methods", [METHODS[:1], METHODS])
def test_a_policy_that_makes_no_calls_ends_the_run_with_a_sentence(tmp_path: Path, methods: tuple[str, ...]) -> None:
    portions = Portions(folder=tmp_path, policy=SilentClerk(), seed=0, size=2)

    with pytest.raises(SystemExit, match=r"clerk called no tool in 5 portions of 2 tasks in a row, .*portion-4, so"):
        portions.within(methods, 120)

    assert len(list(tmp_path.iterdir())) == 5
