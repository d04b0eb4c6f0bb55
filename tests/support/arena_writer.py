"""Program that plays all roles of `arenas` without a mistake: a graph of three questions, judges that agree, tools."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.question_graph import GRAPH
from verl_pivot.synthesis.writer import WriterQuestion

TABLES = {
    "city_of": ("flight", {"KL1234": "Oslo", "KL1235": "Bergen"}),
    "mayor_of": ("city", {"Oslo": "Anne Lindboe", "Bergen": "Marit Warncke"}),
    "birth_year": ("person", {"Anne Lindboe": 1971, "Marit Warncke": 1957}),
}
"""{name of a tool: its argument, and its results}"""


def make_graph(**changes: Any) -> dict[str, Any]:
    questions = [
        ("Where does flight KL1234 land?", "Oslo", []),
        ("Who is the mayor of Oslo?", "Anne Lindboe", [1]),
        ("In which year was Anne Lindboe born?", 1971, [2]),
    ]
    graph = {
        "request": "I land with flight KL1234. Who is the mayor there, and of which year?",
        "answer": "Anne Lindboe, born in 1971.",
        "questions": [
            {"id": number, "question": question, "answer": answer, "depends_on": needed, "needs_tool": True}
            for number, (question, answer, needed) in enumerate(questions, start=1)
        ],
    }
    return {**graph, **changes}


def make_tool(name: str, value: str, /, **changes: Any) -> dict[str, Any]:
    """The tool of a table as a programmer writes it, with the call that looks a value up."""
    argument, table = TABLES[name]
    code = f"TABLE = {table!r}\n\n\ndef {name}({argument}):\n    print('looking up')\n    if {argument} not in TABLE:\n"
    code += f"        raise ValueError('no such {argument}')\n    return TABLE[{argument}]\n"
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    tool = {"name": name, "description": f"Tells the {name}.", "parameters": parameters, "code": code}
    return {**tool, "arguments": {argument: value}, **changes}


def answer(question: WriterQuestion) -> str:
    text = str(question.messages[-1]["content"])
    if "depends_on" in text and "Write a request" in text:
        return json.dumps(make_graph())
    if "Is this fulfilled?" in text:
        return json.dumps({"reason": "", "fulfilled": True})
    asked = text.splitlines()[1]
    name, value = next(tool for part, tool in _CALLS.items() if asked.startswith(part))
    return json.dumps(make_tool(name, value))


_CALLS = {
    "Where": ("city_of", "KL1234"),
    "Who": ("mayor_of", "Oslo"),
    "In which year": ("birth_year", "Anne Lindboe"),
}


def answering(answers: Mapping[str, object]) -> Callable[[WriterQuestion], str]:
    """The program, with other answers to some questions.

    Args:
        answers: {part of a question: the answer, as text or as what its JSON holds}.
    """

    def respond(question: WriterQuestion) -> str:
        text = str(question.messages[-1]["content"])
        other = next((given for part, given in answers.items() if part in text), None)
        if other is None:
            return answer(question)
        return other if isinstance(other, str) else json.dumps(other)

    return respond


def draft_with_graph() -> Draft:
    return Draft(id="0", values={GRAPH: make_graph()})
