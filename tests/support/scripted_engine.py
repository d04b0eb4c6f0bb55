"""Agent loop of tool rollouts over an engine whose answers a test scripts; verl's own parts of the loop are real."""

import asyncio
import atexit
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from verl.workers.rollout.replica import TokenOutput

from tests.support.tiny_model import write_tokenizer
from verl_pivot.data.rollout_records import RoutingCost


@dataclass(frozen=True)
class Said:
    """One scripted answer of the engine."""

    text: str
    ended: bool = True
    """Whether the end-of-turn token follows the text."""
    stop_reason: str = "stop"


@dataclass
class ScriptedClient:
    """Stands in for verl's `LLMServerClient`: gives the answers in order, with a logprob of -0.5 for every token."""

    tokenizer: Any
    script: Sequence[Said | str]
    with_logprobs: bool = True
    seconds: float = 0.0
    step: int | None = None
    """Number of weight updates before every answer; None: one more before each further answer."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    _load_balancer: Any = None
    """The router's actor, under the name that it has in verl's client."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        said = self.script[len(self.requests)]
        said = Said(said) if isinstance(said, str) else said
        self.requests.append({"id": request_id, "prompt_ids": list(prompt_ids), "params": sampling_params})
        await asyncio.sleep(self.seconds)
        ids = self.tokenizer.encode(said.text, add_special_tokens=False)
        ids = (ids + [self.tokenizer.eos_token_id] * said.ended)[: sampling_params["max_tokens"]]
        step = len(self.requests) if self.step is None else self.step
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if self.with_logprobs else None,
            stop_reason=said.stop_reason,
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )


class RecordingRouter:
    """The router's actor as an agent loop sees it; it records the conversations that were reported as ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[object, ...]] = []
        self.end_conversation = self

    async def remote(self, *arguments: object) -> RoutingCost:
        self.ended.append(arguments)
        return RoutingCost(wait_seconds=0.5, num_moves=1, recomputed_tokens=70)


@cache
def rollout_config(model: Path, *overrides: str, method: str = "tool_rollout") -> DictConfig:
    """Config of the stock trainer with a method and overrides."""
    groups = tuple(override for override in overrides if override.startswith("+"))
    values = [override for override in overrides if override not in groups]
    chosen = OmegaConf.from_dotlist([f"actor_rollout_ref.model.path={model}", *values])
    return OmegaConf.merge(_composed(method, groups), chosen)


@cache
def _composed(method: str, groups: tuple[str, ...]) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [f"+method={method}", *groups, "actor_rollout_ref.rollout.name=sglang"])


@cache
def scripted_model() -> Path:
    """Folder with the tokenizer and the config of the model of these loops."""
    folder = tempfile.TemporaryDirectory(prefix="scripted-")
    atexit.register(folder.cleanup)
    return write_tokenizer(Path(folder.name))


def make_loop(script: Sequence[Said | str], *overrides: str, **client: Any) -> Any:
    """A ToolLoop whose engine gives the scripted answers; `loop.server_manager` is the client."""
    from verl_pivot.rollout.tool_loop import ToolLoop

    return loop_of(ToolLoop, rollout_config(scripted_model(), *overrides), script, **client)


def pivot_config(*overrides: str) -> DictConfig:
    """Config of the stock trainer with the method pivotrl and the model of these loops."""
    return rollout_config(scripted_model(), *overrides, method="pivotrl")


def loop_of(loop_class: Any, config: DictConfig, script: Sequence[Said | str], **client: Any) -> Any:
    """An agent loop of this class and config, whose engine gives the scripted answers."""
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    asyncio.get_running_loop()  # without a running loop, verl opens one and never closes it: a later test would warn
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    if config.actor_rollout_ref.model.custom_chat_template is not None:  # as verl's agent loop worker does
        tokenizer.chat_template = config.actor_rollout_ref.model.custom_chat_template
    return loop_class(
        trainer_config=DictConfigWrap(config),
        server_manager=ScriptedClient(tokenizer, script, **client),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen2",
    )


def row(text: str = "Add 2 and 3.", **columns: Any) -> dict[str, Any]:
    """Columns as the trainer hands them to an agent loop."""
    return {"raw_prompt": [{"role": "user", "content": text}], **columns}


def call(name: str, **arguments: Any) -> str:
    """Text of one tool call in the Hermes format."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
