"""User-defined steps for tests of recipes, and a program that plays the writer."""

from collections.abc import Sequence

from pydantic import BaseModel

from verl_pivot.errors import UserCodeError
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.steps import CheckStep, ChooseStep, MakeStep, check_step, choose_step, make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall, Trajectory, Verdict
from verl_pivot.validation import Options


def number(question: WriterQuestion) -> str:
    """A number from the seed, so that equal seeds give equal answers."""
    return str(question.seed % 10)


class CopiesOptions(Options):
    num: int = 2
    """Number of copies of each draft."""


@make_step("copies", options=CopiesOptions)
def copies(options: CopiesOptions) -> MakeStep:
    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        answers = [await workshop.ask([{"role": "user", "content": draft.id}], k=k) for k in range(options.num)]
        task: JsonObject = {"prompt": [{"role": "user", "content": f"Task of {draft.id}."}]}
        return [draft.made(k, task=task, values={"digit": int(each.text)}) for k, each in enumerate(answers)]

    return make


class DigitOptions(Options):
    least: int = 3
    """Smaller digits do not pass."""
    undecided: tuple[int, ...] = ()
    """Digits for which the check is undecided."""
    breaks_at: tuple[str, ...] = ()
    """Ids of drafts at which the user's code fails."""


@check_step("digit", options=DigitOptions)
def digit(options: DigitOptions) -> CheckStep:
    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        found = draft.values["digit"]
        assert isinstance(found, int)
        if draft.id in options.breaks_at:
            raise UserCodeError(f"the checker broke at {draft.id}")
        if found in options.undecided:
            return Verdict.undecided("cannot_tell")
        return Verdict.accept() if found >= options.least else Verdict.refuse("too_small", str(found))

    return check


class HalvesOptions(Options):
    refuses: bool = False
    """Whether the half character is in the detail of a rejection, instead of in a value of a draft."""


@make_step("halves", options=HalvesOptions)
def halves(options: HalvesOptions) -> MakeStep:
    """Makes half of a surrogate pair, which a policy may write as an escape, and which no UTF-8 file can hold."""

    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        if options.refuses:
            return [draft.made(0).rejected("wrong_value", "\ud800")]
        return [draft.made(0, values={"text": "\ud800"}), draft.made(1)]

    return make


class UnnamedOptions(Options):
    pass


@make_step("unnamed", options=UnnamedOptions)
def unnamed(options: UnnamedOptions) -> MakeStep:
    """Makes a trajectory with a call without a name, which JSON can hold and no reader of trajectories accepts."""

    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="", arguments={}),))
        messages = (Message(role=Role.USER, content="Two packs of tea."), call)
        return [draft.made(0, trajectory=Trajectory(id=draft.id, messages=messages)), draft.made(1)]

    return make


class LargestOptions(Options):
    asks: bool = False
    """Whether the writer is asked about each group."""


def _largest(options: LargestOptions) -> ChooseStep:
    async def choose(drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]:
        if options.asks:
            await workshop.ask([{"role": "user", "content": f"Which of {len(drafts)}?"}])
        return [max(drafts, key=lambda draft: (draft.values["digit"], draft.id))]

    return choose


@choose_step("largest", options=LargestOptions)
def largest(options: LargestOptions) -> ChooseStep:
    return _largest(options)


@choose_step("largest_of_all", options=LargestOptions, across_items=True)
def largest_of_all(options: LargestOptions) -> ChooseStep:
    return _largest(options)


class ProbedOptions(Options):
    num: int = 3
    """Number of questions before the first draft."""


@make_step("probed", options=ProbedOptions)
class Probed:
    def __init__(self, options: ProbedOptions) -> None:
        self._options = options

    async def prepare(self, workshop: Workshop) -> None:
        for k in range(self._options.num):
            await workshop.ask([{"role": "user", "content": "What can you do?"}], k=k)

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        return [draft]


class ByDigitOptions(Options):
    pass


@make_step("by_digit", options=ByDigitOptions)
def by_digit(options: ByDigitOptions) -> MakeStep:
    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        return [] if draft.values["digit"] == 0 else [draft.made(0, group=f"digit {draft.values['digit']}")]

    return make


class Amount(BaseModel):
    """A structured answer."""

    packs: int


class AmountsOptions(Options):
    pass


@make_step("amounts", options=AmountsOptions)
def amounts(options: AmountsOptions) -> MakeStep:
    """Asks for a structured answer about each draft."""

    async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        answer = await workshop.ask_for(Amount, [{"role": "user", "content": f"Item {draft.id}."}], max_tokens=64)
        if isinstance(answer, Malformed):
            return [draft.rejected(answer.reason, answer.detail)]
        task: JsonObject = {"prompt": [{"role": "user", "content": f"{answer.packs} packs."}]}
        return [draft.made(0, task=task)]

    return make
