"""SGLang servers: they end with the command that started them, and run without an accelerator through the shims."""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests.support.paths import ROOT
from tests.support.tiny_model import teach, write_model, write_tokenizer
from tests.support.tool_functions import add
from verl_pivot.cli import app
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.engines.engine import Sampling
from verl_pivot.engines.server import end_process_group, server_environment, server_flags, sglang_server
from verl_pivot.engines.sglang_engine import SGLangEngine
from verl_pivot.errors import EngineError
from verl_pivot.local.environment import GRPC_PORT, SHIMS, activate_shims, cpu_engine_variables, has_accelerator
from verl_pivot.tools.functions import FunctionTool

needs_sglang_on_cpu = pytest.mark.skipif(has_accelerator(), reason="shows SGLang on a machine without an accelerator")


def run_python(code: str, *path: Path | str) -> str:
    """Output of a fresh Python that has `path` as its PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_tied_process_dies_with_its_parent_even_if_the_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(300)")
    code = f"""
import subprocess
from verl_pivot.engines.server import tied_to_parent
child = subprocess.Popen(tied_to_parent("endless"), cwd={str(tmp_path)!r})
print(child.pid, flush=True)
child.wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))

        parent.kill()

        psutil.wait_procs([child], timeout=10)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_shims_import_nothing_by_themselves() -> None:
    code = "import sys; print({'torch', 'typing', 'sglang', 'torchvision', 'verl_pivot'} & set(sys.modules))"

    assert run_python(code, SHIMS) == "set()"


def test_shims_run_the_sitecustomize_that_they_hide(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.hidden = 'was run'")

    assert run_python("import sys; print(sys.hidden)", SHIMS, tmp_path) == "was run"
    assert run_python("import sys; print(sys.hidden)", tmp_path, SHIMS) == "was run"


def test_shims_are_activated_once_and_run_no_other_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.times = getattr(sys, 'times', 0) + 1")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from verl_pivot.local.environment import activate_shims
activate_shims(); activate_shims()
print(sys.times, sum(type(finder).__name__ == "Shims" for finder in sys.meta_path))
"""

    assert run_python(code, tmp_path) == "1 1"
    assert run_python(code, SHIMS, tmp_path) == "1 1"


def test_nothing_is_changed_where_torch_sees_an_accelerator(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("class accelerator:\n    device_count = staticmethod(lambda: 1)")
    (tmp_path / "sglang.py").write_text("")
    (tmp_path / "sgl_kernel.py").write_text("REAL = True")
    code = "import sglang, sgl_kernel, torch; print(sgl_kernel.REAL, hasattr(torch, 'tensor'))"

    assert run_python(code, SHIMS, tmp_path) == "True False"


@pytest.mark.heavy
@needs_sglang_on_cpu
def test_pinned_memory_and_kernels_are_replaced_when_sglang_is_imported(tmp_path: Path) -> None:
    (tmp_path / "sglang.py").write_text("")
    code = """
import torch, torchvision, sglang
from sgl_kernel.kvcacheio import transfer_kv_direct
print(torch.tensor([1], pin_memory=True).pin_memory().tolist())
try:
    transfer_kv_direct()
except RuntimeError as error:
    print(error)
try:
    from sgl_kernel import silu_and_mul
except ImportError:
    print("nothing else")
"""

    assert run_python(code, SHIMS, tmp_path).splitlines() == [
        "[1]",
        "sgl_kernel.kvcacheio.transfer_kv_direct needs an accelerator; leave SGLang's hierarchical cache off on a CPU",
        "nothing else",
    ]


@pytest.mark.heavy
@needs_sglang_on_cpu
def test_a_worker_of_verl_finds_no_kernels_that_need_a_gpu_even_beside_a_torch_made_for_cuda(tmp_path: Path) -> None:
    """This is the case on a login node, where all of requirements/sglang.txt is installed."""
    (tmp_path / "sgl_kernel.py").write_text("raise ImportError('Could not load any common_ops library')")
    code = """
import os, torch
torch.version.cuda = "13.0"
os.environ["VERL_PLATFORM"] = "cpu"  # as the runtime_env of +local=cpu says
import verl, sgl_kernel.kvcacheio
print("imported")
"""

    assert run_python(code, tmp_path, ROOT).splitlines()[-1] == "imported"


@pytest.mark.heavy
@needs_sglang_on_cpu
def test_a_model_that_is_loaded_after_sglang_has_all_its_values(tmp_path: Path) -> None:
    """The test reads values that no checkpoint holds: the frequencies of rotary embeddings."""
    (tmp_path / "sglang.py").write_text("")
    model = write_model(tmp_path / "model")
    code = f"""
import torch
import sglang
with torch.device("meta"):
    made = [torch.tensor(1), torch.empty(1), torch.zeros(1), torch.ones(1), torch.arange(1), torch.full((1,), 2)]
print({{each.device.type for each in made}}, torch.arange(1).device)
from transformers import AutoConfig, AutoModelForCausalLM
loaded = AutoModelForCausalLM.from_pretrained({str(model)!r}).model.rotary_emb.inv_freq
print(loaded.equal(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained({str(model)!r})).model.rotary_emb.inv_freq))
"""

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MALLOC_PERTURB_", "165")  # so that memory that nobody wrote holds no zeros by chance
        assert run_python(code, SHIMS, tmp_path).splitlines() == ["{'meta'} cpu", "True"]


def test_a_server_with_an_accelerator_gets_no_flags_for_the_cpu() -> None:
    flags = server_flags("policy", port=80, seed=3, on_cpu=False)

    assert flags[:8] == ("--model-path", "policy", "--host", "127.0.0.1", "--port", "80", "--random-seed", "3")
    assert flags[-3:] == ("--dtype", "bfloat16", "--disable-piecewise-cuda-graph")  # precision of verl's rollout.dtype
    assert "--device" not in flags
    assert server_flags("policy", port=80, seed=3, on_cpu=True)[len(flags) - 3 :][:2] == ("--device", "cpu")


def test_looking_for_an_accelerator_opens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.is_available` would open one, and a process that is forked later could not use the GPU."""
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: pytest.fail("this opens CUDA"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)

    assert has_accelerator()


