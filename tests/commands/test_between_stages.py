"""`verl-pivot next-stage` and `hard-set`: the model and the problems of the next training stage."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import datasets
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.support.launching import MINIMAL, cli
from tests.support.rollout_records import dump_line
from tests.support.tiny_model import write_model, write_tokenizer
from verl_pivot.cli import app
from verl_pivot.data.prompts import prompt_id
from verl_pivot.errors import DataError
from verl_pivot.exports.checkpoints import ActorCheckpoint, find_actor, merge_arguments
from verl_pivot.local.environment import cpu_engine_variables
from verl_pivot.selection.hard_set import JudgedProblem, PassCount, Standing, judge, judge_problems
from verl_pivot.types import JsonObject

CHECKPOINT_WITH_VERL = """
import json, os, sys
from pathlib import Path
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

action, model_folder, run = sys.argv[1:]
torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # the weights stay, the optimizer's state does not
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
config = {"save_contents": ["model", "optimizer", "extra"], "load_contents": ["model", "optimizer", "extra"]}
tokenizer = AutoTokenizer.from_pretrained(model_folder)
manager = FSDPCheckpointManager(model, optimizer, schedule, processing_class=tokenizer, checkpoint_config=config)
if action == "save":
    for step in range(3):
        ids = torch.arange(20)[None] + step
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    manager.save_checkpoint(f"{run}/global_step_7/actor", global_step=7)
else:
    folder = find_latest_ckpt_path(run)
    assert Path(folder).name == "global_step_0", folder
    manager.load_checkpoint(f"{folder}/actor")
states = optimizer.state_dict()["state"].values()
moments = [float(state[name].to_local().double().abs().sum()) for state in states for name in ("exp_avg", "exp_avg_sq")]
seen = {"moments": moments, "steps": [float(state["step"]) for state in states], "schedule": schedule.last_epoch}
Path(f"{run}.{action}.{os.environ['RANK']}.json").write_text(json.dumps(seen))
torch.distributed.destroy_process_group()
"""


def checkpoint_with_verl(action: str, base: Path, run: Path) -> list[dict[str, object]]:
    """Save or load a run with verl's checkpoint manager on two ranks; returns the optimizer's state of each rank."""
    script = run.with_name("checkpoint.py")
    script.write_text(CHECKPOINT_WITH_VERL)
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *ranks, script, action, base, run], check=False, capture_output=True, text=True,
        env={**MINIMAL, **cpu_engine_variables(MINIMAL)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(run.with_name(f"{run.name}.{action}.{rank}.json").read_text()) for rank in (0, 1)]


class SavedRun(NamedTuple):
    """Run that verl saved after three updates, under the name of step 7."""

    base: Path
    folder: Path
    optimizer: list[dict[str, object]]
    """[num_ranks] state of the optimizer."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("saved")
    base, run = write_model(folder / "base"), folder / "run"
    optimizer = checkpoint_with_verl("save", base, run)
    (run / "latest_checkpointed_iteration.txt").write_text("7")
    (run / "global_step_7" / "data.pt").write_bytes(b"place in the data")
    return SavedRun(base, run, optimizer)


def make_run(folder: Path, *, step: int = 7, latest: str = "7") -> Path:
    """Make a run's folder with the policy of one step as Hugging Face weights; returns the folder of the weights."""
    (folder / "latest_checkpointed_iteration.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(latest)
    huggingface = folder / f"global_step_{step}" / "actor" / "huggingface"
    huggingface.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json"):
        (huggingface / name).write_text("{}")
    (huggingface / "model.safetensors").write_bytes(b"weights")
    return huggingface


def make_shards(folder: Path, *ranks: int, world_size: int = 4) -> Path:
    """Make a `global_step_7` with the shards of some ranks; returns that folder."""
    actor = folder / "global_step_7" / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world_size}))
    for rank in ranks:
        (actor / f"model_world_size_{world_size}_rank_{rank}.pt").write_bytes(b"shard")
    return actor.parent


