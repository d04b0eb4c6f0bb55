"""Hooks: every name of verl that this package uses, its shape, the file that uses it, and the methods that need it.

`verl-pivot doctor`, a launch on an untested verl (hook_check.py) and the contract tests compare them with the
installed verl.
"""

import importlib
import inspect
from dataclasses import dataclass

_PIVOTRL = ("pivotrl",)
TOOL_METHODS = (
    "tool_rollout", "grpo_roc", "ppr", "search_r1", "search_r1_grpo", "research", "retool", "torl", "zerotir", "mcp_rl",
    "rubrics", "tree_search", "web_agent",
)  # fmt: skip
"""Methods whose policy calls tools in the text of its turns."""
_TOOLS = (*TOOL_METHODS, "l0")
_EVERY = (*_PIVOTRL, *_TOOLS)
_ROC = ("grpo_roc", "l0")
_MARKED = (*_ROC, "mcp_rl", "rubrics", "tree_search")
_PPR = ("ppr", "search_r1", "retool")
_L0 = ("l0",)
_ROUTER = ("router",)
_LOCAL = ("local",)


@dataclass(frozen=True, slots=True)
class Hook:
    """One name of verl or of its libraries."""

    module: str
    name: str
    used_by: str
    """File of this package that breaks without it."""
    needed_by: tuple[str, ...]
    """Methods (`+method=`) and config groups (`router`, `local`) that cannot run without it."""
    takes: str | None = None
    """Parameters of the function, in order; a final "..." allows further parameters that have defaults."""
    fields: str = ""
    """Fields that the class must have."""

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

    def difference(self) -> str | None:
        """Difference from the verl that this package was written for; None if there is none."""
        try:
            target = self.resolve()
        except AttributeError:
            return "is not there"
        except ImportError as error:
            return f"is not there ({error})"
        missing = set(self.fields.split()) - set(getattr(target, "model_fields", ()))
        if missing:
            return f"has no field {', '.join(sorted(missing))}"
        return None if self.takes is None else _parameter_difference(target, self.takes)


def _parameter_difference(function: object, takes: str) -> str | None:
    """Difference between the parameters of a function and `takes`; None if there is none."""
    assert callable(function), function
    found = [one for one in inspect.signature(function).parameters.values() if one.name != _ADDED_BY_RAY]
    names = takes.removesuffix("...").rstrip(", ").split(", ") if takes else []
    others = found[len(names) :]
    is_open = takes.endswith("...")
    needs_value = [
        one
        for one in others
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]  # fmt: skip
    same = [one.name for one in found[: len(names)]] == names
    if same and not (needs_value if is_open else others):
        return None
    return f"takes ({', '.join(one.name for one in found)}), not ({takes})"


_ADDED_BY_RAY = "_ray_trace_ctx"
"""Parameter that Ray adds to the methods of a class and of its base classes once the class becomes an actor."""
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_CLIENT = "verl.workers.rollout.llm_server"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_TRACE = "verl.utils.rollout_trace"
_GENERATE = "self, request_id, prompt_ids, sampling_params, ..."
_SAMPLE = "self, global_steps, partition_id, batch_size"

