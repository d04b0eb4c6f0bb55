"""The policy of the tutorials: a server that looks orders up, refunds broken orders, and never cancels any."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.fake_engine import Answer, FakeServer, fake_server, openai_answer
from tests.support.tiny_model import write_tokenizer
from verl_pivot.types import JsonObject

_NAME = "policy"


class StandIn(NamedTuple):
    """A checkpoint without weights, and the server that answers for it."""

    folder: Path
    server: FakeServer


@contextmanager
def stand_in_policy(folder: Path) -> Iterator[StandIn]:
    """Answer completions by the text of the prompt and the seed of the sample, until the block ends."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(write_tokenizer(folder / _NAME))

    def respond(path: str, body: JsonObject) -> Answer:
        if path == "/v1/models":
            return Answer(body={"data": [{"id": _NAME}]})
        asked = tokenizer.decode(body["prompt"]).rpartition("<|im_start|>user")[2]
        return Answer(body=openai_answer(_answer(asked, int(str(body["seed"])))))

    with fake_server(respond) as server:
        yield StandIn(folder / _NAME, server)


def _answer(asked: str, seed: int) -> str:
    """One action: a lookup of the order, or if it is broken a refund, of the right order in every other sample."""
    order = int(re.findall(r"\d+", asked)[0])
    if "broken" in asked:
        return _call("refund", order + seed % 2)
    return _call("find_order", order)


def _call(name: str, order: int) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"order_id": {order}}}}}\n</tool_call>'
