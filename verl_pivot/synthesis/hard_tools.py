"""Recorded turns and a model -> the share of wrong answers of the model for each tool."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.turns import turns
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.synthesis.caller_turns import read_action
from verl_pivot.synthesis.drafts import QUESTION_REFUSED
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import Malformed, Trajectory, Turn, Verdict
from verl_pivot.verifiers.scoring import score_message


def probed_turns(trajectories: Iterable[Trajectory], per_tool: int) -> dict[str, list[Turn]]:
    """{tool: its first `per_tool` turns}, taken from turns whose only call is of this tool."""
    found: dict[str, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        for turn in turns(trajectory):
            calls = turn.expert.tool_calls
            if len(calls) == 1 and len(found[calls[0].name]) < per_tool:
                found[calls[0].name].append(turn)
    return {tool: probes for tool, probes in found.items() if probes}


async def wrong_shares(
    probes: dict[str, list[Turn]], workshop: Workshop, role: str, max_tokens: int
) -> dict[str, float]:
    """{tool: share of its decided probes at which a model is wrong}, by the verifier of the row.

    A tool whose probes are all undecided is left out.

    Args:
        probes: {tool: recorded turns}.
        workshop: Workshop with the model.
        role: Role of the model.
        max_tokens: Maximum number of tokens of one answer.
    """
    names = list(probes)
    verdicts = await all_at_once(_verdicts(probes[name], workshop, role, max_tokens) for name in names)
    shares = {}
    for name, found in zip(names, verdicts, strict=True):
        decided = [verdict.score for verdict in found if verdict.score is not None]
        if decided:
            shares[name] = sum(score < 1.0 for score in decided) / len(decided)
    return shares


async def _verdicts(probes: Sequence[Turn], workshop: Workshop, role: str, max_tokens: int) -> list[Verdict]:
    return await all_at_once(probe(turn, workshop, role, max_tokens) for turn in probes)


async def probe(turn: Turn, workshop: Workshop, role: str, max_tokens: int) -> Verdict:
    """Verdict of a turn's verifier on a model's greedy answer at that turn; an answer that is no action is wrong.

    A question that the endpoint refuses says nothing about the model, so that its verdict is undecided.
    """
    try:
        action = read_action(await workshop.answer(greedy_question(turn, workshop, max_tokens), role))
    except QuestionRefusedError as error:
        return Verdict.undecided(QUESTION_REFUSED, str(error))
    if isinstance(action, Malformed):
        return Verdict.refuse(action.reason, action.detail)
    return await score_message(action, turn)


def greedy_question(turn: Turn, workshop: Workshop, max_tokens: int, *, logprobs: bool = False) -> WriterQuestion:
    """Question that asks a model to take a turn instead of the expert, with greedy sampling."""
    return WriterQuestion(
        messages=tuple(map(sent_message, turn.state)),
        seed=workshop.seed(0),
        max_tokens=max_tokens,
        temperature=0.0,
        tools=turn.tools,
        logprobs=logprobs,
    )
