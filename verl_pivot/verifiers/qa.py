"""Verifier `qa`: a short answer is right if its words are those of the expert's answer or of an accepted one."""

import re
import string
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.extraction import AnswerPlace, extract_answer
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NOT_PLAIN = re.compile(r"[^a-z0-9 ]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QaOptions(Options):
    """Options of the verifier `qa`."""

    metric: Literal["exact", "f1", "contains"] = "exact"
    """
    exact: the same words in the same order.
    f1: graded by the words that both answers share.
    contains: an accepted answer, word for word, among at most `max_words` words.
    """
    normalisation: Literal["search_r1", "l0"] = "search_r1"
    """search_r1: lower case, without punctuation and articles. l0: lower case, letters a to z, digits and spaces."""
    place: AnswerPlace = "answer_tag"
    """Where the answer stands."""
    answers: tuple[str, ...] = ()
    """Accepted answers; if empty, the answer in the expert's action."""
    max_words: Annotated[int, Field(ge=1, le=1000)] = 20
    """Words of the longest answer that metric `contains` searches."""


@register("qa", options=QaOptions)
class QaVerifier:
    """Compares short answers, with the metrics and normalisations of two papers.

    Sources: Search-R1 (arXiv:2503.09516) and L0 (arXiv:2506.23667). Differs from both where they can be fooled: several
    different answers are no answer, and a row is undecided if the normalisation leaves nothing of an accepted answer,
    since every other such text would equal it.
    """

    def __init__(self, options: QaOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        accepted = options.answers or (_expert_answer(turn.expert, options.place),)
        accepted_words = [self._words(each) for each in accepted]
        if turn.expert.tool_calls and not options.answers:
            return broken_expert("the expert makes a call")
        if not all(accepted_words):
            return broken_expert(f"nothing is left of {accepted} to compare")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        answer = extract_answer(action.content, options.place)
        if isinstance(answer, Verdict):
            return answer
        words = self._words(answer)
        return graded(max(self._score(words, each) for each in accepted_words), answer[:200])

    def _words(self, text: str) -> list[str]:
        text = text.lower()
        if self._options.normalisation == "l0":
            return _NOT_PLAIN.sub("", text).split()
        return _ARTICLES.sub(" ", text.translate(_PUNCTUATION)).split()

    def _score(self, words: list[str], accepted: list[str]) -> float:
        if self._options.metric == "f1":
            return _f1(words, accepted)
        if self._options.metric == "contains" and len(words) <= self._options.max_words:
            starts = range(len(words) - len(accepted) + 1)
            return float(any(words[start : start + len(accepted)] == accepted for start in starts))
        return float(words == accepted)


def _f1(words: list[str], accepted: list[str]) -> float:
    shared = (Counter(words) & Counter(accepted)).total()
    return 2 * shared / (len(words) + len(accepted))


def _expert_answer(expert: Message, place: AnswerPlace) -> str:
    """The expert's answer; empty if there is none or there are several."""
    answer = extract_answer(expert.content, place)
    return "" if isinstance(answer, Verdict) else answer
