"""Writers that are functions: an answer that is no text or message in JSON is an error that names the function."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_server import MODEL, chat_server, said
from tests.support.fake_engine import Answer, fake_server
from tests.support.linked_tools import make_tool
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, PivotError, QuestionRefusedError, UserCodeError
from verl_pivot.synthesis import writer_settings
from verl_pivot.synthesis.asking import GateSettings, opened_gate
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.writer import EndpointWriter, ProgramWriter, WriterQuestion
from verl_pivot.synthesis.writer_settings import WriterSettings, open_writers
from verl_pivot.types import JsonObject

QUESTION = WriterQuestion(messages=({"role": "user", "content": "Add 1 and 2."},), seed=0, max_tokens=8)


@pytest.mark.parametrize(
    "answer",
    [
        "'\\ud800'",
        "{'role': 'assistant', 'content': 'no', 'logprob': float('nan')}",
        "{'role': 'assistant', 'content': 'no', 'call': object()}",
        "3",
        "{'role': 'assistant', 'content': ['a part']}",
    ],
)
def test_an_answer_of_a_function_that_has_no_json_form_is_named(tmp_path: Path, answer: str) -> None:
    (tmp_path / "clerk.py").write_text(f"def answer(question):\n    return {answer}\n")
    writer = ProgramWriter(f"{tmp_path / 'clerk.py'}:answer")

    with pytest.raises(UserCodeError, match=r"program .*clerk.py:answer returned "):
        asyncio.run(writer.answer(QUESTION))


@pytest.fixture
def stand_in_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve every checkpoint by a scripted server instead of SGLang, which writes its log as SGLang does."""

    @contextmanager
    def served(model: str, *, log: Path, **options: Any) -> Iterator[str]:
        log.write_text("started")
        with chat_server([said("Yes.")], models=(model,)) as server:
            yield server.url

    monkeypatch.setattr(writer_settings, "sglang_server", served)


@pytest.mark.usefixtures("stand_in_server")
def test_the_log_of_a_started_server_lies_beside_an_output_whose_folder_is_new(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "synthetic"

    with open_writers({"writer": WriterSettings(model="policy")}, Retries(), logs=out, seed=0) as writers:
        assert writers.keys() == {"writer"}

    assert [path.name for path in out.parent.iterdir()] == ["synthetic.writer.server.log"]


async def test_models_of_one_name_and_other_content_share_no_answer(tmp_path: Path) -> None:
    settings = GateSettings(
        out=tmp_path, folder=tmp_path, limits=BudgetLimits(), retries=Retries(num_attempts=1), concurrency=1
    )
    with chat_server([said("Before."), said("After.")]) as server:
        before, after = (
            EndpointWriter(server.url, MODEL, answer_format="text", retries=settings.retries, digest=digest)
            for digest in ("weights 1", "weights 2")
        )
        async with opened_gate(settings, {"before": before, "after": after}) as gate:
            texts = [(await gate.answer(writer, QUESTION)).text for writer in (before, after, before)]

    assert texts == ["Before.", "After.", "Before."]
    assert len(server.requests) == 2


@pytest.mark.usefixtures("stand_in_server")
def test_a_checkpoint_is_known_by_its_weights_and_its_chat_template(tmp_path: Path) -> None:
    model = tmp_path / "policy"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def identity(weights: bytes, template: str) -> str:
        (model / "model.safetensors").write_bytes(weights)
        (model / "chat_template.jinja").write_text(template)
        settings = {"writer": WriterSettings(model=str(model))}
        with open_writers(settings, Retries(), logs=tmp_path / "out", seed=0) as writers:
            return writers["writer"].identity

    first = identity(b"1", "{{ messages }}")
    assert first.startswith(f"{model} ")
    assert identity(b"1", "{{ messages }}") == first
    assert len({first, identity(b"2", "{{ messages }}"), identity(b"1", "{{ messages[0] }}")}) == 3


@pytest.mark.usefixtures("stand_in_server")
def test_a_model_that_runs_elsewhere_is_known_by_its_name(tmp_path: Path) -> None:
    with chat_server([said("Yes.")]) as server:
        settings = {"judge": WriterSettings(openai=server.url), "policy": WriterSettings(model="hub/policy")}
        with open_writers(settings, Retries(), logs=tmp_path / "out", seed=0) as writers:
            assert [writers[role].identity for role in settings] == [MODEL, "hub/policy"]


def test_a_program_is_known_by_the_text_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "clerk.py"
    name = f"{path}:answer"
    path.write_text("def answer(question):\n    return 'One.'\n")
    first, again = ProgramWriter(name), ProgramWriter(name)
    path.write_text("def answer(question):\n    return 'Two.'\n")

    assert first.identity.startswith(f"{name} ")
    assert first.identity == again.identity
    assert ProgramWriter(name).identity != first.identity
    assert ProgramWriter("tests.support.synthesis_steps:number").identity != "tests.support.synthesis_steps:number"


def with_tool(name: str, seed: int) -> WriterQuestion:
    return replace(QUESTION, seed=seed, tools=(make_tool(name, []),))


@pytest.mark.parametrize(
    ("refused", "known", "error"),
    [
        ({"bad"}, [with_tool("good", 0)], QuestionRefusedError),
        ({"good", "bad"}, [QUESTION], ConfigError),
        ({"bad"}, [], ConfigError),
    ],
    ids=["once tools were taken", "an endpoint without tools", "the first tools"],
)
async def test_tools_that_an_endpoint_refuses_are_those_of_one_draft_once_it_has_taken_others(
    tmp_path: Path, refused: set[str], known: list[WriterQuestion], error: type[PivotError]
) -> None:
    def respond(path: str, body: JsonObject) -> Answer:
        tools: Any = body.get("tools", [])
        names = {tool["function"]["name"] for tool in tools}
        return Answer(body={"error": "no such tools"}, status=400) if names & refused else said("Yes.")

    settings = GateSettings(
        out=tmp_path, folder=tmp_path, limits=BudgetLimits(), retries=Retries(num_attempts=1), concurrency=1
    )
    with fake_server(respond) as server:
        for _ in range(2):  # the second time the known answers come from the cache
            writer = EndpointWriter(server.url, MODEL, answer_format="text", retries=settings.retries)
            async with opened_gate(settings, {"writer": writer}) as gate:
                for question in known:
                    await gate.answer(writer, question)
                with pytest.raises(error, match="no such tools") as raised:
                    await gate.answer(writer, with_tool("bad", 1))
                assert type(raised.value) is error
