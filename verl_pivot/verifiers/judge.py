"""Verifier `judge`: a language model says whether an action does the same as the expert's, or how good it is."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from verl_pivot.all_at_once import all_at_once
from verl_pivot.engines.chat import AnswerFormat
from verl_pivot.errors import VerifierError
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers import judge_prompts as prompts
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.judge_certificate_files import CertificateOptions
from verl_pivot.verifiers.judge_certifier import Certifier
from verl_pivot.verifiers.judge_client import Endpoint, ask
from verl_pivot.verifiers.judge_control import verdict_or_refusal
from verl_pivot.verifiers.judge_prompts import ShownAction
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, graded, refuse, undecided

MAX_CHARS = 20_000
"""Most characters of an action that a judge is shown; a longer action is refused."""
_ITEM_SCORES = {"Yes": 1.0, "In progress": 0.5, "No": 0.0}
_MAX_CACHED_VERDICTS = 65_536
_ANSWER_TOKENS, _CERTIFICATE_TOKENS = 1024, 8192


class JudgeOptions(Options):
    """Options of the verifier `judge`."""

    base_url: str
    """URL of an OpenAI-compatible endpoint, such as http://localhost:30000/v1."""
    model: str
    """Name of the model on that endpoint."""
    api_key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the API key of the endpoint."""
    kind: Literal["equivalence", "rubric", "checklist", "certificate"] = "equivalence"
    """
    equivalence: whether the action is the same as the expert's, asked in both orders; both answers must say so.
    rubric: 0 to 10 points by `criterion`, divided by 10.
    checklist: the mean over `items` of Yes 1, In progress 0.5 and No 0.
    certificate: whether the action's code does the same as the expert's, with premises and traces that a program
    checks. It is asked in both orders; both answers must say so. See `certificate`.
    """
    criterion: str = "Same means: whoever receives them is told or does the same things, in whatever words."
    """Text that tells the judge what "same" means, or what the points stand for."""
    items: tuple[str, ...] = ()
    """Items of the checklist."""
    certificate: CertificateOptions | None = None
    """Files, tests and actions of a certificate."""
    num_state_messages: Annotated[int, Field(ge=0, le=100)] = 3
    """Number of last messages of the conversation that the judge is shown."""
    max_concurrency: Annotated[int, Field(ge=1)] = 16
    """Most requests of one process at a time."""
    requests_per_minute: Annotated[float, Field(gt=0.0)] = 6000.0
    """Most requests of one process in a minute."""
    max_retries: Annotated[int, Field(ge=0, le=20)] = 4
    """Number of retries of a request after a refusal because of load, a timeout or a server error."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Timeout of one request, in seconds."""
    cache_dir: str | None = None
    """Folder in which the judge's answers are cached, for a resumed run and other processes; null for no cache."""
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    """Most tokens of one answer of the judge; null means 1024, or 8192 if the kind is certificate."""
    answer_format: AnswerFormat = "json_schema"
    """
    json_schema: the server constrains answers to their JSON schema.
    json_object: the server constrains answers to JSON; for servers that refuse schemas.
    text: the prompt alone asks for JSON; for servers that refuse or ignore both, and for SGLang on a CPU, where a
    schema stops the server.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.items) != (self.kind == "checklist"):
            raise ValueError(
                f"kind 'checklist' needs items, and no other kind takes them; got {self.kind!r} with "
                f"{len(self.items)} items"
            )
        if (self.certificate is not None) != (self.kind == "certificate"):
            raise ValueError(
                f"kind 'certificate' needs the key certificate, and no other kind takes it; got {self.kind!r}"
            )
        if self.kind == "certificate" and "criterion" in self.model_fields_set:
            raise ValueError("kind 'certificate' takes no criterion: its tests, or the places that differ, decide")
        return self

    def endpoint(self) -> Endpoint:
        fields = {name: getattr(self, name) for name in Endpoint.__dataclass_fields__}
        max_tokens = self.max_tokens or (_CERTIFICATE_TOKENS if self.kind == "certificate" else _ANSWER_TOKENS)
        return Endpoint(**{**fields, "max_tokens": max_tokens})


_verdicts: AskedOnce[tuple[JudgeOptions, str, ShownAction, ShownAction], Verdict] = AskedOnce(_MAX_CACHED_VERDICTS)


@register("judge", options=JudgeOptions)
class JudgeVerifier:
    """Asks the judge once about equal texts and caches its verdict; undecided if the judge does not answer.

    A call where the expert writes a message is refused without asking, as is a message where the expert makes a call.
    """

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options
        self._certifier = (
            None if options.certificate is None else Certifier(options.certificate, options.endpoint(), MAX_CHARS)
        )

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        if self._certifier is not None:
            return await self._certifier.verdict(action, turn, self._shown_state(turn))
        sampled, expert = prompts.shown_action(action), prompts.shown_action(turn.expert)
        state = prompts.conversation_text(self._shown_state(turn))
        if (problem := _problem_of_row(state, expert.all_text)) is not None:
            return broken_expert(problem)
        refusal = _refusal_without_judge(action, turn.expert, sampled.all_text)
        if refusal is not None:
            return refusal
        if self._options.kind == "equivalence" and sampled == expert:
            return Verdict.accept()
        try:
            return await _verdicts.get(
                (self._options, state, sampled, expert),
                lambda: verdict_or_refusal(
                    lambda: self._judge(state, sampled, expert),
                    None if sampled == expert else lambda: self._judge(state, expert, expert, is_control=True),
                ),
            )
        except VerifierError as error:
            return undecided(Reason.JUDGE_FAILED, str(error))

    def _shown_state(self, turn: Turn) -> Sequence[Message]:
        return turn.state[len(turn.state) - min(self._options.num_state_messages, len(turn.state)) :]

    async def _judge(
        self, state: str, sampled: ShownAction, expert: ShownAction, *, is_control: bool = False
    ) -> Verdict:
        if self._options.kind == "rubric":
            return await self._by_rubric(state, sampled, is_control=is_control)
        if self._options.kind == "checklist":
            return await self._by_checklist(state, sampled, is_control=is_control)
        return await self._by_equivalence(state, sampled, expert, is_control=is_control)

    async def _by_equivalence(
        self, state: str, sampled: ShownAction, expert: ShownAction, *, is_control: bool
    ) -> Verdict:
        options = self._options
        questions = (
            prompts.equivalence(state, expert, sampled, options.criterion),
            prompts.equivalence(state, sampled, expert, options.criterion),
        )
        first, second = await all_at_once(
            ask(options.endpoint(), question, prompts.Equivalence, is_control=is_control) for question in questions
        )
        if first.same and second.same:
            return Verdict.accept(detail=first.reason[:300])
        reason = Reason.JUDGE_WAVERS if first.same or second.same else Reason.WRONG_VALUE
        return refuse(reason, (second if first.same else first).reason)

    async def _by_rubric(self, state: str, sampled: ShownAction, *, is_control: bool) -> Verdict:
        options = self._options
        question = prompts.rubric(state, sampled, options.criterion)
        grade = await ask(options.endpoint(), question, prompts.Rubric, is_control=is_control)
        return graded(grade.points / 10.0, grade.reason)

    async def _by_checklist(self, state: str, sampled: ShownAction, *, is_control: bool) -> Verdict:
        items = self._options.items
        form = prompts.form_of_checklist(len(items))
        question = prompts.checklist(state, sampled, items)
        checked = await ask(self._options.endpoint(), question, form, is_control=is_control)
        states = {item.number: item.state for item in checked.items}
        score = sum(_ITEM_SCORES[state] for state in states.values()) / len(items)
        return graded(score, ", ".join(states[number] for number in sorted(states)))


def _refusal_without_judge(action: Message, expert: Message, sampled: str) -> Verdict | None:
    """Refusal of an action for which no judge is needed; None if the judge has to be asked."""
    if bool(action.tool_calls) != bool(expert.tool_calls):
        return refuse(Reason.CALL_INSTEAD_OF_MESSAGE if action.tool_calls else Reason.MESSAGE_INSTEAD_OF_CALL)
    if not sampled.strip():
        return refuse(Reason.EMPTY_MESSAGE)
    if len(sampled) > MAX_CHARS:
        return refuse(Reason.TOO_LONG)
    return None if _is_unicode(sampled) else refuse(Reason.WRONG_TYPE)


def _problem_of_row(state: str, expert: str) -> str | None:
    """Problem of the row because of which no judge can be asked, whatever the policy does; None if there is none."""
    if not expert.strip():
        return "the expert's action has neither a call nor text"
    if len(expert) > MAX_CHARS:
        return f"the expert's action has {len(expert)} characters, more than the {MAX_CHARS} that a judge is shown"
    return None if _is_unicode(state) and _is_unicode(expert) else "the row contains a lone surrogate"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
