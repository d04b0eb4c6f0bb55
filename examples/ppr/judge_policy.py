"""A judge's questions with their answers -> a judge: the study's base policy, taught by SFT to answer them."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
from tokenizers import AddedToken
from transformers import AutoTokenizer, GenerationConfig, Qwen2ForCausalLM, Qwen2Tokenizer

from examples.ppr.serving import digest_of
from examples.quickstart.policy import IGNORED, Example, SftConfig, encode, train
from verl_pivot.data.files import replacing
from verl_pivot.types import Message, Role, Trajectory

MAX_QUESTION_TOKENS = 1536
"""Most tokens of a question to a judge, with its texts."""
MAX_ANSWER_TOKENS = 192
"""Most tokens of a judge's answer."""
_FENCED = re.compile(r"<([0-9a-f]{16})>\n.*?\n</\1>", re.DOTALL)
_QUOTED = re.compile(r'(?<="quotation": ").*?(?=", ")')
_BETWEEN_PHRASES = re.compile(r"[0-9a-f]{16}|\d+|(?<=[.:,;] )|\n")
_STAMP = "judge.json"


def judge_sft_config(seed: int) -> SftConfig:
    """Settings of a judge's SFT; what the base policy has learnt already, such as copying, is not taught again."""
    return SftConfig(
        seed=seed,
        num_copy_steps=0,
        num_careful_steps=1500,
        num_careless_steps=0,
        learning_rate=1e-3,
        head_size=32,
    )


def teach_judge(folder: Path, policy: Path, turns: Path, config: SftConfig) -> Path:
    """Train a judge into `folder`, unless it is there already with the same settings.

    Args:
        folder: Folder of the judge.
        policy: Folder of the policy from which the training starts.
        turns: File that `verl-pivot process label` wrote: questions about turns, and answers.
        config: Settings of the SFT; its settings of the model are not used, since the model is the policy's.
    """
    settings = json.dumps({"policy": str(policy), "turns": digest_of([turns]), "sft": asdict(config)})
    stamp = folder / _STAMP
    if stamp.is_file() and stamp.read_text() == settings:
        return folder
    stamp.unlink(missing_ok=True)
    dialogues = read_dialogues(turns, config.seed)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    add_phrases(tokenizer, dialogues)
    model = Qwen2ForCausalLM.from_pretrained(policy)
    model.resize_token_embeddings(len(tokenizer))
    model.config.max_position_embeddings = MAX_QUESTION_TOKENS + MAX_ANSWER_TOKENS
    train(model, fitting(tokenizer, dialogues), [], config)
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stamp.write_text(settings)  # last, so that a run that was killed starts over
    return folder


def fitting(tokenizer: Qwen2Tokenizer, dialogues: Sequence[Trajectory]) -> list[Example]:
    """The dialogues for SFT; those that are too long for a served judge are left out, and their number is printed.

    Raises:
        SystemExit: If none is left.
    """
    examples = [encode(tokenizer, each) for each in dialogues]
    kept = [each for each in examples if _fits(each)]
    if len(kept) < len(examples):
        print(
            f"{len(examples) - len(kept)} of {len(examples)} labelled turns are not taught: a question has more than "
            f"{MAX_QUESTION_TOKENS} tokens, or an answer more than {MAX_ANSWER_TOKENS}"
        )
    if not kept:
        raise SystemExit("no labelled turn is left to teach a judge")
    return kept


def _fits(example: Example) -> bool:
    num_answered = sum(label != IGNORED for label in example.labels)
    return num_answered <= MAX_ANSWER_TOKENS and len(example.input_ids) - num_answered <= MAX_QUESTION_TOKENS


def read_dialogues(turns: Path, seed: int) -> list[Trajectory]:
    """The distinct dialogues of labelled turns, as trajectories of one turn.

    Each gets a random word for its fences, as the questions to a served judge have. In labelled turns this word is
    computed from the question.
    """
    rows: list[list[dict[str, Any]]] = pyarrow.parquet.read_table(turns, columns=["messages"])["messages"].to_pylist()
    rng = Random(seed)
    return [
        Trajectory(
            id=str(number),
            messages=tuple(Message(role=Role(each["role"]), content=each["content"]) for each in messages),
            tools=(),
        )
        for number, messages in enumerate(_with_another_word(rows[row], rng) for row in distinct_rows(rows))
    ]


def draw_turns(turns: Path, out: Path, most: int, seed: int) -> None:
    """Write distinct labelled turns into another file, drawn by the seed if there are more than `most`."""
    table = pyarrow.parquet.read_table(turns)
    rows = distinct_rows(table["messages"].to_pylist())
    drawn = sorted(Random(seed).sample(rows, min(most, len(rows))))
    with replacing(out) as unfinished:
        pyarrow.parquet.write_table(table.take(drawn), unfinished)


def distinct_rows(rows: Sequence[list[dict[str, Any]]]) -> list[int]:
    """Indices of the rows whose messages no earlier row has; many rollouts take the same turn."""
    first: dict[str, int] = {}
    for number, messages in enumerate(rows):
        first.setdefault(json.dumps(messages), number)
    return [*first.values()]


def _with_another_word(messages: list[dict[str, Any]], rng: Random) -> list[dict[str, Any]]:
    """The messages of a question with the word of their fences replaced by a random one."""
    (word,) = {found.group(1) for each in messages for found in _FENCED.finditer(each["content"])}
    other = rng.randbytes(8).hex()
    return [{**each, "content": each["content"].replace(word, other)} for each in messages]


def add_phrases(tokenizer: Qwen2Tokenizer, dialogues: Sequence[Trajectory]) -> None:
    """Make a token of each phrase that a judge's questions and answers have outside the texts of the turns.

    The texts of the turns are in fences and in quotations; they keep the tokens in which the policy wrote or read them.
    """
    found: set[str] = set()
    for each in dialogues:
        for message in each.messages:
            text = _QUOTED.sub("\n", _FENCED.sub("\n", message.content or ""))
            found.update(_BETWEEN_PHRASES.split(text))
    words = sorted(word for word in found if len(word) > 1)
    pairs = [f"{number:02x}" for number in range(256)]  # words of fences consist of these
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*words, *pairs)])
