"""Request to `verl-pivot plan`, with the chosen lengths -> the commands to type, as lists of words."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

from verl_pivot.data.json_values import encode_json
from verl_pivot.engines.installed import ENGINES, installed_engine
from verl_pivot.planning.lengths import Lengths
from verl_pivot.planning.overrides import LARGEST_BATCH, TOKENS_PER_GPU, model_for_verl, override_value
from verl_pivot.types import JsonObject

_GROUP_SIZE = 16
"""Rollouts per pivot of `+method=pivotrl`."""
_SAVE_EVERY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan, as the options of `verl-pivot plan` say."""

    files: tuple[Path, ...]
    folder: Path
    """Folder for everything that is written."""
    model: str
    is_imported: bool
    """Whether the one file in `files` was written by `verl-pivot import`."""
    import_words: tuple[str, ...]
    """Options of `import` that the user gave, as words of a command line."""
    engine_words: tuple[str, ...]
    """Options of `profile` that say where it samples, as words of a command line."""
    allow_no_tools: bool
    """Whether trajectories may call tools without having their schemas."""
    verifier_modules: tuple[str, ...]
    chat_template_kwargs: JsonObject
    num_samples: int
    seed: int
    num_gpus: int
    num_epochs: int
    tensor_parallel_size: int
    """GPUs over which each engine of the training splits the weights."""

    @property
    def trajectories(self) -> Path:
        return self.files[0] if self.is_imported else self.folder / "trajectories.jsonl"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.jsonl"

    @property
    def pivots(self) -> Path:
        return self.folder / "pivots.parquet"

    @property
    def module_words(self) -> tuple[str, ...]:
        return tuple(word for module in self.verifier_modules for word in ("--verifier-module", module))

    @property
    def schema_words(self) -> tuple[str, ...]:
        return ("--allow-no-tools",) if self.allow_no_tools else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShape:
    """Sizes of the training."""

    num_pivots: int
    """Pivots in the training split."""
    batch_size: int
    num_epochs: int
    num_gpus: int
    tensor_parallel_size: int
    group_size: int = _GROUP_SIZE

    @property
    def num_steps(self) -> int:
        return self.num_epochs * (self.num_pivots // self.batch_size)


def shape_of(num_pivots: int, *, num_epochs: int, num_gpus: int, tensor_parallel_size: int) -> TrainingShape:
    """Sizes for this number of training pivots.

    The batch is the method's, or less if they do not fill it, and the GPUs share its rollouts equally.
    """
    batch_size = num_gpus // gcd(num_gpus, _GROUP_SIZE)
    while 2 * batch_size <= min(LARGEST_BATCH, num_pivots):
        batch_size *= 2
    return TrainingShape(
        num_pivots=num_pivots,
        batch_size=batch_size,
        num_epochs=num_epochs,
        num_gpus=num_gpus,
        tensor_parallel_size=tensor_parallel_size,
    )


def import_words(request: PlanRequest) -> list[str]:
    """The command that imports the files."""
    files, out = [str(file) for file in request.files], str(request.trajectories)
    shared = (*request.schema_words, *request.module_words)
    return ["verl-pivot", "import", *files, "--out", out, *request.import_words, *shared]


def profile_words(request: PlanRequest, lengths: Lengths) -> list[str]:
    """The command that profiles every turn."""
    kwargs = request.chat_template_kwargs
    return [
        *("verl-pivot", "profile", str(request.trajectories), "--model", request.model, "--out", str(request.profile)),
        *("--max-prompt-tokens", str(lengths.max_prompt_tokens), "--max-new-tokens", str(lengths.max_new_tokens)),
        *("--samples", str(request.num_samples), "--seed", str(request.seed)),
        *(("--chat-template-kwargs", encode_json(kwargs)) if kwargs else ()),
        *request.engine_words,
        *request.schema_words,
        *request.module_words,
    ]


def select_words(request: PlanRequest, lengths: Lengths) -> list[str]:
    """The command that selects the pivots."""
    return [
        *("verl-pivot", "select", str(request.trajectories), "--profile", str(request.profile)),
        *("--out", str(request.pivots), "--max-prompt-tokens", str(lengths.max_prompt_tokens)),
        *("--seed", str(request.seed)),
        *request.module_words,
    ]


def launch_words(request: PlanRequest, lengths: Lengths, shape: TrainingShape) -> list[str]:
    """The launch command of the stock trainer."""
    longest = lengths.max_prompt_tokens + lengths.max_new_tokens
    modules, save_every = (
        ",".join(map(override_value, request.verifier_modules)),
        min(_SAVE_EVERY, max(1, shape.num_steps)),
    )
    overrides = {
        "data.train_files": override_value(str(request.pivots)),
        "data.max_prompt_length": lengths.max_prompt_tokens,
        "data.max_response_length": lengths.max_new_tokens,
        "data.train_batch_size": shape.batch_size,
        **{
            f"+data.apply_chat_template_kwargs.{key}": override_value(value)
            for key, value in request.chat_template_kwargs.items()
        },
        **({"pivot.verifier_modules": f"[{modules}]"} if modules else {}),
        "actor_rollout_ref.model.path": override_value(model_for_verl(request.model)),
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": max(TOKENS_PER_GPU, longest),
        "actor_rollout_ref.rollout.name": installed_engine() or ENGINES[0],
        "actor_rollout_ref.rollout.n": shape.group_size,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": shape.tensor_parallel_size,
        "trainer.n_gpus_per_node": shape.num_gpus,
        "trainer.total_epochs": shape.num_epochs,
        "trainer.save_freq": save_every,
        "trainer.test_freq": save_every,
        "trainer.default_local_dir": override_value(str(request.folder / "training")),
        "trainer.logger": "[console]",
    }
    words = [f"{key}={value}" for key, value in overrides.items()]
    return ["python", "-m", "verl.trainer.main_ppo", "+method=pivotrl", *words]


def typed(words: Sequence[str]) -> str:
    """The words as a line for a shell."""
    return shlex.join(words)
