"""How the example ppr teaches its judges: the questions they learn from, the words of their fences, and RL's rows."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from transformers import AutoTokenizer, Qwen2Config, Qwen2Tokenizer  # noqa: E402

from examples.ppr import judge_policy  # noqa: E402
from examples.ppr.agent import CARELESS  # noqa: E402
from examples.ppr.corpus import Corpus  # noqa: E402
from examples.ppr.judge_policy import (  # noqa: E402
    MAX_ANSWER_TOKENS,
    MAX_QUESTION_TOKENS,
    add_phrases,
    distinct_rows,
    draw_turns,
    fitting,
    read_dialogues,
)
from examples.ppr.judge_training import JudgeSource, TaughtJudge  # noqa: E402
from examples.ppr.judges import answer, oracle, read_question  # noqa: E402
from examples.ppr.policy import build_tokenizer as build_policy_tokenizer  # noqa: E402
from examples.ppr.training import PRINCIPLES as PRINCIPLES_FILE  # noqa: E402
from examples.ppr.transcripts import OBSERVED, Transcript, record_all  # noqa: E402
from examples.ppr.world import KINDS_ASKED, make_pages, make_small_world  # noqa: E402
from examples.quickstart.policy import build_tokenizer  # noqa: E402
from examples.world.questions import demonstration_questions  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.factories import make_turn  # noqa: E402
from tests.support.fake_engine import Answer, fake_server, sglang_sample  # noqa: E402
from verl_pivot.cli import app  # noqa: E402
from verl_pivot.data.turns import split_of  # noqa: E402
from verl_pivot.launch_checks.checks import check_launch  # noqa: E402
from verl_pivot.rewards.labelled_turns import JudgedTurn, LabelledTurn, task_id, write_turns  # noqa: E402
from verl_pivot.rewards.principle_answers import score_of_answer  # noqa: E402
from verl_pivot.rewards.principles import Principle, PrincipleSet, ShownTurn, turn_question  # noqa: E402
from verl_pivot.rewards.process_settings import principle_set_of  # noqa: E402
from verl_pivot.types import JsonObject, Message, Role, Verdict  # noqa: E402
from verl_pivot.verifiers.scoring import score_completion  # noqa: E402

PRINCIPLES = PrincipleSet(form="principles", principles=(Principle(name="query", text="It asks for the next name."),))
ANSWER = '{"principles": [{"name": "query", "quotation": "search Bo", "score": 1, "maximum": 1}]}'


def dialogue(text: str) -> list[dict[str, Any]]:
    """A labelled turn, as `process label` writes it."""
    turn = ShownTurn(text=text, observation="Bo lives in Ulm.")
    question = turn_question("Where does Bo live?", [], turn, PRINCIPLES, lambda texts, order: list(texts))
    return [*question.recorded_messages, {"role": "assistant", "content": ANSWER}]


def labelled(path: Path, *texts: str) -> Path:
    table = pyarrow.table({"messages": [dialogue(each) for each in texts], "text": [*texts]})
    pyarrow.parquet.write_table(table, path)
    return path


def words(messages: list[Any]) -> set[str]:
    """Random words of 16 hexadecimal digits in a dialogue, which fence quoted texts."""
    return {word for each in messages for word in re.findall(r"\b[0-9a-f]{16}\b", each.content)}


def test_a_turn_that_many_rollouts_took_is_taught_once(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", "search Bo", "search Al", "search Bo", "search Bo")
    shown = [each.messages[1].content or "" for each in read_dialogues(turns, 0)]
    assert ["search Bo" in each for each in shown] == [True, False]


def test_each_question_has_one_random_word_of_its_fences_which_the_seed_decides(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", "search Bo", "search Al")
    first, again, other = (read_dialogues(turns, seed) for seed in (0, 0, 1))
    recorded = {word for text in ("search Bo", "search Al") for word in re.findall("[0-9a-f]{16}", str(dialogue(text)))}
    found = [words(list(each.messages)) for each in (*first, *other)]
    assert [len(each) for each in found] == [1, 1, 1, 1]
    assert len(set.union(*found) | recorded) == 6
    assert first == again


def test_words_of_fences_are_no_phrases_and_cost_eight_tokens(tmp_path: Path) -> None:
    dialogues = read_dialogues(labelled(tmp_path / "turns.parquet", *(f"search {n}" for n in range(60))), 0)
    before = build_tokenizer()
    tokenizer: Qwen2Tokenizer = build_tokenizer()
    add_phrases(tokenizer, dialogues)
    added = set(tokenizer.get_added_vocab()) - set(before.get_added_vocab())
    broken = [each for each in added if re.fullmatch("[0-9a-f]{3,}", each)]
    assert broken == []
    for each in dialogues:
        (word,) = words(list(each.messages))
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 8


def test_turns_for_rl_are_distinct_and_drawn_by_the_seed(tmp_path: Path) -> None:
    turns = labelled(tmp_path / "turns.parquet", *(f"search {n % 10}" for n in range(30)))

    def drawn(most: int, seed: int) -> list[str]:
        draw_turns(turns, tmp_path / "drawn.parquet", most, seed)
        texts: list[str] = pyarrow.parquet.read_table(tmp_path / "drawn.parquet")["text"].to_pylist()
        return texts

    assert drawn(100, 0) == [f"search {n}" for n in range(10)]
    assert len(set(drawn(4, 0))) == 4
    assert drawn(4, 0) == drawn(4, 0) != drawn(4, 1)


def test_rows_are_distinct_by_all_their_messages() -> None:
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    assert distinct_rows([[question], [question, answer], [question], [question, answer]]) == [0, 1]


WORLD = make_small_world(3)
QUESTIONS = demonstration_questions(WORLD, 40, 3, KINDS_ASKED)


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> list[Transcript]:
    return record_all(QUESTIONS, make_pages(WORLD, 3, tmp_path_factory.mktemp("world")), CARELESS)


def shown_turns(transcript: Transcript) -> list[ShownTurn]:
    parts = OBSERVED.split(transcript.log.messages[-1].content)
    pages = [re.sub("</?information>", "", each).strip() for each in parts[1::2]]
    return [ShownTurn(text=own, observation=page) for own, page in zip(parts[::2], [*pages, ""], strict=True)]


def oracle_labels(path: Path, transcripts: Sequence[Transcript]) -> Path:
    """Write the labels that `process label` would write if the oracle judged the transcripts' turns."""
    principles = principle_set_of("principles", PRINCIPLES_FILE, 0)
    scores = oracle({each.text: each for each in QUESTIONS})
    turns, questions = [], []
    for asked, transcript in zip(QUESTIONS, transcripts, strict=True):
        shown = shown_turns(transcript)
        for number, turn in enumerate(shown[:-1]):
            earlier = tuple(shown[:number])
            question = turn_question(asked.text, earlier, turn, principles, lambda texts, _: texts)
            said = answer(read_question(question.messages), scores)  # type: ignore[arg-type]  # messages with texts
            judged = JudgedTurn(id=f"1:{asked.id}:{number}", task=asked.text, earlier=earlier, turn=turn, outcome=None)
            label = score_of_answer(said, turn, principles)
            given = {"spread": 0.0, "num_samples": 1, "num_valid": 1, "labelled_by": "judge", "answer": said}
            turns.append(LabelledTurn(judged=judged, label=label, **given))  # type: ignore[arg-type]  # fields
            questions.append(question)
    write_turns(path, turns, questions, principles, 0.1)
    return path


