"""Tasks of MiniWoB++ that the study uses: a task's sentence -> the steps that do it, and its checklist."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from examples.web.page import Element


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action that a task needs.

    Example:
        Step(tool="fill", role="textbox", label="Username", value="vina")
    """

    tool: Literal["click", "fill", "select"]
    role: str
    """Role of the element that it acts on."""
    name: str = ""
    """Name of the element; "" takes any."""
    label: str = ""
    """Line of text above the element; "" takes any."""
    place: int = 0
    """Position among the elements that fit, from 0."""
    value: str = ""
    """Text of a field, or option of a list."""

    def target(self, elements: Sequence[Element]) -> Element | None:
        """The element that this step acts on; None if the page does not show it."""
        fitting = [
            each
            for each in elements
            if each.role == self.role
            and each.number is not None
            and (not self.name or each.name == self.name)
            and (not self.label or each.label == self.label)
        ]
        return fitting[self.place] if self.place < len(fitting) else None

    def is_done(self, elements: Sequence[Element]) -> bool:
        """Whether the page shows that the step is done; it never shows a click on a button or into a field."""
        if self.tool == "select":
            return any(
                each.role == "option" and each.name == self.value and "selected" in each.marks for each in elements
            )
        element = self.target(elements)
        if element is None:
            return False
        return element.text == self.value if self.tool == "fill" else "checked" in element.marks

    @property
    def item(self) -> str:
        """Checklist item that holds once the step is done."""
        if self.tool == "fill":
            return f'The field "{self.label}" holds "{self.value}".' if self.label else f'A field holds "{self.value}".'
        if self.tool == "select":
            return f'The list shows "{self.value}".'
        if self.role == "textbox":
            return f"Field number {self.place + 1} has the focus."
        return (
            f'The option "{self.name}" is chosen.' if self.role == "radio" else f'The button "{self.name}" is clicked.'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTask:
    """A task of MiniWoB++ whose sentence tells what to do."""

    name: str
    sentence: re.Pattern[str]
    """Pattern of its sentence, with a group for each value."""
    steps_of: Callable[..., tuple[Step, ...]]
    """Values of the sentence -> steps in their order; the last one ends the episode."""
    is_seen: bool = True
    """Whether SFT and training use the task."""

    def steps(self, sentence: str) -> tuple[Step, ...]:
        """The steps that do the task.

        Raises:
            ValueError: If the sentence is not one of this task.
        """
        found = self.sentence.fullmatch(sentence)
        if found is None:
            raise ValueError(f"{sentence!r:.200} is no sentence of the task {self.name}")
        return self.steps_of(*found.groups())

    def checklist(self, sentence: str) -> list[str]:
        """Items for all steps but the last, which the outcome rewards; a single step has one, never met before the end.

        There are at most two items, of the five that a checklist may have: no task here needs more than three actions.
        """
        steps = self.steps(sentence)
        return [each.item for each in steps[:-1] or steps]


def _click(name: str, role: str = "button") -> Step:
    return Step(tool="click", role=role, name=name)


def _fill(value: str, label: str = "") -> Step:
    return Step(tool="fill", role="textbox", label=label, value=value)


def _dialog_button(label: str) -> tuple[Step, ...]:
    return (_click("Close" if label == "x" else label),)  # the page's tree names the x button Close


def _focus(ordinal: str) -> tuple[Step, ...]:
    return (Step(tool="click", role="textbox", place=int(ordinal) - 1),)


def _option(name: str) -> tuple[Step, ...]:
    return (_click(name, "radio"), _click("Submit"))


def _list(value: str) -> tuple[Step, ...]:
    return (Step(tool="select", role="combobox", value=value), _click("Submit"))


def _text(value: str) -> tuple[Step, ...]:
    return (_fill(value), _click("Submit"))


def _password(value: str) -> tuple[Step, ...]:
    return (_fill(value, "Password"), _fill(value, "Verify password"), _click("Submit"))


def _login(user: str, password: str) -> tuple[Step, ...]:
    return (_fill(user, "Username"), _fill(password, "Password"), _click("Login"))


def _login_with_popup(user: str, password: str) -> tuple[Step, ...]:
    return (*_login(user, password)[:2], _click("OK"))


_ENTER = re.compile(r'Enter "(.+)" into the text field and press Submit\.')
_LOGIN = re.compile(r'Enter the username "(.+)" and the password "(.+)" into the text fields and press login\.')
TASKS: Mapping[str, WebTask] = {
    task.name: task
    for task in (
        WebTask(
            name="click-button",
            sentence=re.compile(r'Click on the "(.+)" button\.'),
            steps_of=lambda name: (_click(name),),
        ),
        WebTask(
            name="click-dialog-2",
            sentence=re.compile(r'Click the button in the dialog box labeled "(.+)"\.'),
            steps_of=_dialog_button,
        ),
        WebTask(
            name="focus-text-2",
            sentence=re.compile(r"Focus into the (\d)(?:st|nd|rd) input textbox\."),
            steps_of=_focus,
        ),
        WebTask(name="click-option", sentence=re.compile(r"Select (.+) and click Submit\."), steps_of=_option),
        WebTask(
            name="choose-list",
            sentence=re.compile(r"Select (.+) from the list and click Submit\."),
            steps_of=_list,
        ),
        WebTask(name="enter-text", sentence=_ENTER, steps_of=_text),
        WebTask(
            name="enter-password",
            sentence=re.compile(r'Enter the password "(.+)" into both text fields and press submit\.'),
            steps_of=_password,
        ),
        WebTask(name="login-user", sentence=_LOGIN, steps_of=_login),
        WebTask(name="enter-text-dynamic", sentence=_ENTER, steps_of=_text, is_seen=False),
        WebTask(name="login-user-popup", sentence=_LOGIN, steps_of=_login_with_popup, is_seen=False),
    )
}
"""{name: task}; unseen tasks have the sentences of seen ones, with other texts, another button or popups."""
SINGLE_ACTION = ("click-button", "click-dialog-2", "focus-text-2")
"""Tasks of a single action."""
SEEN = tuple(name for name, task in TASKS.items() if task.is_seen)
UNSEEN = tuple(name for name, task in TASKS.items() if not task.is_seen)