def refusal(*arguments: str | Path) -> str:
    """The error message of a command that fails. It runs in this process, which is faster."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("error: "), done.stderr
    return done.stderr.removeprefix("error: ").strip()


@pytest.mark.slow
def test_shards_that_verl_saved_are_merged_to_exactly_their_weights_in_bfloat16(
    saved: SavedRun, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, out = saved.base, tmp_path / "next"

    done = cli("next-stage", saved.folder, "--out", out)

    assert done.returncode == 0, done.stderr
    assert f"  actor_rollout_ref.model.path={out} trainer.default_local_dir={out}-run" in done.stdout
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    after = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name].bfloat16(), after[name])] == []
    chat = [{"role": "user", "content": "Where is order 17?"}]
    ids = [AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, tokenize=True) for folder in (base, out)]
    assert ids[0] == ids[1]
    assert [path.name for path in tmp_path.iterdir()] == ["next"]


@pytest.mark.slow
def test_verl_goes_on_with_the_optimizer_and_its_schedule_at_step_0_of_the_next_stage(
    saved: SavedRun, tmp_path: Path
) -> None:
    out = tmp_path / "stage-2"

    done = cli("next-stage", saved.folder, "--out", out, "--keep-optimizer")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Wrote {out} from {saved.folder}/global_step_7.",
        "Change in the next launch:",
        f"  trainer.default_local_dir={out} trainer.resume_mode=auto",
        "Keep actor_rollout_ref.model.path, which gives the reference policy, and the number of GPUs.",
    ]
    shards = sorted(path.name for path in (out / "global_step_0" / "actor").glob("*.pt"))
    assert len(shards) == 6
    old = saved.folder / "global_step_7" / "actor"
    assert all((out / "global_step_0" / "actor" / name).samefile(old / name) for name in shards)
    assert not (out / "global_step_0" / "data.pt").exists()
    loaded = checkpoint_with_verl("load", saved.base, out)
    assert loaded == saved.optimizer
    assert loaded[0]["schedule"] == 3
    assert all(isinstance(moments := each["moments"], list) and sum(moments) > 0 for each in loaded)


def test_a_checkpoint_without_the_optimizer_cannot_be_carried(tmp_path: Path) -> None:
    step = make_shards(tmp_path / "run", 0, 1, world_size=2)

    message = refusal("next-stage", step, "--out", tmp_path / "next", "--keep-optimizer")

    assert message == (
        f"{step}/actor lacks 2 of the 2 files optim_*.pt that the optimizer needs to continue "
        "(optim_world_size_2_rank_0.pt): save with actor_rollout_ref.actor.checkpoint.save_contents="
        "[model,optimizer,extra], and copy the files of every node into this folder"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_shards_that_cannot_be_merged_leave_no_model_and_the_mergers_log(tmp_path: Path) -> None:
    step = make_shards(tmp_path / "run", 0, world_size=1)
    write_tokenizer(step / "actor" / "huggingface")

    message = refusal("next-stage", step, "--out", tmp_path / "next")

    assert message.startswith(f"verl's merger cannot merge {step}/actor: ")
    assert "Traceback" in (tmp_path / "next.merge.log").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.merge.log", "run"]


def test_weights_that_verl_saved_whole_are_hard_links_and_other_files_are_copies(tmp_path: Path) -> None:
    huggingface = make_run(tmp_path / "run")
    (huggingface / "modeling_own.py").write_text("own = True")
    out = tmp_path / "models" / "next"
    of_a_killed_command = out.parent / ".next.unfinished"
    of_a_killed_command.mkdir(parents=True)
    (of_a_killed_command / "model-00001-of-00009.safetensors").write_bytes(b"old")

    done = cli("next-stage", tmp_path / "run", "--out", out)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Wrote {out} (0.00 GB) from {tmp_path}/run/global_step_7.",
        "Change in the next launch:",
        f"  actor_rollout_ref.model.path={out} trainer.default_local_dir={out}-run trainer.resume_mode=auto",
        f"Give trainer.default_local_dir a new folder: in {tmp_path}/run verl would resume the old optimizer, weights "
        "and step count, whatever the model.",
    ]
    names = ["config.json", "model.safetensors", "modeling_own.py", "tokenizer_config.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert [(out / name).samefile(huggingface / name) for name in names] == [False, True, False, False]
    assert [path.name for path in out.parent.iterdir()] == ["next"]


def test_the_last_step_is_that_of_verls_tracker_file_and_another_can_be_given(tmp_path: Path) -> None:
    make_run(tmp_path, step=9, latest="10")
    make_run(tmp_path, step=10, latest="10\n")

    assert find_actor(tmp_path).step_folder == tmp_path / "global_step_10"
    assert find_actor(tmp_path / "global_step_9").step_folder == tmp_path / "global_step_9"


def test_whole_megatron_weights_are_taken_and_shards_are_merged_with_tied_embeddings(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_7" / "actor" / "model"
    (folder / "dist_ckpt").mkdir(parents=True)
    (folder / "huggingface").mkdir()
    (folder / "huggingface" / "config.json").write_text('{"tie_word_embeddings": true}')
    sharded = find_actor(tmp_path / "global_step_7")
    (folder / "huggingface" / "model.safetensors").write_bytes(b"weights")
    whole = find_actor(tmp_path / "global_step_7")

    assert (sharded.backend, whole.backend, whole.huggingface) == ("megatron", None, folder / "huggingface")
    assert merge_arguments(sharded, Path("next"), trust_remote_code=True) == [
        *("merge", "--backend", "megatron", "--local_dir", str(folder.parent), "--target_dir", "next"),
        *("--tie-word-embedding", "--trust-remote-code"),
    ]


def test_fsdp_shards_are_merged_as_verl_documents_it(tmp_path: Path) -> None:
    step = make_shards(tmp_path, 0, 1, 2, 3)

    actor = find_actor(step)

    assert actor == ActorCheckpoint(step_folder=step, huggingface=step / "actor" / "huggingface", backend="fsdp")
    assert merge_arguments(actor, Path("next"), trust_remote_code=False) == [
        *("merge", "--backend", "fsdp", "--local_dir", f"{step}/actor", "--target_dir", "next")
    ]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((), r"was saved without weights: train with 'model' in actor_rollout_ref.actor.checkpoint.save_contents"),
        (
            (0, 1),
            r"lacks the shards of 2 of 4 ranks \(2, 3\): copy model_world_size_4_rank_\*.pt of every node into it",
        ),
    ],
)
def test_incomplete_shards_are_not_merged(tmp_path: Path, ranks: Sequence[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_actor(make_shards(tmp_path, *ranks))


def test_a_lora_run_is_refused_since_the_merger_would_drop_its_adapter(tmp_path: Path) -> None:
    huggingface = make_run(tmp_path)
    (huggingface.parent / "lora_train_meta.json").write_text('{"r": 8}')

    with pytest.raises(DataError, match=r"holds a LoRA adapter.*merge_and_unload"):
        find_actor(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    make_run(tmp_path / "run", step=5, latest="7")
    (tmp_path / "run" / "global_step_6").mkdir()
    (tmp_path / "run" / "global_step_6" / "data.pt").write_bytes(b"")
    (tmp_path / "run" / "global_step_8" / "actor" / "weights_of_others").mkdir(parents=True)
    out = ("--out", tmp_path / "next")

    assert refusal("next-stage", tmp_path / "nowhere", *out) == (
        f"{tmp_path}/nowhere is no folder: give the run's trainer.default_local_dir, or a global_step_N in it"
    )
    assert refusal("next-stage", tmp_path, *out) == (
        f"{tmp_path} holds no latest_checkpointed_iteration.txt, which verl writes with a run's checkpoints, but run: "
        "give the run's trainer.default_local_dir, or a global_step_N in it"
    )
    assert refusal("next-stage", tmp_path / "run", *out) == (
        f"{tmp_path}/run/latest_checkpointed_iteration.txt names global_step_7, which does not exist; steps with an "
        "actor are global_step_5, global_step_8: give one of them"
    )
    assert refusal("next-stage", tmp_path / "run" / "global_step_6", *out).startswith(
        f"{tmp_path}/run/global_step_6 holds no folder 'actor' but data.pt; steps with an actor are global_step_5, "
        "global_step_8"
    )
    assert refusal("next-stage", tmp_path / "run" / "global_step_8", *out) == (
        f"{tmp_path}/run/global_step_8/actor holds neither Hugging Face weights nor shards of FSDP (fsdp_config.json) "
        "or Megatron (model/dist_ckpt) but weights_of_others: save with "
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_existing_model_is_not_overwritten_and_an_incomplete_one_is_not_written(tmp_path: Path) -> None:
    huggingface = make_run(tmp_path / "run")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    (huggingface / "tokenizer_config.json").unlink()

    assert refusal("next-stage", tmp_path / "run", "--out", tmp_path / "there") == (
        f"--out {tmp_path}/there exists already: give a new folder, or remove it"
    )
    assert refusal("next-stage", tmp_path / "run", "--out", tmp_path / "next").startswith(
        f"the model in {tmp_path}/run/global_step_7/actor is not complete: it lacks tokenizer_config.json: take "
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there"]


def test_weights_in_several_files_are_complete_only_with_all_files(tmp_path: Path) -> None:
    huggingface = make_run(tmp_path)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (huggingface / "model.safetensors").rename(huggingface / names[0])
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (huggingface / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(DataError, match="holds neither Hugging Face weights nor shards"):
        find_actor(tmp_path)
    (huggingface / names[1]).write_bytes(b"weights")
    assert find_actor(tmp_path).backend is None


# -- Hard set ---------------------------------------------------------------------------------------------------------


def question(text: str) -> list[JsonObject]:
    return [{"role": "system", "content": "Think."}, {"role": "user", "content": text}]


QUESTIONS = ["never", "sometimes", "always", "too few", "unseen", "undecided"]
SCORES: Mapping[str, Sequence[float | None]] = {
    "never": [0.0] * 8,
    "sometimes": [1.0] * 7 + [-1.0],
    "always": [1.0] * 8 + [None],
    "too few": [1.0] * 7,
    "undecided": [1.0] * 7 + [None],
}


def write_problems(path: Path, questions: Sequence[str] = QUESTIONS, *, column: str = "prompt") -> pyarrow.Table:
    """Write problems as verl's own preprocessing does, with two rows per row group and metadata; returns the table."""
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.large_string())])
    fields = {
        "data_source": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        column: pyarrow.list_(message),
        "reward_model": pyarrow.struct([("ground_truth", pyarrow.string())]),
        "number": pyarrow.int16(),
    }
    rows = [
        {"data_source": "dapo", column: question(text), "reward_model": {"ground_truth": text}, "number": number}
        for number, text in enumerate(questions)
    ]
    schema = pyarrow.schema(fields.items(), metadata={"huggingface": '{"info": 1}'})
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    pyarrow.parquet.write_table(table, path, row_group_size=2, use_compliant_nested_type=False)
    return pyarrow.parquet.read_table(path)


