"""Number of held-out tasks that a policy solves greedily, in this process: `python -m examples.study.skill --help`."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which imports torchvision

import torch  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM  # noqa: E402

from examples.options import Out  # noqa: E402
from examples.study.domains.known import GROUPS, domain_of  # noqa: E402
from examples.study.domains.protocol import StudyTask  # noqa: E402
from examples.study.policy import MAX_TURN_TOKENS, MAX_TURNS, make_policy, sft_config  # noqa: E402
from examples.study.recording import held_out_tasks  # noqa: E402
from verl_pivot.data.actions import parse_action  # noqa: E402
from verl_pivot.tools.rollout_tools import RolloutTools  # noqa: E402
from verl_pivot.tools.toolset import load_toolset  # noqa: E402
from verl_pivot.types import Malformed, Message, Role  # noqa: E402

_TOOLS = Path(__file__).parent / "tools.yaml"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(kw_only=True)
class PlayedTask:
    """One task that is being played."""

    task: StudyTask
    tools: RolloutTools
    messages: list[Message]
    solved: bool | None = None
    """None until the task is over."""


class Player(Protocol):
    """A policy, or a stand-in for one, that chooses actions."""

    def act(self, played: Sequence[PlayedTask]) -> list[Message | Malformed]:
        """[num_tasks] the next action of each task."""
        ...


class GreedyPolicy:
    """A checkpoint that decodes the next action of many tasks at once, greedily."""

    def __init__(self, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer

    @classmethod
    def read(cls, folder: Path) -> "GreedyPolicy":
        return cls(Qwen2ForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))

    @torch.inference_mode()
    def act(self, played: Sequence[PlayedTask]) -> list[Message | Malformed]:
        prompts = [self._tokenizer.encode(self._prompt(each), add_special_tokens=False) for each in played]
        longest, pad = max(map(len, prompts)), self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
        shown = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        written = self._model.generate(
            input_ids=ids, attention_mask=shown, max_new_tokens=MAX_TURN_TOKENS, do_sample=False, pad_token_id=pad
        )
        return [self._action(row) for row in written[:, longest:].tolist()]

    def _prompt(self, played: PlayedTask) -> str:
        messages = [message.as_dict() for message in played.messages]
        tools = list(domain_of(played.task.metadata).tools)
        text = self._tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert isinstance(text, str), type(text)
        return text

    def _action(self, written: list[int]) -> Message | Malformed:
        end = self._tokenizer.eos_token_id
        ended = end in written
        text = self._tokenizer.decode(written[: written.index(end)] if ended else written)
        return parse_action(text, ended=ended)


async def play(player: Player, tasks: Sequence[StudyTask]) -> list[bool]:
    """[num_tasks] whether each task is solved; all tasks are played side by side, with the tools of the launches.

    An action that cannot be parsed ends its task. In a launch, the policy would read an error and continue.
    """
    async with AsyncExitStack() as stack:
        played = [
            PlayedTask(task=task, tools=await stack.enter_async_context(_opened(task)), messages=list(task.opening))
            for task in tasks
        ]
        for _ in range(MAX_TURNS):
            if going := [each for each in played if each.solved is None]:
                for each, action in zip(going, player.act(going), strict=True):
                    await _take(each, action)
        return [each.solved is True for each in played]


def _opened(task: StudyTask) -> RolloutTools:
    return load_toolset(str(_TOOLS)).open({"metadata": json.dumps(task.metadata)})


async def _take(played: PlayedTask, action: Message | Malformed) -> None:
    if isinstance(action, Malformed):
        played.solved = False
        return
    played.messages.append(action)
    if not action.tool_calls:
        verdict = await played.tools.score(action)
        played.solved = verdict is not None and verdict.score == 1.0
    for outcome in await played.tools.toolbox.run(action.tool_calls):
        played.messages.append(Message(role=Role.TOOL, content=outcome.observed().text))


@app.command()
def main(
    out: Out = Path("outputs/study-skill"),
    seed: Annotated[int, typer.Option(help="Seed of the base policy.")] = 0,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks of each group.")] = 50,
    policy: Annotated[Path | None, typer.Option(help="Checkpoint to play with. By default the base policy.")] = None,
) -> None:
    """Make the base policy of a seed, and print how many tasks it solves in each group and in each family.

    Example: python -m examples.study.skill --seed 0 --tasks 50
    """
    began = time.process_time()
    folder = make_policy(out / f"policy-{seed}", sft_config(seed)) if policy is None else policy
    typer.echo(f"{folder}: {time.process_time() - began:.0f} CPU seconds")
    player = GreedyPolicy.read(folder)
    for group in GROUPS:
        played = held_out_tasks(group, tasks, seed)
        for line in skill_lines(group, played, asyncio.run(play(player, played))):
            typer.echo(line)


def skill_lines(group: str, tasks: Sequence[StudyTask], solved: Sequence[bool]) -> list[str]:
    """A line for a group of tasks, and one for each of its families if it has several."""
    number, right = Counter(task.family for task in tasks), Counter[str]()
    for task, is_solved in zip(tasks, solved, strict=True):
        right[task.family] += is_solved
    lines = [f"{group}: {sum(solved)} of {len(tasks)}"]
    return lines if len(number) == 1 else [*lines, *(f"  {each}: {right[each]} of {number[each]}" for each in number)]


if __name__ == "__main__":
    app()
