"""A real TransferQueue with finished groups in it, as verl's agent loop workers put them there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_dumps import DumpedTurn, encode_transcript
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason

PARTITION = "train"


@contextmanager
def transfer_queue() -> Iterator[None]:
    """Run a TransferQueue on a Ray of its own until the block ends."""
    import ray
    import transfer_queue as tq
    from hydra import compose, initialize_config_module

    ray.init(address="local", num_cpus=16, include_dashboard=False, log_to_driver=False)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer").transfer_queue
    config.enable = True
    config.backend.SimpleStorage.num_data_storage_units = 1
    try:
        tq.init(config)
        yield
        tq.close()
    finally:
        ray.shutdown()


def sampler_kwargs(folder: object = None, **resampling: object) -> DictConfig:
    """Keyword arguments of the sampler, as the config of the method fills them in."""
    return OmegaConf.create(
        {
            "poll_interval": 0.01,
            "max_undecided_batches": 3,
            "group_size": resampling["group_size"],
            "rollout_data_dir": folder,
            "validation_data_dir": None,
            "record": "all",
            "resampling": resampling,
        }
    )


def announce(uids: Sequence[str], step: int = 1) -> None:
    """Write prompts whose rollouts have not ended yet."""
    import transfer_queue as tq

    tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in uids]
    tq.kv_batch_put(keys=list(uids), partition_id=PARTITION, tags=tags)


def rollout_fields(
    score: float | None,
    num_errors: int = 0,
    num_calls: int = 2,
    code: str = "1 + 2",
    turns: Sequence[DumpedTurn] = (),
    num_answers: int = 1,
    mask: Sequence[int] = (),
) -> dict[str, Any]:
    """Extra fields that the tool loop and the reward manager write into one row.

    Args:
        score: Score of the rollout; None is undecided.
        num_errors: Calls that failed.
        num_calls: Calls of the rollout.
        code: Code of each call.
        turns: Turns of the rollout for a dump; none if nothing is dumped.
        num_answers: Answers between format tags.
        mask: Mask of the response, for a dump.
    """
    calls = [
        CallRecord(
            turn=number, name="jupyter_code", arguments={"code": code}, num_tokens=3, seconds=0.1,
            status=CallStatus.TOOL_ERROR if number < num_errors else CallStatus.OK,
        )
        for number in range(num_calls)
    ]  # fmt: skip
    record = make_record(
        stop_reason=StopReason.TOOL_FAILURE if score is None else StopReason.ANSWERED, calls=tuple(calls),
        turn_tokens=(5,) * (num_calls + 1), response_tokens=40, generate_seconds=1.0, tool_seconds=0.1,
        num_answers=num_answers,
    )  # fmt: skip
    undecided = {"score": float("nan"), "undecided": 1.0, "verifier": "outcome", "reason": "tool_failure"}
    fields = {
        "reward_extra_info": undecided if score is None else {"score": score, "undecided": 0.0, "acc": score},
        "rollout": record.as_dict(),
    }
    return {**fields, "transcript": encode_transcript({}, record, turns, mask)} if turns else fields


def trainer_config(*, train_batch_size: int, mini_batch_size: int, group_size: int, num_gpus: int = 1) -> DictConfig:
    """`trainer.v1.sync` inside a config of verl, as the trainer hands it to the sampler."""
    actor = {"ppo_mini_batch_size": mini_batch_size, "use_dynamic_bsz": True, "ppo_micro_batch_size_per_gpu": None}
    config = OmegaConf.create(
        {
            "pivot": {"rollout": {"format_tag": "answer"}},
            "data": {"train_batch_size": train_batch_size},
            "actor_rollout_ref": {"actor": actor, "rollout": {"n": group_size}},
            "trainer": {"n_gpus_per_node": num_gpus, "nnodes": 1, "v1": {"sync": {}}},
        }
    )
    return config.trainer.v1.sync


def finish(
    uid: str,
    rollouts: Sequence[dict[str, Any]],
    step: int = 1,
    status: str = "finished",
    sessions: Sequence[int] | None = None,
) -> None:
    """Write the rows of a group in the order in which they ended, and mark the group as finished.

    Args:
        sessions: [num_rollouts] position of each rollout in the order of sampling; by default the order of `rollouts`.
    """
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    if rollouts:
        fields = [{"responses": torch.arange(40), "extra_fields": each} for each in rollouts]
        tags = [{"status": "success", "seq_len": 60, "response_len": 40, "global_steps": step} for _ in rollouts]
        tq.kv_batch_put(
            keys=[f"{uid}_{session}_0" for session in sessions or range(len(rollouts))],
            fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=PARTITION,
        )  # fmt: skip
    tq.kv_put(key=uid, partition_id=PARTITION, tag={"status": status})


def clear() -> None:
    """Remove everything from the queue."""
    import transfer_queue as tq

    if keys := list((tq.kv_list() or {}).get(PARTITION, {})):
        tq.kv_clear(keys=keys, partition_id=PARTITION)


def rows_left() -> list[str]:
    """Keys of the rollouts that are in the queue."""
    import transfer_queue as tq

    return sorted(key for key in (tq.kv_list() or {}).get(PARTITION, {}) if "_" in key)
