"""Loops of `pivot_notebook` over a scripted engine, and functions that give what a policy reads and gets."""

from collections.abc import Sequence
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tests.support.scripted_engine import Said, loop_of, rollout_config, row, scripted_model
from verl_pivot.rewards.step_returns import StepReturnOutput
from verl_pivot.rollout.notebook_loop import NotebookLoop

FUNCTIONS = "tests.support.tool_functions"
SAMPLING = {"temperature": 1.0, "logprobs": True}
THOUGHT = "I think about it."
END = "<|im_end|>\n"
BEGIN = "<|im_start|>assistant\n"
REMOVED = "(The tokens were used up: all earlier steps were removed, with all that you had read."


def turn(code: str, thought: str = THOUGHT) -> str:
    return f"<think>{thought}</think><code>{code}</code>"


def step(code: str, thought: str = THOUGHT) -> Said:
    """A turn of the right form, which the engine stops at `</code>`."""
    return Said(turn(code, thought), ended=False)


def make_loop(
    script: Sequence[Said | str], folder: Path, *overrides: str, template: str | None = None, **client: Any
) -> NotebookLoop:
    """A NotebookLoop with four tools; overrides without a dot are keys of `pivot.notebook`."""
    path = folder / "tools.yaml"
    path.write_text("".join(f"- function: {FUNCTIONS}:{name}\n" for name in ("add", "refuse", "crash", "shout")))
    keys = ["max_context_tokens=16384", "algorithm.adv_estimator=step_reinforce_pp", *overrides]
    dotted = [each if "." in each.partition("=")[0] else f"pivot.notebook.{each}" for each in keys]
    tokenizer = {"rollout": {"skip_tokenizer_init": False}, "model": {"custom_chat_template": template}}
    config = deepcopy(rollout_config(scripted_model(), f"pivot.rollout.tools={path}"))
    OmegaConf.set_struct(config, False)
    config = OmegaConf.merge(config, {"actor_rollout_ref": tokenizer}, OmegaConf.from_dotlist(dotted))
    assert isinstance(config, DictConfig)
    loop: NotebookLoop = loop_of(NotebookLoop, config, script, **client)
    return loop


async def play(loop: NotebookLoop, answers: Sequence[str] = ("5",), **columns: Any) -> list[StepReturnOutput]:
    truth = {"reward_model": {"ground_truth": {"target": list(answers)}}}
    return await loop.run(SAMPLING, **row(**{**truth, "is_validation": False, **columns}))


def runs(loop: NotebookLoop, output: StepReturnOutput) -> list[tuple[int, str]]:
    """[num_runs] (mask, text) of each run of tokens with one mask; the tokenizer has a token for each byte."""
    pairs = zip(output.response_mask, output.response_ids, strict=True)
    return [
        (mask, loop.tokenizer.decode([each for _, each in run])) for mask, run in groupby(pairs, lambda pair: pair[0])
    ]


def prompt(loop: NotebookLoop, output: StepReturnOutput) -> str:
    """Text of the prompt after the system prompt."""
    text: str = loop.tokenizer.decode(output.prompt_ids)
    return text.partition(END)[2]


def record(outputs: Sequence[StepReturnOutput]) -> dict[str, Any]:
    found: dict[str, Any] = outputs[-1].extra_fields["rollout"]
    return found


def verdict(outputs: Sequence[StepReturnOutput]) -> tuple[float | None, str]:
    found = outputs[-1].extra_fields["verdict"]
    return found["score"], found["reason"]


def read(loop: NotebookLoop, number: int) -> str:
    """Last user message that the policy read before the request of this number."""
    text: str = loop.tokenizer.decode(loop.server_manager.requests[number]["prompt_ids"])
    return text.rpartition("<|im_start|>user\n")[2].removesuffix(END + BEGIN)


def said(text: str) -> str:
    """A text as a user message, with the chat template's text around it."""
    return f"{END}<|im_start|>user\n{text}{END}{BEGIN}"


def left(num_steps: int, num_tokens: int) -> str:
    return f"Left: {num_steps} steps, and about {num_tokens} tokens until steps are removed."


LAST = "This is your last step: call submit_final_answer in it."


NOTES = [step(f"notepad.add_facts('fact {number}')") for number in range(5)]


async def window(folder: Path, room: int, *overrides: str) -> tuple[str, ...]:
    """Overrides for a context in which steps of 100 tokens fit until `room` tokens follow the prompt."""
    large = make_loop([step("submit_final_answer('5')")], folder, *overrides)
    (output,) = await play(large)
    return (f"max_context_tokens={len(output.prompt_ids) + room + 100}", "max_step_tokens=100", *overrides)
