"""A policy -> what it solves of the held-out tasks, played greedily in this process without a server.

Run `python -m examples.study.skill --help`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from examples.study.domains.known import domain_of
from examples.study.domains.protocol import StudyTask
from examples.study.environment import StudyEnvironment
from examples.study.policy import MAX_TURN_TOKENS, MAX_TURNS
from verl_pivot.data.actions import parse_action
from verl_pivot.types import Malformed, Message, Role, ToolCall


@dataclass(kw_only=True)
class Game:
    """One task that is being played."""

    task: StudyTask
    environment: StudyEnvironment
    messages: list[Message]
    solved: bool | None = None
    """None until the last message."""


class GreedyPolicy:
    """A checkpoint that writes the next action of many tasks at once."""

    def __init__(self, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        tokenizer.padding_side = "left"

    @classmethod
    def read(cls, folder: Path) -> "GreedyPolicy":
        return cls(Qwen2ForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))

    @torch.inference_mode()
    def act(self, games: Sequence[Game]) -> list[Message | Malformed]:
        """The next action of each task."""
        texts = [self._prompt(game) for game in games]
        given = self._tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        ids = self._model.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            max_new_tokens=MAX_TURN_TOKENS,
            do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        return [self._action(row.tolist()) for row in ids[:, given["input_ids"].shape[1] :]]

    def _prompt(self, game: Game) -> str:
        messages = [message.as_dict() for message in game.messages]
        tools = list(domain_of(game.task.metadata).tools)
        return self._tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)

    def _action(self, written: list[int]) -> Message | Malformed:
        end = self._tokenizer.eos_token_id
        ended = end in written
        text = self._tokenizer.decode(written[: written.index(end)] if ended else written)
        return parse_action(text, ended=ended)


async def play(policy: GreedyPolicy, tasks: Sequence[StudyTask]) -> list[Game]:
    """Play tasks to their ends, side by side; whatever is no action ends a task unsolved."""
    games = [
        Game(task=task, environment=StudyEnvironment(task.metadata), messages=list(task.opening)) for task in tasks
    ]
    for _ in range(MAX_TURNS):
        going = [game for game in games if game.solved is None]
        if not going:
            break
        for game, action in zip(going, policy.act(going), strict=True):
            await _take(game, action)
    for game in games:
        game.solved = bool(game.solved)
        await game.environment.close()
    return games


async def _take(game: Game, action: Message | Malformed) -> None:
    if isinstance(action, Malformed):
        game.solved = False
        game.messages.append(Message(role=Role.ASSISTANT, content=str(action)))
        return
    game.messages.append(action)
    if not action.tool_calls:
        game.solved = (await game.environment.score(action)).score == 1.0
        return
    for call in action.tool_calls:
        text = await _observe(game.environment, call)
        game.messages.append(Message(role=Role.TOOL, content=text, tool_call_id=call.id, name=call.name))


async def _observe(environment: StudyEnvironment, call: ToolCall) -> str:
    try:
        return (await environment.call(call)).text
    except Exception as error:
        return f"error: {error}"
