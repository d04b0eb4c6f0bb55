"""Notepad: notes of a policy within its notebook; the source is the cell with which the notebook begins."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Notepad:
    """Notes that are shown again after the context was trimmed: things to do, facts, and a draft of the answer."""

    def __init__(self, contents: "dict[str, Any] | None" = None) -> None:
        contents = contents or {}
        self.todos: dict[str, dict[str, Any]] = contents.get("todos", {})
        self.facts: dict[str, str] = contents.get("facts", {})
        self.draft: str = contents.get("draft", "")

    def add_todo(self, text: str) -> None:
        """Add something to do, which gets a label such as T1."""
        self.todos[_free_label("T", self.todos)] = {"text": str(text), "is_done": False}

    def check_todo(self, label: str) -> None:
        """Mark something as done."""
        self.todos[_known_label(label, self.todos)]["is_done"] = True

    def add_facts(self, *facts: object) -> None:
        """Note facts, each of which gets a label such as F1; lists of facts are taken, too."""
        for fact in facts:
            for text in fact if isinstance(fact, list | tuple) else (fact,):
                self.facts[_free_label("F", self.facts)] = str(text)

    def write_draft(self, text: str) -> None:
        """Replace the draft of the answer."""
        self.draft = str(text)

    def remove(self, *labels: str) -> None:
        """Remove entries by their labels, and the draft by the label "draft"."""
        for label in labels:
            if label == "draft":
                self.draft = ""
            elif label in self.todos:
                del self.todos[label]
            else:
                del self.facts[_known_label(label, self.facts, self.todos)]

    def contents(self) -> "dict[str, Any]":
        """The notes as JSON values."""
        return {"todos": self.todos, "facts": self.facts, "draft": self.draft}


def _free_label(letter: str, entries: "dict[str, Any]") -> str:
    """The label after the last one of the entries."""
    return f"{letter}{max((int(label[1:]) for label in entries), default=0) + 1}"


def _known_label(label: str, *sections: "dict[str, Any]") -> str:
    """The label, if an entry of the first section has it.

    Raises:
        KeyError: If no entry has it; the message lists the labels of all sections.
    """
    if label not in sections[0]:
        known = ", ".join(each for section in sections for each in section)
        raise KeyError(f"the Notepad has no entry {label!r}; its entries are: {known or 'none'}")
    return label
