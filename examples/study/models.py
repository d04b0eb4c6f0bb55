"""Options of the command -> the policy that a study trains: the tiny one, a random one on a GPU, or a checkpoint."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from examples.arms import Lengths
from examples.machine import machine_overrides, overrides_on
from examples.quickstart.policy import SftConfig
from examples.study.policy import (
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    MAX_TURN_TOKENS,
    MAX_TURNS,
    make_policy,
    sft_config,
)
from verl_pivot.diagnosis.machine import compute_capability
from verl_pivot.engines.installed import installed_engine
from verl_pivot.engines.model_check import check_model
from verl_pivot.engines.model_identity import template_digest, weights_digest
from verl_pivot.errors import ConfigError
from verl_pivot.local.environment import has_accelerator
from verl_pivot.smoke.composing import SmokeMachine
from verl_pivot.types import JsonObject

_TINY = Lengths(max_turns=MAX_TURNS, prompt=MAX_PROMPT_TOKENS, turn=MAX_TURN_TOKENS, response=MAX_RESPONSE_TOKENS)
_GIVEN = Lengths(max_turns=MAX_TURNS, prompt=2048, turn=512, response=3072)
"""Lengths for a given checkpoint: its tokenizer is another one, and it may write text before it acts."""
_GIVEN_FACTOR = 2.5e-3
"""Factor of all learning rates for a pretrained model. The rate of single turns is then 1e-6, as in public recipes."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel:
    """The policy that all arms start from, and the settings that depend on its size."""

    name: str
    """Name of the policy on the page."""
    weights: Path | None
    """Folder of a checkpoint from which all seeds start; None if each seed's policy is made by SFT."""
    on_gpu: bool
    lengths: Lengths
    rate_factor: float = 1.0
    """Factor of the learning rates in arms.yaml, the same for all arms."""
    pass_size: int | None = None
    """Number of rollouts in one pass through the model; None means two groups."""
    lessons: Callable[[int], SftConfig] = sft_config
    """Function of a seed that gives the settings of its SFT, for a policy that is made by SFT."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of a launch for the machine.

        Raises:
            ConfigError: If no rollout engine is installed.
        """
        return gpu_overrides() if self.on_gpu else machine_overrides()

    def settings(self, seed: int) -> JsonObject:
        """Everything that decides the base policy of a seed."""
        return {"model": self.name} if self.weights is not None else {**asdict(self.lessons(seed)), "model": self.name}

    def make(self, folder: Path, seed: int) -> None:
        """Make the base policy of a seed by SFT in a folder, unless it is there or the weights are given."""
        if self.weights is None:
            make_policy(folder, self.lessons(seed), device="cuda" if self.on_gpu else "cpu")

    def check_machine(self) -> None:
        """Refuse a machine that cannot train the policy.

        Raises:
            ConfigError: If the policy needs a GPU and the machine has none.
        """
        if self.on_gpu and not has_accelerator():
            raise ConfigError("--gpu: torch sees no GPU on this machine; run it on one that has, or leave --gpu out")


def gpu_overrides() -> tuple[str, ...]:
    """Overrides of a launch on one GPU; the machine of this process needs no GPU.

    Raises:
        ConfigError: If no rollout engine is installed.
    """
    engine = installed_engine()
    if engine is None:
        raise ConfigError("--gpu: neither SGLang nor vLLM is installed")
    return overrides_on(
        SmokeMachine(has_accelerator=True, num_workers=1, engine=engine, compute_capability=compute_capability())
    )


def study_model(folder: Path | None, *, on_gpu: bool) -> StudyModel:
    """The policy that the options `--model` and `--gpu` name.

    Raises:
        ConfigError: If the folder is no checkpoint with weights, tokenizer and chat template.
    """
    if folder is not None:
        return _given(folder, on_gpu=on_gpu)
    if on_gpu:
        name = "shape of a model of 0.25 billion parameters, at random and taught as the tiny policy is"
        return StudyModel(name=name, weights=None, on_gpu=True, lengths=_TINY, lessons=_wide_lessons)
    return StudyModel(name="tiny policy, taught for the study", weights=None, on_gpu=False, lengths=_TINY)


def _wide_lessons(seed: int) -> SftConfig:
    """The tiny policy's SFT settings, but with 24 layers of 896 units and a lower learning rate, which they need."""
    return replace(sft_config(seed), hidden_size=896, head_size=64, num_layers=24, learning_rate=3e-4)


def _given(folder: Path, *, on_gpu: bool) -> StudyModel:
    resolved = folder.expanduser().resolve()  # the trainer's processes have other working directories
    if not resolved.is_dir():
        raise ConfigError(f"--model {folder} is no folder: give the folder of a checkpoint with its tokenizer")
    check_model(str(resolved))
    if not any(resolved.glob("*.safetensors")) and not any(resolved.glob("pytorch_model*.bin")):
        raise ConfigError(f"--model {folder} has no weights (*.safetensors): copy them there, or leave --model out")
    if not any((resolved / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"--model {folder} has weights but no tokenizer: copy {' and '.join(_TOKENIZER_FILES)} of the same "
            "model there, since all domains are written in its own tokens and chat template"
        )
    if template_digest(str(resolved)) is None:
        raise ConfigError(
            f"the tokenizer in --model {folder} has no chat template: add chat_template.jinja, or use the instruct "
            "version of the model"
        )
    digest = weights_digest(str(resolved))
    assert digest is not None, "it is a folder"
    return StudyModel(
        name=f"{resolved.name}, weights {digest[:12]}",
        weights=resolved,
        on_gpu=on_gpu,
        lengths=_GIVEN,
        rate_factor=_GIVEN_FACTOR,
        pass_size=2,
    )
