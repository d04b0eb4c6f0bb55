"""verl's vLLM server has what our loops and our router rely on; tests read its source, so that vLLM is not needed."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest


@cache
def source(name: str) -> str:
    """Source of a file of verl's package; the file imports an engine, and is therefore not imported itself."""
    found = find_spec("verl")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "workers" / "rollout" / name).read_text()


@cache
def methods(file: str, name: str) -> dict[str, list[str]]:
    """{method: parameters} of a class."""
    node = next(each for each in ast.walk(ast.parse(source(file))) if getattr(each, "name", "") == name)
    assert isinstance(node, ast.ClassDef)
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each.name: [argument.arg for argument in each.args.args] for each in functions}


VLLM = "vllm_rollout/vllm_async_server.py"
SGLANG = "sglang_rollout/async_sglang_server.py"


def test_verl_knows_both_engines_by_the_names_that_users_choose_them_by() -> None:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    assert {"sglang", "vllm"} <= set(RolloutReplicaRegistry._registry)


@pytest.mark.parametrize(("file", "name"), [(VLLM, "vLLMHttpServer"), (SGLANG, "SGLangHttpServer")])
def test_both_servers_sample_tokens_for_token_ids(file: str, name: str) -> None:
    """If this fails read rollout/turn_sampler.py."""
    found = methods(file, name)

    assert found["generate"][:4] == ["self", "prompt_ids", "sampling_params", "request_id"]
    assert {"get_server_address", "abort_all_requests", "resume_generation", "set_global_steps"} <= set(found)


@pytest.mark.parametrize("key", ["max_tokens", "logprobs"])
def test_both_servers_read_the_sampling_parameters_that_our_loops_send(key: str) -> None:
    """`stop` and `stop_token_ids` go to the engine, which has both under these names."""
    assert all(f'"{key}"' in source(file) for file in (VLLM, SGLANG))
    assert "SamplingParams(max_tokens=max_tokens, **sampling_params)" in source(VLLM)


def test_vllm_keeps_its_tokenizer_so_that_turns_may_end_at_texts() -> None:
    """If this fails `_check_stop` in rollout/loop_parts.py must refuse vLLM as it refuses SGLang."""
    assert '"skip_tokenizer_init": False' in source(VLLM)


def test_vllm_serves_metrics_only_if_it_keeps_statistics_which_every_router_asks_for() -> None:
    """If this fails read configs/router/kv_forecast.yaml and routing/engine_load.py."""
    from hydra import compose, initialize_config_module

    assert '"disable_log_stats": self.config.disable_log_stats' in source(VLLM)
    with initialize_config_module("verl.trainer.config", version_base=None):
        stock, routed = (compose("ppo_trainer", overrides) for overrides in ([], ["+router=kv_admission"]))

    assert stock.actor_rollout_ref.rollout.disable_log_stats is True
    assert routed.actor_rollout_ref.rollout.disable_log_stats is False


def test_what_was_aborted_has_the_reason_by_which_our_loops_sample_it_again() -> None:
    """If this fails read `_ABORTED` in rollout/turn_sampler.py."""
    assert 'stop_reason = "aborted"' in source(VLLM)