def write_dump(path: Path, scores: Mapping[str, Sequence[float | None]], *, session: int = 0) -> Path:
    """Write a dump of rollouts as the replay buffer does: {question: scores of its rollouts}."""
    with path.open("w") as file:
        for text, problem_scores in scores.items():
            for number, score in enumerate(problem_scores, start=session):
                uid = f"{text}-uuid_{number}_0"
                line = dump_line(uid, score, prompt_id=prompt_id(question(text)), generate_seconds=0.5)
                file.write(line.replace("0.5", "NaN"))  # NaN, as json.dumps writes it
    return path


def test_only_problems_solved_every_time_are_dropped_and_the_others_stay_unchanged(tmp_path: Path) -> None:
    problems, out = tmp_path / "train.parquet", tmp_path / "hard.parquet"
    table = write_problems(problems)
    dump = write_dump(tmp_path / "0.jsonl", SCORES)

    done = cli("hard-set", problems, "--rollouts", dump, "--out", out)

    assert done.returncode == 0, done.stderr
    kept = pyarrow.parquet.read_table(out)
    assert kept.equals(table.take([0, 1, 3, 4, 5]))
    assert kept.schema.equals(table.schema, check_metadata=True)
    assert pyarrow.parquet.read_schema(out) == pyarrow.parquet.read_schema(problems)
    files = [pyarrow.parquet.ParquetFile(path) for path in (problems, out)]
    assert str(files[0].schema).splitlines()[1:] == str(files[1].schema).splitlines()[1:]
    assert [files[1].metadata.row_group(group).num_rows for group in range(3)] == [2, 1, 2]
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert lines == [
        ["never right", "1", "kept"],
        ["sometimes right", "1", "kept"],
        ["always right", "1", "dropped"],
        ["too few decided rollouts", "2", "kept: fewer than 8"],
        ["not rolled out", "1", "kept"],
        ["kept", "5", ""],
    ]
    assert done.stdout.splitlines()[-2:] == [f"Wrote {out}, hard.png.", f"Next: data.train_files={out}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "hard.parquet", "hard.png", "train.parquet"]


def test_rollouts_of_several_dumps_add_up_and_rows_with_equal_prompts_share_them(tmp_path: Path) -> None:
    problems, out = tmp_path / "train.parquet", tmp_path / "hard.parquet"
    table = write_problems(problems, ["a", "b", "a", "c"], column="messages")
    first = write_dump(tmp_path / "0.jsonl", {"a": [1.0] * 4, "b": [1.0] * 4})
    second = write_dump(tmp_path / "1.jsonl", {"a": [1.0] * 4, "b": [0.0] * 4}, session=4)

    done = cli("hard-set", problems, "--rollouts", first, "--rollouts", second, "--out", out,
               "--prompt-key", "messages")  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert pyarrow.parquet.read_table(out).equals(table.take([1, 3]))


def test_a_problem_with_part_of_its_reward_is_not_solved_unless_the_user_says_so(tmp_path: Path) -> None:
    problems, out = tmp_path / "train.parquet", tmp_path / "hard.parquet"
    write_problems(problems, ["a", "b"])
    dump = write_dump(tmp_path / "0.jsonl", {"a": [0.2] * 8, "b": [1.0] * 8})

    assert cli("hard-set", problems, "--rollouts", dump, "--out", out).returncode == 0
    assert pyarrow.parquet.read_table(out)["number"].to_pylist() == [0]
    assert refusal("hard-set", problems, "--rollouts", dump, "--out", out, "--right-from", "0.2").startswith(
        "the policy always solves all 2 problems"
    )


def test_a_dump_given_twice_counts_once_and_so_do_the_parts_of_a_rollout(tmp_path: Path) -> None:
    problems = tmp_path / "train.parquet"
    write_problems(problems, ["a", "b"])
    dump = write_dump(tmp_path / "0.jsonl", {"a": [1.0] * 4, "b": [0.0]})
    parts = dump.read_text().replace('_0",', '_1",')
    dump.write_text(dump.read_text() + parts)
    twice = ("--rollouts", dump, "--rollouts", dump)

    assert refusal("hard-set", problems, *twice, "--out", tmp_path / "hard.parquet") == (
        "no problem has 8 decided rollouts, the most is 4: roll out with "
        "actor_rollout_ref.rollout.val_kwargs.n=8 or lower --min-rollouts"
    )
    assert cli("hard-set", problems, *twice, "--out", tmp_path / "hard.parquet", "--min-rollouts", "4").returncode == 0
    assert pyarrow.parquet.read_table(tmp_path / "hard.parquet")["number"].to_pylist() == [1]


def test_wrong_files_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    problems, out = tmp_path / "train.parquet", ("--out", tmp_path / "hard.parquet")
    write_problems(problems, ["a", "b"])
    solved = write_dump(tmp_path / "solved.jsonl", {"a": [1.0] * 8, "b": [1.0] * 8})
    others = write_dump(tmp_path / "others.jsonl", SCORES)
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"input": "a", "output": "b", "score": 1.0}\n')
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())

    assert refusal("hard-set", problems, "--rollouts", solved, *out) == (
        f"the policy always solves all 2 problems of {problems}, so nothing is left to train on: "
        "take harder problems, or sample more rollouts of each and raise --min-rollouts"
    )
    assert refusal("hard-set", problems, "--rollouts", others, *out) == (
        f"no problem of {problems} occurs in the rollouts: give the file that was data.val_files when they were "
        "sampled, and its column of prompts as --prompt-key"
    )
    assert refusal("hard-set", problems, "--rollouts", texts, *out) == (
        f"{texts}, line 1 is not a rollout (Object missing required field `uid`): give a file of the folder "
        "'pivot' in trainer.rollout_data_dir or trainer.validation_data_dir, written by this version of verl-pivot"
    )
    assert refusal("hard-set", problems, "--rollouts", empty, *out) == (
        f"{empty} is empty; leave it out, or write it again"
    )
    assert refusal("hard-set", problems, "--rollouts", solved, *out, "--prompt-key", "question") == (
        f"{problems} has no column 'question', only data_source, prompt, reward_model, number: set --prompt-key "
        "to the column of the chat messages"
    )
    assert refusal("hard-set", problems, "--rollouts", solved, *out, "--prompt-key", "number") == (
        f"{problems}, row 1: no prompt can be read: it is not a list of chat messages; set --prompt-key "
        "to the column of the chat messages"
    )
    assert refusal("hard-set", solved, "--rollouts", solved, *out).startswith(f"{solved} cannot be read as parquet: ")
    assert refusal("hard-set", problems, "--rollouts", solved, "--out", problems) == (
        f"--out {problems} is one of the inputs; choose another name, so that they are kept"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("count", "judged"),
    [
        (None, (Standing.UNSEEN, None)),
        (PassCount(8, 0, 0), (Standing.TOO_FEW, None)),
        (PassCount(9, 7, 7), (Standing.TOO_FEW, 1.0)),
        (PassCount(8, 8, 0), (Standing.NEVER_RIGHT, 0.0)),
        (PassCount(16, 16, 15), (Standing.SOMETIMES_RIGHT, 0.9375)),
        (PassCount(9, 8, 8), (Standing.ALWAYS_RIGHT, 1.0)),
    ],
)
def test_a_problem_is_judged_by_its_rollouts_with_a_score(
    count: PassCount | None, judged: tuple[Standing, float | None]
) -> None:
    assert judge(count, 8) == JudgedProblem(*judged)


