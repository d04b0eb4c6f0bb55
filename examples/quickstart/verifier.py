"""Verifier `shop`: runs the sampled and the expert's action on two copies of the rebuilt shop -> Verdict."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from examples.quickstart.shop import CallResult, Shop, open_image
from verl_pivot.types import Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import register

_FACT = re.compile(r"[a-z]+@[a-z.]+[a-z]|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a call, and the shop's state after the action; calls with equal outcomes are equivalent."""

    result: CallResult
    state: str


def answer_matches(text: str, answer: str | None) -> bool:
    """Whether the last number or e-mail in a message is the answer; if `answer` is None, any text is accepted."""
    return bool(text) if answer is None else _FACT.findall(text)[-1:] == [answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """The shop just before a turn, or the reason why it cannot be rebuilt."""

    image: bytes
    broken: str | None


@lru_cache(maxsize=4096)
def _replay(seed: int, held_out: bool, steps: tuple[tuple[str, str, str], ...]) -> _Replay:
    with Shop(open_image(seed, held_out)) as shop:
        for name, arguments, recorded in steps:
            result = shop.call(ToolCall(name=name, arguments=json.loads(arguments)))
            if result.text != recorded:
                return _Replay(image=b"", broken=f"{name} gave {result.text}, recorded is {recorded}")
        return _Replay(image=shop.image(), broken=None)


@lru_cache(maxsize=4096)
def _outcomes(image: bytes, calls: tuple[tuple[str, str], ...]) -> tuple[Outcome, ...]:
    """Run the calls of one action, in order, on a copy of the state."""
    with Shop(image) as shop:
        results = [shop.call(ToolCall(name=name, arguments=json.loads(arguments))) for name, arguments in calls]
        state = shop.dump()
    return tuple(Outcome(result=result, state=state) for result in results)


@register("shop")
async def shop(action: Message, turn: Turn) -> Verdict:
    """Accept an action that gives the same results and the same state as the expert's action."""
    seed, held_out, answer = turn.metadata.get("seed"), turn.metadata.get("held_out"), turn.metadata.get("answer")
    if not isinstance(seed, int) or not isinstance(held_out, bool) or not isinstance(answer, str | None):
        return Verdict.undecided("broken_metadata", "needs seed (int), held_out (bool), answer (text)")
    replay = _replay(seed, held_out, _steps(turn.state))
    if replay.broken is not None:
        return Verdict.undecided("replay_failed", replay.broken)
    if not turn.expert.tool_calls:
        return _compare_message(action, turn.expert, answer)
    expert = _outcomes(replay.image, _key(turn.expert))
    if not all(outcome.result.ok for outcome in expert):
        return Verdict.undecided("expert_call_failed", expert[-1].result.text)
    return _compare_calls(action, replay.image, expert)


def _compare_message(action: Message, expert: Message, answer: str | None) -> Verdict:
    if not answer_matches(expert.content, answer):
        return Verdict.undecided("expert_answer_wrong", f"{expert.content!r} does not say {answer}")
    if action.tool_calls:
        return Verdict.refuse("call_for_message", action.tool_calls[0].name)
    if not answer_matches(action.content, answer):
        return Verdict.refuse("wrong_answer", f"{action.content!r} must say {answer}")
    return Verdict.accept(reason="same_answer")


def _compare_calls(action: Message, image: bytes, expert: tuple[Outcome, ...]) -> Verdict:
    if not action.tool_calls:
        return Verdict.refuse("message_for_call", action.content)
    if len(action.tool_calls) != len(expert):
        return Verdict.refuse("wrong_num_calls", f"{len(action.tool_calls)} for {len(expert)}")
    sampled = _outcomes(image, _key(action))
    for outcome, expert_outcome in zip(sampled, expert, strict=True):
        if not outcome.result.ok:
            return Verdict.refuse("call_failed", outcome.result.text)
        if outcome.result != expert_outcome.result:
            return Verdict.refuse("other_result", f"{outcome.result.text} is not {expert_outcome.result.text}")
    if sampled[-1].state != expert[-1].state:
        return Verdict.refuse("other_state", sampled[-1].state)
    return Verdict.accept(reason="same_result_and_state")


def _key(action: Message) -> tuple[tuple[str, str], ...]:
    return tuple((call.name, json.dumps(call.arguments)) for call in action.tool_calls)


def _steps(state: tuple[Message, ...]) -> tuple[tuple[str, str, str], ...]:
    """Calls before the turn, each with its recorded result."""
    calls = [key for message in state for key in _key(message)]
    results = [message.content for message in state if message.role is Role.TOOL]
    if len(calls) != len(results):
        calls, results = [*calls, ("?", "{}")][:1], ["every call needs one tool message"]
    return tuple((name, arguments, recorded) for (name, arguments), recorded in zip(calls, results, strict=True))
