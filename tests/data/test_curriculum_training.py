"""The curriculum inside verl: verl's dataloader saves and restores it, and the stock trainer draws pivots with it."""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module

from tests.support.factories import ANSWER
from tests.support.launching import LAUNCH_SECONDS, cli, launch, step_metrics, training
from tests.support.paths import SHARED_DATA
from tests.support.tiny_model import set_end_tokens, write_model
from verl_pivot.data.pivots import SCHEMA
from verl_pivot.errors import ConfigError, DataError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]

TAU = SHARED_DATA / "tau_airline"
SEESAW = """
from collections import Counter
from verl_pivot.types import Verdict
from verl_pivot.verifiers.registry import get_verifier, register

calls = Counter()

@register("seesaw")
async def seesaw(action, turn):
    verdict = await get_verifier("tool_call")(action, turn)
    calls[turn.trajectory_id] += 1
    solved = turn.metadata["solved"] or calls[turn.trajectory_id] % 2
    return Verdict(score=float(solved), reason=verdict.reason)
"""
"""Verifier with the reasons of `tool_call`; scores of solved rows are 1, those of others alternate between 1 and 0."""


@pytest.fixture(autouse=True)
def no_earlier_training_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the training dataset of other tests, since a process has only one."""
    monkeypatch.setattr("verl_pivot.data.dataset._training_curricula", [])


def write_pivots(
    path: Path, *, num_pivots: int = 10, prefix: str = "question", turns: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write pivots of which every other one is solved: all its rewards are 1, those of the others alternate.

    Args:
        path: File to write.
        num_pivots: Number of rows.
        prefix: Start of each row's id and of its last message.
        turns: Rows of another pivots.parquet, whose prompts, tools and experts these rows get, if any.
    """
    rows = [
        {
            "data_source": "made_up",
            "prompt": json.dumps(
                [
                    *(json.loads(turns[number]["prompt"]) if turns else ()),
                    {"role": "user", "content": f"{prefix} {number}."},
                ]
            ),
            "tools": turns[number]["tools"] if turns else "[]",
            "expert": turns[number]["expert"] if turns else json.dumps(ANSWER.as_dict()),
            "verifier": "seesaw",
            "verifier_options": "{}",
            "metadata": json.dumps({"solved": number % 2 == 0}),
            "trajectory_id": f"{prefix}-{number}",
            "turn_index": 0,
            "reward_mean": 0.5,
            "reward_var": 0.25,
            "num_prompt_tokens": turns[number]["num_prompt_tokens"] if turns else 20,
            "agent_name": "pivot_turn",
            "split": "train",
            "ability": "agent",
        }
        for number in range(num_pivots)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), path)
    return path


def data_config(train: Path, *overrides: str) -> Any:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                "+method=pivotrl",
                f"data.train_files={train}",
                f"data.val_files={write_pivots(train.with_name('validation.parquet'), num_pivots=4, prefix='check')}",
                "data.train_batch_size=4",
                "data.seed=7",
                "pivot.curriculum.enabled=True",
                *overrides,
            ],
        )
    return config.data


class Training:
    """verl's dataloader over our dataset, with a curriculum that observes every other pivot as solved."""

    def __init__(self, config: Any) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
        from verl.utils.dataset.rl_dataset import collate_fn

        dataset = create_rl_dataset(config.train_files, config, None, None)
        create_rl_dataset(config.val_files, config, None, None, is_train=False)
        self.loader = StatefulDataLoader(
            dataset,
            batch_size=config.train_batch_size,
            num_workers=config.dataloader_num_workers,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(config, dataset),
        )

    def steps(self, first: int) -> Iterator[list[int]]:
        """Yield the pivots of each step, over as many epochs as the caller reads."""
        from verl_pivot.data.dataset import training_curriculum

        curriculum = training_curriculum()
        assert curriculum is not None
        batches = chain.from_iterable(repeat(self.loader))
        for step, batch in enumerate(batches, start=first):
            pivots = [int(pivot) for pivot in batch["index"]]
            curriculum.observe(step, [(pivot, [1.0, float(pivot % 2 == 0)]) for pivot in pivots])
            yield pivots


