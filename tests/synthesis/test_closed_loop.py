"""LoopTool's steps: probes and perplexities, labels that are replaced or stay, and variations of failures."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.chat_server import chat_server, said
from tests.support.direct_workshop import direct_workshop
from tests.support.fake_engine import Answer
from tests.support.linked_tools import refund_of
from tests.support.tallies import BrokenTally, DownTally, Tally, WordyTally
from tests.support.workshops import done, refused, workshop
from tests.synthesis.test_judging import shown
from tests.synthesis.test_magnet import call
from verl_pivot.errors import EngineError, UserCodeError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.error_variations import ErrorVariations, VariationsOptions
from verl_pivot.synthesis.greedy_probe import (
    BorderlineOptions,
    GreedyProbe,
    GreedyProbeOptions,
    borderline,
    quantile,
)
from verl_pivot.synthesis.label_verification import VerifiedLabel, VerifiedLabelOptions
from verl_pivot.synthesis.workshop import Inputs, Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Trajectory

SHOP_ROW = refund_of("cus_17", "ord_9")


def sure(answer: Answer, *logprobs: float) -> Answer:
    """The answer with the logprobs of its tokens."""
    body: Any = answer.body
    body["choices"][0]["logprobs"] = {"content": [{"token": "t", "logprob": each} for each in logprobs]}
    return answer


def values_of(draft: Draft, *names: str) -> list[Any]:
    return [draft.values.get(name) for name in names]


async def probed(answers: Sequence[Answer], trajectory: Trajectory | None = SHOP_ROW, **options: Any) -> list[Draft]:
    with chat_server(answers) as server:
        async with direct_workshop(server.url) as work:
            return list(await GreedyProbe(GreedyProbeOptions(**options))(Draft(id="0", trajectory=trajectory), work))


async def test_each_turn_with_calls_is_a_draft_with_the_policys_verdict_and_its_perplexity() -> None:
    answers = [
        sure(call("find_customer", email="ann@shop.example"), -0.5, -1.5),
        sure(call("list_orders", customer_id="ann"), -0.25),
        sure(said("No."), 0.0),
    ]
    with chat_server(answers) as server:
        async with direct_workshop(server.url) as work:
            step = GreedyProbe(GreedyProbeOptions())
            # one turn after the other, so that the answers of the server are in the order of the turns
            drafts = [
                (await step(Draft(id="0", trajectory=replace(SHOP_ROW, expert_turns=(number,))), work))[0]
                for number in range(3)
            ]
        requests: Any = server.requests

    assert [draft.values["perplexity"] for draft in drafts] == [math.e, math.exp(0.25), 1.0]
    assert [draft.values["probe"] for draft in drafts] == ["right", "failed", "failed"]
    assert [draft.values["turn"] for draft in drafts] == [0, 1, 2]
    assert [len(draft.trajectory.messages) for draft in drafts if draft.trajectory] == [2, 4, 6]
    assert {draft.trajectory.expert_turns for draft in drafts if draft.trajectory} == {"last"}
    assert all(request["temperature"] == 0.0 and request["logprobs"] for request in requests)


async def test_an_undecided_turn_is_left_to_the_outcomes_and_a_trajectory_without_calls_is_rejected() -> None:
    broken = replace(SHOP_ROW, verifier_options={"unknown": 1}, expert_turns="last", messages=SHOP_ROW.messages[:6])

    (undecided,) = await probed([call("refund", order_id="ord_9")], broken, logprobs=False)
    (silent,) = await probed([said("")], replace(SHOP_ROW, messages=SHOP_ROW.messages[:1]))
    assert values_of(undecided, "probe", "probe_reason") == ["undecided", "bad_options"]
    assert silent.finding is not None
    assert silent.finding.reason == "no_label"


@pytest.mark.parametrize("logprob", [-9999.0, 0.5])
async def test_logprobs_that_no_model_has_end_the_run(logprob: float) -> None:
    with pytest.raises(EngineError, match=r"impossible logprobs .*; set greedy_probe\.logprobs=false"):
        await probed([sure(said("No."), logprob)])


async def test_a_turn_at_which_the_endpoint_refuses_the_question_is_rejected_alone() -> None:
    work = workshop(lambda question: refused(question) if len(question.messages) == 5 else "No.")

    drafts = await GreedyProbe(GreedyProbeOptions(logprobs=False))(Draft(id="0", trajectory=SHOP_ROW), work)

    assert [draft.finding and draft.finding.reason for draft in drafts] == [None, None, "question_refused"]


async def test_an_answer_that_is_no_action_is_a_failure_without_an_action() -> None:
    first = replace(SHOP_ROW, expert_turns=(0,))

    (draft,) = await probed([sure(said("Well", end="length"), -1.0)], first)
    assert values_of(draft, "probe", "probe_reason", "policy_action") == ["failed", "truncated", None]


@pytest.mark.parametrize(("share", "limit"), [(0.0, 0.0), (0.2, 1.0), (0.8, 4.0), (0.81, 5.0)])
def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, limit: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0, 5.0], share) == limit


def test_of_right_answers_those_above_the_quantile_stay_and_failures_stay_as_well() -> None:
    rights = [Draft(id=str(n), values={"probe": "right", "perplexity": 1.0 + n / 10}) for n in range(5)]
    unknown = Draft(id="5", values={"probe": "right", "perplexity": None})
    failed = Draft(id="6", values={"probe": "failed", "perplexity": 1.0})

    left = done(_chosen([*rights, unknown, failed], above=0.8))
    assert [each.id for each in left if each.finding is None] == ["4", "6"]
    assert {each.finding.reason for each in left if each.finding} == {"mastered"}
    assert [each.id for each in done(_chosen([*rights, unknown], above=0.0)) if not each.finding] == list("01234")


async def _chosen(drafts: Sequence[Draft], *, above: float) -> Sequence[Draft]:
    return await borderline(BorderlineOptions(above=above))(drafts, workshop())


def tells(*numbers: int) -> Message:
    return Message(
        role=Role.ASSISTANT, tool_calls=tuple(ToolCall(name="tell", arguments={"number": each}) for each in numbers)
    )


def labelled(label: int, *, result: str = "1", metadata: JsonObject | None = None) -> Trajectory:
    """A row whose last turn is the label; a label that tells 5 after the 1 solves "Reach 6."."""
    call = replace(tells(1).tool_calls[0], id="c")
    return Trajectory(
        id="row",
        messages=(
            Message(role=Role.USER, content="Reach 6."),
            Message(role=Role.ASSISTANT, tool_calls=(call,)),
            Message(role=Role.TOOL, content=result, name="tell", tool_call_id="c"),
            tells(label),
        ),
        metadata={"wanted": 6} if metadata is None else metadata,
        expert_turns="last",
    )


def goes_on(question: WriterQuestion) -> str:
    """A policy that tells a 5 after a sum of 1, and else says that it is done."""
    results = [each["content"] for each in question.messages if each["role"] == "tool"]
    call = '<tool_call>\n{"name": "tell", "arguments": {"number": 5}}\n</tool_call>'
    return call if results[-1:] == ["1"] else "It is done."


def judging(first: bool, second: bool) -> Any:
    """The policy, and judges with these verdicts on the label and on the policy's action."""

    def respond(question: WriterQuestion) -> str:
        if "Answer 1:" not in str(question.messages[-1]["content"]):
            return goes_on(question)
        is_label_first = "label" in shown(question)[0]
        answers = (first, second) if is_label_first else (second, first)
        return json.dumps({"reason": "", "first_is_right": answers[0], "second_is_right": answers[1]})

    return respond


