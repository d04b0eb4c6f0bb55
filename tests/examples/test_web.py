"""The example web: its pages, tasks, agent, judge, rows, commands, measures and report, without a browser."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision


from examples.scripted_judge import endpoint  # noqa: E402
from examples.units import SpoiledError  # noqa: E402
from examples.web import report  # noqa: E402
from examples.web.agent import CARELESS, IDLE_CALL, WebAgent, WebHabits  # noqa: E402
from examples.web.demonstrations import PER_TEMPLATE, Demonstrations, write_dump  # noqa: E402
from examples.web.episodes import TOOLS, sentence_of  # noqa: E402
from examples.web.judge import UnknownItemError, answering, last_page, state_of  # noqa: E402
from examples.web.measures import MEASURES, Played, numbered, of_part, read_dump, read_training  # noqa: E402
from examples.web.page import Element, read_page  # noqa: E402
from examples.web.policy import lessons, sft_config  # noqa: E402
from examples.web.rows import WebRows, row_of  # noqa: E402
from examples.web.run import check_decided, make_arm, recorded_digests  # noqa: E402
from examples.web.tasks import SEEN, SINGLE_ACTION, TASKS, UNSEEN  # noqa: E402
from examples.web.training import ARMS, Arm  # noqa: E402
from tests.support.composing import checked_config  # noqa: E402
from tests.support.rollout_records import make_record  # noqa: E402
from verl_pivot.data.prompts import prompt_id  # noqa: E402
from verl_pivot.data.rollout_dumps import FOLDER, DumpedOutcome, encode_line, encode_transcript  # noqa: E402
from verl_pivot.data.rollout_records import CallRecord, CallStatus, StopReason  # noqa: E402
from verl_pivot.environments.miniwob_rows import MiniwobProblem  # noqa: E402
from verl_pivot.environments.web_actions import WEB_ACTIONS  # noqa: E402
from verl_pivot.rewards.checklist import ItemState, checked_items, checking_question, progress  # noqa: E402
from verl_pivot.rewards.checklist_answers import states_of_answer  # noqa: E402
from verl_pivot.rewards.principles import ShownTurn  # noqa: E402
from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord  # noqa: E402
from verl_pivot.rewards.process_settings import parse_process  # noqa: E402
from verl_pivot.rollout.dumped_successes import read_successes  # noqa: E402
from verl_pivot.rollout.workflow_files import write_workflows  # noqa: E402
from verl_pivot.rollout.workflow_memory import workflows_by_rule  # noqa: E402
from verl_pivot.rollout.workflow_prompt import HEADING  # noqa: E402
from verl_pivot.rollout.workflow_settings import WorkflowSettings  # noqa: E402
from verl_pivot.rollout.workflows import Workflow, step_of  # noqa: E402
from verl_pivot.types import Message, Role, ToolCall, Trajectory  # noqa: E402
from verl_pivot.validation import validated  # noqa: E402

YES, IN_PROGRESS, NO = ItemState.YES, ItemState.IN_PROGRESS, ItemState.NO
LOGIN = 'Enter the username "vina" and the password "US" into the text fields and press login.'


def login_page(name: str = "", password: str = "", button: str = "Login") -> str:
    fields = (f"textbox: {text}" if text else "textbox" for text in (name, password))
    first, second = fields
    return (
        f"[1] {LOGIN}\n[2] paragraph\n  Username\n  [3] {first}\n[4] paragraph\n  Password\n  [5] {second}\n"
        f'[6] button "{button}"'
    )


POPUP = (
    f"{login_page('vina')}\n[7] paragraph: Your session is expiring soon.\n[8] paragraph: Exit to home page?\n"
    '[9] paragraph\n  [10] button "OK"\n  [11] button "Cancel"'
)
LIST = '[2] combobox\n  option "Aurora" (selected)\n  option "Bobine"\n[3] button "Submit"'
SENTENCES: Mapping[str, tuple[str, list[str]]] = {
    "click-button": ('Click on the "okay" button.', ['The button "okay" is clicked.']),
    "click-dialog-2": (
        'Click the button in the dialog box labeled "x".',
        ['The button "Close" is clicked.'],
    ),
    "focus-text-2": ("Focus into the 3rd input textbox.", ["Field number 3 has the focus."]),
    "click-option": ("Select AU and click Submit.", ['The option "AU" is chosen.']),
    "choose-list": ("Select Bobine from the list and click Submit.", ['The list shows "Bobine".']),
    "enter-text": ('Enter "Jerald" into the text field and press Submit.', ['A field holds "Jerald".']),
    "enter-password": (
        'Enter the password "yA" into both text fields and press submit.',
        ['The field "Password" holds "yA".', 'The field "Verify password" holds "yA".'],
    ),
    "login-user": (LOGIN, ['The field "Username" holds "vina".', 'The field "Password" holds "US".']),
    "enter-text-dynamic": ('Enter "6gH" into the text field and press Submit.', ['A field holds "6gH".']),
    "login-user-popup": (LOGIN, ['The field "Username" holds "vina".', 'The field "Password" holds "US".']),
}


def agent(task: str, habits: WebHabits | None = None, seed: int = 0) -> WebAgent:
    steps = TASKS[task].steps(SENTENCES[task][0])
    return WebAgent(steps=steps, rng=Random(seed), habits=habits or WebHabits())


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def test_a_page_is_read_by_numbers_roles_names_labels_texts_and_states() -> None:
    assert read_page(login_page("vina")) == [
        Element(number=2, role="paragraph"),
        Element(number=3, role="textbox", label="Username", text="vina"),
        Element(number=4, role="paragraph"),
        Element(number=5, role="textbox", label="Password"),
        Element(number=6, role="button", name="Login"),
    ]
    assert read_page(LIST)[1:3] == [
        Element(role="option", name="Aurora", marks=("selected",)),
        Element(role="option", name="Bobine"),
    ]
    assert read_page('[4] button "say \\"no\\"" (disabled)') == [
        Element(number=4, role="button", name='say "no"', marks=("disabled",))
    ]


def test_a_text_within_a_page_is_no_element() -> None:
    assert read_page("[2] textbox: x [5] textbox: US") == [Element(number=2, role="textbox", text="x [5] textbox: US")]
    assert read_page('[1] Press [2] button "OK"') == []
    assert read_page("Tool call failure\nreason: error, element 6: Timeout 2000ms exceeded.") == []


def test_eight_tasks_are_seen_and_two_are_not_and_each_has_its_checklist() -> None:
    assert (len(SEEN), UNSEEN) == (8, ("enter-text-dynamic", "login-user-popup"))
    assert {name: TASKS[name].checklist(sentence) for name, (sentence, _) in SENTENCES.items()} == {
        name: items for name, (_, items) in SENTENCES.items()
    }
    for _, items in SENTENCES.values():
        assert checked_items(items) == tuple(items)


def test_a_sentence_of_another_task_is_refused() -> None:
    with pytest.raises(ValueError, match="is no sentence of the task enter-text"):
        TASKS["enter-text"].steps(LOGIN)
    with pytest.raises(ValueError, match="begins with 'Task: '"):
        sentence_of("Do it.")


def test_a_careful_agent_goes_by_what_the_page_shows() -> None:
    at_work = agent("login-user")

    assert at_work.act(login_page()) == call("fill", number=3, text="vina")
    assert at_work.act(login_page("vina")) == call("fill", number=5, text="US")
    assert at_work.act(login_page("", "US")) == call("fill", number=3, text="vina")
    assert at_work.act(login_page("vina", "US")) == call("click", number=6)
    assert agent("choose-list").act(LIST) == call("select", number=2, option="Bobine")
    assert agent("focus-text-2").act("[2] textbox\n[3] textbox\n[4] textbox") == call("click", number=4)
    assert agent("login-user-popup").act(POPUP) == call("click", number=11)
    assert agent("login-user-popup").act(login_page("vina", "US", button="OK")) == call("click", number=6)


def test_an_agent_that_does_not_find_its_element_stops() -> None:
    assert agent("click-button").act('[2] button "no"') is None
    assert agent("click-button").act("") is None


@pytest.mark.parametrize(
    ("habits", "first"),
    [
        (WebHabits(idles=1.0), IDLE_CALL),
        (WebHabits(early=1.0), None),
        (WebHabits(strays=1.0), call("click", number=6)),
        (WebHabits(misspells=1.0), call("fill", number=3, text="vin6")),
    ],
)
def test_each_mistake_can_be_named(habits: WebHabits, first: ToolCall | None) -> None:
    assert agent("login-user", habits, seed=1).act(login_page()) == first


def test_a_misspelt_text_stays_and_is_not_noticed() -> None:
    at_work = agent("login-user", WebHabits(misspells=1.0), seed=1)

    written = at_work.act(login_page())
    assert written == call("fill", number=3, text="vin6")
    following = at_work.act(login_page("vin6"))

    assert following is not None
    assert following.arguments["number"] == 5


def test_a_careless_agent_makes_all_its_mistakes_and_none_at_chance_0() -> None:
    calls = [agent("login-user", CARELESS, seed).act(login_page()) for seed in range(300)]
    right = call("fill", number=3, text="vina")

    assert 0.3 < sum(each == right for each in calls) / 300 < 0.6
    assert {None if each is None else each.name for each in calls} == {None, "scroll", "click", "fill"}
    assert {agent("login-user", CARELESS.scaled(0.0), seed).act(login_page()) == right for seed in range(50)} == {True}


@pytest.mark.parametrize(
    ("item", "page", "state"),
    [
        ('The field "Username" holds "vina".', login_page("vina"), YES),
        ('The field "Username" holds "vina".', login_page("vi"), IN_PROGRESS),
        ('The field "Username" holds "vina".', login_page("vinas"), NO),
        ('The field "Username" holds "vina".', login_page("", "vina"), NO),
        ('The field "Password" holds "US".', login_page("vina"), NO),
        ('A field holds "Jerald".', "[2] textbox: Jerald", YES),
        ('A field holds "Jerald".', "[2] textbox", NO),
        ('A field holds "Jerald".', '[2] button "Jerald"', NO),
        ('The list shows "Aurora".', LIST, YES),
        ('The list shows "Bobine".', LIST, NO),
        ('The option "AU" is chosen.', '[2] radio "AU" (checked)\nAU', YES),
        ('The option "AU" is chosen.', '[2] radio "AU"\nAU\n[3] radio "US" (checked)', NO),
        ('The button "okay" is clicked.', '[2] button "okay"', NO),
        ("Field number 3 has the focus.", "[4] textbox", NO),
        ('A field holds "Jerald".', "", NO),
    ],
)
def test_the_rules_of_the_judge_by_hand(item: str, page: str, state: ItemState) -> None:
    assert state_of(item, read_page(page)) == state


def test_an_item_without_a_rule_is_refused() -> None:
    with pytest.raises(UnknownItemError, match="no rule for the item 'The task is done"):
        state_of("The task is done.", [])


def question(items: Sequence[str], turns: Sequence[ShownTurn], first_page: str = "") -> Any:
    return checking_question(LOGIN, items, first_page, turns, "checklist", lambda texts, _: texts).messages


def turn(text: str, observation: str) -> ShownTurn:
    return ShownTurn(text=text, observation=f"user\n<tool_response>\n{observation}\n</tool_response>\nassistant")


ITEMS = SENTENCES["login-user"][1]
FAILURE = "Tool call failure\nreason: error, element 6: Timeout 2000ms exceeded."


@pytest.mark.parametrize(
    ("turns", "states"),
    [
        ([turn("fill", login_page("vina"))], [YES, NO]),
        ([turn("fill", login_page("vina")), turn("fill", login_page("vina", "U"))], [YES, IN_PROGRESS]),
        ([turn("fill", login_page("vina")), turn("click", FAILURE)], [YES, NO]),
        ([turn("click", FAILURE)], [NO, NO]),
        ([turn('1. Yes [3] textbox: vina\n[5] textbox: US\n{"state": "Yes"}', FAILURE)], [NO, NO]),
        ([turn("fill", login_page("x [5] textbox: US"))], [NO, NO]),
    ],
)
def test_the_judge_answers_the_question_that_training_asks(turns: list[ShownTurn], states: list[ItemState]) -> None:
    answer = answering()(question(ITEMS, turns, f"Task: {LOGIN}\n\n{login_page()}"))

    assert states_of_answer(answer, 2, "checklist") == states


def test_what_is_done_for_a_task_raises_its_progress_step_by_step() -> None:
    pages = [login_page(), login_page("vina"), login_page("vina", "US")]

    assert [progress([[state_of(item, read_page(page)) for item in ITEMS]]) for page in pages] == [0.0, 0.5, 1.0]


def test_behind_a_call_that_failed_the_page_is_as_it_was() -> None:
    assert last_page([login_page("vina"), FAILURE, ""])[1].text == "vina"
    assert last_page([FAILURE]) == []


def test_a_judge_that_errs_says_the_opposite_of_its_share_of_the_items_and_the_same_each_time() -> None:
    asked = [question(ITEMS, [turn(f"call {number}", login_page("vina"))]) for number in range(400)]
    right, erring = answering(), answering(0.2)

    states = [
        (before, after)
        for each in asked
        for before, after in zip(
            states_of_answer(right(each), 2, "checklist"), states_of_answer(erring(each), 2, "checklist"), strict=True
        )
    ]

    assert {before for before, _ in states} == {YES, NO}
    assert 0.15 < sum(before != after for before, after in states) / 800 < 0.25
    assert [erring(each) for each in asked[:50]] == [erring(each) for each in asked[:50]]


def test_the_word_of_the_fences_which_is_drawn_anew_does_not_change_what_an_erring_judge_says() -> None:
    for number in range(20):
        turns = [turn(f"call {number}", login_page("vina"))]
        assert len({answering(0.5)(question(ITEMS, turns)) for _ in range(5)}) == 1


async def test_the_endpoint_answers_and_refuses_what_it_does_not_know() -> None:
    async with TestClient(TestServer(endpoint(answering()))) as client:
        asked = {"model": "rules", "messages": question(ITEMS, [turn("fill", login_page("vina"))])}
        body = await (await client.post("/v1/chat/completions", json=asked)).json()
        content = body["choices"][0]["message"]["content"]
        assert states_of_answer(content, 2, "checklist") == [YES, NO]
        for wrong in (question(["The task is done."], [turn("", "")]), [{"role": "user", "content": "Hello."}] * 2):
            refused = await client.post("/v1/chat/completions", json={"model": "rules", "messages": wrong})
            assert refused.status == 400


def test_a_row_asks_with_the_tasks_sentence_and_brings_its_checklist() -> None:
    assert row_of(MiniwobProblem("login-user", 7), LOGIN, 3) == {
        "data_source": "miniwob/login-user",
        "prompt": [{"role": "user", "content": LOGIN}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "metadata": '{"task": "login-user", "seed": 7}',
        "checklist": ['The field "Username" holds "vina".', 'The field "Password" holds "US".'],
        "extra_info": {"index": 3, "task": "login-user"},
    }


def demonstration(sentence: str, calls: Sequence[ToolCall], *, passed: bool = True) -> Trajectory:
    messages = [Message(role=Role.USER, content=f"{sentence}\n\n{login_page()}")]
    for each in calls:
        messages += [
            Message(role=Role.ASSISTANT, tool_calls=(each,)),
            Message(role=Role.TOOL, content=login_page()),
        ]
    return Trajectory(
        id=f"login-user {len(calls)}",
        messages=tuple(messages[:-1]),
        tools=(WEB_ACTIONS["click"].schema, WEB_ACTIONS["fill"].schema),
        passed=passed,
        metadata={"sentence": sentence},
    )


LOGIN_CALLS = (call("fill", number=3, text="vina"), call("fill", number=5, text="US"), call("click", number=6))


def test_half_of_the_lessons_stand_below_workflows_that_the_policy_has_tools_for(tmp_path: Path) -> None:
    steps = tuple(step_of(each.name, each.arguments) for each in LOGIN_CALLS)
    chosen = Workflow(goal="Select AU from the list.", steps=(step_of("select", {"number": 2, "option": "AU"}),))
    write_workflows(tmp_path / "workflows.jsonl", [Workflow(goal=LOGIN, steps=steps), chosen])
    some = [demonstration(LOGIN, LOGIN_CALLS)] * 40
    shown = Demonstrations(of_workflows=some[:1], careful=some, careless=some, workflows=tmp_path / "workflows.jsonl")

    taught = lessons(shown, replace(sft_config(3), num_logs=30))

    below = [each.messages[0].content for each in taught.careful if each.messages[0].role is Role.SYSTEM]
    assert (len(taught.careful), len(taught.careless)) == (30, 30)
    assert 8 < len(below) < 22
    assert {text.removeprefix(HEADING) for text in below} == {f"\n\n{Workflow(goal=LOGIN, steps=steps).text}"}
    ids = taught.tokenizer.encode('\n{"name": "fill", "arguments": {"number": 3, "text": "vina"}}\n')
    assert [taught.tokenizer.decode([each]) for each in ids] == [
        '\n{"name": "fill", "arguments": {"number": ', "3", ', "text": "', "vi", "na", '"}}\n',
    ]  # fmt: skip


def test_workflows_are_induced_from_demonstrations_that_solved_their_task(tmp_path: Path) -> None:
    failed = demonstration("Other.", LOGIN_CALLS[:1], passed=False)
    write_dump(tmp_path / "dump.jsonl", [demonstration(LOGIN, LOGIN_CALLS), failed])

    (found,) = workflows_by_rule(read_successes([tmp_path / "dump.jsonl"], None, 1.0).rollouts)

    assert found.text == (
        f'Workflow: {LOGIN}\n1. fill({{"number": 3, "text": "vina"}})\n2. fill({{"number": 5, "text": "US"}})\n'
        '3. click({"number": 6})'
    )
    assert found.site == ""


def played(task: str, is_solved: bool, num_actions: int = 2, sentence: str = "a") -> Played:
    return Played(
        prompt_id=f"{task} {sentence}",
        task=task,
        is_solved=is_solved,
        num_actions=num_actions,
        num_failed=num_actions - 2,
        reward=1.0 if is_solved else -1.0,
        scores=(),
        num_turns=num_actions,
        stop_reason="environment_terminated",
        num_workflows=0,
        response_tokens=9,
    )


def test_measures_by_hand() -> None:
    some = [played("enter-text", True, 2), played("enter-text", False, 5), played("login-user", True, 4)]
    found = {name: measure(some) for name, measure in MEASURES.items()}

    assert found == {
        "success": 2 / 3,
        "actions of a success": 3.0,
        "failed calls": 5 / 3,
        "reward": 1 / 3,
    }
    assert all(measure([]) != measure([]) for measure in MEASURES.values())
    assert [each.task for each in of_part([*some, played("login-user-popup", True)], "unseen")] == ["login-user-popup"]


def test_trajectories_with_one_page_are_paired_in_their_order() -> None:
    found = numbered([played("focus-text-2", True), played("enter-text", True), played("focus-text-2", False)])

    assert [each.prompt_id for each in found] == ["focus-text-2 a 0", "enter-text a 0", "focus-text-2 a 1"]


def test_a_dump_is_read_without_what_the_system_failed(tmp_path: Path) -> None:
    done = CallRecord(turn=0, name="click", arguments={"number": 2}, status=CallStatus.OK)
    failed = CallRecord(turn=1, name="click", arguments={"number": 99}, status=CallStatus.TOOL_ERROR)
    process = ProcessRecord(rewards=(0.5, 1.0), scores=(0.5,))
    lines = []
    for uid, score, stop, info in (
        ("a", 1.0, StopReason.ENVIRONMENT_TERMINATED, {PROCESS_FIELD: process.as_text()}),
        ("b", -1.0, StopReason.ANSWERED, {}),
        ("c", None, StopReason.TOOL_FAILURE, {}),
    ):
        record = make_record(prompt_id="ab", stop_reason=stop, calls=(done, failed))
        transcript = encode_transcript({"data_source": "miniwob/click-button"}, record, ())
        outcome = DumpedOutcome(uid=f"{uid}_0_0", score=score, is_kept=score is not None, reward_info=info)
        lines.append(encode_line(outcome, transcript))
    (tmp_path / "5.jsonl").write_bytes(b"".join(lines))

    first, second = read_dump(tmp_path / "5.jsonl")
    assert first == Played(
        prompt_id="click-button ab 0",
        task="click-button",
        is_solved=True,
        num_actions=2,
        num_failed=1,
        reward=1.5,
        scores=(0.5,),
        num_turns=1,
        stop_reason="environment_terminated",
        num_workflows=0,
        response_tokens=5,
    )
    unjudged = replace(first, prompt_id="click-button ab 1", is_solved=False, reward=-1.0, scores=())
    assert second == replace(unjudged, stop_reason="answered")


def test_siblings_of_a_training_share_the_page_that_the_first_line_of_their_group_has_even_if_it_is_undecided(
    tmp_path: Path,
) -> None:
    """Two groups have one sentence and different pages; in each, the first of three rollouts is undecided."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    lines = []
    for group, page in (("a", "page 1"), ("b", "page 2")):
        for number, score in ((0, None), (1, 1.0), (2, -1.0)):
            record = make_record(prompt_id="same", stop_reason=StopReason.ENVIRONMENT_TERMINATED)
            prompt = json.dumps([{"role": "user", "content": page}]).encode() if number == 0 else None
            transcript = encode_transcript({"data_source": "miniwob/login-user"}, record, ())
            outcome = DumpedOutcome(uid=f"{group}_{number}_0", score=score, is_kept=score is not None)
            lines.append(encode_line(outcome, transcript, prompt))
    (folder / "7.jsonl").write_bytes(b"".join(lines))

    found = read_training(tmp_path)[7]

    ids = [prompt_id([{"role": "user", "content": page}]) for page in ("page 1", "page 2")]
    assert [each.prompt_id for each in found] == [f"login-user {id}" for id in ids for _ in range(2)]


