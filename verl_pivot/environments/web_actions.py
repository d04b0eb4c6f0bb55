"""Actions on a web page: the schemas that the policy sees, and what each does to a WebPage."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from verl_pivot.browser.web_page import WebPage
from verl_pivot.types import JsonObject

_NUMBER: JsonObject = {"type": "integer", "description": "Number of the element, as in [7], in the last observation."}
_TEXT: JsonObject = {"type": "string"}


class WebAction(NamedTuple):
    """An action that a policy can take on a page."""

    schema: JsonObject
    """Name, description and parameters, in OpenAI's form."""
    act: Callable[[WebPage, Mapping[str, Any]], Awaitable[None]]
    """Function that takes the action, with arguments that the schema accepts."""


def _schema(name: str, description: str, properties: JsonObject, optional: tuple[str, ...] = ()) -> JsonObject:
    required = [each for each in properties if each not in optional]
    parameters: JsonObject = {"type": "object", "properties": properties, "required": [*required]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_WAY: JsonObject = {"type": "string", "enum": ["up", "down"]}

WEB_ACTIONS: Mapping[str, WebAction] = {
    "goto": WebAction(
        _schema("goto", "Open an address.", {"url": _TEXT}),
        lambda page, given: page.goto(given["url"]),
    ),
    "click": WebAction(
        _schema("click", "Click on an element.", {"number": _NUMBER}),
        lambda page, given: page.click(given["number"]),
    ),
    "fill": WebAction(
        _schema("fill", "Replace the text of a field.", {"number": _NUMBER, "text": _TEXT}),
        lambda page, given: page.fill(given["number"], given["text"]),
    ),
    "select": WebAction(
        _schema("select", "Choose an option of a list by its text.", {"number": _NUMBER, "option": _TEXT}),
        lambda page, given: page.select(given["number"], given["option"]),
    ),
    "press": WebAction(
        _schema(
            "press",
            "Press a key, such as Enter or Control+A, at an element, or without a number where the focus is.",
            {"key": _TEXT, "number": _NUMBER},
            ("number",),
        ),
        lambda page, given: page.press(given["key"], given.get("number")),
    ),
    "scroll": WebAction(
        _schema(
            "scroll",
            "Scroll an element, or without a number the page.",
            {"direction": _WAY, "number": _NUMBER},
            ("number",),
        ),
        lambda page, given: page.scroll(given["direction"], given.get("number")),
    ),
    "back": WebAction(
        _schema("back", "Go back to the page before.", {}),
        lambda page, given: page.back(),
    ),
}
"""{name: action}, in the order in which the policy sees them."""