def test_only_a_cpu_server_gets_the_shims(tmp_path: Path) -> None:
    ours = {"PYTHONPATH": f"a{os.pathsep}{SHIMS}", "NO_PROXY": "intranet", "HOME": "/home/me"}

    plain, on_cpu = (server_environment(ours, str(tmp_path), on_cpu=on_cpu) for on_cpu in (False, True))

    no_proxy = {"NO_PROXY": "intranet,127.0.0.1", "no_proxy": "intranet,127.0.0.1"}
    assert plain == {**ours, **no_proxy, "HF_HUB_OFFLINE": "1", "SGLANG_GRPC_PORT": "50051"}
    assert on_cpu == plain | cpu_engine_variables(ours)
    assert on_cpu["PYTHONPATH"] == f"{SHIMS}{os.pathsep}a"


@pytest.mark.parametrize("handling", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_process_group_is_ended_with_its_children_even_if_it_ignores_sigterm(tmp_path: Path, handling: str) -> None:
    code = f"""
import pathlib, signal, subprocess, sys, time
{handling}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        time.sleep(0.01)
    child = psutil.Process(int((tmp_path / "child").read_text()))

    end_process_group(process, grace_seconds=0.3)

    assert process.returncode == (-signal.SIGKILL if handling else -signal.SIGTERM)
    wait_until_gone(child)


def wait_until_gone(process: psutil.Process, seconds: float = 10.0) -> None:
    """Wait until a process has ended; a zombie counts, since an orphan's new parent may not reap it at once."""
    deadline = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, process
        time.sleep(0.05)


@pytest.mark.slow
@needs_sglang_on_cpu
def test_a_server_that_does_not_start_is_explained_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with (
        pytest.raises(EngineError, match=r"(?s)exited while starting; its log .*server.log ends with:\n.*model_type"),
        sglang_server(str(tmp_path), log=tmp_path / "server.log"),
    ):
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """SGLang server that the process `parent` started and ends when it exits."""

    parent: "subprocess.Popen[str]"
    model: str
    url: str


QUESTION = "Add 2 and 3."
ANSWER = "It is 5."


def taught_to_add(folder: Path) -> Path:
    """A model that was taught to call `add` once and to answer with the result, in the prompts that SGLang renders."""
    from transformers import AutoTokenizer

    write_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    schema: Any = FunctionTool(add).schema["function"]
    # SGLang gives the template each schema with its keys in this order, and adds two keys.
    function = {key: schema[key] for key in ("description", "name", "parameters")} | {"strict": False}
    tools = [{"type": "function", "function": function, "defer_loading": None}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": ANSWER},
    ]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    before, *turns = text.split("<|im_start|>assistant\n")
    ids: list[int] = tokenizer.encode(before)
    mask = [0] * len(ids)
    for turn in turns:
        said, end, after = turn.partition("<|im_end|>")
        for part, is_sampled in (("<|im_start|>assistant\n", 0), (said + end, 1), (after, 0)):
            added = tokenizer.encode(part)
            ids, mask = ids + added, mask + [is_sampled] * len(added)
    return teach(folder, ids, mask)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """The one server that all tests share, since starting one takes 15 seconds; the last test kills it."""
    folder = tmp_path_factory.mktemp("served")
    model = str(taught_to_add(folder / "policy"))
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from verl_pivot.engines.server import sglang_server
with sglang_server({model!r}, log=Path({str(folder / "server.log")!r})) as url:
    print(url, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        yield ServedModel(parent=parent, model=model, url=parent.stdout.readline().strip())
        parent.kill()


@pytest.mark.slow
@needs_sglang_on_cpu
async def test_greedy_tokens_are_those_of_transformers(served: ServedModel) -> None:
    prompts = [[5, 6, 7, 8], list(range(10, 60)), [200] * 3]

    engine = SGLangEngine(served.url)
    greedy = Sampling(temperature=0.0, max_new_tokens=24)
    sampled = [(await engine.generate(prompt, greedy, 2)) for prompt in prompts]
    varied = await engine.generate(prompts[1], Sampling(max_new_tokens=24), 8)
    await engine.close()

    for prompt, completions in zip(prompts, sampled, strict=True):
        expected = greedy_tokens(served.model, prompt, num_tokens=24)
        assert [list(completion.token_ids) for completion in completions] == [expected, expected]
    assert len({completion.token_ids for completion in varied}) > 1


def greedy_tokens(model: str, prompt: list[int], *, num_tokens: int) -> list[int]:
    activate_shims()
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model)
    output = network.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.slow
@needs_sglang_on_cpu
def test_a_served_model_plays_with_tools_and_its_conversation_imports(served: ServedModel, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:add\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": QUESTION}]}) + "\n")
    out, imported = tmp_path / "played.jsonl", tmp_path / "trajectories.jsonl"
    arguments = ["--rows", tmp_path / "rows.jsonl", "--samples", "3", "--temperature", "0", "--out", out]

    played = CliRunner().invoke(app, ["play", *map(str, [tmp_path / "tools.yaml", "--openai", served.url, *arguments])])
    read = CliRunner().invoke(app, ["import", str(out), "--out", str(imported)])

    assert (played.exit_code, read.exit_code) == (0, 0), played.output + read.output
    for line in out.read_text().splitlines():
        record = json.loads(line)["rollout"]
        assert (record["stop_reason"], record["num_calls"], record["num_tool_errors"]) == ("answered", 1, 0)
        assert record["turn_tokens"][1] == len(ANSWER) + 1
        assert record["response_tokens"] > sum(record["turn_tokens"])
    trajectory, *others = [trajectory.messages for trajectory in read_trajectories(imported)]
    assert others == [trajectory] * 2
    assert [message.content for message in trajectory] == [QUESTION, "", "5", ANSWER]
    assert trajectory[1].tool_calls[0].arguments == {"a": 2, "b": 3}


@pytest.mark.slow
@needs_sglang_on_cpu
def test_a_server_dies_with_a_parent_that_is_killed(served: ServedModel) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    servers = psutil.Process(served.parent.pid).children(recursive=True)

    served.parent.kill()
    served.parent.wait()

    assert len(servers) > 1
    for server in servers:
        wait_until_gone(server, seconds=20.0)


@needs_sglang_on_cpu
@pytest.mark.slow
def test_a_server_may_have_any_port(tmp_path: Path) -> None:
    """SGLang without our settings refuses ports above 55535, which a system gives out every fifth time."""
    model = str(write_tokenizer(tmp_path / "model"))
    code = f"from sglang.srt.server_args import ServerArgs; ServerArgs(model_path={model!r}, device='cpu', port=60000)"
    ours = {**os.environ, **server_environment({}, model, on_cpu=True)}
    bare = {name: value for name, value in ours.items() if name not in GRPC_PORT}

    def ask(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor() as threads:
        refused, accepted = threads.map(ask, (bare, ours))

    assert "SGLANG_GRPC_PORT (70000) must be between 1 and 65535" in refused.stderr
    assert accepted.returncode == 0, accepted.stderr
    assert GRPC_PORT.items() <= server_environment({}, model, on_cpu=False).items()


def test_every_flag_of_a_server_is_one_that_sglang_knows() -> None:
    """Flags are fields of SGLang's ServerArgs, read from the source because an import would load the kernels."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    parsed = ast.parse((Path(spec.origin).parent / "srt" / "server_args.py").read_text())
    (found,) = [each for each in parsed.body if isinstance(each, ast.ClassDef) and each.name == "ServerArgs"]
    fields = {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }

    for on_cpu in (True, False):
        flags = [each for each in server_flags("policy", port=80, seed=3, on_cpu=on_cpu) if each.startswith("--")]
        assert {each.removeprefix("--").replace("-", "_") for each in flags} <= fields
        assert ("--sleep-on-idle" in flags) == on_cpu
