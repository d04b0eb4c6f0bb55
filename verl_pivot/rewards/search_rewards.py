"""Text of a trajectory that searches, with its record -> its reward, by the rules of Search-R1 and of ReSearch.

The functions have the arguments of verl's reward functions: set `reward.custom_reward_function.path` to
`pkg://verl_pivot.rewards.search_rewards`, and `name` to one of them. Numbers go into `reward_kwargs`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from verl_pivot.data.labels import answers_of_truth
from verl_pivot.data.rollout_records import RECORD_FIELD, RolloutRecord, StopReason, parse_record
from verl_pivot.data.tagged_text import TaggedText, split_at_tags
from verl_pivot.errors import DataError
from verl_pivot.verifiers.extraction import extract_answers
from verl_pivot.verifiers.qa_words import AnswerWords, are_same, f1, search_r1_words

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_NEXT: Mapping[str, Mapping[str, str]] = {
    "begin": {"<think>": "think"},
    "think": {"</think>": "thought"},
    "thought": {"<search>": "search", "<answer>": "answer"},
    "search": {"</search>": "asked"},
    "asked": {"<information>": "information"},
    "information": {"</information>": "begin"},
    "answer": {"</answer>": "end"},
}
"""{state: {tag: next state}} of a trajectory of Search-R1."""
_WITH_TEXT = ("think", "search", "information", "answer")
"""States in which there may be text; in the others there are only blanks."""
_WHOLE_ANSWERS = ("yes", "no", "noanswer")
"""One-word answers that ReSearch compares only as a whole: with any other answer, their F1 is 0."""


class _Trajectory(NamedTuple):
    """Parts of a trajectory that the rewards read."""

    text: str
    """Whole text after the prompt, observations included."""
    record: RolloutRecord
    accepted: tuple[AnswerWords, ...]
    """Words of the accepted answers."""

    @property
    def without_retries(self) -> str:
        """The text without the retry message, which the policy did not write either, and whose tags hold no answer."""
        return self.record.without_retry_message(self.text)

    @property
    def num_searches(self) -> int:
        """Number of calls, failed ones included; the record's entry for a turn without call and answer is no call."""
        return self.record.num_calls

    def answer(self, text: str) -> AnswerWords | None:
        """Words of the answer between <answer> and </answer>; None without an answer or with several different ones."""
        answers = extract_answers(text, "answer_tag")
        return search_r1_words(answers[0]) if len(answers) == 1 else None

    def is_right(self, answer: AnswerWords | None) -> bool:
        """Whether an answer is one of the accepted ones, word for word."""
        return answer is not None and any(are_same(answer, each) for each in self.accepted)


def search_r1(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    *,
    cost_per_search: float = 0.0,
) -> float:
    """1 for an accepted answer, else 0, minus a cost for each search; the paper has no such cost.

    Source: Search-R1 (arXiv:2503.09516, section 3.4).

    Args:
        data_source: Not read.
        solution_str: Text after the prompt.
        ground_truth: Accepted answers: a text, a list, or {"target": a list}.
        extra_info: Has the record of the rollout, as verl gives it to reward functions.
        cost_per_search: Cost of each call, subtracted from the reward, >= 0.
    """
    played = _trajectory(solution_str, ground_truth, extra_info)
    right = played.is_right(played.answer("".join(_at_information(played.without_retries).outside)))
    return float(right) - cost_per_search * played.num_searches


def search_r1_format(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    *,
    form: float = 0.2,
    retrieval: float = 0.1,
    answer: float = 0.1,
    cost_per_search: float = 0.0,
) -> float:
    """1 for an accepted answer in the right form, and 1 - `form` for one in a wrong form.

    Without an accepted answer, the right form is paid `form`, and `retrieval` more if a document holds an accepted
    answer. An answer that is not accepted and has a wrong form is paid `answer`.

    Source: Search-R1's `verl/utils/reward_score/qa_em_format.py`. Differs where that code can be fooled: a block
    <information> that no call gave is a wrong form, and several different answers count as none. Tags within an
    observation are text, and so are those of the retry message, after which the form is wrong.

    Args:
        data_source: Not read.
        solution_str: Text after the prompt.
        ground_truth: Accepted answers: a text, a list, or {"target": a list}.
        extra_info: Has the record of the rollout, as verl gives it to reward functions.
        form: Reward for the right form.
        retrieval: Reward for a document that holds an accepted answer.
        answer: Reward for an answer in a wrong form.
        cost_per_search: Cost of each call, subtracted from the reward, >= 0; no published code has it.
    """
    played = _trajectory(solution_str, ground_truth, extra_info)
    parts = _at_information(played.without_retries)
    found = played.answer("".join(parts.outside))
    has_form = _has_search_r1_form(played.text, played.num_searches)
    if played.is_right(found):
        reward = 1.0 if has_form else 1.0 - form
    elif has_form:
        is_retrieved = any(_holds(block, played.accepted) for block in parts.inside)
        reward = form + retrieval * is_retrieved
    else:
        reward = answer if found is not None else 0.0
    return reward - cost_per_search * played.num_searches


