"""Expert trajectories and a policy -> the policy after SFT on them, by plain torch with the loss of the base policy."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer, Qwen2ForCausalLM

from examples.quickstart.policy import SftConfig, encode, train
from examples.study.arms import Arm
from verl_pivot.data.trajectories import read_trajectories

_BATCH_PARTS = 3
"""Parts of a batch in `examples.quickstart.policy.train`."""


def train_sft(arm: Arm, policy: Path, trajectories: Path, config: SftConfig, folder: Path) -> Path:
    """Train into `folder`, unless it is there; all turns of the expert count, as in verl's own SFT trainer."""
    out = folder / "policy"
    if out.is_dir():
        return out
    assert arm.num_epochs is not None, arm
    assert arm.learning_rate is not None, arm
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = Qwen2ForCausalLM.from_pretrained(policy)
    examples = [encode(tokenizer, each) for each in read_trajectories(trajectories)]
    num_steps = math.ceil(arm.num_epochs * len(examples) / (_BATCH_PARTS * config.part_size))
    settings = replace(
        config, num_copy_steps=0, num_careful_steps=num_steps, num_careless_steps=0, learning_rate=arm.learning_rate
    )
    train(model, examples, [], settings)
    unfinished = folder / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(out)  # at once, so that a run that was killed starts over
    return out
