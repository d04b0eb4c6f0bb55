"""Verifier `qa`: a short answer is right if its words are those of the expert's answer or of an accepted one."""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.off_loop import run_off_loop
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.extraction import AnswerPlace, extract_answers
from verl_pivot.verifiers.qa_words import AnswerWords, are_same, f1, l0_words, search_r1_words
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse

_MAX_KEPT_CHARS = 1000
"""Most characters of an accepted answer whose words are cached for the next action."""


class QaOptions(Options):
    """Options of the verifier `qa`."""

    metric: Literal["exact", "f1", "contains"] = "exact"
    """
    exact: the same words in the same order.
    f1: graded by the words that both answers share.
    contains: an accepted answer, word for word, within an answer of at most `max_words` words. The other words do not
    matter: "not Paris" contains Paris, and so does a list of guesses.
    """
    normalisation: Literal["search_r1", "l0"] = "search_r1"
    """search_r1: lower case, without articles. l0: lower case, letters a to z and digits. Both drop punctuation, except
    for signs, points, percent signs and other marks that change the meaning of a number or a name."""
    place: AnswerPlace = "answer_tag"
    """Where the answer stands."""
    answers: tuple[str, ...] = ()
    """Accepted answers; if empty, the answer in the expert's action."""
    max_words: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most words of an answer that metric `contains` searches; a longer answer must be an accepted one as a whole."""


@register("qa", options=QaOptions)
class QaVerifier:
    """Compares short answers, with the metrics and normalisations of two papers.

    Sources: Search-R1 (arXiv:2503.09516) and L0 (arXiv:2506.23667). Differs from both where they can be fooled: several
    different answers count as no answer, and marks that tell -5 from 5 or C++ from C count. A row is undecided if
    normalisation leaves nothing of an accepted answer, or if L0's normalisation loses a letter of it.
    """

    def __init__(self, options: QaOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        size = len(action.content) + len(turn.expert.content) + sum(map(len, self._options.answers))
        return await run_off_loop(size, self._compare, action, turn)

    def _compare(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        accepted = options.answers or extract_answers(turn.expert.content, options.place)
        accepted_words = [self._kept_words(each) for each in accepted]
        if turn.expert.tool_calls and not options.answers:
            return broken_expert("the expert makes a call")
        is_clear = options.answers or len({each and each.compared for each in accepted_words}) == 1
        if not is_clear or not all(accepted_words):
            return broken_expert(f"the accepted answers {accepted} are missing, empty or different after normalisation")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        answers = extract_answers(action.content, options.place)
        if not answers:
            return refuse(Reason.NO_ANSWER)
        found = [_words(each, options.normalisation) for each in answers]
        if len({each and each.compared for each in found}) > 1:
            return refuse(Reason.SEVERAL_ANSWERS)
        words = found[0]
        if words is None:
            return refuse(Reason.WRONG_VALUE, answers[0][:200])
        return graded(max(self._score(words, each) for each in accepted_words if each), answers[0][:200])

    def _kept_words(self, accepted: str) -> AnswerWords | None:
        find = _words if len(accepted) > _MAX_KEPT_CHARS else _words_kept
        return find(accepted, self._options.normalisation)

    def _score(self, words: AnswerWords, accepted: AnswerWords) -> float:
        if self._options.metric == "f1":
            return f1(words, accepted)
        if self._options.metric == "contains" and len(words.compared) <= self._options.max_words:
            size = len(accepted.compared)
            starts = range(len(words.compared) - size + 1)
            return float(any(words.compared[start : start + size] == accepted.compared for start in starts))
        return float(are_same(words, accepted))


def _words(text: str, normalisation: str) -> AnswerWords | None:
    """Words of an answer; None if the normalisation leaves no word, or would lose a letter."""
    words = l0_words(text) if normalisation == "l0" else search_r1_words(text)
    return words if words.compared else None


_words_kept = lru_cache(maxsize=4096)(_words)