RIGHT, WRONG = 5, 7
LABEL_WRONG, BOTH_RIGHT, BOTH_WRONG, LABEL_RIGHT = (False, True), (True, True), (False, False), (True, False)
NOBODY: Any = None


def verified(
    row: Trajectory,
    action: Message | None,
    judges: Any,
    tally: type[Tally] = Tally,
    **options: Any,
) -> tuple[Draft, int]:
    """The draft after the step, and the number of questions to the policy and the judges."""
    label = replace(row.messages[-1], content="label")
    row = replace(row, messages=(*row.messages[:-1], label))
    given: JsonObject = {"probe": "failed", "policy_action": None if action is None else action.as_dict()}
    work = workshop(
        judging(*(judges or LABEL_RIGHT)), inputs=Inputs(toolset=open_toolset(f"{tally.__module__}:{tally.__name__}"))
    )
    asked = work.spending
    (draft,) = done(_verified(Draft(id="0", trajectory=row, values=given), work, options))
    return draft, asked.num_calls


async def _verified(draft: Draft, work: Any, options: Any) -> Sequence[Draft]:
    return await VerifiedLabel(VerifiedLabelOptions(**options))(draft, work)


def numbers(draft: Draft) -> list[Any]:
    assert draft.trajectory is not None
    return [each.arguments["number"] for each in draft.trajectory.messages[-1].tool_calls]


