"""Everything that we use from verl exists in the form that we rely on. A failure names our file to read first."""

import inspect
from importlib.metadata import version

import pytest
from omegaconf import OmegaConf

from verl_pivot.hook_check import TESTED_RELEASE, is_tested_release
from verl_pivot.hooks import HOOKS, Hook


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("hook", HOOKS, ids=str)
def test_every_name_that_we_use_is_there_in_its_shape(hook: Hook) -> None:
    assert hook.difference() is None, f"read verl_pivot/{hook.used_by}"


def test_the_installed_verl_is_the_tested_release() -> None:
    assert version("verl") == TESTED_RELEASE
    assert is_tested_release()


@pytest.mark.parametrize(
    ("mode", "client"),
    [
        ("sync", "LLMServerClient"),
        ("colocate_async", "FullyAsyncLLMServerClient"),
        ("separate_async", "FullyAsyncLLMServerClient"),
    ],
)
def test_every_trainer_mode_asks_its_engines_through_a_client_that_our_loops_know(mode: str, client: str) -> None:
    """The asynchronous client resumes turns that an update cut; if this fails, see tests/rollout/test_tool_loop.py."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    source = inspect.getsource(get_trainer_cls(mode).get_llm_client)

    assert ("FullyAsyncLLMServerClient" in source) == (client == "FullyAsyncLLMServerClient")


@pytest.mark.parametrize("name", ["ReplayBuffer", "ReplayBufferAsync"])
def test_both_replay_buffers_are_made_and_cleared_alike(name: str) -> None:
    """If this fails read resampling/roc_replay_buffer.py beside verl's `sample`."""
    from verl.trainer.ppo.v1 import replay_buffer

    verls = getattr(replay_buffer, name)

    assert {"sampler_kwargs", "poll_interval", "refill_fn"} <= set(parameters(verls.__init__))
    assert parameters(verls._terminal_eviction_reasons) == ["self", "global_steps", "partition_id"]
    assert parameters(verls._evict_terminal_groups)[1:3] == ["global_steps", "partition_id"]
    assert parameters(verls._select_prompt_uids) == ["self", "partition_id", "sampleable_keys", "batch_size"]


def test_the_number_of_rollouts_is_a_field_of_the_prompt() -> None:
    """If this fails read rollout/manager.py."""
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.workers.config.rollout import AgentLoopConfig

    assert '.pop("__rollout_n__"' in inspect.getsource(agent_loop_tq)
    assert AgentLoopConfig().agent_loop_manager_class is None


def test_verl_takes_no_sampler_of_ours_so_the_dataset_draws() -> None:
    """If this fails verl has a sampler hook again: use it instead of PivotDataset.curriculum."""
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader.sampler import RandomSampler
    from verl.trainer.ppo.utils import create_rl_sampler
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"shuffle": True, "seed": 1, "sampler": {"class_path": "a", "class_name": "B"}})

    assert type(create_rl_sampler(config, [1, 2])) is RandomSampler
    assert "is_train" not in parameters(RLHFDataset.__init__)  # otherwise PivotDataset need not compare files


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


def test_verls_default_trainer_turns_traces_off_around_every_agent_loop() -> None:
    """If this fails verl traces by itself: read rollout/tracing.py and docs/dumps.md."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert "trace_this_sample = False" in inspect.getsource(agent_loop_tq)


def test_the_transcript_of_a_rollout_is_stored_but_not_sent_to_the_reward_manager() -> None:
    """If this fails read rewards/turn_rewards.py: `as_dict` adds the transcript after the reward was computed."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    source = inspect.getsource(agent_loop_tq)

    assert 0 < source.index("self._compute_score(") < source.index("output.as_dict()")


def test_the_sampler_can_choose_the_mini_batch_size_of_a_step() -> None:
    """If this fails read resampling/mini_batches.py: the sampler writes into the config that the trainer reads."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    config = OmegaConf.create({"trainer": {"v1": {"sync": {}}}})

    assert config.trainer.v1.get("sync", {})._get_root() is config
    assert "trainer_config=self.config.trainer.v1.get(self.trainer_mode" in inspect.getsource(PPOTrainer)
    for reader in (PPOTrainer._get_required_batch_multiple, PPOTrainer._update_actor):
        assert "self.config.actor_rollout_ref.actor.ppo_mini_batch_size" in inspect.getsource(reader)


def test_validation_takes_means_of_numbers_and_leaves_texts_out() -> None:
    """If this fails the record of judged turns, which rewards/manager.py gives as a text, breaks validation."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    infos = {"score": [1.0, 0.0], "process": ["{}", ""]}
    metrics = process_validation_metrics(["qa", "qa"], ["a", "b"], infos)

    assert list(metrics["qa"]) == ["score"]
    assert metrics["qa"]["score"]["mean@1"] == 0.5


async def test_a_reward_model_without_a_reward_function_takes_the_place_of_our_manager() -> None:
    """If this fails the refusal of `reward.reward_model` in launch_checks/owned_settings.py may go."""
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    class Worker(RewardLoopWorker):  # type: ignore[misc]  # verl is untyped here
        def __init__(self, path: str | None) -> None:
            reward = {"reward_model": {"enable": True}, "custom_reward_function": {"path": path}}
            self.config = OmegaConf.create({"reward": reward})
            self.reward_manager = self

        async def run_single(self, data: object) -> dict[str, str]:
            return {"by": "the manager"}

        async def compute_score_disrm(self, data: object) -> dict[str, str]:
            return {"by": "the reward model"}

    assert await Worker(None).compute_score([0]) == {"by": "the reward model"}
    assert await Worker("mine.py").compute_score([0]) == {"by": "the manager"}


def test_a_critic_is_loaded_with_flash_attention_whatever_its_config_says() -> None:
    """If this fails the shim in local/platform.py may go."""
    from verl.utils.model import load_valuehead_model

    assert inspect.getsource(load_valuehead_model).count('attn_implementation="flash_attention_2"') == 2