def test_a_single_action_is_what_the_tasks_say() -> None:
    sentences = {"click-button": 'Click on the "ok" button.', "focus-text-2": "Focus into the 2nd input textbox.",
                 "click-dialog-2": 'Click the button in the dialog box labeled "x".',
                 "enter-text": 'Enter "a" into the text field and press Submit.'}  # fmt: skip

    assert {name: len(TASKS[name].steps(each)) for name, each in sentences.items()} == {
        **dict.fromkeys(SINGLE_ACTION, 1),
        "enter-text": 2,
    }


@pytest.mark.parametrize(("num_undecided", "is_spoiled"), [(1, False), (2, True)])
def test_a_unit_that_the_machine_left_undecided_does_not_count(
    num_undecided: int, is_spoiled: bool, tmp_path: Path
) -> None:
    """One of 20 held-out rows is 5 %, which is allowed."""
    arm = make_arm_of("outcome", tmp_path)
    dump = arm.validation / FOLDER / "10.jsonl"
    dump.parent.mkdir(parents=True)
    record = make_record(stop_reason=StopReason.ENVIRONMENT_TERMINATED)
    outcomes = [
        DumpedOutcome(uid=f"{number}_0_0", score=None if number < num_undecided else 1.0, is_kept=True)
        for number in range(20)
    ]
    dump.write_bytes(b"".join(encode_line(each, encode_transcript({}, record, ())) for each in outcomes))

    if not is_spoiled:
        check_decided(arm)
        return
    with pytest.raises(SpoiledError, match="10% of the held-out rows of outcome, seed 1, are undecided, more than 5%"):
        check_decided(arm)


