"""Hooks: every name of verl that this package uses, with the file that uses it.

`verl-pivot doctor` imports all of them, and the contract tests pin their signatures.
"""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hook:
    """One name of verl or of its libraries."""

    module: str
    name: str
    used_by: str
    """File of this package that breaks without it."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def resolve(self) -> object:
        """The object that the name stands for.

        Raises:
            ImportError: If the module does not exist.
            AttributeError: If the module does not have the name.
        """
        target: object = importlib.import_module(self.module)
        for part in self.name.split("."):
            target = getattr(target, part)
        return target


HOOKS = (
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset.maybe_filter_out_long_prompts", "data/dataset.py"),
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset._build_messages", "data/dataset.py"),
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset.__getitem__", "data/dataset.py"),
    Hook("torchdata.stateful_dataloader", "StatefulDataLoader.load_state_dict", "data/dataset.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopBase.ct_merge_assistant_token", "rollout/pivot_turn.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopBase.ct_build_initial_tokens", "engines/rendering.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput", "rollout/pivot_turn.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopBase.ct_merge_context_msg", "rollout/tool_rollout.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput.as_dict", "rewards/turn_rewards.py"),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.get_tool_parser", "rollout/tool_loop.py"),
    Hook("verl.tools.schemas", "OpenAIFunctionToolSchema", "rollout/tool_loop.py"),
    Hook("verl.utils.tokenizer.chat_template", "apply_chat_template", "rollout/played_rollout.py"),
    Hook("verl.workers.rollout.replica", "TokenOutput", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "LLMServerClient.generate", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "FullyAsyncLLMServerClient.generate", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "LLMServerClient.__init__", "routing/client.py"),
    Hook("verl.workers.rollout.router", "RequestLoadBalancer.acquire_server", "routing/router_actor.py"),
    Hook("verl.workers.rollout.router", "get_router_handle", "routing/router_actor.py"),
    Hook("verl.workers.rollout.utils", "get_max_position_embeddings", "rollout/tool_loop.py"),
    Hook("verl.utils.profiler", "simple_timer", "rollout/pivot_turn.py"),
    Hook("verl.utils.tokenizer.continuous_token_wiring", "create_continuous_token_builder", "engines/rendering.py"),
    Hook("verl.experimental.reward_loop.reward_manager.naive", "NaiveRewardManager.run_single", "rewards/manager.py"),
    Hook("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer.sample", "resampling/replay_buffer.py"),
    Hook("verl.trainer.ppo.v1.replay_buffer", "ReplayBufferAsync.sample", "resampling/replay_buffer.py"),
    Hook("transfer_queue", "kv_batch_get", "resampling/replay_buffer.py"),
    Hook("transfer_queue", "kv_clear", "resampling/replay_buffer.py"),
    Hook("transfer_queue", "KVBatchMeta", "resampling/replay_buffer.py"),
    Hook("verl.plugin.platform", "set_platform", "local/callback.py"),
    Hook("verl.plugin.platform.platform_base", "PlatformBase.rollout_env_vars", "local/platform.py"),
    Hook("verl.plugin.platform.platform_manager", "PlatformRegistry.register", "local/platform.py"),
    Hook("verl.utils.distributed", "initialize_global_process_group_ray", "local/platform.py"),
    Hook("verl.trainer.main_ppo", "main", "the launch command"),
)
