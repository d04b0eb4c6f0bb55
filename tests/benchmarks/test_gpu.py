"""benchmarks/gpu on a machine without a GPU: its commands exist, wheels get smaller and arrive whole, stages resume."""

import json
import shlex
import shutil
import struct
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.stages import STAGES, Stage, filled
from benchmarks.gpu.visit import recorded, visit, write_shape
from benchmarks.gpu.wheels import is_needed, join, missing, runs_on, split, trim, without_other_architectures
from tests.support.paths import ROOT

COMMANDS = [command for stage in STAGES for command in stage.commands]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_of_a_stage_is_read_by_its_program(command: tuple[str, ...]) -> None:
    """`make_context` raises on an unknown option and on a value that does not fit."""
    module, *words = filled(command, Path("results"))
    if module == "verl_pivot.cli":
        program = typer.main.get_command(import_module(module).app).commands[words.pop(0)]  # type: ignore[attr-defined]
    else:
        app = typer.Typer()
        app.command()(import_module({"examples.quickstart": "examples.quickstart.run"}.get(module, module)).main)
        program = typer.main.get_command(app)

    assert program.make_context(module, words).args == []


def test_a_dry_run_prints_every_command_of_every_stage() -> None:
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, ["--dry", "--out", "results"])

    assert done.exit_code == 0
    assert [line.partition(".")[0] for line in done.stdout.splitlines() if line[0].isdigit()] == list("1234567")
    for command in COMMANDS:
        assert f"python -m {shlex.join(filled(command, Path('results')))}" in done.stdout
    assert "--server-flags '--load-format=dummy " in done.stdout


def test_the_page_says_what_the_records_of_a_visit_say() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    records = json.loads((ROOT / "docs" / "gpu.json").read_text())

    assert {record["stage"] for record in records} <= {stage.number for stage in STAGES}
    for record in records:
        figures = record["figures"]
        assert f"{record['device']} on {record['date']}" in page
        if "seconds of the launch" in figures:
            assert (
                f"works: {figures['seconds of the launch']:.0f} s, of which the second step {figures['step 2']} s"
                in page
            )
        if "tokens/s of the profile" in figures:
            ours, other = figures["tokens/s of the profile"], figures["tokens/s of bench_serving"]
            assert f"{ours:,} output tokens/s, {ours / other:.2f} times `sglang.bench_serving`'s {other:,}" in page


def test_each_stage_leaves_its_record_and_is_not_run_again(tmp_path: Path) -> None:
    one = Stage(number=1, title="versions", commands=(("platform",), ("no_such_module",)))
    two = Stage(
        number=2, title="sleep", commands=(("timeit", "-n1", "-r1", "import time; time.sleep(60)"), ("platform",))
    )

    visit([one], tmp_path)
    first = recorded(tmp_path)
    visit([one, two], tmp_path, seconds=2.0)

    assert first["1"]["exit_codes"] == [0, 1]
    assert "No module named no_such_module" in (tmp_path / "stage-1.log").read_text()
    assert recorded(tmp_path)["1"] == first["1"]
    ended, not_begun = recorded(tmp_path)["2"]["exit_codes"]  # type: ignore[misc]
    assert str(ended).startswith("ended after ")
    assert not_begun == "not begun: the stage's time was over"

    visit([Stage(number=1, title="the same again", commands=())], tmp_path, again=True)

    assert [recorded(tmp_path)[number]["title"] for number in "12"] == ["the same again", "sleep"]


def test_the_large_shape_is_read_with_its_sizes(tmp_path: Path) -> None:
    from transformers import AutoConfig

    write_shape(tmp_path / "shape")
    config = AutoConfig.from_pretrained(tmp_path / "shape")

    assert (config.num_hidden_layers, config.hidden_size, len(config.layer_types)) == (36, 4096, 36)


def test_missing_names_what_is_absent_or_of_another_version(tmp_path: Path) -> None:
    from importlib.metadata import version

    pins = f"# a comment\ntyper=={version('typer')}\nno-such-package==1.0\nrich==0.0.1  # pinned\n"
    (tmp_path / "pins.txt").write_text(pins)

    assert missing(tmp_path / "pins.txt") == ["no-such-package==1.0", "rich==0.0.1"]


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("sgl_kernel/sm90/common_ops.abi3.so", True),
        ("sgl_kernel/sm100/common_ops.abi3.so", False),
        ("flashinfer/data/kernel_sm_90a.cubin", True),
        ("flashinfer/data/kernel_sm_120.cubin", False),
        ("flashinfer/data/include/page.cuh", True),
        ("flashinfer/data/kernel_sm_86.cubin", False),
        ("ray/jars/ray_dist.jar", False),
        ("torch/tests/test_it.py", False),
        ("small/smooth.py", True),
        ("sgl_kernel-0.4.dist-info/METADATA", True),
    ],
)
def test_a_wheel_keeps_what_runs_on_one_architecture(name: str, needed: bool) -> None:
    assert is_needed(name, 90) is needed


