"""What we take from verl is there, in the shape that we rely on. A failure names our file: read that first."""

import inspect
from importlib.metadata import version

import pytest
from packaging.specifiers import SpecifierSet

from verl_pivot.hooks import HOOKS, Hook


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def hook(name: str) -> object:
    return next(hook for hook in HOOKS if hook.name == name).resolve()


@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_every_name_that_we_use_is_there(hook: Hook) -> None:
    assert hook.resolve() is not None, f"read verl_pivot/{hook.used_by}"


def test_the_installed_verl_is_in_the_supported_range() -> None:
    assert version("verl") in SpecifierSet(">=0.9.1,<0.10")


def test_agent_loop() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

    assert parameters(AgentLoopBase.ct_build_initial_tokens)[:3] == ["self", "messages", "tools"]
    assert parameters(hook("AgentLoopBase.ct_merge_assistant_token")) == [
        "self", "runtime_token_ids", "assistant_token_ids", "response_mask", "response_logprobs", "assistant_logprobs",
    ]  # fmt: skip
    assert {
        "prompt_ids", "response_ids", "response_mask", "response_logprobs", "routed_experts", "num_turns", "metrics",
        "extra_fields",
    } <= set(AgentLoopOutput.model_fields)  # fmt: skip


def test_what_the_tool_loop_asks_of_verl() -> None:
    from verl.workers.rollout.replica import TokenOutput

    assert parameters(hook("AgentLoopBase.ct_merge_context_msg")) == [
        "self", "previous_messages", "updated_messages", "runtime_token_ids", "response_mask", "response_logprobs",
        "tools",
    ]  # fmt: skip
    for client in ("LLMServerClient.generate", "FullyAsyncLLMServerClient.generate"):
        assert parameters(hook(client))[:4] == ["self", "request_id", "prompt_ids", "sampling_params"]
    assert {"token_ids", "log_probs", "stop_reason", "num_preempted", "routed_experts", "extra_fields"} <= set(
        TokenOutput.model_fields
    )


@pytest.mark.parametrize(
    ("mode", "client"),
    [
        ("sync", "LLMServerClient"),
        ("colocate_async", "FullyAsyncLLMServerClient"),
        ("separate_async", "FullyAsyncLLMServerClient"),
    ],
)
def test_every_trainer_mode_asks_its_engines_through_a_client_that_our_loops_know(mode: str, client: str) -> None:
    """The asynchronous one resumes what a weight update cut; if this fails, see tests/rollout/test_tool_loop.py."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    source = inspect.getsource(get_trainer_cls(mode).get_llm_client)

    assert ("FullyAsyncLLMServerClient" in source) == (client == "FullyAsyncLLMServerClient")


def test_replay_buffer() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    assert parameters(hook("ReplayBuffer.sample")) == ["self", "global_steps", "partition_id", "batch_size"]
    assert parameters(hook("ReplayBufferAsync.sample")) == ["self", "global_steps", "partition_id", "batch_size"]
    assert {"sampler_kwargs", "poll_interval", "refill_fn"} <= set(parameters(ReplayBuffer.__init__))


@pytest.mark.parametrize("name", ["ReplayBuffer", "ReplayBufferAsync"])
def test_the_replay_buffer_clears_and_replaces_what_we_name(name: str) -> None:
    """If this fails read resampling/roc_replay_buffer.py beside verl's `sample`: it stands on these four."""
    from verl.trainer.ppo.v1 import replay_buffer

    verls = getattr(replay_buffer, name)

    assert parameters(verls._terminal_eviction_reasons) == ["self", "global_steps", "partition_id"]
    assert parameters(verls._evict_terminal_groups)[1:3] == ["global_steps", "partition_id"]
    assert parameters(verls._select_prompt_uids) == ["self", "partition_id", "sampleable_keys", "batch_size"]
    assert parameters(verls._materialize_batch) == [
        "self", "partition_id", "selected_prompt_uids", "partition_snapshot"
    ]  # fmt: skip


