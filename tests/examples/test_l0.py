"""The example l0: its agent, transcripts, tokenizer, commands, measures and report."""

import json
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.comparison import binned, gain  # noqa: E402
from examples.l0 import report  # noqa: E402
from examples.l0.agent import CARELESS, MISSING, Agent, NotebookHabits, Step  # noqa: E402
from examples.l0.corpus import Corpus  # noqa: E402
from examples.l0.measures import Played, read_dump  # noqa: E402
from examples.l0.policy import build_tokenizer  # noqa: E402
from examples.l0.run import make_arm  # noqa: E402
from examples.l0.training import ARMS, Arm  # noqa: E402
from examples.l0.transcripts import (  # noqa: E402
    MAX_CONTEXT_TOKENS,
    MAX_STEPS,
    name_error,
    record,
    record_all,
    scaffold,
)
from examples.quickstart.policy import encode  # noqa: E402
from examples.world.entities import WorldSize, make_documents, make_world  # noqa: E402
from examples.world.pages import Pages  # noqa: E402
from examples.world.questions import KINDS, demonstration_questions  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.rollout_records import make_record  # noqa: E402
from verl_pivot.data.rollout_dumps import DumpedOutcome, encode_line, encode_transcript  # noqa: E402
from verl_pivot.data.rollout_records import CallRecord, CallStatus  # noqa: E402
from verl_pivot.rollout.notebook_settings import check_notebook  # noqa: E402
from verl_pivot.types import Role, Trajectory  # noqa: E402

