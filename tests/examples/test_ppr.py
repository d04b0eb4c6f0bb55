"""The example ppr: its agent, transcripts, oracle, judges, commands, measures and report."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx
import psutil
import pytest
import typer
from aiohttp.test_utils import TestClient, TestServer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.ppr import report  # noqa: E402
from examples.ppr.agent import CARELESS, RAMBLINGS, SearchHabits, SearchTurn  # noqa: E402
from examples.ppr.corpus import Corpus  # noqa: E402
from examples.ppr.judge_server import answering  # noqa: E402
from examples.ppr.judge_training import TaughtJudge, source_of  # noqa: E402
from examples.ppr.judges import (  # noqa: E402
    SCRIPTED,
    JudgeQuestion,
    UnknownTaskError,
    answer,
    likes_length,
    oracle,
    read_question,
)
from examples.ppr.measures import MEASURES, Played, read_dump  # noqa: E402
from examples.ppr.oracle import TurnGrades, grade  # noqa: E402
from examples.ppr.policy import build_tokenizer  # noqa: E402
from examples.ppr.run import check_judges, make_arm  # noqa: E402
from examples.ppr.serving import JudgeModels, served_judge  # noqa: E402
from examples.ppr.training import (  # noqa: E402
    ARMS,
    MAX_OBSERVATION_TOKENS,
    MAX_RESPONSE_TOKENS,
    MAX_TURN_TOKENS,
    PRINCIPLES,
    Arm,
)
from examples.ppr.transcripts import MAX_TURNS, OBSERVATION, OBSERVED, Transcript, record, record_all  # noqa: E402
from examples.ppr.world import KINDS_ASKED, make_pages, make_small_world  # noqa: E402
from examples.quickstart.policy import encode  # noqa: E402
from examples.scripted_judge import endpoint  # noqa: E402
from examples.units import Unit, finish  # noqa: E402
from examples.world.pages import Pages, write_tools  # noqa: E402
from examples.world.questions import KINDS, Lookup, WorldQuestion, demonstration_questions  # noqa: E402
from examples.world.rows import by_prompt, read_questions, write_rows  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.factories import make_turn  # noqa: E402
from tests.support.rollout_records import make_record  # noqa: E402
from tests.support.scripted_engine import Said, make_loop, row  # noqa: E402
from verl_pivot.data.rollout_dumps import (  # noqa: E402
    DumpedOutcome,
    DumpedTurn,
    encode_line,
    encode_transcript,
    without_texts,
)
from verl_pivot.data.rollout_records import CallRecord, CallStatus  # noqa: E402
from verl_pivot.errors import DataError  # noqa: E402
from verl_pivot.rewards.principle_answers import score_of_answer  # noqa: E402
from verl_pivot.rewards.principles import ShownTurn, turn_question  # noqa: E402
from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord  # noqa: E402
from verl_pivot.rewards.process_settings import parse_process, principle_set_of  # noqa: E402
from verl_pivot.types import JsonObject, Message, Role, Verdict  # noqa: E402
from verl_pivot.verifiers.scoring import score_completion  # noqa: E402

WORLD = make_small_world(3)
QUESTIONS = demonstration_questions(WORLD, 80, 3, KINDS_ASKED)
TASK = "How many people live in the town where the founder of Vako Mills was born?"
QUESTION = WorldQuestion(
    id="founder_population: Vako Mills",
    kind="founder_population",
    text=TASK,
    answer="43785",
    lookups=(
        Lookup("Vako Mills", "founder", "Brem Tazil"),
        Lookup("Brem Tazil", "birth_town", "Dolvex"),
        Lookup("Dolvex", "population", "43785"),
    ),
)
FIRM = "Vako Mills is based in Hifot. Vako Mills has as its founder Brem Tazil."
PERSON = "Brem Tazil grew up in Dolvex, the place of birth."
FOUNDED = "Vako Mills has as its founder Brem Tazil."
WRONG = "Vako Mills has as its founder Brem Tazul."
TOWN = "Dolvex has 43785 inhabitants."


def said(thought: str, query: str, page: str = "") -> ShownTurn:
    return ShownTurn(text=SearchTurn(thought=thought, query=query).text, observation=page)


FIRST = said(TASK, "Vako Mills", FIRM)
SECOND = said(FOUNDED, "Brem Tazil", PERSON)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def pages(folder: Path) -> Pages:
    return make_pages(WORLD, 3, folder)


@pytest.fixture(scope="module")
def careless(pages: Pages) -> list[Transcript]:
    return record_all(QUESTIONS, pages, CARELESS)


def texts(transcript: Transcript) -> list[str]:
    """Texts of the policy and of the tool, alternating."""
    return OBSERVED.split(transcript.log.messages[-1].content)


def test_a_careful_agent_answers_every_question_rightly(pages: Pages) -> None:
    for question in QUESTIONS:
        transcript = record(question, pages, Random(0), SearchHabits())
        assert transcript.is_right
        assert len(texts(transcript)[::2]) == KINDS[question.kind].num_hops + 1


def test_the_careless_agents_mistakes_all_occur_and_cost_answers(careless: list[Transcript]) -> None:
    written = "\n".join(each.log.messages[-1].content for each in careless)
    for mistake in ("That should be enough.", "I look once more.", *RAMBLINGS):
        assert mistake in written
    assert 0.4 < sum(each.is_right for each in careless) / len(careless) < 0.8


def test_every_turn_of_a_careful_agent_is_right_for_the_oracle(pages: Pages) -> None:
    for question in QUESTIONS[:20]:
        parts = texts(record(question, pages, Random(0), SearchHabits()))
        turns = [
            ShownTurn(text=own, observation=seen) for own, seen in zip(parts[::2], [*parts[1::2], ""], strict=True)
        ]
        grades = [grade(question, turns[:number], turn) for number, turn in enumerate(turns)]
        assert grades == [TurnGrades(query=True, information=True)] * (len(turns) - 1) + [
            TurnGrades(query=False, information=True)  # the answer has no query
        ]


@pytest.mark.parametrize(
    ("earlier", "turn", "query", "information"),
    [
        ([], FIRST, True, True),
        ([], said(TASK, "Vakol Mills"), False, True),
        ([], said(WRONG, "Vako Mills"), True, False),
        ([FIRST], SECOND, True, True),
        ([FIRST], said(WRONG, "Brem Tazil"), True, False),
        ([FIRST], said("This needs some thought.", "Brem Tazil"), True, False),
        ([FIRST], said(f"This needs some thought. {FOUNDED}", "Brem Tazil"), True, True),
        ([FIRST], said("I look on.", "Hifot"), False, False),
        ([FIRST], said(FOUNDED, "Vako Mills"), False, True),
        ([FIRST, said("I look on.", "Hifot", "Hifot has 900 inhabitants.")], SECOND, True, True),
        ([FIRST, SECOND], said(PERSON, "Dolvex"), True, True),
        ([FIRST, SECOND], said(FOUNDED, "Dolvex"), True, False),
        ([FIRST, SECOND, said(PERSON, "Dolvex", TOWN)], said("Hm.", "Dolvex"), False, False),
        ([FIRST], ShownTurn(text="no tags at all"), False, False),
    ],
)
def test_the_oracle_by_hand(earlier: list[ShownTurn], turn: ShownTurn, query: bool, information: bool) -> None:
    assert grade(QUESTION, earlier, turn) == TurnGrades(query=query, information=information)


async def test_transcripts_are_what_the_agent_loop_shows(
    folder: Path, pages: Pages, careless: list[Transcript]
) -> None:
    tools = f"pivot.rollout.tools={write_tools(folder)}"
    limits = (f"pivot.rollout.max_turns={MAX_TURNS}", "data.max_response_length=5000")
    longest = [number for number, each in enumerate(careless) if len(texts(each)) >= 7][:5]
    assert longest
    for number in longest:
        parts = texts(careless[number])
        loop = make_loop([Said(each, ended=False) for each in parts[::2]], tools, "+tool_format=search_r1", *limits)
        output = await loop.run({"temperature": 1.0}, **row(QUESTIONS[number].text))
        assert loop.tokenizer.decode(output.response_ids) == "".join(parts)


def test_no_token_reaches_over_the_border_of_a_page_and_what_to_do_is_one_token(careless: list[Transcript]) -> None:
    tokenizer = build_tokenizer([each.log for each in careless])
    for transcript in careless:
        labels = [each for each in encode(tokenizer, transcript.log, OBSERVED).labels if each >= 0]
        parts = [tokenizer.encode(each, add_special_tokens=False) for each in texts(transcript)]
        assert labels == [*(id for part in parts for id in part), tokenizer.eos_token_id]
    text = SearchTurn(thought=f"{RAMBLINGS[0]} Vakol Mills has as its founder Brela Tazi.", query="Brela Tazi").text
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.decode([each]) for each in ids] == [
        "<think>", f"{RAMBLINGS[0]} ", "Va", "ko", "l", " Mills", " has as its founder ",
        "Bre", "la", " ", "Ta", "zi", ".", "</think>\n<search>", "Bre", "la", " ", "Ta", "zi", "</search>",
    ]  # fmt: skip


def test_the_limits_hold_all_transcripts(careless: list[Transcript]) -> None:
    tokenizer = build_tokenizer([each.log for each in careless])
    for transcript in careless:
        sizes = [len(tokenizer.encode(each, add_special_tokens=False)) for each in texts(transcript)]
        assert max(sizes[::2]) <= MAX_TURN_TOKENS
        assert max(sizes[1::2], default=0) <= MAX_OBSERVATION_TOKENS
        assert sum(sizes) + MAX_TURN_TOKENS <= MAX_RESPONSE_TOKENS


def messages(earlier: Sequence[ShownTurn], turn: ShownTurn, task: str = TASK) -> list[JsonObject]:
    principles = principle_set_of("principles", PRINCIPLES, 0)
    return turn_question(task, earlier, turn, principles, lambda shown, _: shown).messages


def test_a_judge_reads_the_question_that_training_asks() -> None:
    asked = read_question(messages([FIRST, SECOND], said("Hm.", "Dolvex", TOWN)))  # type: ignore[arg-type]
    assert asked == JudgeQuestion(
        task=TASK,
        earlier=(FIRST, SECOND),
        turn=said("Hm.", "Dolvex", TOWN),
        principles=("query", "information"),
    )


@pytest.mark.parametrize(
    ("judge", "turn", "score"),
    [
        ("oracle", SECOND, 1.0),
        ("oracle", said("Hm.", "Brem Tazil", PERSON), 0.5),
        ("oracle", said("Hm.", "Hifot"), 0.0),
        ("length", SECOND, len(SECOND.text) / 400),
        ("length", said("word " * 100, "Hifot"), 1.0),
    ],
)
def test_answers_are_valid_and_have_the_scores_of_their_judge(judge: str, turn: ShownTurn, score: float) -> None:
    asked = read_question(messages([FIRST], turn))  # type: ignore[arg-type]
    text = answer(asked, SCRIPTED[judge]({TASK: QUESTION}))
    principles = principle_set_of("principles", PRINCIPLES, 0)
    assert score_of_answer(text, turn, principles) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "query", "information"),
    [
        (SECOND.text, "Brem Tazil", FOUNDED),
        ("<think>Hm. I look on.</think>\n<search>Hifot</search>", "Hifot", "I look on."),
        ("<think>What is it?</think>\n<search> </search>", "What is it?", "What is it?"),
        ("<think>Hm", "Hm", "Hm"),
        ("no tags at all", "no tags at all", "no tags at all"),
    ],
)
async def test_what_the_oracle_answers_is_paid_where_a_judge_is_trained_on_it(
    text: str, query: str, information: str
) -> None:
    shown = ShownTurn(text=text, observation="A page.")
    said_of_it = answer(read_question(messages([FIRST], shown)), SCRIPTED["oracle"]({TASK: QUESTION}))  # type: ignore[arg-type]
    principles = principle_set_of("principles", PRINCIPLES, 0).principles
    expert = Message(role=Role.ASSISTANT, content=said_of_it)
    turn = make_turn(
        expert=expert,
        verifier="process_score",
        verifier_options={"turn": text, "principles": [each.model_dump() for each in principles]},
    )

    assert await score_completion(said_of_it, True, turn) == Verdict.accept()
    quotations = {each["name"]: each["quotation"] for each in json.loads(said_of_it)["principles"]}
    assert quotations == {"query": query, "information": information}


def test_an_oracle_that_errs_says_the_opposite_in_its_share_of_the_turns() -> None:
    turns = [said(f"I look up number {number}.", "Vako Mills") for number in range(1000)]
    asked = [JudgeQuestion(task=TASK, earlier=(), turn=each, principles=("query",)) for each in turns]
    right, erring = oracle({TASK: QUESTION}), oracle({TASK: QUESTION}, 0.2)
    opposite = [erring(each)["query"] == 10 - right(each)["query"] for each in asked]
    assert 160 < sum(opposite) < 240
    assert [erring(each) for each in asked] == [erring(each) for each in asked]


def test_a_task_of_another_world_is_unknown() -> None:
    asked = JudgeQuestion(task="Add 1 and 2.", earlier=(), turn=FIRST, principles=("query",))
    with pytest.raises(UnknownTaskError, match=r"the oracle knows no task 'Add 1 and 2\.'"):
        oracle({TASK: QUESTION})(asked)
    assert likes_length(asked) == {"query": 10 * len(FIRST.text) / 400}


async def test_the_endpoint_answers_as_openais_servers_do_and_refuses_what_it_does_not_know() -> None:
    async with TestClient(TestServer(endpoint(answering(SCRIPTED["oracle"]({TASK: QUESTION}))))) as client:
        asked = {"model": "judge", "messages": messages([FIRST], SECOND)}
        body = await (await client.post("/v1/chat/completions", json=asked)).json()
        scores = json.loads(body["choices"][0]["message"]["content"])["principles"]
        assert [(each["name"], each["score"]) for each in scores] == [("query", 10), ("information", 10)]
        assert body["choices"][0]["finish_reason"] == "stop"
        for wrong in (messages([], FIRST, "Add 1 and 2."), [{"role": "user", "content": "Hello."}] * 2):
            refused = await client.post("/v1/chat/completions", json={"model": "judge", "messages": wrong})
            assert refused.status == 400


async def test_a_served_judge_answers_and_ends_with_its_block(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", [QUESTION], "search_r1").with_suffix(".jsonl")
    asked = {"model": "judge", "messages": messages([FIRST], SECOND)}
    async with httpx.AsyncClient(trust_env=False) as client:
        with served_judge("oracle", JudgeModels(), [path], tmp_path / "judge.log", Console(quiet=True)) as url:
            answered = await client.post(f"{url}/chat/completions", json=asked)
            assert answered.status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.post(f"{url}/chat/completions", json=asked)


def test_a_judge_that_does_not_start_is_named_with_its_log(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.jsonl"
    with (
        pytest.raises(SystemExit, match=r"the judge oracle did not start; see .*judge\.log"),
        served_judge("oracle", JudgeModels(), [missing], tmp_path / "judge.log", Console(quiet=True)),
    ):
        pass


def test_a_judge_that_ends_while_a_policy_is_trained_refuses_what_was_trained(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", [QUESTION], "search_r1").with_suffix(".jsonl")
    with (
        pytest.raises(
            SystemExit, match=r"the judge oracle ended with code -9 during the training, .* remove .*, and run"
        ),
        served_judge("oracle", JudgeModels(), [path], tmp_path / "judge.log", Console(quiet=True)),
    ):
        _kill_child("examples.ppr.judge_server")


def _kill_child(module: str) -> None:
    """Kill the child process that runs a module, without reaping it."""
    (child,) = [each for each in psutil.Process().children() if module in each.cmdline()]
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_questions_are_read_back_from_their_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet", QUESTIONS, "search_r1")
    assert read_questions(path.with_suffix(".jsonl")) == QUESTIONS
    assert sorted(each.id for each in by_prompt(QUESTIONS).values()) == sorted(each.id for each in QUESTIONS)


def test_a_trajectory_is_measured_by_the_oracle_and_by_what_its_turns_were_paid(tmp_path: Path) -> None:
    calls = tuple(
        CallRecord(turn=turn, name="search", arguments={"query": query}, status=CallStatus.OK)
        for turn, query in enumerate(("Vako Mills", "Hifot", "Brem Tazil"))
    )
    (prompt_id,) = by_prompt([QUESTION])
    record = make_record(prompt_id=prompt_id, calls=calls, turn_tokens=(20, 21, 9, 5))
    shown = [FIRST, said("I look on.", "Hifot", "Hifot has 900 inhabitants."), SECOND]
    turns = [DumpedTurn(text=each.text, num_tokens=9, ended=True, observations=(each.observation,)) for each in shown]
    turns.append(DumpedTurn(text="<answer>1</answer>", num_tokens=5, ended=True))
    process = ProcessRecord(rewards=(0.0, -1.0, 0.0, 0.0), scores=(1.0, 0.0, None))
    transcript = encode_transcript({}, record, turns)
    line = encode_line(
        DumpedOutcome(uid="a_0_0", score=0.0, is_kept=True, reward_info={PROCESS_FIELD: process.as_text()}),
        transcript,
    )
    path = tmp_path / "5.jsonl"
    path.write_bytes(line)
    assert read_dump(path, by_prompt([QUESTION])) == [
        Played(
            prompt_id=prompt_id, is_unseen=False, em=0.0, reward=-1.0, num_turns=4, num_tokens=55,
            num_chars=sum(len(each.text) for each in turns), num_searches=3, num_valid_searches=2,
            scores=(1.0, 0.0, None),
        )
    ]  # fmt: skip
    path.write_bytes(encode_line(DumpedOutcome(uid="a_0_0", score=0.0, is_kept=True), without_texts(transcript)))
    with pytest.raises(DataError, match="rollout a_0_0 has no texts, by which searches are graded"):
        read_dump(path, by_prompt([QUESTION]))


def make_played(em: float = 1.0, *, question: str = "a", scores: tuple[float | None, ...] = ()) -> Played:
    return Played(
        prompt_id=question, is_unseen=question == "unseen", em=em, reward=em, num_turns=3, num_tokens=40,
        num_chars=200, num_searches=2, num_valid_searches=1, scores=scores,
    )  # fmt: skip


def test_measures_of_trajectories() -> None:
    played = [make_played(1.0, scores=(1.0, None)), make_played(0.0, scores=(0.25, 0.75)), make_played(0.0)]
    values = {name: measure(played) for name, measure in MEASURES.items()}
    assert values == {
        "EM": pytest.approx(1 / 3), "reward": pytest.approx(1 / 3), "turns": 3.0, "response tokens": 40.0,
        "response characters": 200.0, "searches": 2.0, "valid searches": 0.5,
        "valid answers of the judge": 0.75, "judge's score of right trajectories": 1.0,
        "judge's score of wrong trajectories": 0.5,
    }  # fmt: skip


def test_a_report_compares_arms_with_the_outcome_alone(tmp_path: Path) -> None:
    questions = {each.id: each for each in QUESTIONS}

    def answers(num_right: int) -> list[Played]:
        return [make_played(float(number < num_right), question=each) for number, each in enumerate(questions)]

    training = {step: [make_played(float(step > 5))] for step in range(1, 8)}
    results = [
        report.Result(arm="base", seed=0, evaluations={0: answers(20)}, training={}),
        report.Result(arm="outcome", seed=0, evaluations={10: answers(30), 20: answers(40)}, training=training),
        report.Result(arm="outcome", seed=1, evaluations={10: answers(30), 20: answers(40)}, training=training),
        report.Result(arm="renorm_oracle", seed=0, evaluations={10: answers(40), 20: answers(60)}, training=training),
        report.Result(arm="renorm_oracle", seed=1, evaluations={10: answers(30), 20: answers(80)}, training=training),
    ]
    found = report.rows(results)
    assert [(row.arm, row.seeds) for row in found] == [
        ("base", (0,)), ("outcome", (0,)), ("outcome", (1,)), ("outcome", (0, 1)),
        ("renorm_oracle", (0,)), ("renorm_oracle", (1,)), ("renorm_oracle", (0, 1)),
    ]  # fmt: skip
    assert [row.em for row in found] == [0.25, 0.5, 0.5, 0.5, 0.75, 1.0, 0.875]
    gains = [row.over_outcome.value if row.over_outcome else None for row in found]
    assert gains == [-0.25, None, None, None, 0.25, 0.5, 0.375]
    assert {each.name: (each.difference.value, each.by_seed) for each in report.contrasts(results)} == {
        "EM, renorm_oracle over outcome": (0.375, (0.25, 0.5)),
        "EM, renorm_oracle, two thirds of its steps over outcome": (-0.0625, (0.0, -0.125)),
        "EM in training, renorm_oracle over outcome": (0.0, (0.0, 0.0)),
    }

    console = Console(record=True, width=250)
    report.write(results, ["renorm_oracle_40, seed 0: not run."], tmp_path)
    report.show(results, ["renorm_oracle_40, seed 0: not run."], console)
    content = json.loads((tmp_path / "summary.json").read_text())
    assert content["gaps"] == ["renorm_oracle_40, seed 0: not run."]
    assert content["rows"][-1]["EM over outcome"]["value"] == 0.375
    assert content["contrasts"][0]["by seed"] == [0.25, 0.5]
    assert content["evaluations"][1] == {"arm": "outcome", "seed": 0, "step": 10, "EM": 0.375}
    assert (tmp_path / "ppr.png").stat().st_size > 0
    assert "renorm_oracle_40, seed 0: not run." in console.export_text()


def make_arm_of(name: str, folder: Path) -> Arm:
    files = {kind: folder / f"{kind}.parquet" for kind in ("training", "held_out")}
    corpus = Corpus(tools=folder / "tools.yaml", questions={}, **files)
    return make_arm(name, folder / "policy", corpus, folder / name, 1, 10, 16)


@pytest.mark.parametrize("name", ARMS)
def test_every_command_is_one_whose_judge_settings_are_right(name: str, tmp_path: Path) -> None:
    arm = make_arm_of(name, tmp_path)
    running = Arm(**{each: getattr(arm, each) for each in Arm.__dataclass_fields__} | {"judge_url": "http://a/v1"})
    config = checked_config(running.command[3:])
    settings = parse_process(config)
    assert settings.mode == ARMS[name].mode
    assert settings.urls == (() if ARMS[name].judge is None else ("http://a/v1",))
    assert ARMS[name].judge is None or settings.max_added_principles == 0
    assert len(settings.principle_set().principles) == {"renorm_one_question": 1, "base": 4, "outcome": 4}.get(name, 2)
    assert config.critic.ppo_mini_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size == 8
    assert config.critic.model.path == str(tmp_path / "policy")
    assert "base_url" not in json.dumps(arm.settings)


def test_a_training_that_was_ended_behind_its_last_checkpoint_only_asks_the_questions(tmp_path: Path) -> None:
    arm = make_arm_of("outcome", tmp_path)
    arm.folder.mkdir()
    latest = arm.folder / "latest_checkpointed_iteration.txt"
    for step, is_last in ((5, False), (10, True)):
        latest.write_text(str(step))
        assert arm.has_last_checkpoint == is_last
    asked = {*replace(arm, only_evaluates=True).command} - {*arm.command}
    assert asked == {"trainer.val_only=True", "trainer.val_before_train=True"}
    assert not make_arm_of("base", tmp_path).has_last_checkpoint


def test_arms_with_a_trained_judge_need_its_folder(tmp_path: Path) -> None:
    check_judges(["base", "renorm_oracle", "sum_length"], JudgeModels())
    with pytest.raises(typer.BadParameter, match="the arm sum_pprm needs --pprm FOLDER"):
        check_judges(["renorm_oracle", "sum_pprm"], JudgeModels())
    with pytest.raises(typer.BadParameter, match="holds no model"):
        check_judges(["sum_pprm"], JudgeModels(pprm=tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_judges(["sum_pprm"], JudgeModels(pprm=tmp_path))
    with pytest.raises(typer.BadParameter, match="the arm renorm_one_question needs --one-question-judge FOLDER"):
        check_judges(["renorm_one_question"], JudgeModels(pprm=tmp_path))


def test_pages_stand_in_the_form_of_the_tool_format() -> None:
    config = checked_config(["+method=ppr", "+tool_format=search_r1"])
    assert config.pivot.rollout.observation_template == OBSERVATION


def write_finished(folder: Path, arm: str) -> None:
    finish(Unit(arm=arm, seed=0, folder=folder / arm, settings={}), lambda: None)


def write_source(folder: Path) -> Path:
    """Write a finished study of one seed, with dumps of one step of `outcome` and of the base policy."""
    own = folder / "seed-0"
    for arm, kind in (("outcome", "rollouts"), ("base", "validation")):
        write_finished(own, arm)
        dump = own / arm / kind / "pivot" / ("1.jsonl" if arm == "outcome" else "0.jsonl")
        dump.parent.mkdir(parents=True)
        dump.write_text(arm)
    (own / "policy").mkdir()
    (own / "policy" / "tokenizer.json").write_text("{}")
    return folder


def test_judges_are_taught_by_arms_that_are_finished(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="seed-0/outcome is not finished; run examples"):
        source_of(tmp_path, 0)

    source = source_of(write_source(tmp_path), 0)

    assert [each.read_text() for each in (*source.trained, source.held_out)] == ["outcome", "base"]


def test_a_judge_is_another_one_if_what_it_is_taught_by_changes(tmp_path: Path) -> None:
    source = source_of(write_source(tmp_path), 0)
    corpus = Corpus(tools=tmp_path, questions={}, training=tmp_path, held_out=tmp_path)

    def settings() -> JsonObject:
        judge = TaughtJudge(name="pprm", folder=tmp_path / "judges", seed=0, corpus=corpus, source=source)
        return judge.taught.settings

    first = settings()
    assert settings() == first
    source.trained[0].write_text("other")
    assert {name for name, value in settings().items() if value != first[name]} == {"turns"}
    (source.policy / "tokenizer.json").write_text("[]")
    assert {name for name, value in settings().items() if value != first[name]} == {"turns", "policy"}