def test_the_number_of_rollouts_is_a_field_of_the_prompt() -> None:
    """If this fails read rollout/manager.py."""
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.workers.config.rollout import AgentLoopConfig

    assert parameters(agent_loop_tq.AgentLoopManagerTQ.generate_sequences) == ["self", "prompts"]
    assert '.pop("__rollout_n__"' in inspect.getsource(agent_loop_tq)
    assert AgentLoopConfig().agent_loop_manager_class is None


def test_dataset() -> None:
    assert parameters(hook("RLHFDataset._build_messages")) == ["self", "example", "key"]
    assert parameters(hook("RLHFDataset.maybe_filter_out_long_prompts")) == ["self", "dataframe"]


def test_verl_takes_no_sampler_of_ours_so_the_dataset_draws() -> None:
    """If this fails verl has a sampler hook again: use it instead of PivotDataset.curriculum."""
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader.sampler import RandomSampler
    from verl.trainer.ppo.utils import create_rl_sampler
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"shuffle": True, "seed": 1, "sampler": {"class_path": "a", "class_name": "B"}})

    assert type(create_rl_sampler(config, [1, 2])) is RandomSampler
    assert "is_train" not in parameters(RLHFDataset.__init__)  # or PivotDataset need not compare files


def test_the_dataloader_saves_and_restores_the_state_of_a_dataset() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Counting(list[int]):
        drawn = 0

        def __getitem__(self, item: int) -> int:  # type: ignore[override]  # a list takes slices too
            self.drawn += 1
            return self.drawn

        def state_dict(self) -> dict[str, int]:
            return {"drawn": self.drawn}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.drawn = state["drawn"]

    def loader() -> StatefulDataLoader[int]:
        return StatefulDataLoader(Counting(range(4)), batch_size=1, collate_fn=lambda rows: rows[0])  # type: ignore[arg-type]

    first, second = loader(), loader()
    batches = iter(first)
    assert [next(batches), next(batches)] == [1, 2]

    second.load_state_dict(first.state_dict())

    assert list(second) == [3, 4]


def test_reward_manager() -> None:
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    assert parameters(NaiveRewardManager.__init__)[:4] == ["self", "config", "tokenizer", "compute_score"]
    assert parameters(hook("NaiveRewardManager.run_single")) == ["self", "data"]


def test_process_group_of_local_cpu() -> None:
    function = inspect.unwrap(hook("initialize_global_process_group_ray"))  # type: ignore[arg-type]  # a function

    assert parameters(function) == ["timeout_second", "backend"]


def test_the_cpu_platform_answers_all_that_verl_asks() -> None:
    from verl.plugin.platform.platform_base import PlatformBase

    from verl_pivot.local.platform import CpuPlatform

    assert not CpuPlatform.__abstractmethods__
    for name, method in inspect.getmembers(PlatformBase, inspect.isfunction):
        ours = getattr(CpuPlatform, name)
        assert parameters(ours) == parameters(method), f"CpuPlatform.{name}: read verl_pivot/local/platform.py"


def test_torch_still_lets_sglangs_patch_be_skipped() -> None:
    from torch.multiprocessing import reductions

    assert callable(reductions.reduce_tensor), "read verl_pivot/local/platform.py, _share_weights_by_file"


def test_what_the_router_answers_to_is_verls_protocol() -> None:
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
    from verl.workers.rollout.router import RequestLoadBalancer

    from verl_pivot.routing.router import NO_SERVERS
    from verl_pivot.routing.router_actor import KvRouter

    ours = KvRouter.__ray_metadata__.modified_class
    asked = [name for name in vars(RequestLoadBalancer) if not name.startswith("_")]
    assert [name for name in asked if not hasattr(ours, name)] == []
    for name in set(asked) - {"acquire_server"}:
        taken = [parameter for parameter in parameters(getattr(ours, name)) if parameter != "_ray_trace_ctx"]
        assert taken == parameters(getattr(RequestLoadBalancer, name)), name
    assert parameters(hook("LLMServerClient.__init__"))[:3] == ["self", "config", "load_balancer_handle"]
    assert "_load_balancer" in inspect.getsource(LLMServerClient.__init__)
    assert NO_SERVERS in inspect.getsource(FullyAsyncLLMServerClient._acquire_server)


def test_the_router_is_made_of_servers_and_yaml() -> None:
    assert parameters(hook("get_router_handle"))[:2] == ["servers", "router_config_path"]