def through_file(state: object) -> Any:
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_resumed_run_draws_the_same_pivots_as_an_uninterrupted_one(tmp_path: Path, shuffle: bool) -> None:
    """A run may be killed after any step: within an epoch, at its end, before and after a re-profiling."""
    config = data_config(write_pivots(tmp_path / "train.parquet"), f"data.shuffle={shuffle}",
                         "pivot.curriculum.reprofile_every=5")  # fmt: skip
    uninterrupted = Training(config)
    states, drawn = [uninterrupted.loader.state_dict()], []
    for pivots in islice(uninterrupted.steps(1), 14):
        drawn.append(pivots)
        states.append(uninterrupted.loader.state_dict())

    for step, state in enumerate(map(through_file, states[:-1])):
        resumed = Training(config)
        resumed.loader.load_state_dict(state)
        assert list(islice(resumed.steps(step + 1), 14 - step)) == drawn[step:]

    assert {pivot for pivots in drawn[6:] for pivot in pivots} >= {1, 3, 5, 7, 9}
    num_solved_draws = sum(pivot % 2 == 0 for pivots in drawn[6:] for pivot in pivots)
    assert num_solved_draws < 8  # only re-profilings draw solved pivots; verl's own order would draw about 16


def test_validation_rows_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    from verl.trainer.ppo.utils import create_rl_dataset

    config = data_config(write_pivots(tmp_path / "train.parquet"))

    dataset = create_rl_dataset(config.val_files, config, None, None, is_train=False)

    assert [dataset[position]["trajectory_id"] for position in range(4)] == [f"check-{n}" for n in range(4)]
    assert not hasattr(dataset, "state_dict")


def test_a_checkpoint_of_other_pivots_is_refused(tmp_path: Path) -> None:
    first = Training(data_config(write_pivots(tmp_path / "train.parquet")))
    second = Training(data_config(write_pivots(tmp_path / "other.parquet", prefix="other")))

    second.loader.load_state_dict(first.loader.state_dict())

    with pytest.raises(DataError, match=r"was saved for other pivots than those of data\.train_files"):
        next(iter(second.loader))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.dataloader_num_workers=8", r"needs data\.dataloader_num_workers=0.*got 8"),
        ("data.val_files=${data.train_files}", r"data\.val_files must differ from data\.train_files"),
        ("+pivot.curriculum.retire=3", r"pivot\.curriculum\.retire: unknown key; known: "),
        ("pivot.curriculum.retire_visits=0", r"pivot\.curriculum\.retire_visits: .* greater than or equal to 1, got 0"),
    ],
)
def test_impossible_settings_stop_the_run_before_training(tmp_path: Path, override: str, message: str) -> None:
    config = data_config(write_pivots(tmp_path / "train.parquet"), override)

    with pytest.raises(ConfigError, match=message):
        Training(config)


def test_rows_without_a_profile_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"]}), path)

    with pytest.raises(ConfigError, match="that `verl-pivot select` wrote"):
        Training(data_config(path, "data.filter_overlong_prompts=False"))


