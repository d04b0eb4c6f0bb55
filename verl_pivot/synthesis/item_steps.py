"""An item and the steps of a recipe -> its drafts: each goes on to the next step, or is rejected with a reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.errors import DataError, OutOfBudgetError, QuestionRefusedError, UserCodeError
from verl_pivot.synthesis.drafts import Draft, StepKind, StepTrace, draft_as_dict
from verl_pivot.synthesis.recipes import Recipe, RecipeStep
from verl_pivot.synthesis.steps import CheckStep, ChooseStep, MakeStep, PreparedStep
from verl_pivot.synthesis.workshop import Gate, Inputs, Workshop
from verl_pivot.synthesis.writer import Writer
from verl_pivot.types import Verdict

OUT_OF_BUDGET = "out_of_budget"
"""Reason of drafts that the budget did not cover."""


class ItemRunner:
    """The steps of a recipe that work on one item at a time, for any number of items at once."""

    def __init__(
        self, recipe: Recipe, inputs: Inputs, writers: Mapping[str, Writer], gate: Gate, *, recipe_seed: int
    ) -> None:
        """Keep what every workshop has.

        Args:
            recipe: The steps.
            inputs: Files and tools of the command.
            writers: {role: who plays it}.
            gate: The way of every question.
            recipe_seed: Seed of the run.
        """
        self._recipe, self._inputs, self._writers, self._gate = recipe, inputs, writers, gate
        self._recipe_seed = recipe_seed
        self.worked: set[str] = set()
        """Labels of the steps that have not failed by the user's own code at least once."""
        self.prepared: list[StepTrace] = []
        """Traces of what steps did before the first draft."""

    def workshop(self, item: str, step: RecipeStep) -> Workshop:
        """What a step works with at one draft; `item` is "" for what it does before the first."""
        return Workshop(
            recipe_seed=self._recipe_seed, item=item, step=step.label, inputs=self._inputs, writers=self._writers,
            gate=self._gate,
        )  # fmt: skip

    async def prepare(self) -> None:
        """Give the steps what they need of the whole input, before the first item."""
        for step in self._recipe.steps:
            if isinstance(step.step.run, PreparedStep):
                workshop = self.workshop("", step)
                await step.step.run.prepare(workshop)
                self.prepared.append(_trace(step, "", workshop, None))

    async def run(self, item: Draft) -> list[Draft]:
        """All drafts that the steps leave of an item, the rejected ones included; at least one.

        Raises:
            EngineError: If an endpoint cannot be reached or keeps failing.
            UserCodeError: If code of the user fails before it has worked once.
        """
        drafts = [item]
        for step in self._recipe.item_steps:
            if step.step.kind is StepKind.CHOOSE:
                drafts = await self._choose(step, drafts)
            else:
                drafts = await self._each(step, drafts)
        return drafts

    async def _each(self, step: RecipeStep, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts after a step that makes or checks, in their order, all worked on at once."""
        left = [draft for made in await all_at_once(self._one(step, each) for each in drafts) for draft in made]
        if repeated := [name for name, count in Counter(draft.id for draft in left).items() if count > 1]:
            raise UserCodeError(f"step {step.label} made two drafts {repeated[0]}: give each `made` another number")
        return left

    async def _one(self, step: RecipeStep, draft: Draft) -> list[Draft]:
        if draft.finding is not None:
            return [draft]
        workshop = self.workshop(draft.id, step)
        verdict = None
        try:
            if step.step.kind is StepKind.CHECK:
                verdict = await cast(CheckStep, step.step.run)(draft, workshop)
                made = [_checked(draft, verdict)]
            else:
                made = list(await cast(MakeStep, step.step.run)(draft, workshop)) or [draft.rejected("nothing_made")]
            self.worked.add(step.label)
        except UserCodeError as error:
            if step.label not in self.worked:
                raise
            made = [draft.rejected("user_code_failed", str(error))]
        except (OutOfBudgetError, QuestionRefusedError, DataError) as error:
            made = [draft.rejected(_reason(error), str(error))]
        trace = _trace(step, draft.id, workshop, verdict)
        return [replace(_as_line(each, draft), traces=(*draft.traces, trace)) for each in made]

    async def _choose(self, step: RecipeStep, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts in their order, those that a step does not keep as rejected."""
        groups: dict[str, list[Draft]] = {}
        for draft in drafts:
            if draft.finding is None:
                groups.setdefault(draft.group or draft.item, []).append(draft)
        left: dict[str, Draft] = {}
        for name, rivals in groups.items():
            left |= {each.id: each for each in await self.choose(step, name, rivals)}
        return [left.get(draft.id, draft) for draft in drafts]

    async def choose(self, step: RecipeStep, group: str, rivals: Sequence[Draft]) -> list[Draft]:
        """[num_rivals] the drafts of one group, those that the step does not keep as rejected."""
        workshop = self.workshop(group, step)
        try:
            kept = {each.id: each for each in await cast(ChooseStep, step.step.run)(rivals, workshop)}
        except (OutOfBudgetError, QuestionRefusedError) as error:
            kept = {draft.id: draft.rejected(_reason(error), str(error)) for draft in rivals}
        found = [kept.get(each.id) or each.rejected("not_chosen", f"others of {group} were kept") for each in rivals]
        trace = _trace(step, group, workshop, None)
        return [replace(each, traces=(*each.traces, trace)) for each in found]


def _as_line(made: Draft, source: Draft) -> Draft:
    """A draft that a step made, or what it was made from, rejected, if no line of JSON can hold the draft."""
    try:
        encode_json(draft_as_dict(made))
    except BadRowError as error:
        return replace(source, id=made.id).rejected(error.reason, str(error))
    return made


def _checked(draft: Draft, verdict: Verdict) -> Draft:
    """The draft after a check: only a score of 1 passes, so that an undecided verdict never does."""
    return draft if verdict.score == 1.0 else draft.rejected(verdict.reason, verdict.detail)


def _reason(error: OutOfBudgetError | QuestionRefusedError | DataError) -> str:
    """Why there is no draft, as the report counts it."""
    if isinstance(error, OutOfBudgetError):
        return OUT_OF_BUDGET
    if isinstance(error, QuestionRefusedError):
        return "question_refused"
    return error.reason if isinstance(error, BadRowError) else "unusable_row"


def _trace(step: RecipeStep, made_from: str, workshop: Workshop, verdict: Verdict | None) -> StepTrace:
    spending = workshop.spending
    return StepTrace(
        step=step.label,
        kind=step.step.kind,
        made_from=made_from,
        models=tuple(spending.models),
        num_calls=spending.num_calls,
        num_prompt_tokens=spending.num_prompt_tokens,
        num_completion_tokens=spending.num_completion_tokens,
        score=None if verdict is None else verdict.score,
        reason="" if verdict is None else verdict.reason,
    )