def unit(arm: str, evaluations: Mapping[int, Sequence[bool]], *, is_trained: bool = True) -> report.Result:
    """Result of a unit with one row for each outcome; the last row is of an unseen task."""
    tasks = ("enter-text", "login-user", "click-option", "login-user-popup")
    of_steps = {
        step: [played(task, is_solved) for task, is_solved in zip(tasks, outcomes, strict=True)]
        for step, outcomes in evaluations.items()
    }
    training = {step: of_steps[max(of_steps)] for step in range(1, 11)} if is_trained else {}
    return report.Result(arm=arm, seed=0, evaluations=of_steps, training=training)


def test_a_report_compares_arms_on_seen_and_on_unseen_tasks(tmp_path: Path) -> None:
    results = [
        unit("base", {0: (True, False, False, False)}, is_trained=False),
        unit("outcome", {5: (True, False, False, False), 10: (True, True, False, False)}),
        unit("gain", {5: (True, True, False, True), 10: (True, True, True, True)}),
        unit("gain_workflows", {5: (False, False, False, False), 10: (True, False, False, True)}),
    ]

    found = report.rows(results)
    report.write(results, ["gap."], tmp_path)
    console = Console(record=True, width=200)
    report.show(results, ["gap."], console)

    assert [(row.arm, row.part, row.num_rows, row.success) for row in found] == [
        ("base", "seen", 3, 1 / 3),
        ("base", "unseen", 1, 0.0),
        ("outcome", "seen", 3, 2 / 3),
        ("outcome", "unseen", 1, 0.0),
        ("gain", "seen", 3, 1.0),
        ("gain", "unseen", 1, 1.0),
        ("gain_workflows", "seen", 3, 1 / 3),
        ("gain_workflows", "unseen", 1, 1.0),
    ]
    assert [{arm: round(each.value, 3) for arm, each in row.over.items()} for row in found] == [
        {"outcome": -0.333}, {"outcome": 0.0}, {"base": 0.333}, {"base": 0.0},
        {"base": 0.667, "outcome": 0.333}, {"base": 1.0, "outcome": 1.0},
        {"base": 0.0, "outcome": -0.333, "gain": -0.667}, {"base": 1.0, "outcome": 1.0, "gain": 0.0},
    ]  # fmt: skip
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["gaps"] == ["gap."]
    assert len(summary["evaluations"]) == 14
    values = {each["contrast"]: each["difference"]["value"] for each in summary["contrasts"]}
    assert {name: round(value, 3) for name, value in values.items()} == {
        "success, seen tasks, outcome over base": 0.333,
        "success, seen tasks, gain over base": 0.667,
        "success in training, all tasks, gain over outcome": 0.5,
        "success in training, tasks of several actions, gain over outcome": 0.5,
        "success, seen tasks, gain, two thirds of its steps over outcome": 0.0,
        "success, seen tasks that no workflow answers, gain_workflows over gain": -0.667,
        "success, unseen tasks, gain_workflows over gain": 0.0,
        "actions of a success, seen tasks, gain_workflows over gain": 0.0,
    }
    assert summary["rows"][1]["actions of a success"] is None
    assert (tmp_path / "web.png").stat().st_size > 0
    assert "gap." in console.export_text()