def test_machine_code_runs_on_gpus_of_its_generation_that_are_not_older() -> None:
    assert [each for each in (75, 80, 86, 89, 90, 100) if runs_on(each, 89)] == [80, 86, 89]


def entry(kind: int, architecture: int, code: bytes) -> bytes:
    """Entry of device code with a header of 64 bytes, as nvcc 13 writes it."""
    return (
        struct.pack("<HHIQII", kind, 257, 64, len(code), 0, 0) + struct.pack("<II", 0, architecture) + bytes(32) + code
    )


def container(*entries: bytes) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, entries))) + b"".join(entries)


def test_a_library_keeps_machine_code_of_one_architecture_and_all_ptx() -> None:
    def library(of_80: bytes) -> bytes:
        first = container(entry(1, 80, b"ptx of 80"), entry(2, 80, of_80), entry(2, 90, b"code of 90"))
        return b"ELF" + first + b"\x50\xed\x55\xba" + b"text" * 9 + container(entry(2, 90, b"more"))

    assert without_other_architectures(library(b"code of 80"), 90) == library(bytes(10))


def test_device_code_of_a_real_library_is_found(tmp_path: Path) -> None:
    """nvcc, if installed, compiles for two architectures; each keeps its own half of the programs."""
    nvcc = shutil.which("nvcc") or pytest.skip("there is no nvcc here")
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(float *x) { x[0] = 1; }\n")
    flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (80, 90)]
    library = tmp_path / "k.so"
    subprocess.run([nvcc, "-shared", "-Xcompiler", "-fPIC", *flags, source, "-o", library], check=True)
    whole = library.read_bytes()

    of_80, of_90 = (without_other_architectures(whole, architecture) for architecture in (80, 90))

    assert len(of_80) == len(of_90) == len(whole)
    programs, rest_80, rest_90 = (each.count(b"\x7fELF") for each in (whole, of_80, of_90))
    assert programs > rest_80 == rest_90 > 1
    assert rest_80 + rest_90 == programs + 1  # the library itself is an ELF file in both


def make_wheel(path: Path) -> Path:
    names = ["k/sm90/ops.so", "k/sm100/ops.so", "k/lib/a.a", "k-1.dist-info/RECORD"]
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names[:-1]:
            wheel.writestr(name, name * 100)
        wheel.writestr(names[-1], "".join(f"{name},sha256=x,1\n" for name in names))
    return path


def test_wheels_arrive_whole_in_pieces_and_their_record_fits_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    wheels = [make_wheel(tmp_path / "in" / f"{name}-1-py3-none-any.whl") for name in ("a", "b")]
    smaller = [trim(wheel, tmp_path / "smaller", 90) for wheel in wheels]

    pieces = split(smaller, tmp_path / "pieces", piece_bytes=300)
    arrived = join(tmp_path / "pieces", tmp_path / "out")

    assert [piece.stat().st_size for piece in pieces[:-1]] == [300] * (len(pieces) - 1)
    assert [wheel.read_bytes() for wheel in arrived] == [wheel.read_bytes() for wheel in smaller]
    with zipfile.ZipFile(arrived[0]) as wheel:
        assert sorted(wheel.namelist()) == ["k-1.dist-info/RECORD", "k/sm90/ops.so"]
        assert wheel.read("k-1.dist-info/RECORD").decode().split() == [
            "k/sm90/ops.so,sha256=x,1",
            "k-1.dist-info/RECORD,sha256=x,1",
        ]


def test_a_piece_that_is_lost_on_the_way_is_noticed(tmp_path: Path) -> None:
    pieces = split([make_wheel(tmp_path / "a-1-py3-none-any.whl")], tmp_path / "pieces", piece_bytes=300)
    pieces[1].unlink()

    with pytest.raises(ValueError, match="did not arrive whole: carry all pieces of"):
        join(tmp_path / "pieces", tmp_path / "out")
