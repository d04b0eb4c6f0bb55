"""The clerk of the shop solves its tasks without mistakes; broken labels are repaired where its action is right."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from examples.quickstart.tasks import FAMILIES, UNSEEN_FAMILIES, Task
from examples.synthesis.clerk import careful, labelled_turn, tasks
from examples.synthesis.labels import repair_labels
from verl_pivot.types import Message, Role


def solved(task: Task) -> bool:
    messages = list(task.opening)
    with task.open_shop() as shop:
        while True:
            action = careful(task, messages)
            messages.append(action)
            if not action.tool_calls:
                return task.passed(action, shop.dump())
            (call,) = action.tool_calls
            messages.append(Message(role=Role.TOOL, content=shop.call(call).text, name=call.name))


def test_a_careful_clerk_solves_every_kind_of_task() -> None:
    known = tasks(60)

    assert {task.family for task in known} == {*FAMILIES} - {*UNSEEN_FAMILIES}
    assert [task.id for task in known if not solved(task)] == []
    assert len({task.request for task in known}) == 60


def test_labels_are_turns_with_calls_and_the_same_each_time() -> None:
    turns = [labelled_turn(task) for task in tasks(20)]

    assert turns == [labelled_turn(replace(task)) for task in tasks(20)]
    assert all(turn.expert.tool_calls for turn in turns)


def test_every_fifth_label_is_broken_and_every_label_is_counted(tmp_path: Path) -> None:
    report = repair_labels(tmp_path, 25, with_judges=False)

    fates = {kind: Counter(counts) for kind, counts in report.fates.items()}
    assert {kind: counts.total() for kind, counts in fates.items()} == {"broken": 5, "right": 20}
    assert report.num_repaired == fates["broken"]["right label"] <= report.num_solved
    assert fates["right"]["right label"] > 10