def test_a_wrong_label_is_replaced_by_an_action_that_solves_the_task() -> None:
    draft, _ = verified(labelled(WRONG), tells(RIGHT), LABEL_WRONG)

    assert draft.finding is None
    assert numbers(draft) == [RIGHT]
    assert values_of(draft, "label", "probe") == ["original_incorrect", "repaired"]
    assert values_of(draft, "label_solves", "policy_solves") == [False, True]
    assert draft.values["replaced_label"] == replace(tells(WRONG), content="label").as_dict()


@pytest.mark.parametrize(
    ("label", "action", "judges", "verdict", "reason"),
    [
        (RIGHT, tells(WRONG), NOBODY, "model_incorrect", None),
        (RIGHT, tells(2, 3), NOBODY, "both_correct", "both_correct"),
        (WRONG, tells(8), BOTH_WRONG, "both_incorrect", "both_incorrect"),
        (WRONG, tells(8), LABEL_WRONG, "original_incorrect", "repair_not_accepted"),
        (WRONG, tells(8), LABEL_RIGHT, "model_incorrect", None),
        (WRONG, tells(RIGHT), BOTH_RIGHT, "both_correct", "both_correct"),
    ],
)
def test_no_other_label_is_replaced(label: int, action: Message, judges: Any, verdict: str, reason: str | None) -> None:
    draft, _ = verified(labelled(label), action, judges)

    assert numbers(draft) == [label]
    assert draft.values["label"] == verdict
    assert (None if draft.finding is None else draft.finding.reason) == reason


def test_a_label_that_solves_the_task_is_right_whatever_judges_would_say() -> None:
    draft, num_calls = verified(labelled(RIGHT), tells(WRONG), LABEL_WRONG)

    assert (draft.values["label"], num_calls) == ("model_incorrect", 2)  # the policy, after each of both actions


def test_of_two_that_solve_the_task_the_one_in_more_turns_is_a_detour() -> None:
    """After a 0 the sum is still 1, so that the policy tells a 5 as well and is then done."""
    detour, _ = verified(labelled(0), tells(RIGHT), NOBODY, roles=())
    wasted, _ = verified(labelled(RIGHT), tells(0), NOBODY, roles=())

    assert detour.values["label"] == "original_incorrect"
    assert wasted.values["label"] == "model_incorrect"


def test_without_judges_the_outcomes_alone_decide() -> None:
    repaired, num_calls = verified(labelled(WRONG), tells(RIGHT), NOBODY, roles=())
    both_fail, _ = verified(labelled(WRONG), tells(8), NOBODY, roles=())

    assert (repaired.values["label"], num_calls) == ("original_incorrect", 2)
    assert both_fail.finding is not None
    assert both_fail.finding.reason == "both_incorrect"


def late(label: int, num_before: int) -> Trajectory:
    """A row whose label follows so many turns: one that tells 1, and others that tell 0."""
    row = labelled(label)
    zero = replace(tells(0).tool_calls[0], id="z")
    more = (
        Message(role=Role.ASSISTANT, tool_calls=(zero,)),
        Message(role=Role.TOOL, content="1", name="tell", tool_call_id="z"),
    )
    return replace(row, messages=(*row.messages[:3], *more * (num_before - 1), row.messages[3]))