HOOKS = (
    Hook("verl.trainer.main_ppo", "main", "the launch command", _EVERY),
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset.maybe_filter_out_long_prompts", "data/dataset.py", _EVERY,
         takes="self, dataframe"),
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset._build_messages", "data/dataset.py", _EVERY,
         takes="self, example, key"),
    Hook("verl.utils.dataset.rl_dataset", "RLHFDataset.__getitem__", "data/dataset.py", _EVERY, takes="self, item"),
    Hook("torchdata.stateful_dataloader", "StatefulDataLoader.load_state_dict", "data/dataset.py", _EVERY,
         takes="self, state_dict"),
    Hook(_AGENT_LOOP, "AgentLoopOutput", "rollout/pivot_turn.py", _EVERY,
         fields="prompt_ids response_ids response_mask response_logprobs routed_experts num_turns metrics "
                "extra_fields"),
    Hook(_AGENT_LOOP, "AgentLoopOutput.as_dict", "rewards/turn_rewards.py", _EVERY, takes="self"),
    Hook(_AGENT_LOOP, "AgentLoopBase.ct_build_initial_tokens", "engines/rendering.py", _EVERY,
         takes="self, messages, tools, ..."),
    Hook(_AGENT_LOOP, "AgentLoopBase.ct_merge_assistant_token", "rollout/pivot_turn.py", _EVERY,
         takes="self, runtime_token_ids, assistant_token_ids, response_mask, response_logprobs, assistant_logprobs"),
    Hook(_AGENT_LOOP, "AgentLoopBase.ct_merge_context_msg", "rollout/conversation_tokens.py", _TOOLS,
         takes="self, previous_messages, updated_messages, runtime_token_ids, response_mask, response_logprobs, tools"),
    Hook("verl.utils.tokenizer.continuous_token", "MergeResult.removed_prefix_token_count",
         "rollout/conversation_tokens.py", _TOOLS),
    Hook("verl.experimental.agent_loop.tool_parser", "ToolParser.get_tool_parser", "rollout/tool_loop.py", _TOOLS,
         takes="name, tokenizer"),
    Hook("verl.tools.schemas", "OpenAIFunctionToolSchema", "rollout/tool_loop.py", _TOOLS, fields="type function"),
    Hook("verl.utils.tokenizer.chat_template", "apply_chat_template", "rollout/text_difference.py", _TOOLS,
         takes="processor, messages, tokenize, add_generation_prompt, tools, return_dict, ..."),
    Hook("verl.workers.rollout.replica", "TokenOutput", "rollout/turn_sampler.py", _EVERY,
         fields="token_ids log_probs stop_reason num_preempted routed_experts extra_fields"),
    Hook(_CLIENT, "LLMServerClient.generate", "rollout/turn_sampler.py", _EVERY, takes=_GENERATE),
    Hook(_CLIENT, "FullyAsyncLLMServerClient.generate", "rollout/turn_sampler.py", _EVERY, takes=_GENERATE),
    Hook(_CLIENT, "LLMServerClient.__init__", "routing/client.py", (*_EVERY, *_ROUTER),
         takes="self, config, load_balancer_handle, ..."),
    Hook("verl.workers.rollout.router", "RequestLoadBalancer.acquire_server", "routing/router_actor.py", _ROUTER,
         takes="self, request_id, ..."),
    Hook("verl.workers.rollout.router", "get_router_handle", "routing/router_actor.py", _ROUTER,
         takes="servers, router_config_path, ..."),
    Hook("verl.workers.rollout.utils", "get_max_position_embeddings", "rollout/loop_parts.py", _EVERY,
         takes="hf_config"),
    Hook(_TRACE, "RolloutTraceConfig.get_backend", "rollout/tracing.py", _EVERY, takes=""),
    Hook(_TRACE, "rollout_trace_attr", "rollout/tracing.py", _EVERY,
         takes="sample_index, step, rollout_n, name, ..."),
    Hook(_TRACE, "rollout_trace_op", "rollout/tracing.py", _EVERY, takes="func"),
    Hook(_TRACE, "_trace_enabled", "rollout/tracing.py", _EVERY),
    Hook("verl.utils.tokenizer.continuous_token_wiring", "create_continuous_token_builder", "engines/rendering.py",
         _EVERY, takes="tokenizer, model_family, hf_model_type, chat_template_kwargs, ..."),
    Hook("verl.experimental.reward_loop.reward_manager.naive", "NaiveRewardManager.__init__", "rewards/manager.py",
         _EVERY, takes="self, config, tokenizer, compute_score, ..."),
    Hook("verl.experimental.reward_loop.reward_manager.naive", "NaiveRewardManager.run_single", "rewards/manager.py",
         _EVERY, takes="self, data"),
    Hook("verl.trainer.ppo.core_algos", "register_policy_loss", "objective/policy_loss.py", _PIVOTRL, takes="name"),
    Hook("verl.trainer.ppo.core_algos", "agg_loss", "objective/policy_loss.py", _PIVOTRL,
         takes="loss_mat, loss_mask, loss_agg_mode, dp_size, batch_num_tokens, global_batch_size, loss_scale_factor"),
    Hook("verl.trainer.ppo.core_algos", "register_adv_est", "advantages/estimators.py", _EVERY, takes="name_or_enum"),
    Hook("verl.trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories", "resampling/step_replay_buffer.py",
         _L0, takes="data, batch_keys, adv_estimator, gamma, lam, num_repeat, norm_adv_by_std_in_grpo, config"),
    Hook("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._get_required_batch_multiple", "resampling/mini_batches.py",
         _ROC, takes="self, dp_size"),
    Hook("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._update_actor", "resampling/mini_batches.py", _ROC,
         takes="self, batch, metrics"),
    Hook("verl.trainer.ppo.padding_utils", "construct_minimal_padding_template", "resampling/step_replay_buffer.py",
         _L0, takes="source_td, source_tag, eos_token_id"),
    Hook("verl.workers.utils.losses", "ppo_loss", "objective/policy_loss.py", _PIVOTRL,
         takes="config, model_output, data, ..."),
    Hook("verl.trainer.ppo.core_algos", "compute_gae_advantage_return", "launch_checks/process.py", _PPR,
         takes="token_level_rewards, values, response_mask, gamma, lam"),
    Hook("verl.trainer.ppo.core_algos", "AdvantageEstimator", "launch_checks/process.py", _PPR),
    Hook("verl.trainer.ppo.utils", "need_critic", "launch_checks/process.py", _PPR, takes="config"),
    Hook("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker._compute_score", "rewards/manager.py", _EVERY,
         takes="self, outputs, kwargs"),
    Hook("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopManagerTQ.generate_sequences",
         "resampling/workflow_manager.py", _TOOLS, takes="self, prompts"),
    Hook(_BUFFER, "ReplayBuffer.sample", "resampling/replay_buffer.py", _EVERY, takes=_SAMPLE),
    Hook(_BUFFER, "ReplayBufferAsync.sample", "resampling/replay_buffer.py", _EVERY, takes=_SAMPLE),
    Hook(_BUFFER, "ReplayBuffer._terminal_eviction_reasons", "resampling/roc_replay_buffer.py", _ROC,
         takes="self, global_steps, partition_id"),
    Hook(_BUFFER, "ReplayBuffer._sampleable_terminal_keys", "resampling/roc_replay_buffer.py", _ROC,
         takes="self, partition_id, eviction_reasons"),
    Hook(_BUFFER, "ReplayBuffer._select_prompt_uids", "resampling/roc_replay_buffer.py", _ROC,
         takes="self, partition_id, sampleable_keys, batch_size"),
    Hook(_BUFFER, "ReplayBuffer._materialize_batch", "resampling/roc_replay_buffer.py", _ROC,
         takes="self, partition_id, selected_prompt_uids, partition_snapshot"),
    Hook(_BUFFER, "ReplayBuffer._evict_terminal_groups", "resampling/replay_buffer.py", _EVERY,
         takes="self, global_steps, partition_id, eviction_reasons"),
    Hook(_BUFFER, "ReplayBuffer._clear_groups", "resampling/replay_buffer.py", _EVERY,
         takes="self, partition_id, uids"),
    Hook("transfer_queue", "kv_batch_get", "resampling/sampled_rows.py", _EVERY,
         takes="keys, partition_id, select_fields, ..."),
    Hook("transfer_queue", "kv_clear", "resampling/replay_buffer.py", _EVERY, takes="keys, partition_id, ..."),
    Hook("transfer_queue", "KVBatchMeta", "resampling/replay_buffer.py", _EVERY,
         takes="keys, tags, partition_id, fields, extra_info, ..."),
    Hook("verl.plugin.platform", "set_platform", "local/callback.py", _LOCAL, takes="platform, ..."),
    Hook("verl.plugin.platform.platform_base", "PlatformBase.rollout_env_vars", "local/platform.py", _LOCAL,
         takes="self"),
    Hook("verl.plugin.platform.platform_manager", "PlatformRegistry.register", "local/platform.py", _LOCAL,
         takes="platform, ..."),
    Hook("verl.utils.distributed", "initialize_global_process_group_ray", "local/platform.py", _LOCAL,
         takes="timeout_second, backend, ..."),
    Hook("verl.utils.model", "load_valuehead_model", "local/platform.py", _LOCAL,
         takes="local_path, torch_dtype, model_config, trust_remote_code"),
)  # fmt: skip