def test_a_prompt_has_the_same_id_with_every_reader_of_parquet(tmp_path: Path) -> None:
    """verl and verl-pivot use different readers of Parquet, which give None for keys that a message lacks."""
    call: JsonObject = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[JsonObject] = [
        {"role": "user", "content": "Wie gro\u00df ist 1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "name": "add"},
    ]
    path = tmp_path / "one.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [messages]}), path)
    readings = [
        messages,
        pyarrow.parquet.read_table(path)["prompt"].to_pylist()[0],
        pandas.read_parquet(path)["prompt"][0],
        datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"][0]["prompt"],
    ]

    assert [prompt_id(reading) for reading in readings] == ["eb140b54fbfdc2a0"] * 4
    assert readings[1][0]["tool_calls"] is None
    assert prompt_id(messages[:1]) != prompt_id(messages[:2])


def test_prompts_stored_as_json_have_the_ids_of_their_messages(tmp_path: Path) -> None:
    """pivots.parquet stores prompts as JSON."""
    path = tmp_path / "pivots.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [json.dumps(question("a")), json.dumps(question("b"))]}), path)
    counts = {prompt_id(question("b")): PassCount(8, 8, 8)}

    hard_set = judge_problems(path, counts, min_rollouts=8, prompt_key="prompt")

    assert [problem.standing for problem in hard_set.judged] == [Standing.UNSEEN, Standing.ALWAYS_RIGHT]


def test_a_prompt_that_json_cannot_represent_has_no_id() -> None:
    with pytest.raises(TypeError, match="bytes is not JSON serializable"):
        prompt_id([{"role": "user", "content": [{"type": "image", "image": b"PNG"}]}])