def research(data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    r"""0 for a wrong form, else the F1 of the answer in \boxed{} with the nearest accepted one, or 0.1 if the F1 is 0.

    Source: ReSearch (arXiv:2503.19470, section 2.3) and its `verl/utils/reward_score/re_search.py`. Differs where that
    code can be fooled: a block <result> that no call gave, and several different boxes, are a wrong form.

    Args:
        data_source: Not read.
        solution_str: Text after the prompt.
        ground_truth: Accepted answers: a text, a list, or {"target": a list}.
        extra_info: Has the record of the rollout, as verl gives it to reward functions.
    """
    played = _trajectory(solution_str, ground_truth, extra_info)
    pieces = split_at_tags(played.without_retries, "<result>", "</result>").outside
    has_ended = played.record.stop_reason is StopReason.ANSWERED
    answers = extract_answers(_answer_text(pieces), "boxed")
    if not has_ended or len(answers) != 1 or not _has_research_form(pieces, played.num_searches):
        return 0.0
    words = search_r1_words(answers[0])
    return max(_research_f1(words, accepted) for accepted in played.accepted) or 0.1


def _trajectory(text: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> _Trajectory:
    if RECORD_FIELD not in extra_info:
        raise DataError(
            f"extra_info has no {RECORD_FIELD!r}, the record of a rollout with tools; set "
            "actor_rollout_ref.rollout.agent.default_agent_loop=pivot_tools"
        )
    accepted = tuple(words for each in answers_of_truth(ground_truth) if (words := search_r1_words(each)).compared)
    if not accepted:
        raise DataError(f"the accepted answers are all empty after normalisation: {ground_truth!r:.200}")
    return _Trajectory(text, parse_record(extra_info[RECORD_FIELD]), accepted)


def _at_information(text: str) -> TaggedText:
    """The text split at its observations."""
    return split_at_tags(text, "<information>", "</information>")


def _has_search_r1_form(text: str, num_calls: int) -> bool:
    """Whether thoughts, searches and observations follow each other up to one answer, with an observation per call."""
    state, num_observations = "begin", 0
    for part in _TAG.split(text):
        if part in _NEXT.get(state, {}):
            state = _NEXT[state][part]
            num_observations += state == "information"
        elif (_TAG.fullmatch(part) and state != "information") or (part.strip() and state not in _WITH_TEXT):
            return False
    return state == "end" and num_observations == num_calls


def _has_research_form(pieces: Sequence[str], num_calls: int) -> bool:
    """Whether the text that the policy wrote has the form of ReSearch.

    Args:
        pieces: [num_observations + 1] texts before, between and after the blocks <result>.
        num_calls: Number of calls of the trajectory.
    """
    own = "".join(pieces)
    is_paired = own.count("<think>") == own.count("</think>") >= 1
    has_one_answer = own.count("<answer>") == own.count("</answer>") == 1
    has_answer = has_one_answer and "</answer>" in pieces[-1].partition("<answer>")[2]
    has_other_tags = any(tag in own for tag in ("<result>", "</result>"))
    asks = [each for each in pieces[:-1] if _ends_with_query(each)]
    has_queries = len(asks) == len(pieces) - 1 == num_calls and "<search>" not in pieces[-1]
    return is_paired and has_answer and has_queries and not has_other_tags


def _ends_with_query(piece: str) -> bool:
    before, _, query = piece.rstrip().rpartition("<search>")
    is_only_one = "search>" not in before and query.count("</search>") == 1
    return is_only_one and query.endswith("</search>")


def _answer_text(pieces: Sequence[str]) -> str:
    return pieces[-1].partition("<answer>")[2].partition("</answer>")[0]


def _research_f1(words: AnswerWords, accepted: AnswerWords) -> float:
    is_whole = any(" ".join(each.compared) in _WHOLE_ANSWERS for each in (words, accepted))
    return f1(words, accepted) if words.compared == accepted.compared or not is_whole else 0.0


def _holds(block: str, accepted: Iterable[AnswerWords]) -> bool:
    """Whether a text holds one of the answers, word for word."""
    words = f" {' '.join(search_r1_words(block).compared)} "
    return any(f" {' '.join(each.compared)} " in words for each in accepted)
