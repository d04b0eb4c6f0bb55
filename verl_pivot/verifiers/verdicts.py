"""Reason codes of the verdicts that the shipped verifiers give, and constructors that bound a verdict's detail."""

from enum import StrEnum

from verl_pivot.types import Verdict

MAX_DETAIL_CHARS = 500
"""Most characters of a detail; details quote texts of the policy and of programs, which may be of any length."""


class Reason(StrEnum):
    """Reason codes of the verifiers that come with the package; a verifier of your own may use its own codes.

    The codes are names of metrics and must not change; "gold" in a code means the expert's action.
    """

    ACCEPTED = "accepted"
    PARTIAL = "partial"
    """Graded with a score between 0 and 1."""

    TRUNCATED = "truncated"
    MALFORMED_CALL = "malformed_call"
    MALFORMED_MESSAGE = "malformed_message"
    """The text around the calls is not valid in an action: it holds chat markers, thinking that is never closed, text
    after a call, or no visible letter."""
    TOO_DEEP = "too_deep"
    """Arguments are nested so deeply that no tool would take them."""
    EMPTY_MESSAGE = "empty_message"
    CALL_INSTEAD_OF_MESSAGE = "call_instead_of_message"
    MESSAGE_INSTEAD_OF_CALL = "message_instead_of_call"
    WRONG_NUMBER_OF_CALLS = "wrong_number_of_calls"
    WRONG_TOOL = "wrong_tool"
    MISSING_ARGUMENT = "missing_argument"
    EXTRA_ARGUMENT = "extra_argument"
    """The tool has the argument, and the expert did not give it."""
    UNKNOWN_ARGUMENT = "unknown_argument"
    """The tool does not have the argument."""
    WRONG_TYPE = "wrong_type"
    WRONG_VALUE = "wrong_value"
    WRONG_FORM = "wrong_form"
    """The text breaks a constraint on its form."""
    NOT_IDENTICAL = "not_identical"
    NO_ANSWER = "no_answer"
    SEVERAL_ANSWERS = "several_answers"
    TEXT_BEHIND_ANSWER = "text_behind_answer"
    """The policy goes on after an answer or query that has to end its turn."""
    TOO_LONG = "too_long"
    JUDGE_WAVERS = "judge_wavers"
    """The judge changes its answer when the two actions are swapped."""

    UNANSWERABLE = "unanswerable"
    """The judge answers the question about the expert's action, but never the one about this action as required."""

    MALFORMED_COMMAND = "malformed_command"
    """A shell would not accept the command."""
    WRONG_OUTPUT = "wrong_output"
    WRONG_ROWS = "wrong_rows"
    WRONG_STATE = "wrong_state"
    """The action leaves the environment in another state than the expert's."""
    INVALID_PAGE = "invalid_page"
    """The page hangs, takes too long, floods the browser, crashes or does not load."""
    SCRIPT_ERROR = "script_error"
    """A script of the page raises an error while it loads."""
    NOTHING_SHOWN = "nothing_shown"
    """The page shows nothing that can be seen."""
    LEFT_PAGE = "left_page"
    """The page goes to another address."""
    HAS_PICTURES = "has_pictures"
    """The page shows a picture where the row wants text and boxes."""
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"

    BROKEN_EXPERT = "broken_gold"
    """Undecided: the row's expert action is missing or unusable, so that nothing can be compared with it."""
    BAD_OPTIONS = "bad_options"
    """Undecided: the verifier does not take the options that the row gives it."""
    EXPERT_WAVERS = "gold_wavers"
    """Undecided: the verifier gives another score when it is asked about the expert's action again."""
    EXPERT_TIME_LIMIT = "gold_time_limit"
    """Undecided: the expert's action takes too long here."""
    JUDGE_FAILED = "judge_failed"
    """Undecided: the judge does not answer, or not in the required form."""
    UNCERTIFIED = "uncertified"
    """Undecided: no certificate of the judge passes the checks."""
    ENVIRONMENT_FAILED = "environment_failed"
    """Undecided: a system that the environment needs failed."""
    BROWSER_FAILED = "browser_failed"
    """Undecided: the browser died or does not start."""
    SANDBOX_FAILED = "sandbox_failed"
    """Undecided: the sandbox could not run a program."""
    NOBODY_DECIDED = "nobody_decided"
    """Undecided: none of several verifiers came to a verdict."""


def refuse(reason: Reason, detail: str = "") -> Verdict:
    """Verdict that the action is wrong."""
    return Verdict.refuse(reason, detail[:MAX_DETAIL_CHARS])


def undecided(reason: Reason, detail: str) -> Verdict:
    """Verdict that the verifier cannot tell: the row is broken, or a system that it needs failed."""
    return Verdict.undecided(reason, detail[:MAX_DETAIL_CHARS])


def broken_expert(detail: str) -> Verdict:
    """Verdict that nothing can be compared with the row's expert action."""
    return undecided(Reason.BROKEN_EXPERT, detail)


def graded(score: float, detail: str = "") -> Verdict:
    """Verdict with a score: right (1), right in part, or wrong (0)."""
    reason = Reason.ACCEPTED if score == 1.0 else Reason.PARTIAL if score else Reason.WRONG_VALUE
    return Verdict(score=score, reason=reason, detail=detail[:MAX_DETAIL_CHARS])