def judge_tokenizer(transcripts: Sequence[Transcript], turns: Path) -> Qwen2Tokenizer:
    tokenizer = build_policy_tokenizer([each.log for each in transcripts])
    add_phrases(tokenizer, read_dialogues(turns, 0))
    return tokenizer


async def test_what_the_oracle_answers_fits_into_the_limits_and_is_paid_as_the_judge_would_spell_it(
    transcripts: list[Transcript], tmp_path: Path
) -> None:
    turns = oracle_labels(tmp_path / "turns.parquet", transcripts)
    tokenizer = judge_tokenizer(transcripts, turns)
    table: list[dict[str, Any]] = pyarrow.parquet.read_table(turns).to_pylist()
    rows = [table[number] for number in distinct_rows([each["messages"] for each in table])]
    assert len(rows) > 80

    assert len(fitting(tokenizer, read_dialogues(turns, 0))) == len(rows)
    for row in rows:
        said = row["messages"][-1]["content"]
        spelt = tokenizer.decode(tokenizer.encode(said, add_special_tokens=False))
        options = json.loads(row["verifier_options"])
        turn = make_turn(
            expert=Message(role=Role.ASSISTANT, content=said), verifier="process_score", verifier_options=options
        )
        assert await score_completion(str(spelt), True, turn) == Verdict.accept()


@pytest.mark.parametrize(
    ("text", "quotation"),
    [
        ("<think>", "think"),
        ("<think></think>", "think"),
        ("<think", "think"),
        ("</information>\n\n</think>", "information"),
        ("<think>Hm <sea", "Hm"),
        ("1 < 2", "1"),
        ("<", "<"),
    ],
)
async def test_a_turn_of_tags_alone_is_quoted_without_forging_one(text: str, quotation: str) -> None:
    principles = principle_set_of("principles", PRINCIPLES_FILE, 0)
    asked = turn_question(QUESTIONS[0].text, (), ShownTurn(text=text), principles, lambda texts, _: texts)
    said = answer(read_question(asked.messages), oracle({QUESTIONS[0].text: QUESTIONS[0]}))  # type: ignore[arg-type]
    options: JsonObject = {"turn": text, "principles": [each.model_dump() for each in principles.principles]}
    turn = make_turn(
        expert=Message(role=Role.ASSISTANT, content=said), verifier="process_score", verifier_options=options
    )

    assert {each["quotation"] for each in json.loads(said)["principles"]} == {quotation}
    assert await score_completion(said, True, turn) == Verdict.accept()