def test_a_label_is_run_where_a_turn_is_left_after_it() -> None:
    repaired, _ = verified(late(WRONG, 9), tells(RIGHT), LABEL_WRONG, max_turns=11)
    too_late, _ = verified(late(WRONG, 9), tells(RIGHT), LABEL_WRONG, max_turns=10)

    assert numbers(repaired) == [RIGHT]
    assert too_late.finding is not None
    assert too_late.finding.reason == "repair_not_accepted"
    assert "the label is turn 10, and max_turns=10 leaves no turn after it: raise it" in too_late.finding.detail


def test_an_earlier_result_that_is_cut_or_changed_for_the_policy_is_the_recorded_one() -> None:
    result = f"1 <|im_end|>{'x' * 5000}"

    repaired, _ = verified(labelled(WRONG, result=result), tells(RIGHT), LABEL_WRONG, WordyTally)
    other, _ = verified(labelled(WRONG, result=result.replace("1", "3")), tells(RIGHT), LABEL_WRONG, WordyTally)

    assert numbers(repaired) == [RIGHT]
    assert other.finding is not None
    assert other.finding.reason == "repair_not_accepted"


@pytest.mark.parametrize(
    ("row", "tally", "reason", "detail"),
    [
        (labelled(WRONG, metadata={}), Tally, "repair_not_accepted", "the row has no metadata of an environment"),
        (labelled(WRONG, result="3"), Tally, "repair_not_accepted", "earlier calls give other results than recorded"),
        (labelled(WRONG), DownTally, "system_failed", "tool_failure"),
    ],
)
def test_what_was_not_run_to_its_outcome_replaces_nothing(
    row: Trajectory, tally: type[Tally], reason: str, detail: str
) -> None:
    draft, _ = verified(row, tells(RIGHT), LABEL_WRONG, tally)

    assert draft.finding is not None
    assert numbers(draft) == [WRONG]
    assert draft.finding.reason == reason
    assert detail in draft.finding.detail


def test_code_of_the_users_that_fails_behind_a_label_is_named() -> None:
    with pytest.raises(UserCodeError, match=r"^task 0: environment BrokenTally\.tell raised KeyError: 'number'"):
        verified(labelled(WRONG), tells(RIGHT), LABEL_WRONG, BrokenTally)


def test_judges_without_a_majority_keep_no_label() -> None:
    work = workshop(lambda question: "Sure!", inputs=Inputs(toolset=open_toolset("tests.support.tallies:Tally")))
    given: JsonObject = {"probe": "failed", "policy_action": tells(RIGHT).as_dict()}

    (draft,) = done(_verified(Draft(id="0", trajectory=labelled(WRONG), values=given), work, {}))
    assert draft.finding is not None
    assert draft.finding.reason == "judges_undecided"


def test_a_label_that_the_verifier_cannot_judge_by_is_replaced_or_rejected() -> None:
    def draft(label: int, action: int) -> Draft:
        given: JsonObject = {
            "probe": "undecided",
            "probe_reason": "broken_gold",
            "policy_action": tells(action).as_dict(),
        }
        work = workshop(goes_on, inputs=Inputs(toolset=open_toolset("tests.support.tallies:Tally")))
        (made,) = done(_verified(Draft(id="0", trajectory=labelled(label), values=given), work, {"roles": ()}))
        return made

    kept = draft(RIGHT, WRONG)
    assert numbers(draft(WRONG, RIGHT)) == [RIGHT]
    assert kept.finding is not None
    assert kept.finding.reason == "broken_gold"


def test_right_answers_and_those_that_are_no_action_need_no_check() -> None:
    right = Draft(id="0", trajectory=labelled(WRONG), values={"probe": "right"})

    assert done(_verified(right, workshop(), {})) == [right]
    draft, num_calls = verified(labelled(WRONG), None, NOBODY)
    assert (draft.values["label"], num_calls) == ("model_incorrect", 0)


REQUEST = "Refund ord_44, which never came."


def sample(*calls: tuple[str, JsonObject], request: str = REQUEST) -> Answer:
    return said(
        json.dumps({"request": request, "calls": [{"name": name, "arguments": given} for name, given in calls]})
    )


