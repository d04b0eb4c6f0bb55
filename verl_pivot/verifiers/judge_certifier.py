"""Certifier: code of an action and of the expert's action -> a verdict from valid certificates of a judge."""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from verl_pivot.errors import VerifierError
from verl_pivot.off_loop import run_off_loop, size_of_message
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.edit_commands import plain_path
from verl_pivot.verifiers.judge_certificate import Certificate, problem_of
from verl_pivot.verifiers.judge_certificate_files import (
    CertificateOptions,
    CodeComparison,
    Texts,
    compared,
    texts_after,
)
from verl_pivot.verifiers.judge_certificate_prompt import certificate_question, form_of
from verl_pivot.verifiers.judge_client import Endpoint, UnprovenAnswerError, ask
from verl_pivot.verifiers.judge_control import verdict_or_refusal
from verl_pivot.verifiers.judge_prompts import conversation_text
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

MAX_ROW_CHARS = 200_000
"""Most characters of the conversation, the tests and the files after the expert's action, all together."""
MAX_PLACES = 50
"""Most places at which an action may differ from the expert's in a row without tests; with more, it is refused."""
_MAX_CACHED_VERDICTS = 65_536
_verdicts: AskedOnce[bytes, Verdict] = AskedOnce(_MAX_CACHED_VERDICTS)


class Certifier:
    """Asks a judge whether an action's code does the same as the expert's, and accepts only valid certificates."""

    def __init__(self, options: CertificateOptions, endpoint: Endpoint, max_added_chars: int) -> None:
        """Keep the parts that the questions of one row share.

        Args:
            options: The row's files and tests.
            endpoint: The judge.
            max_added_chars: Most characters by which the files after an action may exceed those after the expert's.
        """
        self._options = options
        self._endpoint = endpoint
        self._max_added_chars = max_added_chars
        self._before: Texts = {plain_path(path): text for path, text in options.files.items()}
        self._num_test_chars = sum(map(len, options.tests.values()))
        self._size = sum(map(len, options.files.values())) + self._num_test_chars

    async def verdict(self, action: Message, turn: Turn, shown_state: Sequence[Message]) -> Verdict:
        """The verdict on an action; undecided if no certificate is valid, or the judge does not answer."""
        state = conversation_text(shown_state)
        size = self._size + size_of_message(action) + size_of_message(turn.expert)
        texts = await run_off_loop(size, self._texts_or_verdict, action, turn.expert, state)
        if isinstance(texts, Verdict):
            return texts
        sampled, expert = texts
        key = sha256(msgspec.json.encode([str(self._endpoint), self._options.tests, state, sampled, expert])).digest()
        try:
            return await _verdicts.get(
                key,
                lambda: verdict_or_refusal(
                    lambda: self._judge(state, sampled, expert), lambda: self._judge_expert(state, expert)
                ),
            )
        except UnprovenAnswerError as error:
            return undecided(Reason.UNCERTIFIED, str(error))
        except VerifierError as error:
            return undecided(Reason.JUDGE_FAILED, str(error))

    def _texts_or_verdict(self, action: Message, expert_action: Message, state: str) -> tuple[Texts, Texts] | Verdict:
        """Files after the action and after the expert's, or a verdict for which no judge is needed."""
        expert = texts_after(expert_action, self._options)
        if isinstance(expert, Verdict):
            return broken_expert(f"the expert's action cannot be compared: {expert.reason} {expert.detail}")
        if expert == self._before:
            return broken_expert("the expert's edit changes nothing; every edit without effect would be accepted")
        num_chars = len(state) + self._num_test_chars + _num_chars(expert)
        if num_chars > MAX_ROW_CHARS:
            return broken_expert(f"the row has {num_chars} characters, but a certificate allows {MAX_ROW_CHARS}")
        if not _is_unicode([state, expert, self._options.tests]):
            return broken_expert("the row contains a lone surrogate")
        sampled = texts_after(action, self._options)
        if isinstance(sampled, Verdict):
            return sampled
        if sampled == expert:
            return Verdict.accept()
        return _refusal(sampled, expert, self._before, self._max_added_chars) or (sampled, expert)

    async def _judge(self, state: str, sampled: Texts, expert: Texts) -> Verdict:
        """The verdict of two certificates; the second, with the versions swapped, is needed if the first accepts."""
        tests, size = self._options.tests, _num_chars(sampled) + _num_chars(expert)
        comparison = await run_off_loop(size, compared, sampled, expert, tests, passing_version=2)
        if len(comparison.places) > MAX_PLACES and not tests:
            problem = f"differs from the expert's in {len(comparison.places)} places; the limit is {MAX_PLACES}"
            return refuse(Reason.TOO_LONG, problem)
        first = await self._certificate(state, comparison)
        if not first.same:
            return refuse(Reason.WRONG_VALUE, first.reason)
        comparison = await run_off_loop(size, compared, expert, sampled, tests, passing_version=1)
        second = await self._certificate(state, comparison)
        if not second.same:
            return refuse(Reason.JUDGE_WAVERS, second.reason)
        return Verdict.accept(detail=first.reason[:300])

    async def _judge_expert(self, state: str, expert: Texts) -> Verdict:
        """Ask the control question: compare the expert's version with itself, or without tests with the row's files."""
        first = expert if self._options.tests else self._before
        size = _num_chars(first) + _num_chars(expert)
        comparison = await run_off_loop(size, compared, first, expert, self._options.tests, passing_version=2)
        certificate = await self._certificate(state, comparison, is_control=True)
        return Verdict.accept(detail=certificate.reason[:300])

    async def _certificate(self, state: str, comparison: CodeComparison, *, is_control: bool = False) -> Certificate:
        question = certificate_question(state, comparison)
        return await ask(
            self._endpoint,
            question,
            form_of(comparison),
            lambda each: problem_of(each, comparison),
            is_control=is_control,
        )


def _refusal(sampled: Texts, expert: Texts, before: Texts, max_added_chars: int) -> Verdict | None:
    """Refusal of an action for which no judge is needed; None if the judge has to be asked."""
    if sampled == before:
        return refuse(Reason.WRONG_OUTPUT, "the edit changes nothing")
    if not any(text is not None and text.strip() for text in sampled.values()) and _num_chars(expert):
        return refuse(Reason.NO_ANSWER, "all files are empty after the action")
    if (num_chars := _num_chars(sampled)) > _num_chars(expert) + max_added_chars:
        return refuse(Reason.TOO_LONG, f"{num_chars} characters")
    return None if _is_unicode([sampled]) else refuse(Reason.WRONG_TYPE, "the text contains a lone surrogate")


def _num_chars(texts: Texts) -> int:
    return sum(len(path) + len(text or "") for path, text in texts.items())


def _is_unicode(values: Sequence[object]) -> bool:
    try:
        msgspec.json.encode(values)
    except UnicodeEncodeError:
        return False
    return True
