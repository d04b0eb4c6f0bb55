"""The careless agent's transcripts, as the agent loop would show them to a policy: one for each stretch of context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from examples.l0.agent import MISSING, Agent, NotebookHabits, Step
from examples.world.pages import Pages
from examples.world.questions import WorldQuestion
from verl_pivot.rollout.cell_calls import functions_of
from verl_pivot.rollout.context import ContextWindow
from verl_pivot.rollout.notebook_prompt import Left, after_step, system_prompt, trimmed_task
from verl_pivot.rollout.notebook_turns import read_notebook_turn
from verl_pivot.rollout.notepad import NotepadReading, Notes
from verl_pivot.sandbox.host_functions import HostFunction
from verl_pivot.sandbox.in_session.notepad import Notepad
from verl_pivot.tools.search import SearchTool
from verl_pivot.types import Message, Role, Trajectory

MAX_CONTEXT_TOKENS = 320
"""Tokens of the context window, enough for two pages with the steps that found them, and a third step."""
MAX_STEP_TOKENS = 64
MAX_STEPS = 10
_MARKS = 3
"""Number of tokens that the chat template adds to a message: a mark before it, a mark after it, and a newline."""
CountTokens = Callable[[str], int]
"""Text -> number of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """Settings of the agent loop."""

    functions: tuple[HostFunction, ...]
    window: ContextWindow
    max_steps: int
    count_tokens: CountTokens
    has_notepad: bool = True

    @property
    def system(self) -> Message:
        text = system_prompt(
            self.functions, max_steps=self.max_steps, trim=self.window.trim, has_notepad=self.has_notepad
        )
        return Message(role=Role.SYSTEM, content=text)

    def num_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of messages as the chat template renders them."""
        texts = (text for each in messages for text in (f"{each.role}\n", each.content))
        return sum(map(self.count_tokens, texts)) + _MARKS * len(messages)

    @property
    def num_begin_tokens(self) -> int:
        """Tokens with which the chat template begins a turn of the policy."""
        return self.count_tokens(f"{Role.ASSISTANT}\n") + 1


WINDOW = ContextWindow(max_tokens=MAX_CONTEXT_TOKENS, max_step_tokens=MAX_STEP_TOKENS)


def scaffold(count_tokens: CountTokens, window: ContextWindow = WINDOW, *, has_notepad: bool = True) -> Scaffold:
    """The scaffold of the study."""
    return Scaffold(
        functions=tuple(functions_of([SearchTool.schema])),
        window=window,
        max_steps=MAX_STEPS,
        count_tokens=count_tokens,
        has_notepad=has_notepad,
    )


@dataclass(slots=True, kw_only=True)
class _Notebook:
    """Imitates the few kinds of cells that the agent writes; no code is run."""

    pages: Pages
    notepad: Notepad = field(default_factory=Notepad)
    page: str = ""
    num_cells: int = 0

    def run(self, step: Step) -> str:
        """Output of a step's cell."""
        self.num_cells += 2  # the loop runs one cell before the first step, and one after each step, for the Notepad
        if step.is_broken:
            return name_error(step.code, self.num_cells)
        self.notepad.add_facts(*step.notes)
        if step.query is not None:
            self.page = self.pages.search(step.query)
        return self.page if step.prints else ""


def name_error(line: str, cell: int) -> str:
    """Traceback of a cell whose only line, which follows `<code>` and a newline, uses the variable MISSING."""
    marks = " " * line.index(MISSING) + "^" * len(MISSING)
    place = f'Traceback (most recent call last):\n  File "<cell {cell}>", line 2, in <module>'
    return f"{place}\n    {line}\n    {marks}\nNameError: name '{MISSING}' is not defined"


def record_all(
    questions: Sequence[WorldQuestion], pages: Pages, habits: NotebookHabits, scaffold: Scaffold
) -> list[Trajectory]:
    """Transcripts of all questions; equal questions and habits give equal transcripts."""
    return [log for each in questions for log in record(each, pages, Random(each.id), habits, scaffold)]


def record(
    question: WorldQuestion, pages: Pages, rng: Random, habits: NotebookHabits, scaffold: Scaffold
) -> list[Trajectory]:
    """The transcript of one question, up to the answer or the last step: one trajectory for each stretch of context."""
    agent = Agent(question=question, rng=rng, habits=habits)
    notebook = _Notebook(pages=pages)
    stretches = [[scaffold.system, Message(role=Role.USER, content=question.text)]]
    for num_left in reversed(range(scaffold.max_steps)):
        step, before = agent.act(), _shown(notebook.notepad)
        stretches[-1].append(Message(role=Role.ASSISTANT, content=step.text))
        output = notebook.run(step)
        if num_left == 0 or (step.answer is not None and not step.is_broken):
            break
        agent.read(output)
        notepad = _shown(notebook.notepad)
        mistake = read_notebook_turn(step.text, ended=True).mistake
        text = after_step(output, [mistake] * bool(mistake), notepad * (notepad != before))
        room = scaffold.window.room(scaffold.num_tokens(stretches[-1]) + scaffold.count_tokens(text))
        left = Left(num_steps=num_left, num_tokens=room).shown()
        observed = Message(role=Role.USER, content=f"{text}\n{left}")
        num_tokens = scaffold.num_tokens([*stretches[-1], observed]) + scaffold.num_begin_tokens
        if scaffold.window.room(num_tokens) >= 0:
            stretches[-1].append(observed)
        else:
            agent.forget_context()
            stretches.append(_trimmed(question.text, notepad, num_left, scaffold))
    return [Trajectory(id=f"{question.id} {number}", messages=tuple(each)) for number, each in enumerate(stretches)]


def _trimmed(task: str, notepad: str, num_left: int, scaffold: Scaffold) -> list[Message]:
    """Messages of a context after a trim: the system prompt, and the task with the Notepad."""
    trim = scaffold.window.trim
    bare = Message(role=Role.USER, content=trimmed_task(task, trim, "", notepad, None))
    room = scaffold.window.room(scaffold.num_tokens([scaffold.system, bare]) + scaffold.num_begin_tokens)
    text = trimmed_task(task, trim, "", notepad, Left(num_steps=num_left, num_tokens=room))
    return [scaffold.system, Message(role=Role.USER, content=text)]


def _shown(notepad: Notepad) -> str:
    return NotepadReading(Notes(facts=dict(notepad.facts))).shown()
