"""Recipes and the command: a mistake is one sentence with its place and the known names, before any question."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.recipes import read_recipe, shipped_recipes
from verl_pivot.types import Verdict
from verl_pivot.user_modules import load_object
from verl_pivot.verifiers.registry import get_verifier, load_verifier_modules

STEPS = "tests.support.synthesis_steps"
PROGRAM = f"{STEPS}:number"


OWN = """
from verl_pivot.quality.contract import FilterOptions, TrajectoryFilter
from verl_pivot.quality.registry import register_filter
from verl_pivot.synthesis.steps import make_step
from verl_pivot.tools.contract import Environment
from verl_pivot.types import Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register

@make_step("own_step", options=Options)
def own_step(options):
    async def make(draft, workshop):
        return [draft]
    return make

@register_filter("own_filter", options=FilterOptions)
class OwnFilter(TrajectoryFilter):
    def __init__(self, options):
        pass

    def judge(self, trajectory):
        return None

@register("own_verifier")
async def own_verifier(action, turn):
    return Verdict.accept() if Stall.made else Verdict.refuse("closed")

class Stall(Environment):
    made = []

    def __init__(self, metadata):
        self.made.append(self)
"""
"""A file of the user's with one thing of each kind, which share a class."""


async def test_a_file_of_the_users_is_executed_once_whatever_it_is_used_as(tmp_path: Path) -> None:
    own, recipe = tmp_path / "own.py", tmp_path / "mine.yaml"
    own.write_text(OWN)
    recipe.write_text("- numbers: {num: 3}\n- own_step\n- quality: {rules: [own_filter]}\n")

    read_recipe(str(recipe), {}, [str(own)])
    load_verifier_modules([str(own)])
    load_object(f"{own}:Stall", "environment")({})

    turn = make_turn()
    assert await get_verifier("own_verifier")(turn.expert, turn) == Verdict.accept()


def test_every_shipped_recipe_can_be_read() -> None:
    assert "rejection" in shipped_recipes()
    for name in shipped_recipes():
        assert read_recipe(name, {}).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list that begins with an item source, got null"),
        ("copies", "must be a list that begins with an item source, got text"),
        ("- copies", "step 1: must be an item source (tasks, trajectories, numbers), got 'copies'"),
        ("- tasks: {num: 3}", "step 1: tasks takes no options, got ['num']"),
        ("- numbers: {number: 3}", "step 1: numbers.num: Field required"),
        ("- numbers: {num: -1}", "numbers.num: Input should be greater than or equal to 0, got -1"),
        ("- tasks\n- tasks", "step 2: tasks is an item source and may only be the first entry"),
        ("- tasks\n- copys", "step 2: unknown step 'copys'; known: achieved, "),
        ("- tasks\n- copies: {nmu: 3}", "step 2: step copies.nmu: unknown key; known: num"),
        ("- tasks\n- copies: {num: many}", "step 2: step copies.num: Input should be a valid integer"),
        ("- tasks\n- copies: {num: 2020-01-01}", "step 2: an option of copies cannot be written as JSON"),
        ("- tasks\n- copies: [3]", "step 2: the options of copies must be names with values, got a list"),
        ("- tasks\n- copies: {}\n  digit: {}", "step 2: one name with its options is needed"),
        ("- tasks\n- rollouts: {num: 4, stop_at: 5}", "rollouts: stop_at must not exceed num, which is 4, got 5"),
        ("- tasks\n- largest_of_all\n- copies", "step copies comes after largest_of_all, which waits for all items"),
        ("- tasks\n- quality: {rules: [coherence]}\n- copies", "step 2: quality filters all trajectories"),
        ("- tasks\n- quality: {rule: []}", "step 2: quality takes rules, a list of filters, got ['rule']"),
        ("- tasks\n- quality: {rules: [coherense]}", "step 2, rule 1: unknown filter 'coherense'"),
        ("- tasks\n- filter: {name: diversity}", "filter diversity compares trajectories: put it into the rules"),
        ("- tasks\n- filter: {name: coherence, options: {odrer: 1}}", "coherence.odrer: unknown key; known: "),
        ("- [", "cannot be read"),
    ],
)
def test_a_slip_in_a_recipe_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        read_recipe(str(path), {}, [STEPS])

    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def synthesize(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["synthesize", *map(str, arguments)])


def refusal(*arguments: str | Path) -> str:
    done = synthesize(*arguments)
    assert done.exit_code == 1, done.output
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    return last.removeprefix("error: ")


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


TASK = {"prompt": [{"role": "user", "content": "Two packs."}]}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "tasks.jsonl", [TASK] * 3)


