"""Every name of verl that this package stands on. `doctor` imports them here, the contract tests pin their shapes."""

import importlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hook:
    """One name of verl, and which of our files breaks without it."""

    module: str
    name: str
    used_by: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def resolve(self) -> object:
        """The object itself.

        Raises:
            ImportError: If the module is gone.
            AttributeError: If the name is.
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
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopBase.ct_build_initial_tokens", "rollout/rendering.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput", "rollout/pivot_turn.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopBase.ct_merge_context_msg", "rollout/conversation.py"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput.as_dict", "rollout/turn_rewards.py"),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.get_tool_parser", "rollout/verl_parsers.py"),
    Hook("verl.tools.schemas", "OpenAIFunctionToolSchema", "rollout/verl_parsers.py"),
    Hook("verl.utils.tokenizer.chat_template", "apply_chat_template", "rollout/conversation.py"),
    Hook("verl.workers.rollout.replica", "TokenOutput", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "LLMServerClient.generate", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "FullyAsyncLLMServerClient.generate", "rollout/turn_sampler.py"),
    Hook("verl.workers.rollout.llm_server", "LLMServerClient.__init__", "rollout/router_client.py"),
    Hook("verl.workers.rollout.router", "RequestLoadBalancer.acquire_server", "routing/kv_router.py"),
    Hook("verl.workers.rollout.router", "get_router_handle", "routing/kv_router.py"),
    Hook("verl.workers.rollout.utils", "get_max_position_embeddings", "rollout/tool_loop.py"),
    Hook("verl.utils.profiler", "simple_timer", "rollout/pivot_turn.py"),
    Hook("verl.utils.tokenizer.continuous_token_wiring", "create_continuous_token_builder", "rollout/rendering.py"),
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
