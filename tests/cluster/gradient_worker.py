"""One of verl's training workers: a folder, its rank, the number of workers -> the gradient of each case.

Reads `cases.json` of `tests/cluster/test_gradients.py`; rank 0 writes `NUMBER_OF_WORKERS-CASE.pt`. The workers are
verl's own, over gloo and without Ray, and all cases have the same rows.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

folder, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cases = json.loads((folder / "cases.json").read_text())
os.environ |= cases["variables"]
os.environ |= {
    "RANK": str(rank),
    "WORLD_SIZE": str(world_size),
    "DIST_INIT_METHOD": f"file://{folder}/meet-{world_size}",
}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import torch  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.plugin.platform import set_platform  # noqa: E402

from verl_pivot.local.platform import CpuPlatform, activate  # noqa: E402

activate()
set_platform(CpuPlatform())

from verl.trainer.ppo.padding_utils import construct_minimal_padding_template  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.tensordict_utils import list_of_dict_to_tensordict  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

import verl_pivot.objective.policy_loss  # noqa: E402, F401  registers its loss with verl

NUM_PROMPT_TOKENS = (5, 3, 9, 4, 6, 2, 7)
NUM_RESPONSE_TOKENS = (4, 11, 1, 7, 3, 9, 6)
MASKED = 2
"""Index of the row whose tokens are all masked, so that it adds nothing to the update."""


def make_rows(multiple: int) -> list[dict[str, Any]]:
    """Seven rows of unequal lengths with masked observations in them, padded as verl pads a batch."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number, (num_prompt, num_response) in enumerate(zip(NUM_PROMPT_TOKENS, NUM_RESPONSE_TOKENS, strict=True)):
        ids = torch.randint(3, 200, (num_prompt + num_response,), generator=generator)
        mask = torch.full((num_response,), int(number != MASKED))
        mask[1::4] = 0
        rows.append(
            {
                "prompts": ids[:num_prompt], "responses": ids[num_prompt:], "input_ids": ids,
                "position_ids": torch.arange(len(ids)), "response_mask": mask, "loss_mask": mask,
                "old_log_probs": -6 - torch.rand(num_response, generator=generator),
                "ref_log_prob": -6 - torch.rand(num_response, generator=generator),
                "advantages": torch.full((num_response,), (-1.0) ** number * (1 + number / 4)) * mask,
            }
        )  # fmt: skip
    padding, _ = construct_minimal_padding_template(rows[0], {}, eos_token_id=0)
    computed = dict.fromkeys(("old_log_probs", "ref_log_prob", "advantages"), torch.zeros(1))
    while len(rows) % multiple:
        rows.append({**{column: padding[column] for column in rows[0]}, **computed})
    return rows


def own_share(worker: ActorRolloutRefWorker, case: dict[str, Any], config: DictConfig) -> TensorDict:
    """Rows that verl would hand to this worker."""
    engine, rows = worker.actor.engine, make_rows(case["multiple"])
    share = len(rows) // engine.get_data_parallel_size()
    data = list_of_dict_to_tensordict(rows[engine.get_data_parallel_rank() * share :][:share])
    tu.assign_non_tensor(
        data, temperature=1.0, calculate_entropy=config.actor.entropy_coeff != 0.0, global_batch_size=8,
        use_remove_padding=config.model.use_remove_padding, use_fused_kernels=False, **case["micro_batches"],
    )  # fmt: skip
    return data


def gradient(worker: ActorRolloutRefWorker, case: dict[str, Any], config: DictConfig) -> dict[str, torch.Tensor]:
    """{parameter: its gradient over the rows of all workers}"""
    engine, loss = worker.actor.engine, partial(ppo_loss, config=omega_conf_to_dataclass(config.actor))
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(own_share(worker, case, config), loss)
        grads = {name: weight.grad for name, weight in engine.module.named_parameters() if weight.grad is not None}
        return {name: grad.full_tensor().clone() for name, grad in grads.items()}


def main() -> None:
    workers: dict[str, ActorRolloutRefWorker] = {}
    for name, case in cases["cases"].items():
        if world_size not in case["world_sizes"]:
            continue
        if case["kind"] not in workers:
            torch.manual_seed(0)  # seeds the first weights of an adapter
            worker = workers[case["kind"]] = ActorRolloutRefWorker(
                OmegaConf.load(folder / f"{name}.yaml"), role="actor"
            )
            worker.init_model()
        found = gradient(workers[case["kind"]], case, OmegaConf.load(folder / f"{name}.yaml"))
        if rank == 0:
            torch.save(found, folder / f"{world_size}-{name}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


main()