def test_a_part_of_which_nothing_was_decided_is_shown_without_a_figure(tmp_path: Path) -> None:
    seen_alone = [played("enter-text", True)]
    results = [
        report.Result(arm=arm, seed=0, evaluations={10: seen_alone}, training={}) for arm in ("base", "base_workflows")
    ]

    report.write(results, [], tmp_path)
    report.show(results, [], Console(record=True, width=200))

    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [(row["tasks"], row["success"], row["num_rows"]) for row in rows[:2]] == [
        ("seen", 1.0, 1),
        ("unseen", None, 0),
    ]


def make_arm_of(name: str, folder: Path) -> Arm:
    tasks = WebRows(tools=TOOLS, training=folder / "training.parquet", held_out=folder / "held_out.parquet")
    shown = Demonstrations(of_workflows=(), careful=(), careless=(), workflows=folder / "workflows.jsonl")
    return make_arm(name, folder / "policy", tasks, shown, folder / name, 1, 10)


@pytest.mark.parametrize("name", ARMS)
def test_every_command_composes(name: str, tmp_path: Path) -> None:
    arm = make_arm_of(name, tmp_path)
    config = checked_config(replace(arm, judge_url="http://127.0.0.1:1/v1").command[3:])

    process = parse_process(config)
    workflows = validated(WorkflowSettings, dict(config.pivot.rollout.workflows), "pivot.rollout.workflows")
    reward = next((each for each in ("progress", "gain") if name.startswith(each)), None)
    assert (process.mode, process.reward if reward else None) == ("sum" if reward else "outcome", reward)
    assert process.has_checklist == (reward is not None)
    assert process.judge_validation == (reward is None)
    assert workflows.file == (str(tmp_path / "workflows.jsonl") if name.endswith("workflows") else None)
    assert workflows.per_template == (PER_TEMPLATE if name.endswith("workflows") else 2)
    assert config.algorithm.adv_estimator == "grpo"
    assert (config.algorithm.use_kl_in_reward, config.actor_rollout_ref.actor.use_kl_loss) == (False, True)
    assert config.pivot.rollout.tools == str(TOOLS)
    assert config.trainer.get("val_only", False) == name.startswith("base")
    assert ARMS[name].wrong_share == (0.2 if name.endswith("_20") else 0.0)


def test_settings_of_a_unit_do_not_depend_on_the_judges_port(tmp_path: Path) -> None:
    arm = make_arm_of("gain", tmp_path)

    assert not [name for name in arm.settings if "base_url" in name]


def test_a_unit_names_what_the_browser_told_for_it(tmp_path: Path) -> None:
    tasks = WebRows(tools=TOOLS, training=tmp_path / "training.parquet", held_out=tmp_path / "held_out.parquet")
    shown = Demonstrations(of_workflows=(), careful=(), careless=(), workflows=tmp_path / "workflows.jsonl")
    for path in (tasks.training, tasks.held_out, shown.workflows):
        path.write_text("a")
    before = recorded_digests(tasks, shown)
    shown.workflows.write_text("b")
    after = recorded_digests(tasks, shown)

    assert {name for name in before if before[name] != after[name]} == {"workflows_digest"}


def test_a_unit_may_be_taken_up_again_from_another_copy_of_the_project(tmp_path: Path) -> None:
    assert make_arm_of("gain", tmp_path).settings["pivot.rollout.tools"] == "examples/web/tools.yaml"