WORLD = make_world(3, WorldSize(people=240, firms=80, towns=30))
QUESTIONS = demonstration_questions(WORLD, 160, 3)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages.of(make_documents(WORLD, 3), tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def careless(pages: Pages) -> list[Trajectory]:
    return record_all(QUESTIONS, pages, CARELESS, scaffold(lambda text: len(text) // 12))


def turns(stretches: list[Trajectory]) -> list[str]:
    return [each.content for log in stretches for each in log.messages if each.role is Role.ASSISTANT]


def test_a_step_is_a_thought_and_a_cell() -> None:
    step = Step(thought="The founder is Brem Tazil.", notes=("founder: Brem Tazil",), query="Brem Tazil", prints=True)
    assert step.text == (
        "<think>The founder is Brem Tazil.</think><code>\n"
        'notepad.add_facts("founder: Brem Tazil")\npage = search("Brem Tazil")\nprint(page)\n</code>'
    )


def test_a_careful_agent_answers_every_question_rightly(pages: Pages) -> None:
    tokenizer = build_tokenizer(record_all(QUESTIONS, pages, CARELESS, scaffold(lambda text: len(text) // 12)))
    exact = scaffold(lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    stretches: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for question in QUESTIONS:
        logs = record(question, pages, Random(0), NotebookHabits(), exact)
        last = turns(logs)[-1]
        kind = KINDS[question.kind]
        if kind.difference is None:
            assert f'submit_final_answer("{question.answer}")' in last
        else:
            first, second = (question.lookups[step - 1].value for step in kind.difference)
            assert f"submit_final_answer(str(abs({first} - {second})))" in last
            assert str(abs(int(first) - int(second))) == question.answer
        stretches[kind.num_hops].append(len(logs))
        assert all(len(encode(tokenizer, log).input_ids) <= MAX_CONTEXT_TOKENS for log in logs)
    assert set(stretches[1]) == {1}
    assert min(stretches[3]) >= 2, "three hops fit into the window without a trim"


def test_an_agent_that_notes_nothing_seldom_gets_over_a_trim(pages: Pages) -> None:
    tokenizer = build_tokenizer(record_all(QUESTIONS, pages, CARELESS, scaffold(lambda text: len(text) // 12)))
    exact = scaffold(lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    hard = [each for each in QUESTIONS if KINDS[each.kind].num_hops == 3]
    lengths = {each.id: len(turns(record(each, pages, Random(0), NotebookHabits(forgets=1.0), exact))) for each in hard}
    assert {length for id, length in lengths.items() if "population_gap" in id} == {MAX_STEPS}
    assert sum(length < MAX_STEPS for length in lengths.values()) <= len(hard) / 10  # short pages can fit the window


def test_the_careless_agents_mistakes_all_occur(careless: list[Trajectory]) -> None:
    written = "\n".join(turns(careless))
    for mistake in ("That should be enough.", "I look once more.", "Nothing was printed.", "Go on.", f"({MISSING})"):
        assert mistake in written


def test_a_misspelt_name_is_another_one_of_the_worlds_alphabet() -> None:
    agent = Agent(question=QUESTIONS[0], rng=Random(1), habits=NotebookHabits(misspells=1.0))
    query = agent.act().query
    assert query is not None
    assert query != QUESTIONS[0].lookups[0].entity
    assert abs(len(query) - len(QUESTIONS[0].lookups[0].entity)) <= 1


def test_names_are_few_tokens_and_what_to_do_is_one(careless: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(careless)
    text = '<think>I look up Vakol Mills.</think><code>\npage = search("Vakol Mills")\nprint(page)\n</code>'
    ids = tokenizer.encode(f"<|im_start|>assistant\n{text}", add_special_tokens=False)
    assert [tokenizer.decode([each]) for each in ids[2:]] == [
        "<think>I look up ", "Va", "ko", "l", " Mills", ".</think>",
        '<code>\npage = search("', "Va", "ko", "l", " Mills", '")\nprint(page)\n</code>',
    ]  # fmt: skip


def test_the_system_prompts_with_and_without_a_notepad_are_few_tokens(careless: list[Trajectory]) -> None:
    tokenizer = build_tokenizer(careless)

    def size(*, has_notepad: bool) -> int:
        system = scaffold(len, has_notepad=has_notepad).system.content
        return len(tokenizer.encode(system, add_special_tokens=False))

    assert size(has_notepad=False) <= size(has_notepad=True) < 40


def test_the_error_is_the_one_that_a_cell_of_the_sandbox_shows() -> None:
    assert name_error(f"page = search({MISSING})", 4) == (
        'Traceback (most recent call last):\n  File "<cell 4>", line 2, in <module>\n    page = search(document)\n'
        "                  ^^^^^^^^\nNameError: name 'document' is not defined"
    )


def make_played(em: float = 1.0, *, question: str = "a", **changes: float) -> Played:
    fields = {
        "format": 1.0, "execution": 1.0, "num_steps": 2, "num_tokens": 40, "num_trims": 0, "num_searches": 1,
        "num_redundant": 0, **changes,
    }  # fmt: skip
    return Played(prompt_id=question, em=em, **fields)  # type: ignore[arg-type]  # a factory


def test_a_trajectory_is_read_from_the_row_that_has_its_record(tmp_path: Path) -> None:
    calls = [
        CallRecord(turn=turn, name=name, arguments=arguments, status=CallStatus.OK)
        for turn, name, arguments in (
            (0, "search", {"query": "Vako Mills"}),
            (1, "search", {"query": "vako  mills"}),
            (1, "search", {"query": "Brem Tazil"}),
            (2, "submit_final_answer", {"answer": "1931"}),
        )
    ]
    record = make_record(prompt_id="q", calls=tuple(calls), turn_tokens=(20, 31, 9), num_trims=1)
    transcript = encode_transcript({}, record, [])
    scores = {"em": 1.0, "format": 0.5, "execution": 1.0}
    lines = [
        encode_line(DumpedOutcome(uid="a_0_0", score=1.0, is_kept=True, reward_info=scores), None),
        encode_line(DumpedOutcome(uid="a_0_1", score=1.0, is_kept=True, reward_info=scores), transcript),
        encode_line(DumpedOutcome(uid="a_1_0", score=None, is_kept=False), transcript),
    ]
    path = tmp_path / "5.jsonl"
    path.write_bytes(b"".join(lines))
    assert read_dump(path) == [
        Played(
            prompt_id="q", em=1.0, format=0.5, execution=1.0, num_steps=3, num_tokens=60, num_trims=1, num_searches=3,
            num_redundant=1,
        )
    ]  # fmt: skip


def test_a_gain_is_over_the_questions_that_both_arms_answered() -> None:
    before = [make_played(0.0, question=str(number)) for number in range(10)]
    after = [make_played(float(number < 6), question=str(number)) for number in range(1, 12)]
    difference = gain(before, after)
    assert difference.value == pytest.approx(5 / 9)
    assert difference.interval.low < 5 / 9 < difference.interval.high


def test_a_report_has_a_row_for_each_unit_and_says_its_gaps(tmp_path: Path) -> None:
    questions = {each.id: each for each in QUESTIONS}
    right = [make_played(1.0, question=each) for each in questions]
    wrong = [make_played(0.0, question=each) for each in questions]
    training = {step: [make_played(float(step > 5))] for step in range(1, 8)}
    results = [
        report.Result(arm="scaffold", seed=0, held_out=wrong, training={}),
        report.Result(arm="l0", seed=0, held_out=right, training=training),
    ]
    found = report.rows(results, questions)
    console = Console(record=True, width=200)
    report.write(results, found, ["grpo, seed 0: not run."], tmp_path)
    report.show(found, ["grpo, seed 0: not run."], console)

    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["gaps"] == ["grpo, seed 0: not run."]
    assert content["units"][0]["EM over the scaffold"] is None
    assert content["units"][1]["EM over the scaffold"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert content["units"][1]["EM on the unseen kind"] == 1.0
    assert (tmp_path / "l0.png").stat().st_size > 0
    assert "+1.000 [+1.000, +1.000]" in console.export_text()
    assert [len(each) for each in binned(training)] == [5, 2]


def make_arm_of(name: str, folder: Path) -> Arm:
    files = {kind: folder / f"{kind}.parquet" for kind in ("training", "hard", "held_out")}
    corpus = Corpus(tools=folder / "tools.yaml", questions={}, **files)
    return make_arm(name, folder / "policy", corpus, folder / name, 1, 10)


def test_arms_differ_in_what_they_are_named_after(tmp_path: Path) -> None:
    commands = {name: set(make_arm_of(name, tmp_path).command) for name in ARMS}
    shared = set.intersection(*commands.values())
    places = ("trainer.experiment_name", "trainer.default_local_dir", "trainer.rollout_data_dir")
    places = (*places, "trainer.validation_data_dir", "hydra.run.dir", "data.train_files", "trainer.val_before_train")
    own = {
        name: {each for each in command - shared if not each.startswith(places)} for name, command in commands.items()
    }
    keep = "pivot.resampling.equal_rewards=keep"
    assert own == {
        "scaffold": {keep, "trainer.val_only=True"},
        "l0": {keep},
        "grpo": {keep, "algorithm.adv_estimator=grpo"},
        "l0_gamma_1": {keep, "pivot.notebook.gamma=1.0"},
        "l0_no_notepad": {keep, "pivot.notebook.notepad=False"},
        "l0_hard": {keep},
        "l0_hard_dynamic": {"pivot.resampling.equal_rewards=keep_half"},
    }
    hard = [name for name, command in commands.items() if f"data.train_files={tmp_path}/hard.parquet" in command]
    assert hard == ["l0_hard", "l0_hard_dynamic"]


@pytest.mark.parametrize("name", ARMS)
def test_every_command_is_one_that_the_launch_checks_take(name: str, tmp_path: Path) -> None:
    config = checked_config(make_arm_of(name, tmp_path).command[3:])
    check_notebook(config)
    assert config.data.max_response_length >= MAX_CONTEXT_TOKENS
