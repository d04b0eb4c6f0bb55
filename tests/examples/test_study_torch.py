"""The study's torch parts on a model of two small layers: sampling, KL, one update on a turn, and SFT's examples."""

import asyncio
import json
import math
from pathlib import Path

import pytest

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

import torch  # noqa: E402

from examples.quickstart.policy import IGNORED, encode  # noqa: E402
from examples.study import outside_kl, sft, turn_gains  # noqa: E402
from examples.study.domains.known import OUTSIDE  # noqa: E402
from examples.study.measures_file import TurnGain  # noqa: E402
from examples.study.policy import build_tokenizer  # noqa: E402
from examples.study.recording import record_all, tasks_of, write_trajectories  # noqa: E402
from examples.study.sft import SftSettings, examples_of, train_sft  # noqa: E402
from examples.study.signals import count_signals, step_variances  # noqa: E402
from examples.study.torch_policy import TorchPolicy, kl_of_answers  # noqa: E402
from examples.study.turn_gains import SMALL_KL, ScoredAnswers, gain_of_update, measure_gains, read_gains  # noqa: E402
from verl_pivot.data.turns import turns  # noqa: E402
from verl_pivot.engines.rendering import PromptRenderer  # noqa: E402
from verl_pivot.errors import DataError  # noqa: E402
from verl_pivot.smoke.tiny_model import write_model  # noqa: E402
from verl_pivot.types import Message, Role, Trajectory, Turn  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), sizes={"hidden_size": 32, "intermediate_size": 32})


@pytest.fixture
def policy(folder: Path) -> TorchPolicy:
    return TorchPolicy.read(folder, on_gpu=False)


def make_turn(verifier: str = "qa") -> Turn:
    state = (Message(role=Role.USER, content="Say a."),)
    return Turn(
        trajectory_id="t", index=0, state=state, expert=Message(role=Role.ASSISTANT, content="a"), verifier=verifier,
        verifier_options={"place": "all", "answers": ["a"]}, metadata={"domain": "shop"},
    )  # fmt: skip


def prompt_of(policy: TorchPolicy) -> list[int]:
    return policy.renderer.prompt_ids(make_turn())


def test_log_probabilities_behind_a_shared_prompt_are_those_of_whole_texts(policy: TorchPolicy) -> None:
    prompt, answers = prompt_of(policy), [(70, 71, 72), (73,)]

    found = policy.answer_log_probs(policy.log_probs(prompt, answers), answers)

    for answer, value in zip(answers, found.tolist(), strict=True):
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
        whole = sum(float(logits[len(prompt) - 1 + place, id]) for place, id in enumerate(answer))
        assert value == pytest.approx(whole, abs=1e-4)


def test_answers_end_behind_an_end_token_or_at_the_limit_and_are_the_same_again(policy: TorchPolicy) -> None:
    first, again = (policy.sample(prompt_of(policy), 8, 5, torch.Generator().manual_seed(3)) for _ in range(2))

    assert first == again
    assert len(first) == 8
    ends = policy.renderer.end_token_ids
    assert all(len(answer) == 5 or answer[-1] in ends for answer in first)
    assert not any(set(answer[:-1]) & ends for answer in first)


def test_the_kl_of_answers_counts_their_tokens_alone() -> None:
    """Two positions, two tokens: the KL of (1/2, 1/2) to (1/4, 3/4) is ln 2 - ln 3 / 2; padding does not count."""
    half, quarter = torch.tensor([[0.5, 0.5]] * 2).log(), torch.tensor([[0.25, 0.75]] * 2).log()
    sampled, other = torch.stack([half, half]), torch.stack([quarter, quarter])
    one = math.log(2) - math.log(3) / 2

    assert kl_of_answers(sampled, other, [(0, 1), (0,)]).tolist() == pytest.approx([2 * one, one])
    assert kl_of_answers(sampled, sampled, [(0, 1), (0,)]).tolist() == [0.0, 0.0]


def scored(answers: list[tuple[int, ...]], rewards: list[float]) -> ScoredAnswers:
    return ScoredAnswers(answers=answers, rewards=rewards, counts=[1] * len(answers))


