"""The example l0: its transcripts equal what the agent loop shows to a policy that gives the same answers."""

from pathlib import Path
from random import Random

import pytest
from omegaconf import DictConfig, OmegaConf

from examples.l0.agent import CARELESS
from examples.l0.transcripts import record, scaffold
from examples.world.entities import WorldSize, make_documents, make_world
from examples.world.pages import Pages
from examples.world.questions import KINDS, WorldQuestion, demonstration_questions
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.support.scripted_engine import Said, loop_of, rollout_config, row, scripted_model
from verl_pivot.rollout.context import ContextWindow
from verl_pivot.rollout.notebook_loop import NotebookLoop
from verl_pivot.types import Role, Trajectory

WORLD = make_world(3, WorldSize(people=240, firms=80, towns=30))
QUESTIONS = [each for each in demonstration_questions(WORLD, 160, 3) if KINDS[each.kind].num_hops == 3]
WINDOW = ContextWindow(max_tokens=3000, max_step_tokens=350)
"""Context window in bytes, since the tokenizer of the scripted engine has a token for each byte."""


def notebook_config(tools: Path) -> DictConfig:
    window = {"max_context_tokens": WINDOW.max_tokens, "max_step_tokens": WINDOW.max_step_tokens}
    own = {
        "pivot": {"rollout": {"tools": str(tools)}, "notebook": window},
        "data": {"max_prompt_length": WINDOW.max_tokens},
    }
    config = OmegaConf.merge(rollout_config(scripted_model(), method="l0"), own)
    assert isinstance(config, DictConfig)
    return config


def said(logs: list[Trajectory]) -> list[str]:
    return [each.content for log in logs for each in log.messages if each.role is Role.ASSISTANT]


def prompts(logs: list[Trajectory]) -> list[str]:
    """Text before each turn of the policy in the transcripts."""
    texts = []
    for log in logs:
        text = ""
        for message in log.messages:
            text += f"<|im_start|>{message.role}\n"
            if message.role is Role.ASSISTANT:
                texts.append(text)
            text += f"{message.content}<|im_end|>\n"
    return texts


async def shown(question: WorldQuestion, logs: list[Trajectory], config: DictConfig) -> list[str]:
    """Text before each turn in the agent loop, where the engine answers as the transcripts do."""
    loop = loop_of(NotebookLoop, config, [Said(text, ended=False) for text in said(logs)])
    truth = {"reward_model": {"ground_truth": {"target": [question.answer]}}}
    await loop.run({"temperature": 1.0}, **row(question.text, is_validation=False, **truth))
    return [loop.tokenizer.decode(each["prompt_ids"]) for each in loop.server_manager.requests]


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages.of(make_documents(WORLD, 3), tmp_path)


@pytest.fixture
def transcripts(pages: Pages) -> list[list[Trajectory]]:
    exact = scaffold(lambda text: len(text.encode()), WINDOW)
    return [record(each, pages, Random(each.id), CARELESS, exact) for each in QUESTIONS[:10]]


@needs_sandbox
async def test_transcripts_are_what_the_agent_loop_shows(
    tmp_path: Path, transcripts: list[list[Trajectory]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"- tool: search\n  index: {tmp_path / 'index'}\n  num_documents: 1\n")
    config = notebook_config(tools)
    assert sum(map(len, transcripts)) >= 15, "there are too few trims"
    for question, logs in zip(QUESTIONS, transcripts, strict=False):
        assert await shown(question, logs, config) == prompts(logs)