def test_the_command_refuses_what_it_lacks(tmp_path: Path, tasks: Path) -> None:
    out = ("--out", tmp_path / "out")
    playing = ("rejection", "--tasks", tasks, *out, "--program", PROGRAM)

    assert refusal("rejektion", *out).startswith("no method is named 'rejektion'; known: ")
    assert refusal("rejection", *out) == "method rejection works on tasks: give --tasks FILE"
    assert "there is no file" in refusal("rejection", "--tasks", tmp_path / "none.jsonl", *out)
    assert refusal(*playing) == "step rollouts plays rollouts: give a tools file or an environment with --tools"
    assert refusal(*playing, "--model", "x") == "the writer: program and a model were both given; give one of them"
    assert refusal(*playing, "--answer-format", "json_object").startswith("the writer: answer_format is for models: ")
    assert refusal(*playing[:-2], "--answer-format", "json_object").startswith("--answer-format needs a model of ")
    assert refusal(*playing, "--set", "rollout.num=2").startswith("--set rollout.num: give step.option=value; the st")
    assert "rollouts.nums: unknown key; known: " in refusal(*playing, "--set", "rollouts.nums=2")
    assert refusal(*playing[:-1], f"{STEPS}:none") == f"program '{STEPS}:none': {STEPS} has no 'none'"


def test_a_writers_file_is_checked(tmp_path: Path, tasks: Path) -> None:
    path = tmp_path / "writers.yaml"
    for text, message in (
        ("judge: {programm: x}", "judge.programm: unknown key; known: answer_format, model, openai, program"),
        ("judge: {}", "judge: no writer is given: give openai, model or program"),
        ("judge: {program: x, server_flags: [a]}", "judge: server_flags are for a server that is started here"),
        ("[]", "must map roles to writers"),
    ):
        path.write_text(text)
        assert message in refusal("rejection", "--tasks", tasks, "--out", tmp_path / "out", "--writers", path)


def test_rows_that_are_no_tasks_are_rejected_one_by_one(tmp_path: Path) -> None:
    assistant = {"prompt": [{"role": "assistant", "content": "Hi."}]}
    rows = [{"prompt": []}, "{broken", assistant, {"prompt": "no JSON"}, {**TASK, "metadata": 7}, [1]]
    rows.append({**TASK, "note": "a\ud83d"})
    tasks = write_lines(tmp_path / "tasks.jsonl", rows)
    (tmp_path / "recipe.yaml").write_text("- tasks\n- rollouts: {num: 1}\n")
    (tmp_path / "tools.yaml").write_text("- tool: bash\n")
    out = tmp_path / "out"

    tools = f"{ROOT}/tests/support/counting_shop.py:Shop"
    message = refusal(tmp_path / "recipe.yaml", "--tasks", tasks, "--tools", tools, "--program", PROGRAM, "--out", out)

    assert message == f"nothing was kept of 7 drafts; rejected.jsonl in {out} has each reason"
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert [(row["id"], row["step"], row["reason"]) for row in rejected] == [
        ("tasks-1", "rollouts", "no_prompt"),
        ("tasks-2", "reading", "unreadable_row"),
        ("tasks-3", "rollouts", "no_prompt"),
        ("tasks-4", "rollouts", "not_json"),
        ("tasks-5", "rollouts", "unusable_row"),
        ("tasks-6", "reading", "unreadable_row"),
        ("tasks-7", "reading", "unreadable_row"),
    ]


def test_a_plan_tells_what_all_items_take_and_leaves_its_answers_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("- numbers: {num: 40}\n- copies: {num: 3}\n")
    command = (tmp_path / "recipe.yaml", "--step-module", STEPS, "--program", PROGRAM, "--out", tmp_path / "out")

    done = synthesize(*command, "--plan")

    assert done.exit_code == 0, done.output
    shown = done.stdout.splitlines()
    assert shown[0] == "From 20 of 40 items, for all of them:"
    assert shown[1].split() == ["model", "calls", "120", "(120", "to", "120)"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["answers"]
    assert "120 answers of" in synthesize(*command).stdout


def test_a_plan_counts_once_what_is_asked_before_the_first_item(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("- numbers: {num: 40}\n- probed: {num: 3}\n- copies: {num: 3}\n")
    command = (tmp_path / "recipe.yaml", "--step-module", STEPS, "--program", PROGRAM, "--out", tmp_path / "out")

    done = synthesize(*command, "--plan")

    assert done.stdout.splitlines()[1].split() == ["model", "calls", "123", "(123", "to", "123)"]
    assert "123 answers of" in synthesize(*command).stdout