def test_one_update_gains_and_leaves_the_policy_as_it_was(policy: TorchPolicy) -> None:
    """The gain is above 0 and, with some room for sampling, below the bound of theorem 3.2: the deviation times the
    root of twice the KL. A step in weights that all answers share cannot come near that bound."""
    prompt = prompt_of(policy)
    sampled = policy.sample(prompt, 64, 1, torch.Generator().manual_seed(0))
    answers = sorted(set(sampled))
    rewards = [float(answer[0] % 2) for answer in answers]
    own = ScoredAnswers(answers=answers, rewards=rewards, counts=[sampled.count(each) for each in answers])
    before = [each.clone() for each in policy.model.parameters()]

    gain = gain_of_update(policy, prompt, own, own)

    assert gain is not None
    assert 0.0 < gain < 1.2 * math.sqrt(2 * SMALL_KL) * 0.5
    assert all(torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))


def test_a_turn_is_measured_once_and_a_torn_line_again(policy: TorchPolicy, tmp_path: Path) -> None:
    path = tmp_path / "gains.jsonl"
    path.write_text('{"turn": "t:0", "domain"')

    measure_gains(policy, [make_turn()], 2, path, seed=1)
    (first,) = read_gains(path, 1)
    measure_gains(policy, [make_turn()], 2, path, seed=1)

    assert read_gains(path, 1) == [first]
    assert first == TurnGain(seed=1, turn="t:0", domain="shop", num_answers=16, deviation=0.0, gain=0.0)


def test_a_policy_has_no_kl_to_itself_and_some_to_another(policy: TorchPolicy, folder: Path) -> None:
    other = TorchPolicy.read(folder, on_gpu=False)
    with torch.no_grad():
        for each in other.model.parameters():
            each.mul_(1.2)

    same = outside_kl.measure_outside_kl(policy, policy, "sft", 1, 4, num_prompts=2)
    moved = outside_kl.measure_outside_kl(policy, other, "sft", 1, 4, num_prompts=2)

    assert [(each.group, each.nats) for each in same] == [(group, 0.0) for group in OUTSIDE]
    assert all(each.nats > 0.0 for each in moved)
    assert all(2 <= each.num_tokens <= 8 for each in moved)


async def logs(number: int) -> list[Trajectory]:
    return await record_all(tasks_of(["shop", "sql", "search"], range(200_000, 200_000 + number)))


async def test_sfts_examples_of_a_trajectory_are_those_of_the_tiny_policys_own_encoding(tmp_path: Path) -> None:
    recorded = await logs(6)
    tokenizer = build_tokenizer(recorded)
    write_model(tmp_path)  # the renderer needs its config
    tokenizer.save_pretrained(tmp_path)
    renderer = PromptRenderer(str(tmp_path))

    for each in recorded:
        (example,) = examples_of(renderer, each)
        expected = encode(tokenizer, each)
        end = len(example.input_ids)
        assert example.input_ids == expected.input_ids[:end]
        assert example.labels == expected.labels[:end]
        assert set(expected.labels[end:]) <= {IGNORED}


async def test_a_template_that_renders_earlier_turns_otherwise_gives_an_example_for_each_turn(folder: Path) -> None:
    renderer = PromptRenderer(str(folder))
    renderer.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    (log,) = await logs(1)

    examples = examples_of(renderer, log)

    assert len(examples) == len(turns(log)) > 1
    for example, turn in zip(examples, turns(log), strict=True):
        written = [label for label in example.labels if label != IGNORED]
        assert example.input_ids[-len(written) :] == written
        assert example.input_ids[: -len(written)] == renderer.prompt_ids(turn)


