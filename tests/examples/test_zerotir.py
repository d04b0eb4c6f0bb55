"""The example zerotir: its transcripts, their form in the agent loop, its tokens and its command."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.grpo_roc.transcripts import TOOLS  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from examples.zerotir.policy import build_tokenizer  # noqa: E402
from examples.zerotir.run import make_training  # noqa: E402
from examples.zerotir.training import MAX_OBSERVATION_TOKENS, MAX_RESPONSE_TOKENS, MAX_TURN_TOKENS  # noqa: E402
from examples.zerotir.transcripts import MAX_RUNS, OBSERVED, OUTPUT, record_transcripts  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.sandbox_services import use_service  # noqa: E402
from tests.support.scripted_engine import Said, make_loop, row  # noqa: E402
from verl_pivot.types import Trajectory  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    """The suite's service, instead of one that each event loop would start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_service(monkeypatch)
        yield


@pytest.fixture(scope="module")
def seldom() -> list[Trajectory]:
    return record_transcripts(range(60), code_share=0.4, carelessness=0.5)


def text_of(transcript: Trajectory) -> str:
    return transcript.messages[-1].content or ""


def test_the_share_of_transcripts_with_code_is_that_which_was_asked_for(seldom: list[Trajectory]) -> None:
    runs = Counter(text_of(each).count("```python") for each in seldom)

    assert 0.25 < 1 - runs[0] / 60 < 0.55
    assert {1, 2} < {*runs}
    assert max(runs) <= MAX_RUNS


def test_guesses_are_hardly_ever_right_and_programs_mostly(seldom: list[Trajectory]) -> None:
    with_code = [each.passed for each in seldom if "```python" in text_of(each)]
    without = [each.passed for each in seldom if "```python" not in text_of(each)]

    assert sum(map(bool, without)) <= 2
    assert sum(map(bool, with_code)) > len(with_code) / 2


async def test_the_agent_loop_plays_a_transcript_letter_by_letter(seldom: list[Trajectory]) -> None:
    transcript = next(each for each in seldom if text_of(each).count("```python") == 2)
    said = [Said(part) for part in OBSERVED.split(text_of(transcript))[::2]]
    loop = make_loop(said, "+tool_format=zerotir", f"pivot.rollout.tools={TOOLS}")

    output = await loop.run({"temperature": 1.0}, **row(transcript.messages[0].content))

    assert loop.tokenizer.decode(output.response_ids).removesuffix("<|im_end|>") == text_of(transcript)


def test_limits_hold_all_transcripts(seldom: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(seldom)

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    for each in seldom:
        parts = OBSERVED.split(text_of(each))
        assert all(count(turn) < MAX_TURN_TOKENS for turn in parts[::2])
        assert all(count(output) < MAX_OBSERVATION_TOKENS for output in parts[1::2])
        assert len(encode(tokenizer, each, OBSERVED).input_ids) < MAX_RESPONSE_TOKENS


def test_the_command_composes_and_outputs_stand_in_the_form_of_the_tool_format(tmp_path: Path) -> None:
    training = make_training(tmp_path / "policy", tmp_path, 0, 20)
    config = checked_config(training.command[3:])

    assert config.pivot.rollout.observation_template == OUTPUT
    assert config.pivot.rollout.max_turns == MAX_RUNS + 1
    assert config.algorithm.adv_estimator == "reinforce_plus_plus_baseline"