def test_turns_that_are_too_long_for_a_judge_are_not_taught_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialogues = read_dialogues(labelled(tmp_path / "turns.parquet", "search Bo", "search Bo " * 40), 0)
    tokenizer = build_tokenizer()
    add_phrases(tokenizer, dialogues)
    short, long = (len(each.input_ids) for each in fitting(tokenizer, dialogues))
    assert capsys.readouterr().out == ""

    monkeypatch.setattr(judge_policy, "MAX_QUESTION_TOKENS", (short + long) // 2)
    assert [len(each.input_ids) for each in fitting(tokenizer, dialogues)] == [short]
    assert capsys.readouterr().out.startswith("1 of 2 labelled turns are not taught: a question has more than ")
    monkeypatch.setattr(judge_policy, "MAX_ANSWER_TOKENS", 1)
    with pytest.raises(SystemExit, match="no labelled turn is left to teach a judge"):
        fitting(tokenizer, dialogues)


def scripted_judge(folder: Path, turns: Path, is_wrong: Callable[[str, int], bool]) -> Callable[..., Answer]:
    """Fake of SGLang that answers as the labels do, with other scores where `is_wrong(question, seed)` is true."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers: dict[tuple[int, ...], list[str]] = {}
    for messages in pyarrow.parquet.read_table(turns)["messages"].to_pylist():
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        answers[tuple(ids)] = [messages[1]["content"], messages[-1]["content"]]

    def sample(prompt_ids: list[int], seed: int) -> JsonObject:
        question, right = answers[tuple(prompt_ids)]
        said = re.sub(r'"score": [\d.]+', '"score": 3.0', right) if is_wrong(question, seed) else right
        return sglang_sample(tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False))

    def respond(path: str, body: JsonObject) -> Answer:
        if path != "/generate":
            return Answer(body={"model_path": str(folder), "is_generation": True})
        prompts: Any = body["input_ids"]
        parameters: Any = body["sampling_params"]
        pairs = zip(prompts, parameters, strict=True)
        return Answer(body=[sample(prompt, each["sampling_seed"]) for prompt, each in pairs])

    return respond


@pytest.mark.parametrize("most_mixed", [len(QUESTIONS), 9])
def test_rl_takes_what_a_profile_of_the_taught_judge_leaves_even_if_few_turns_are_mixed(
    transcripts: list[Transcript], tmp_path: Path, most_mixed: int
) -> None:
    """A validation split of a tenth would hold none of these tasks, and `select` would refuse that."""
    unused = Path("unused")
    judge = TaughtJudge(
        name="pprm",
        folder=tmp_path,
        seed=0,
        corpus=Corpus(tools=unused, training=unused, held_out=unused, questions={}),
        source=JudgeSource(unused, [], unused),
    )
    oracle_labels(judge.turns, transcripts)
    tokenizer = judge_tokenizer(transcripts, judge.turns)
    tokenizer.model_max_length = MAX_QUESTION_TOKENS + MAX_ANSWER_TOKENS
    tokenizer.save_pretrained(judge.sft)
    Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        eos_token_id=tokenizer.eos_token_id,
    ).save_pretrained(judge.sft)
    (judge.sft / "model.safetensors").write_bytes(b"weights")
    draw_turns(judge.turns, judge.drawn, 400, 0)
    tasks = [each.text for each in QUESTIONS]
    mixed = [each for each in tasks if split_of(task_id(each), seed=0, validation_share=0.1) == "train"][:most_mixed]

    def is_wrong(question: str, seed: int) -> bool:
        return bool(seed % 2) and any(each in question for each in mixed)

    training = judge.training(10)
    with fake_server(scripted_judge(judge.sft, judge.drawn, is_wrong)) as server:
        more = {"import": ("--workers", "1"), "profile": ("--endpoint", server.url), "select": ("--workers", "1")}
        for command in judge.selection(training):
            done = CliRunner().invoke(app, [*map(str, command), *more[str(command[0])]])
            assert done.exit_code == 0, done.output

    report = json.loads(training.rows.with_suffix(".report.json").read_text())
    assert report["num_validation"] == 0
    assert report["num_train"] == report["num_by_outcome"]["mixed"] >= training.batch_size
    assert report["num_refused_experts"] == {}
    check_launch(checked_config(training.command[3:]), {"method": "pivotrl"})  # training samples as the profile did
