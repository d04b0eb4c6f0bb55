"""Step `error_variations`: a turn at which the policy failed -> new requests of the same kind, with their calls.

LoopTool (arXiv:2511.09148, section 3) calls this error-driven data expansion. Its code draws one of four variations by
`randint(0, 6) % 4`, so that the last is half as likely as the others, and keeps every answer of its writer. Here all
variations are equally likely, a program checks the calls, and a caller that reads only the request must make the same
calls.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from pydantic import Field, JsonValue

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.data.turns import PROVENANCE, split_key
from verl_pivot.errors import UserCodeError
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.quality.contract import Names
from verl_pivot.synthesis.caller_turns import is_plain, read_action
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import first_good, made_or_refused
from verl_pivot.synthesis.greedy_probe import Probed, policy_action, probed_turn
from verl_pivot.synthesis.magnet_cast import CALLER_ROLE
from verl_pivot.synthesis.path_calls import invented_problem, schema_problem
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall, Trajectory, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.scoring import score_message


class _Variation(NamedTuple):
    name: str
    told: str
    """Instruction to the writer: what to change."""


_VARIATIONS = (
    _Variation("complexity", "Make it harder or easier: more or fewer calls, more detailed values, and rare cases."),
    _Variation("persona", "Let somebody else ask, such as a beginner in place of an expert, in their own words."),
    _Variation("style", "Ask in another way: another order, another tone, values in another place of the message."),
    _Variation("data", "Use values of other kinds, ranges and forms, such as other names, currencies and dates."),
)


class VariationsOptions(Options):
    num: int = Field(default=1, ge=1)
    """Number of new samples for each failed turn."""
    attempts: int = Field(default=2, ge=1)
    """Maximum number of draws of a sample; the first draw without a problem is used."""
    may_write: Names = ()
    """Arguments, as tool.argument, whose text the caller composes itself, such as send_mail.body."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the writer."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


class VariedCall(Options):
    name: str
    arguments: dict[str, JsonValue]


class VariedSample(Options):
    """A new request, and the calls that answer it."""

    request: str = Field(min_length=1)
    calls: tuple[VariedCall, ...] = Field(min_length=1)