async def test_sft_trains_once_on_any_checkpoint_and_makes_the_expert_likelier(folder: Path, tmp_path: Path) -> None:
    recorded = await logs(4)
    write_trajectories(tmp_path / "trajectories.jsonl", recorded)
    settings = SftSettings(learning_rate=1e-2, num_epochs=3, seed=1)

    out = train_sft(folder, tmp_path / "trajectories.jsonl", settings, tmp_path)

    before, after = (TorchPolicy.read(each, on_gpu=False) for each in (folder, out))
    turn = turns(recorded[0])[0]
    answer = tuple(sft._written(before.renderer, turn))
    with torch.no_grad():
        chances = [
            float(each.answer_log_probs(each.log_probs(each.renderer.prompt_ids(turn), [answer]), [answer]))
            for each in (before, after)
        ]
    assert chances[1] > chances[0]
    stamp = (out / "config.json").stat().st_mtime_ns
    assert train_sft(folder, tmp_path / "trajectories.jsonl", settings, tmp_path) == out
    assert (out / "config.json").stat().st_mtime_ns == stamp


def profile_lines(samples: dict[int, list[tuple[str, float | None]]], identity: str) -> str:
    settings = {
        "model": "m", "input_sha256": "", "num_samples": 2, "sampling": {}, "max_prompt_tokens": 1,
        "chat_template_kwargs": {},
    }  # fmt: skip
    header = {"kind": "verl-pivot profile", "version": 1, "settings": settings}
    rows = [
        {
            "trajectory_id": identity, "turn_index": index, "num_prompt_tokens": 1,
            "samples": [
                {"text": text, "score": score, "reason": "", "detail": "", "num_tokens": 1} for text, score in several
            ],
        }
        for index, several in samples.items()
    ]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in (header, *rows))


async def recorded_sql() -> Trajectory:
    (log,) = await record_all(tasks_of(["sql"], range(1)))
    return log


def test_counts_of_a_profile_by_hand(tmp_path: Path) -> None:
    """Turn 0 accepts the expert's call and another one, so it has no signal; turn 1 is mixed, turn 2 undecided."""
    log = asyncio.run(recorded_sql())
    write_trajectories(tmp_path / "t.jsonl", [log])
    call = turns(log)[0].expert.tool_calls[0]
    own = f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
    other = '<tool_call>\n{"name": "sql", "arguments": {"query": "select 1"}}\n</tool_call>'
    samples: dict[int, list[tuple[str, float | None]]]
    samples = {0: [(own, 1.0), (other, 1.0)], 1: [(other, 1.0), (other, 0.0)], 2: [("", None), ("", None)]}
    (tmp_path / "p.jsonl").write_text(profile_lines(samples, log.id))

    (found,) = count_signals(tmp_path / "p.jsonl", tmp_path / "t.jsonl", 1)

    assert (found.domain, found.num_samples, found.num_turns, found.num_without_signal) == ("sql", 2, 2, 1)
    assert (found.num_accepted, found.num_missed) == (3, 2)
    (tmp_path / "p.jsonl").write_text(profile_lines(samples, "another"))
    with pytest.raises(DataError, match="is of no trajectory of the seed"):
        count_signals(tmp_path / "p.jsonl", tmp_path / "t.jsonl", 1)


def test_variances_are_those_of_the_last_third_and_a_missing_step_is_refused(tmp_path: Path) -> None:
    def line(group: str, score: float | None) -> str:
        return json.dumps({"uid": f"{group}_0_0", "score": score, "kept": True}) + "\n"

    rewards = [("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 0.0), ("c", None)]
    (tmp_path / "3.jsonl").write_text("".join(line(*each) for each in rewards))

    (found,) = step_variances(tmp_path, "pivotrl", 1, 3)

    assert found.step == 3
    assert (found.within_groups, found.of_batch) == pytest.approx((1 / 8, 3 / 16))
    with pytest.raises(DataError):
        step_variances(tmp_path, "pivotrl", 1, 6)
    (tmp_path / "3.jsonl").write_text(line("a", None))
    with pytest.raises(DataError, match="knows no reward"):
        step_variances(tmp_path, "pivotrl", 1, 3)


def test_the_numbers_of_answers_are_those_that_the_page_names() -> None:
    assert (turn_gains.NUM_ANSWERS, outside_kl.NUM_PROMPTS) == (16, 50)
