"""`verl-pivot plan`: a plan of real trajectories, commands that run as printed, and what it refuses."""

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module
from typer.testing import CliRunner, Result

from tests.support.factories import FIND_ORDER, USER
from tests.support.fake_engine import Answer, FakeServer, fake_server, sglang_sample
from tests.support.paths import SHARED_DATA
from tests.support.tiny_model import write_tokenizer
from verl_pivot.cli import app
from verl_pivot.commands.plan import engine_words
from verl_pivot.launch import check_config
from verl_pivot.profiling.profiles import read_profiles
from verl_pivot.types import JsonObject, Message, Role, ToolCall

NUM_TRAJECTORIES = 40
CALL_TEXT = '<tool_call>{"name": "find_order", "arguments": {"order_id": 17}}</tool_call>'


def changing_policy(folder: Path) -> Callable[[str, JsonObject], Answer]:
    """Answers by prompt and seed: at some prompts every second sample is the call, at others none is."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    call, text = (tokenizer.encode(each + "<|im_end|>") for each in (CALL_TEXT, "Hello."))

    def sample(prompt_ids: object, parameters: object) -> JsonObject:
        assert isinstance(prompt_ids, list), prompt_ids
        assert isinstance(parameters, dict), parameters
        is_call = sum(prompt_ids) % 3 and parameters["sampling_seed"] % 2
        return sglang_sample(call if is_call else text, cached=2)

    def answer(path: str, body: JsonObject) -> Answer:
        prompts, parameters = body["input_ids"], body["sampling_params"]
        assert isinstance(prompts, list), prompts
        assert isinstance(parameters, list), parameters
        return Answer(body=list(map(sample, prompts, parameters)))

    return answer


def write_runs(path: Path, num_trajectories: int = NUM_TRAJECTORIES, *, tools: bool = True) -> Path:
    """Write logs of OpenAI's form: a question, a call, its result and an answer; no two questions are equal."""
    with path.open("w") as file:
        for number in range(num_trajectories):
            question = Message(role=Role.USER, content=f"{USER.content} I am customer {number}.")
            call = Message(
                role=Role.ASSISTANT, tool_calls=(ToolCall(id="c", name="find_order", arguments={"order_id": 17}),)
            )
            result = Message(role=Role.TOOL, content=f"sent on day {number}", tool_call_id="c", name="find_order")
            answer = Message(role=Role.ASSISTANT, content="It is on its way.")
            row: JsonObject = {"messages": [each.as_dict() for each in (question, call, result, answer)], "reward": 1}
            if tools:
                row["tools"] = [FIND_ORDER]
            file.write(json.dumps({"id": f"run-{number}", **row}) + "\n")
    return path