@make_step("error_variations", options=VariationsOptions)
class ErrorVariations:
    """Keeps the draft, and adds new samples if the policy failed at its turn, each with a randomly drawn variation."""

    def __init__(self, options: VariationsOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        turn = probed_turn(draft, Probed.FAILED)
        if turn is None:
            return [draft]
        samples: list[Draft] = []
        for number in range(1, self._options.num + 1):
            made = draft.made(number)
            samples.append(await made_or_refused(made, self._varied(made, turn, number, workshop)))
        return [draft.made(0), *samples]

    async def _varied(self, draft: Draft, turn: Turn, number: int, workshop: Workshop) -> Draft:
        variation = Random(workshop.seed(number)).choice(_VARIATIONS)
        draft = draft.with_values(variation=variation.name)
        prompt = _prompt(turn, policy_action(draft), variation)

        async def draw(k: int) -> Trajectory | Malformed:
            return await self._drawn(draft, turn, prompt, (number, k), workshop)

        found = await first_good(draw, range(self._options.attempts))
        if isinstance(found, Malformed):
            return draft.rejected(found.reason, found.detail)
        return replace(draft, trajectory=found)

    async def _drawn(
        self, draft: Draft, turn: Turn, prompt: Sequence[JsonObject], numbers: tuple[int, int], workshop: Workshop
    ) -> Trajectory | Malformed:
        """A sample whose calls pass the program's checks, and for which a caller makes the same calls."""
        options = self._options
        k = options.attempts * numbers[0] + numbers[1]
        sample = await workshop.ask_for(
            VariedSample, prompt, k=k, max_tokens=options.max_tokens, temperature=options.temperature
        )
        if isinstance(sample, Malformed):
            return sample
        try:
            made = _as_turn(sample, draft, turn)
            problem = _problem(made, options.may_write)
        except BadRowError as error:
            return Malformed(reason=error.reason, detail=str(error))
        if problem is not None:
            return problem
        if (await score_message(made.expert, turn)).score == 1.0:
            return Malformed(reason="same_calls", detail="the calls match those of the turn to vary")
        question = WriterQuestion(
            messages=tuple(map(sent_message, made.state)),
            seed=workshop.seed(*numbers),
            max_tokens=options.max_tokens,
            temperature=0.0,
            tools=made.tools,
        )
        answer = read_action(await workshop.answer(question, CALLER_ROLE))
        if isinstance(answer, Malformed):
            return answer
        verdict = await _without_environment(answer, made)
        if verdict.score != 1.0:
            reason = verdict.reason if verdict.score is None else "caller_disagrees"
            return Malformed(reason=reason, detail=f"{verdict.reason}: {verdict.detail}")
        return _as_trajectory(made)


def _as_turn(sample: VariedSample, draft: Draft, turn: Turn) -> Turn:
    """The sample as a turn, with the system message, the tools and the verifier of the turn that it varies."""
    system = [message for message in turn.state[:1] if message.role is Role.SYSTEM]
    calls = tuple(
        ToolCall(name=call.name, arguments=call.arguments, id=f"call_{number}")
        for number, call in enumerate(sample.calls)
    )
    return replace(
        turn,
        trajectory_id=draft.id,
        index=0,
        state=(*system, Message(role=Role.USER, content=sample.request.strip())),
        expert=Message(role=Role.ASSISTANT, tool_calls=calls),
        metadata={PROVENANCE: {"split_by": split_key(draft.item, turn.metadata)}},
    )


async def _without_environment(action: Message, made: Turn) -> Verdict:
    """The verdict of the row's verifier on a new sample, which has no environment metadata.

    If the user's code needs that metadata and fails, the verdict is undecided, so that the run goes on.
    """
    try:
        return await score_message(action, made)
    except UserCodeError as error:
        return Verdict.undecided("user_code_failed", str(error))


def _as_trajectory(turn: Turn) -> Trajectory:
    return Trajectory(
        id=turn.trajectory_id,
        messages=(*turn.state, turn.expert),
        tools=turn.tools,
        verifier=turn.verifier,
        verifier_options=turn.verifier_options,
        metadata=turn.metadata,
        expert_turns="last",
    )


def _problem(turn: Turn, may_write: Sequence[str]) -> Malformed | None:
    """The problem of a sample that a program can find; None if there is none."""
    request = turn.state[-1].content
    if not request or not is_plain(request):
        detail = f"the request is empty or contains markers of a chat template: {request!r}"
        return Malformed(reason="bad_request", detail=detail)
    encode_json(turn.expert.as_dict())  # raises BadRowError for half of a surrogate pair in a call
    known = {name_of(tool) for tool in turn.tools}
    for call in turn.expert.tool_calls:
        if call.name not in known:
            return Malformed(reason="unknown_tool", detail=f"no tool is named {call.name}")
        problem = schema_problem(call, turn.tools) or invented_problem(call, turn.state, turn.tools, may_write)
        if problem is not None:
            return problem
    return None


def _prompt(turn: Turn, action: Message | None, variation: _Variation) -> list[JsonObject]:
    shown = [encode_json(sent_message(message)) for message in (*turn.state, turn.expert)]
    wrong = "no readable call" if action is None else encode_json(sent_message(action))
    lines = [
        "An assistant with tools takes part in this conversation, one message a line; its last turn is right:",
        *shown,
        f"A weaker assistant did this instead of the last turn, which is wrong:\n{wrong}",
        "Its tools:",
        *(encode_json(tool["function"]) for tool in turn.tools),
        "Write a new request of a user on which the weaker assistant could make the same kind of mistake, and the "
        "right calls for it, all of which can be made at once.",
        variation.told,
        "The request says every value that the calls need, word for word, and names no tool and no argument. It asks "
        "for something else than the conversation above.",
    ]
    return [{"role": "user", "content": "\n".join(lines)}]
