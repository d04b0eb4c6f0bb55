"""Both layouts of rows give one update: gradients of a small model through verl's own loss are the same."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from tests.support.tiny_model import assert_finite, write_model
from verl_pivot.advantages.estimators import step_reinforce_pp
from verl_pivot.rewards.step_returns import StepReturnOutput
from verl_pivot.rewards.steps import AnswerScores, StepFacts, StepRule, step_returns
from verl_pivot.rollout.context_rows import RowLayout, Stretch, rows_of
from verl_pivot.rollout.token_record import TokenRecord

VOCABULARY = 250
STEP = slice(5, 25)
OBSERVATION = 12
PROMPT = 40


def stretch(generator: torch.Generator, num_steps: int, first_step: int) -> Stretch:
    """A context with a prompt, and steps of random tokens with observations between them."""

    def tokens(number: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (number,), generator=generator).tolist()

    record = TokenRecord.of_prompt(tokens(PROMPT))
    for number in range(num_steps):
        size = int(torch.randint(STEP.start, STEP.stop, (1,), generator=generator))
        mask = [*record.mask, *[1] * size]
        record = record.with_turn([*record.token_ids, *tokens(size)], mask, [*(record.logprobs or []), *[-1.0] * size])
        if number < num_steps - 1:
            record = record.with_text(tokens(OBSERVATION))
    return Stretch(tokens=record, first_step=first_step)


def trajectories() -> list[list[Stretch]]:
    """Four trajectories: without a trim, with two trims, of one step, and with one trim."""
    generator = torch.Generator().manual_seed(0)
    splits = ([4], [3, 2, 1], [1], [2, 2])
    return [[stretch(generator, size, sum(sizes[:number])) for number, size in enumerate(sizes)] for sizes in splits]


def outputs(layout: RowLayout) -> list[StepReturnOutput]:
    """Rows of all trajectories with the returns of their steps."""
    found = []
    for number, stretches in enumerate(trajectories()):
        num_steps = sum(len(each.tokens.turn_ends) for each in stretches)
        facts = [StepFacts(has_form=(number + step) % 3 > 0, ran=step % 2 == 0) for step in range(num_steps)]
        returns = step_returns(facts, AnswerScores(float(number % 2), 0.0, has_answer=number != 2), StepRule())
        found += [
            StepReturnOutput(
                prompt_ids=each.prompt_ids, response_ids=each.response_ids, response_mask=each.mask,
                turn_ends=each.step_ends, step_returns=returns[each.steps.start : each.steps.stop], metrics={},
            )
            for each in rows_of(stretches, layout)
        ]  # fmt: skip
    return found


def padded(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)


def nested(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def noise(tokens: torch.Tensor, seed: int) -> torch.Tensor:
    """A number for each token of a text that depends on the token and the seed alone."""
    return 0.1 * torch.sin(tokens.double() * (seed + 1.7)).float()


def gradients(model: Any, layout: RowLayout, *, num_padding: int) -> list[torch.Tensor]:
    """Gradients of one update by verl's own loss over the rows of this layout and `num_padding` empty rows."""
    rows = [each.as_dict() for each in outputs(layout)]
    for _ in range(num_padding):  # as verl pads a batch
        empty = {"prompts": torch.zeros(7, dtype=torch.long), "responses": torch.zeros(1, dtype=torch.long)}
        rows.append({**empty, "response_mask": torch.zeros(1, dtype=torch.long), "rm_scores": torch.zeros(1)})
    masks, config = [each["response_mask"] for each in rows], OmegaConf.create({"algorithm": {}})
    advantages, _ = step_reinforce_pp(
        padded([each["rm_scores"] for each in rows]), padded(masks), config=config.algorithm
    )
    log_probs = [logprobs_of(model, torch.cat([each["prompts"], each["responses"]])) for each in rows]
    at = [len(each["prompts"]) for each in rows]
    of_response = [
        each.detach()[start - 1 : start - 1 + len(mask)] for each, start, mask in zip(log_probs, at, masks, strict=True)
    ]
    data = TensorDict(
        {
            "prompts": nested([each["prompts"] for each in rows]),
            "responses": nested([each["responses"] for each in rows]),
            "response_mask": nested(masks),
            "old_log_probs": nested(
                [each - noise(row["responses"], 0) for each, row in zip(of_response, rows, strict=True)]
            ),
            "ref_log_prob": nested(
                [each - noise(row["responses"], 1) for each, row in zip(of_response, rows, strict=True)]
            ),
            "advantages": nested([row[: len(mask)] for row, mask in zip(advantages, masks, strict=True)]),
        },
        batch_size=len(rows),
    )
    num_tokens = int(sum(mask.sum() for mask in masks))
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=num_tokens, global_batch_size=len(rows))
    actor = FSDPActorConfig(
        strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=2, use_kl_loss=True, kl_loss_coef=0.001,
        kl_loss_type="low_var_kl", loss_agg_mode="token-mean", clip_ratio_low=0.2, clip_ratio_high=0.25,
    )  # fmt: skip
    model.zero_grad()
    loss, metrics = ppo_loss(actor, {"log_probs": nested(log_probs)}, data)
    assert loss.isfinite(), metrics
    loss.backward()
    return [each.grad.detach().clone() for each in model.parameters()]


def logprobs_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """[num_tokens] log-prob of the token after each one, as verl's engines give it; 0 at the last token."""
    logits = model(input_ids=ids.unsqueeze(0)).logits[0, :-1].float()
    found = torch.log_softmax(logits, dim=-1).gather(-1, ids[1:].unsqueeze(-1)).squeeze(-1)
    return torch.cat([found, torch.zeros(1)])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(write_model(tmp_path_factory.mktemp("model")))
    assert_finite(loaded)
    return loaded


def test_rows_by_context_and_rows_by_step_have_the_same_gradients(model: Any) -> None:
    """The rows by context are padded, and the rows by step are not."""
    by_step = gradients(model, RowLayout.STEP, num_padding=0)
    by_context = gradients(model, RowLayout.CONTEXT, num_padding=3)

    difference = sum(float((a - b).double().square().sum()) for a, b in zip(by_step, by_context, strict=True)) ** 0.5
    size = sum(float(each.double().square().sum()) for each in by_step) ** 0.5
    assert size > 1e-3
    assert difference / size < 1e-5


def test_every_sampled_token_stands_in_both_layouts_once() -> None:
    def sampled(layout: RowLayout) -> list[int]:
        return [
            token
            for each in outputs(layout)
            for token, is_sampled in zip(each.response_ids, each.response_mask, strict=True)
            if is_sampled
        ]

    assert sampled(RowLayout.STEP) == sampled(RowLayout.CONTEXT)
    assert len(outputs(RowLayout.STEP)) == 15
    assert len(outputs(RowLayout.CONTEXT)) == 7