def plan(*arguments: str | Path, command: str = "plan") -> Result:
    """Run a command in this process, which is faster."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, *map(str, arguments)], catch_exceptions=False)


def refusal(*arguments: str | Path) -> str:
    done = plan(*arguments)
    assert done.exit_code == 1, done.output
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return said.removeprefix("error: ")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a policy with a tokenizer and a config; beside a server, a plan needs nothing else."""
    return write_tokenizer(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def server(policy: Path) -> Iterator[FakeServer]:
    with fake_server(changing_policy(policy)) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of the commands, with logs in it."""
    monkeypatch.chdir(tmp_path)
    write_runs(tmp_path / "runs.jsonl")
    return tmp_path


def commands_in(output: str) -> list[list[str]]:
    """Words of the commands that a plan printed."""
    lines = output.partition("\nCommands\n")[2].splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ")]


@pytest.mark.heavy
def test_the_printed_commands_run_as_they_stand_and_find_as_many_pivots_as_expected(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    done = plan("runs.jsonl", "--model", policy, "--endpoint", server.url, "--num-profiled", "20")

    assert done.exit_code == 0, done.output
    written = json.loads((folder / "plan" / "plan.json").read_text())
    import_, profile, select, launch = commands_in(done.stdout)
    assert [words[:2] for words in (import_, profile, select)] == [
        ["verl-pivot", "import"], ["verl-pivot", "profile"], ["verl-pivot", "select"]
    ]  # fmt: skip
    for words in (import_, profile, select):
        assert plan(*words[2:], command=words[1]).exit_code == 0
    num_pivots = sum(
        pyarrow.parquet.read_metadata(folder / "plan" / name).num_rows
        for name in ("pivots.parquet", "pivots.validation.parquet")
    )
    assert written["pivots"]["low"] <= num_pivots <= written["pivots"]["high"]
    assert 0 < num_pivots < 2 * NUM_TRAJECTORIES
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=launch[3:])
    check_config(config, launch[3:])
    lengths = written["lengths"]
    assert (config.data.max_prompt_length, config.data.max_response_length) == (
        lengths["max_prompt_tokens"], lengths["max_new_tokens"]
    )  # fmt: skip
    assert config.data.train_files == "plan/pivots.parquet"


@pytest.mark.heavy
def test_run_reuses_what_the_plan_did_and_writes_the_bytes_of_the_commands(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    options = ("--model", policy, "--endpoint", server.url, "--num-profiled", "10", "--samples", "4")
    planned = plan("runs.jsonl", *options)
    num_requests = len(server.requests)
    by_hand = {path.name: path.read_bytes() for path in (folder / "plan").iterdir() if path.suffix != ".json"}

    done = plan("runs.jsonl", *options, "--run")
    again = plan("runs.jsonl", *options, "--run")

    assert (planned.exit_code, done.exit_code, again.exit_code) == (0, 0, 0), done.output
    assert "rows" not in done.stderr  # nothing was imported again
    assert by_hand["trajectories.jsonl"] == (folder / "plan" / "trajectories.jsonl").read_bytes()
    assert len(read_profiles(folder / "plan" / "profile.jsonl")) == 2 * NUM_TRAJECTORIES
    num_requests_of_run = len(server.requests) - num_requests
    assert num_requests_of_run == pytest.approx(num_requests * 3, rel=0.2)  # 30 trajectories after the plan's 10
    assert "$ verl-pivot profile plan/trajectories.jsonl" in done.stdout
    assert "pivots to train on" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("  python -m verl.trainer.main_ppo +method=pivotrl ")
    shutil.rmtree(folder / "plan")
    for words in commands_in(planned.stdout)[:3]:
        plan(*words[2:], command=words[1])
    direct = (folder / "plan" / "profile.jsonl").read_bytes()
    shutil.rmtree(folder / "plan")
    plan("runs.jsonl", *options, "--run")
    assert (folder / "plan" / "profile.jsonl").read_bytes() == direct


@pytest.mark.heavy
def test_json_is_one_object_and_a_file_that_is_imported_is_not_imported_again(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    plan("runs.jsonl", "--out", "t.jsonl", command="import")

    done = plan("t.jsonl", "--model", policy, "--endpoint", server.url, "--json", "--run", "--tokens-per-second", "100")

    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["commands"]) == ["profile", "select", "launch"]
    assert found["trajectories"] == {
        "num_trajectories": 40, "num_turns": 80, "num_message_turns": 40, "num_without_schemas": 0
    }  # fmt: skip
    assert found["pivots"]["low"] == found["pivots"]["high"] > 0  # all 40 trajectories were drawn
    assert found["gpu_hours"]["speed"] == "100 tokens/s of 1 GPUs, as given"
    assert found["gpu_hours"]["profile"]["gpu_hours"] == 0.0
    assert [problem["text"][:33] for problem in found["problems"]] == ["40 of 80 turns are messages, for "]


@pytest.mark.heavy
def test_problems_of_the_rows_and_options_are_listed(folder: Path, policy: Path, server: FakeServer) -> None:
    write_runs(folder / "bare.jsonl", tools=False)
    options = ("--model", policy, "--endpoint", server.url, "--num-profiled", "5", "--samples", "2")

    refused = plan("bare.jsonl", *options, "--out", "bare")
    bare = plan("bare.jsonl", *options, "--out", "bare", "--allow-no-tools")
    imported = plan("bare/trajectories.jsonl", *options, "--out", "again", "--allow-no-tools")
    lines = (folder / "runs.jsonl").read_text().splitlines()[:38]
    bare_lines = (folder / "bare.jsonl").read_text().splitlines()[38:]
    (folder / "partly.jsonl").write_text("\n".join([*lines, *bare_lines, "{"]))
    partly = plan("partly.jsonl", *options, "--out", "partly")
    misspelt = plan("runs.jsonl", *options, "--verifier-options", '{"free_text": ["find_order.ordr_id"]}')
    short = plan("runs.jsonl", *options, "--max-new-tokens", "5", "--out", "short")

    assert (refused.exit_code, bare.exit_code, imported.exit_code) == (1, 0, 0)
    assert "--allow-no-tools" in refused.stderr
    assert "40 of 40 rows call tools but have no tool schemas" in bare.output
    assert "3 rows were rejected (2 no_tools, 1 not_json) and 38 kept" in " ".join(partly.stdout.split())
    assert "Options of the verifier name arguments that no tool schema has: find_order.ordr_id" in misspelt.stdout
    assert "of the experts' own actions have more than 5 tokens" in " ".join(short.stdout.split())


def test_without_any_pivot_the_plan_fails_and_says_why(folder: Path, policy: Path) -> None:
    def always_text(path: str, body: JsonObject) -> Answer:
        prompts = body["input_ids"]
        assert isinstance(prompts, list), prompts
        return Answer(body=[sglang_sample([258]) for _ in prompts])

    with fake_server(always_text) as server:
        done = plan("runs.jsonl", "--model", policy, "--endpoint", server.url, "--num-profiled", "5", "--run")

    assert done.exit_code == 1
    assert "No turn of the trial is a pivot (10 always wrong): this policy never does what these experts" in done.stdout
    assert not (folder / "plan" / "pivots.parquet").exists()


def test_mistakes_are_refused_in_one_sentence_before_anything_is_sampled(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    plan("runs.jsonl", "--out", "t.jsonl", command="import")
    (folder / "file").write_text("")
    known = ("--model", policy, "--endpoint", server.url)

    assert refusal("none.jsonl", *known).startswith("there is no file none.jsonl in ")
    assert refusal("runs.jsonl", "--model", "nowhere").startswith("--model 'nowhere' cannot be loaded by transformers")
    assert refusal("t.jsonl", *known, "--verifier", "qa") == (
        "t.jsonl is imported already, so --verifier cannot change it; import its rows again"
    )
    assert refusal("t.jsonl", "runs.jsonl", *known).startswith("t.jsonl is imported already; give that file alone")
    assert refusal("runs.jsonl", *known, "--openai", "http://x").startswith("--endpoint and --openai were both given")
    assert refusal("runs.jsonl", *known, "--verifier", "tool_cal").startswith("unknown verifier 'tool_cal'; known: ")
    assert refusal("runs.jsonl", *known, "--verifier-options", '{"mod": 1}').startswith("verifier tool_call.mod:")
    assert refusal("runs.jsonl", *known, "--max-prompt-tokens", "9", "--out", "n").startswith(
        "every prompt is overlong: the shortest of 80 has "
    )
    assert refusal("runs.jsonl", *known, "--max-prompt-tokens", "16000", "--max-new-tokens", "400") == (
        "--max-prompt-tokens 16000 and --max-new-tokens 400 are more than the 16384 tokens of the model's context; "
        "lower one of them"
    )
    assert "file" in refusal("runs.jsonl", *known, "--out", "file")
    assert refusal("runs.jsonl", *known, "--tokens-per-second", "0").startswith("--tokens-per-second must be above 0")
    assert server.requests == []


def test_options_of_a_verifier_may_be_longer_than_the_name_of_a_file(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    options = json.dumps({"free_text": [f"find_order.{'a' * 300}"]})

    said = refusal(
        *("runs.jsonl", "--model", policy, "--endpoint", server.url),
        *("--verifier-options", options, "--max-prompt-tokens", "9"),
    )

    assert said.startswith("every prompt is overlong")


@pytest.mark.parametrize(
    ("num_gpus", "parallel", "words"),
    [
        (8, 1, ("--server-flags=--tp-size 1 --dp-size 8", "--concurrency", "1024")),
        (8, 4, ("--server-flags=--tp-size 4 --dp-size 2", "--concurrency", "256")),
        (8, 8, ("--server-flags=--tp-size 8 --dp-size 1",)),
        (1, 1, ()),
    ],
)
def test_replicas_of_one_server_get_as_many_turns_at_once_as_servers_would(
    num_gpus: int, parallel: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_pivot.local.environment.has_accelerator", lambda: True)

    assert engine_words(None, None, "", num_gpus=num_gpus, parallel=parallel) == words
    assert engine_words(None, None, "--dp-size 2", num_gpus=8, parallel=1) == ("--server-flags=--dp-size 2",)


def test_a_plan_that_is_no_plan_and_other_lengths_in_the_same_folder_are_refused(
    folder: Path, policy: Path, server: FakeServer
) -> None:
    options = ("--model", policy, "--endpoint", server.url, "--num-profiled", "2", "--samples", "2")
    plan("runs.jsonl", *options)

    assert "max_new_tokens is 256 in the file and 99 now" in refusal("runs.jsonl", *options, "--max-new-tokens", "99")
    (folder / "plan" / "plan.json").write_text("{}")
    assert refusal("runs.jsonl", *options) == "plan/plan.json holds no plan; delete it, or choose another --out"


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="needs the trajectories of tau-bench")
def test_recorded_trajectories_of_tau_bench_are_planned(tmp_path: Path, policy: Path, server: FakeServer) -> None:
    runs = SHARED_DATA / "tau_airline" / "gpt-4o-airline.jsonl"
    tools = SHARED_DATA / "tau_airline" / "airline_tools.json"
    options = ("--model", policy, "--endpoint", server.url, "--samples", "2", "--num-profiled", "2")

    done = plan(runs, *options, "--tools", tools, "--out", tmp_path / "plan", "--json")

    found = json.loads(done.stdout)
    assert found["trajectories"] == {
        "num_trajectories": 63, "num_turns": 612, "num_message_turns": 358, "num_without_schemas": 0
    }  # fmt: skip
    assert found["lengths"]["max_prompt_tokens"] + found["lengths"]["max_new_tokens"] == 16384
    assert any("but the model's context ends at 16,384" in problem["text"] for problem in found["problems"])