def drawn_by_step(folder: Path) -> dict[int, set[int]]:
    """{step: pivots} in verl's own dump of the rollouts."""
    steps = {}
    for path in folder.glob("*.jsonl"):
        inputs = [json.loads(line)["input"] for line in path.read_text().splitlines()]
        steps[int(path.stem)] = {int(number) for text in inputs for number in re.findall(r"question (\d+)\.", text)}
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Run of four steps of the stock trainer on ten pivots in batches of four; five pivots are solved."""

    folder: Path
    pivots: Path
    done: CompletedProcess[str]


def airline_texts() -> list[str]:
    """Texts of real trajectories and of their tools; empty if the data are not there."""
    if not TAU.is_dir():
        return []
    rows = map(json.loads, (TAU / "gpt-4o-airline.jsonl").read_text().splitlines())
    tools = (TAU / "airline_tools.json").read_text()
    return [*(message["content"] or "" for row in rows for message in row["traj"]), *[tools] * 50]


def airline_turns(folder: Path, model: Path) -> list[dict[str, Any]]:
    """Every sixteenth row of the pivots that import and select make of the airline trajectories."""
    if not TAU.is_dir():
        return []
    trajectories, pivots = folder / "airline.jsonl", folder / "airline.parquet"
    for command in (
        ("import", TAU / "gpt-4o-airline.jsonl", "--tools", TAU / "airline_tools.json", "--out", trajectories),
        ("select", trajectories, "--keep", "all", "--model", model, "--max-prompt-tokens", "5120", "--out", pivots),
    ):
        done = cli(*command)
        assert done.returncode == 0, done.stderr
    return pyarrow.parquet.read_table(pivots).to_pylist()[::16]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Launch that the tests below examine, on real turns if their data are there. Every token ends a turn."""
    folder = tmp_path_factory.mktemp("curriculum")
    model = write_model(folder / "model", corpus=airline_texts())
    set_end_tokens(model, list(range(json.loads((model / "config.json").read_text())["vocab_size"])))
    turns = airline_turns(folder, model)
    pivots = write_pivots(folder / "pivots.parquet", turns=turns[:10])
    write_pivots(folder / "pivots.validation.parquet", num_pivots=4, prefix="check", turns=turns[10:14])
    verifier = folder / "seesaw.py"
    verifier.write_text(SEESAW)
    done = launch(
        folder,
        "+method=pivotrl",
        "+local=cpu",
        "pivot.trial_steps=null",
        *training(model, pivots, batch_size=4, n=2, num_steps=4),
        f"pivot.verifier_modules=[{verifier}]",
        "pivot.curriculum.enabled=True",
        "pivot.curriculum.retire_visits=1",
        "data.max_prompt_length=5120",
        "data.max_response_length=24",
        "data.val_max_samples=2",
        "trainer.save_freq=2",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.rollout_data_dir={folder}/rollouts",
    )
    return Launch(folder=folder, pivots=pivots, done=done)


def test_the_stock_trainer_retires_solved_pivots_and_its_checkpoint_resumes_with_the_same_draws(
    launched: Launch,
) -> None:
    import torch

    assert launched.done.returncode == 0, launched.done.stdout[-3000:]
    resumed = Training(
        data_config(
            launched.pivots, "data.seed=null", "pivot.curriculum.retire_visits=1", "data.max_prompt_length=5120"
        )
    )
    checkpoint = launched.folder / "checkpoints" / "global_step_2" / "data.pt"
    resumed.loader.load_state_dict(torch.load(checkpoint, weights_only=False))

    drawn = drawn_by_step(launched.folder / "rollouts")
    assert sorted(drawn) == [1, 2, 3, 4]
    assert len(drawn[1] | drawn[2]) == 8
    assert drawn[4] < {1, 3, 5, 7, 9}
    assert list(map(set, islice(resumed.steps(3), 2))) == [drawn[3], drawn[4]]
    metrics = step_metrics(launched.done.stdout)
    assert metrics[3]["curriculum/retired"] == metrics[3]["curriculum/retired_solved"] == 5
    assert metrics[4]["pivot/mixed_groups"] == 1.0


@pytest.mark.skipif(not TAU.is_dir(), reason="needs ../shared/data/tau_airline")
def test_real_trajectories_train_for_four_steps_with_validation_before_and_after(launched: Launch) -> None:
    assert launched.done.returncode == 0, launched.done.stdout[-3000:]
    metrics = step_metrics(launched.done.stdout)
    assert sorted(metrics) == [0, 1, 2, 3, 4]
    assert all(metrics[step]["prompt_length/mean"] > 1000 for step in range(1, 5))
