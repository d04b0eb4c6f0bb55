"""Step `hinted_pairs`: a trajectory -> pairs of actions that a teacher wrote after a right and after a wrong hint.

Magnet (arXiv:2503.07826, section 3) distils the context: the hints are removed, and a chosen and a rejected trajectory
are kept for preference optimization. Here the row's verifier confirms which action is right and which is wrong.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.turns import turns
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.synthesis.caller_turns import read_action
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import first_good, made_or_refused
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.turn_trajectories import ending_in
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.synthesis.wrong_calls import wrong_calls
from verl_pivot.types import JsonObject, Malformed, Message, ToolCall, Turn
from verl_pivot.validation import Options
from verl_pivot.verifiers.scoring import score_message

TEACHER = "teacher"
"""Role of the writer that writes actions after hints."""

_HINT = (
    "You are an assistant with tools. Write the next turn of the conversation. Your next turn makes exactly this call: "
    "{call}\nWrite as if you had come to it yourself, and never mention that you were told."
)
_TELLS = re.compile(r"\b(hint(s|ed)?|(I was|as) (told|instructed))\b", re.IGNORECASE)


class HintedPairsOptions(Options):
    num: int = Field(default=1, ge=1)
    """Maximum number of pairs per trajectory, each at a different turn that makes exactly one call."""
    attempts: int = Field(default=2, ge=1)
    """Maximum number of draws after a hint; the first draw that follows the hint is used."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the teacher."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


@make_step("hinted_pairs", options=HintedPairsOptions)
class HintedPairs:
    """Keeps the draft, and adds a draft with a pair for each chosen turn; only a pair's last turn is an expert turn."""

    def __init__(self, options: HintedPairsOptions) -> None:
        self._options = options

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        if draft.trajectory is None:
            return [draft.rejected("no_trajectory", "the draft has no trajectory")]
        choices = [turn for turn in turns(draft.trajectory) if len(turn.expert.tool_calls) == 1]
        rng = Random(workshop.seed(0))
        chosen = sorted(rng.sample(choices, min(self._options.num, len(choices))), key=lambda turn: turn.index)
        pairs: list[Draft] = []
        for number, turn in enumerate(chosen, start=1):
            made = draft.made(number)
            pairs.append(await made_or_refused(made, self._pair(made, turn, rng, workshop)))
        return [draft.made(0), *pairs]

    async def _pair(self, draft: Draft, turn: Turn, rng: Random, workshop: Workshop) -> Draft:
        draft = draft.with_values(turn=turn.index)
        wrong = await _refused_call(turn, rng)
        if wrong is None:
            return draft.rejected("no_wrong_call", f"turn {turn.index}: the verifier refuses none of the changed calls")
        right_action = await self._hinted(turn, turn.expert, workshop, side=0)
        if isinstance(right_action, Malformed):
            return draft.rejected("right_hint_not_followed", f"{right_action.reason}: {right_action.detail}")
        wrong_action = await self._hinted(turn, replace(turn.expert, tool_calls=(wrong,)), workshop, side=1)
        if isinstance(wrong_action, Malformed):
            return draft.rejected("wrong_hint_not_followed", f"{wrong_action.reason}: {wrong_action.detail}")
        verdict = await score_message(wrong_action, turn)
        if verdict.score != 0.0:
            return draft.rejected("wrong_action_not_refused", f"{verdict.reason}: {verdict.detail}")
        assert draft.trajectory is not None, draft.id
        better, worse = (ending_in(draft.trajectory, turn, each, id=draft.id) for each in (right_action, wrong_action))
        return replace(draft, trajectory=better, worse=worse)

    async def _hinted(self, turn: Turn, hinted: Message, workshop: Workshop, *, side: int) -> Message | Malformed:
        """The teacher's action after a hint; the row's verifier must find that it follows the hint."""
        call = hinted.tool_calls[0]
        told: JsonObject = {
            "role": "system",
            "content": _HINT.format(call=encode_json({"name": call.name, "arguments": call.arguments})),
        }

        async def draw(attempt: int) -> Message | Malformed:
            question = WriterQuestion(
                messages=(told, *map(sent_message, turn.state)),
                seed=workshop.seed(turn.index, side, attempt),
                max_tokens=self._options.max_tokens,
                temperature=self._options.temperature,
                tools=turn.tools,
            )
            action = read_action(await workshop.answer(question, TEACHER))
            if isinstance(action, Malformed):
                return action
            verdict = await score_message(action, replace(turn, expert=hinted))
            if verdict.score != 1.0:
                return Malformed(reason=verdict.reason, detail=verdict.detail)
            if found := _TELLS.search(f"{action.content}\n{action.reasoning or ''}"):
                return Malformed(reason="mentions_hint", detail=f"the turn mentions the hint: {found[0]!r}")
            return replace(action, tool_calls=(replace(action.tool_calls[0], id=turn.expert.tool_calls[0].id),))

        return await first_good(draw, range(self._options.attempts))


async def _refused_call(turn: Turn, rng: Random) -> ToolCall | None:
    """A wrong call that the row's verifier refuses; None if it refuses none of the candidates."""
    for call in wrong_calls(turn, rng):
        verdict = await score_message(replace(turn.expert, tool_calls=(call,)), turn)
        if verdict.score == 0.0:
            return call
    return None
