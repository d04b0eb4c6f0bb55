"""An item and the steps of a recipe -> drafts: each draft goes on to the next step, or is rejected with a reason."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json
from verl_pivot.errors import DataError, OutOfBudgetError, QuestionRefusedError, UserCodeError
from verl_pivot.synthesis.drafts import (
    QUESTION_REFUSED,
    Draft,
    StepKind,
    StepTrace,
    draft_as_dict,
    parse_draft,
)
from verl_pivot.synthesis.recipes import Recipe, RecipeStep
from verl_pivot.synthesis.steps import CheckStep, ChooseStep, MakeStep, PreparedStep
from verl_pivot.synthesis.workshop import Gate, Inputs, Workshop
from verl_pivot.synthesis.writer import Writer
from verl_pivot.types import Verdict

OUT_OF_BUDGET = "out_of_budget"
"""Rejection reason of drafts that the budget did not cover."""


class ItemRunner:
    """Runs the steps of a recipe on single items; any number of items can run concurrently."""

    def __init__(
        self, recipe: Recipe, inputs: Inputs, writers: Mapping[str, Writer], gate: Gate, *, recipe_seed: int
    ) -> None:
        """Keep what all workshops share.

        Args:
            recipe: Recipe with the steps.
            inputs: Files and tools of the command.
            writers: {role: the role's writer}.
            gate: Gate that answers all questions.
            recipe_seed: Seed of the run.
        """
        self._recipe, self._inputs, self._writers, self._gate = recipe, inputs, writers, gate
        self._recipe_seed = recipe_seed
        self.worked: set[str] = set()
        """Labels of the steps that have run at least once without an error in the user's own code, in any run."""
        self.prepared: list[StepTrace] = []
        """Traces of the steps' preparation before the first draft."""

    def workshop(self, item: str, step: RecipeStep) -> Workshop:
        """The workshop of a step for one draft or group; `item` is "" for the step's preparation."""
        return Workshop(
            recipe_seed=self._recipe_seed, item=item, step=step.label, inputs=self._inputs, writers=self._writers,
            gate=self._gate,
        )  # fmt: skip

    async def prepare(self) -> None:
        """Let the steps prepare before the first item, such as read the whole input."""
        for step in self._recipe.steps:
            if isinstance(step.step.run, PreparedStep):
                workshop = self.workshop("", step)
                await step.step.run.prepare(workshop)
                self.prepared.append(_trace(step, "", workshop, None))

    async def run(self, item: Draft) -> list[Draft]:
        """All drafts of an item after the steps, at least one, including rejected drafts.

        Raises:
            EngineError: If an endpoint cannot be reached or keeps failing.
            UserCodeError: If the user's own code fails before it has worked once.
        """
        drafts = [item]
        for step in self._recipe.item_steps:
            if step.step.kind is StepKind.CHOOSE:
                drafts = await self._choose(step, drafts)
            else:
                drafts = await self._each(step, drafts)
        return drafts

    async def _each(self, step: RecipeStep, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts after a step that makes or checks; drafts run concurrently and keep their order."""
        left = [draft for made in await all_at_once(self._one(step, each) for each in drafts) for draft in made]
        if repeated := [name for name, count in Counter(draft.id for draft in left).items() if count > 1]:
            raise UserCodeError(
                f"step {step.label} made two drafts with the id {repeated[0]}: give each `made` another number"
            )
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
        """The drafts in their order; the drafts that the step does not keep are rejected."""
        groups: dict[str, list[Draft]] = {}
        for draft in drafts:
            if draft.finding is None:
                groups.setdefault(draft.group or draft.item, []).append(draft)
        left: dict[str, Draft] = {}
        for name, rivals in groups.items():
            left |= {each.id: each for each in await self.choose(step, name, rivals)}
        return [left.get(draft.id, draft) for draft in drafts]

    async def choose(self, step: RecipeStep, group: str, rivals: Sequence[Draft]) -> list[Draft]:
        """[num_rivals] the drafts of one group; the drafts that the step does not keep are rejected."""
        workshop = self.workshop(group, step)
        try:
            kept = {each.id: each for each in await cast(ChooseStep, step.step.run)(rivals, workshop)}
        except (OutOfBudgetError, QuestionRefusedError) as error:
            kept = {draft.id: draft.rejected(_reason(error), str(error)) for draft in rivals}
        detail = f"other drafts of group {group} were kept"
        found = [_as_line(kept.get(each.id) or each.rejected("not_chosen", detail), each) for each in rivals]
        trace = _trace(step, group, workshop, None)
        return [replace(each, traces=(*each.traces, trace)) for each in found]


def _as_line(made: Draft, source: Draft) -> Draft:
    """The draft that a step made; if no line of the journal can hold it, its source, rejected."""
    try:
        parse_draft(as_object(decode_json(encode_json(draft_as_dict(made))), "a draft"))
    except DataError as error:
        return replace(source, id=made.id).rejected(_reason(error), str(error))
    return made


def _checked(draft: Draft, verdict: Verdict) -> Draft:
    """The draft after a check: only a score of 1 passes; an undecided verdict does not pass."""
    return draft if verdict.score == 1.0 else draft.rejected(verdict.reason, verdict.detail)


def _reason(error: OutOfBudgetError | QuestionRefusedError | DataError) -> str:
    """Rejection reason for an error, under which the report counts the draft."""
    if isinstance(error, OutOfBudgetError):
        return OUT_OF_BUDGET
    if isinstance(error, QuestionRefusedError):
        return QUESTION_REFUSED
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
