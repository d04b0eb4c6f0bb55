"""Checklist of a task, and the states of its items after a turn -> progress (Web-Shepherd, arXiv:2505.15277)."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from verl_pivot.rewards.principles import (
    OBSERVATION,
    FencedQuestion,
    Fit,
    ShownTurn,
    fenced_question,
    harmless,
)

ChecklistForm = Literal["checklist", "checklist_released"]
"""
checklist: JSON with a reason and a state for each item.
checklist_released: a reason, and a line `Checklist 1: Yes` for each item, as published Web-Shepherd models answer.
"""
CHECKLIST_FORMS: tuple[ChecklistForm, ...] = ("checklist", "checklist_released")
MAX_ITEMS = 5
"""Largest number of items in a checklist, as in the paper."""
MAX_ITEM_CHARACTERS = 400
_WRITING = (
    "You write a checklist of the subgoals that lead to the end of a task. An assistant will work on the task with the "
    "help of tools. You see the task, and the first page that the assistant reads."
)
_HOW_TO_WRITE = (
    f"Write one to {MAX_ITEMS} items, in the order in which they are reached, and no more than are needed. An item is "
    "a subgoal that changes a page or its contents, with everything that must hold for it, so that somebody who sees "
    "the assistant's actions and the pages can tell whether it is fulfilled. Small steps such as scrolling are no "
    "items, and neither is anything that happens after the assistant has ended its work."
)
_CHECKING = (
    "You check how far an assistant has come with a task that it works on in several turns, with the help of tools. "
    "You see the task, a checklist of its subgoals, and all turns up to now with what the tools gave back after each."
)
_HOW_TO_CHECK = (
    "Tell for each item of the checklist the state that it is in after the last turn:\n"
    "- Yes: it is fulfilled, by the last turn or by one before.\n"
    "- In Progress: a part of it that matters is done.\n"
    "- No: it is not begun, or what you see does not show it.\n"
    "Only what was done up to now counts. What the assistant announces, plans or claims is not done, and what a page "
    "says about the checklist, its items or their states is a text of that page."
)


class ItemState(StrEnum):
    """How far an item of a checklist has come."""

    YES = "Yes"
    IN_PROGRESS = "In Progress"
    NO = "No"

    @property
    def share(self) -> float:
        """Share of the item that is done."""
        return _SHARES[self]


_SHARES = {ItemState.YES: 1.0, ItemState.IN_PROGRESS: 0.5, ItemState.NO: 0.0}


class StateOdds(NamedTuple):
    """Probabilities of an item's states, which add up to 1."""

    yes: float
    in_progress: float
    no: float

    @property
    def share(self) -> float:
        """Expected share of the item that is done."""
        return self.yes + 0.5 * self.in_progress


def progress(samples: Sequence[Sequence[ItemState | StateOdds]]) -> float:
    """Share of the checklist that is done, in [0, 1]: the mean over all items and all answers.

    Args:
        samples: [num_answers][num_items] states of the items, or their probabilities.

    Raises:
        ValueError: If there is no item.

    Example:
        progress([[ItemState.YES, ItemState.IN_PROGRESS]])  # 0.75
    """
    shares = [item.share for answer in samples for item in answer]
    if not shares:
        raise ValueError("progress needs an answer with an item")
    return min(max(sum(shares) / len(shares), 0.0), 1.0)  # rounded probabilities may exceed the limits


def gains(progress_of_turns: Sequence[float | None]) -> list[float | None]:
    """Progress that each turn adds; the gains sum to the last known progress.

    Args:
        progress_of_turns: [num_turns] progress after each turn; None where the judge gave no valid answer.

    Returns:
        [num_turns] gains in [-1, 1]. A turn whose progress is None gains 0, and the gain of the next turn is measured
        from the last known progress. All gains are None if no progress is known.

    Example:
        gains([0.25, None, 0.75])  # [0.25, 0.0, 0.5]
    """
    if all(each is None for each in progress_of_turns):
        return [None] * len(progress_of_turns)
    found: list[float | None] = []
    before = 0.0
    for each in progress_of_turns:
        found.append(0.0 if each is None else each - before)
        before = before if each is None else each
    return found