NEW_REFUND = ("refund", {"order_id": "ord_44", "reason": "never came"})
NEW_CALL = said(None, NEW_REFUND)


async def varied(answers: Sequence[Answer], **options: Any) -> tuple[list[Draft], Any]:
    """The drafts of the step at a refund that the policy did not make, and the requests to the server."""
    with chat_server(answers) as server:
        async with direct_workshop(server.url) as work:
            drafts = await ErrorVariations(VariationsOptions(**options))(failed_at_refund(), work)
        return list(drafts), server.requests


def failed_at_refund() -> Draft:
    given: JsonObject = {"probe": "failed", "policy_action": {"role": "assistant", "content": "No."}}
    row = replace(SHOP_ROW, messages=SHOP_ROW.messages[:6], expert_turns="last")
    return Draft(id="0", trajectory=row, values=given)


async def test_a_variation_is_a_request_whose_calls_a_caller_makes_too() -> None:
    drafts, requests = await varied([sample(NEW_REFUND), NEW_CALL])

    assert [draft.id for draft in drafts] == ["0/0", "0/1"]
    new = drafts[1].trajectory
    assert new is not None
    assert [(message.role.value, message.content) for message in new.messages] == [("user", REQUEST), ("assistant", "")]
    assert new.messages[1].tool_calls == (ToolCall(name="refund", arguments=NEW_REFUND[1], id="call_0"),)
    assert new.metadata == {"verl_pivot": {"split_by": "0"}}
    assert drafts[1].values["variation"] in {"complexity", "persona", "style", "data"}
    assert '"content": "No."' in requests[0]["messages"][0]["content"]
    assert requests[1]["messages"] == [{"role": "user", "content": REQUEST}]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([said("Sure!")], "unreadable_answer"),
        ([sample(("refund", {"order_id": "ord_9", "reason": "broke"}), request="Ord_9 broke.")], "same_calls"),
        ([sample(("buy", {}))], "unknown_tool"),
        ([sample(("refund", {"order_id": "ord_44"}))], "bad_arguments"),
        ([sample(("refund", {"order_id": "ord_45", "reason": "never came"}))], "invented_value"),
        ([sample(NEW_REFUND, request="<|im_end|>")], "bad_request"),
        ([sample(("refund", {"order_id": "ord_44", "reason": "\ud800"}))], "not_json"),
        ([sample(NEW_REFUND), call("find_customer", email="ord_44")], "caller_disagrees"),
        ([sample(NEW_REFUND), said("")], "empty_message"),
    ],
)
async def test_a_variation_that_a_program_or_the_caller_refuses_is_rejected(answers: list[Answer], reason: str) -> None:
    drafts, requests = await varied(answers, attempts=1)

    assert [None if draft.finding is None else draft.finding.reason for draft in drafts] == [None, reason]
    assert len(requests) == len(answers)


async def test_a_failed_turn_stays_where_the_writer_refuses_to_vary_it() -> None:
    drafts = await ErrorVariations(VariationsOptions())(failed_at_refund(), workshop(refused))

    assert [draft.finding and draft.finding.reason for draft in drafts] == [None, "question_refused"]


async def test_the_next_draw_may_be_better() -> None:
    drafts, _ = await varied([said("Sure!"), sample(NEW_REFUND), NEW_CALL], attempts=2)

    assert drafts[1].finding is None


def test_the_four_variations_are_drawn_uniformly() -> None:
    """400 draws; each count is within four standard deviations of 100."""
    step = ErrorVariations(VariationsOptions(attempts=1, num=400))

    drafts = done(_made(step, failed_at_refund(), workshop(lambda question: "Sure!")))
    counts = Counter(draft.values["variation"] for draft in drafts[1:])
    assert len(counts) == 4
    assert all(abs(count - 100) < 4 * (400 * 0.25 * 0.75) ** 0.5 for count in counts.values())


async def _made(step: ErrorVariations, draft: Draft, work: Workshop) -> Sequence[Draft]:
    return await step(draft, work)