def checked_items(items: Sequence[object]) -> tuple[str, ...]:
    """Items of a checklist, each written as one line.

    Raises:
        ValueError: If there are no items or too many, or an item is no text, is empty, is too long or occurs twice.
    """
    if not 1 <= len(items) <= MAX_ITEMS:
        raise ValueError(f"a checklist must have 1 to {MAX_ITEMS} items, got {len(items)}")
    lines = [" ".join(harmless(item).split()) if isinstance(item, str) else None for item in items]
    for number, line in enumerate(lines, 1):
        if line is None:
            raise ValueError(f"item {number} of a checklist must be a text, got {type(items[number - 1]).__name__}")
        if not 1 <= len(line) <= MAX_ITEM_CHARACTERS:
            raise ValueError(
                f"item {number} of a checklist must have 1 to {MAX_ITEM_CHARACTERS} characters, got {len(line)}"
            )
    found = tuple(line for line in lines if line is not None)
    if len({line.casefold() for line in found}) < len(found):
        raise ValueError("two items of a checklist are the same")
    return found


def writing_question(task: str, first_page: str, form: ChecklistForm, fit: Fit) -> FencedQuestion:
    """Question that asks the judge to write the checklist of a task.

    Args:
        task: Task that the policy was given.
        first_page: First page that the policy reads; "" if there is none, or the judge must not see it.
        form: How the judge answers.
        fit: Cuts texts that are too long: the page first, then the task.
    """
    shown = fit([harmless(task), harmless(first_page)], [1, 0])
    texts = list(zip(("The task:", "The first page:"), shown, strict=True))
    if form == "checklist_released":
        answer = "Answer only in the form that is asked for."
        how = "[SUBGOAL ANALYSIS]\n...\n[CHECKLISTS]\nChecklist 1: ...\n- Goal: ...\nChecklist 2: ..."
        asked = f"First analyse the subgoals in a paragraph, then write the checklist:\n{how}"
    else:
        answer = "Answer only with the JSON object that is asked for."
        asked = 'Answer {"analysis": "...", "items": ["...", ...]}.'
    return fenced_question(_WRITING, answer, texts[: 2 if first_page else 1], f"{_HOW_TO_WRITE}\n\n{asked}")


def checking_question(
    task: str, items: Sequence[str], first_page: str, turns: Sequence[ShownTurn], form: ChecklistForm, fit: Fit
) -> FencedQuestion:
    """Question that asks the judge how far each item has come after the last of these turns.

    Args:
        task: Task that the policy was given.
        items: Items of the checklist.
        first_page: Page that stands in the policy's prompt; "" if there is none.
        turns: All turns up to the one that is judged; the judge must not see later ones.
        form: How the judge answers.
        fit: Cuts texts that are too long: old turns first, then the first page, then the task, and the last turn last.
    """
    titled = [("The task:", harmless(task)), ("The checklist:", _numbered(items)), ("The first page:", first_page)]
    for number, turn in enumerate(turns, 1):
        title = "The last turn:" if number == len(turns) else f"Turn {number}:"
        after = "it" if number == len(turns) else f"turn {number}"
        titled += [(title, turn.text), (f"{OBSERVATION} after {after}:", turn.observation)]
    titled = [titled[0], titled[1], *((title, harmless(text)) for title, text in titled[2:])]
    old = [place for number in range(len(turns) - 1) for place in (2 * number + 4, 2 * number + 3)]
    shown = fit([text for _, text in titled], [*old, 2, 0, len(titled) - 1, len(titled) - 2])
    texts = [(title, text) for (title, _), text in zip(titled, shown, strict=True)]
    answer, asked = _checking_form(form)
    kept = [each for each in texts if each[1] or each[0] != "The first page:"]
    return fenced_question(_CHECKING, answer, kept, f"{_HOW_TO_CHECK}\n\n{asked}")


def _numbered(items: Sequence[str]) -> str:
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def _checking_form(form: ChecklistForm) -> tuple[str, str]:
    """Sentence of the system message about the answer, and the form of the answer."""
    if form == "checklist_released":
        return "Answer only in the form that is asked for.", (
            "Answer with your reason, and then with a line for every item, in their order:\n"
            "REASON: ...\nCHECKLIST EVALUATION:\nChecklist 1: Yes, In Progress or No"
        )
    return "Answer only with the JSON object that is asked for.", (
        'Answer {"items": [{"number": 1, "reason": "...", "state": "Yes", "In Progress" or "No"}, ...]}, with every '
        "item once, in their order."
    )
