"""The algebra: three kinds of steps over drafts, and the registry in which recipes find them by name.

    make     Draft -> Drafts               writes, plays or cuts something
    check    Draft -> Verdict              passes with score 1 alone: an undecided verdict never passes
    choose   Drafts of a group -> Drafts   keeps the best of those that compete

No draft is lost: what a step does not give back goes to rejected.jsonl with a reason.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from verl_pivot.registry import Registry
from verl_pivot.synthesis.drafts import Draft, StepKind
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Verdict

SourceT = TypeVar("SourceT", bound=Callable[..., Any])


class MakeStep(Protocol):
    """Makes drafts of a draft, which they replace.

    Return `draft.made(number, ...)` for each; one that failed as `.rejected(reason, detail)`. If nothing is returned,
    the draft itself is rejected as `nothing_made`. What a model got wrong is a rejected draft; raise for a bug alone.

    Example:
        class Shout(Options):
            times: int = 2

        @make_step("shout", options=Shout)
        def shout(options: Shout) -> MakeStep:
            async def make(draft: Draft, workshop: Workshop) -> Sequence[Draft]:
                answers = [await workshop.ask(_prompt(draft), k=k) for k in range(options.times)]
                return [draft.made(k, task=_task(answer.text)) for k, answer in enumerate(answers)]

            return make
    """

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]: ...


class CheckStep(Protocol):
    """Judges a draft. Only a score of 1 passes; the reason of any other verdict becomes that of the rejection."""

    async def __call__(self, draft: Draft, workshop: Workshop) -> Verdict: ...


class ChooseStep(Protocol):
    """Gives back those drafts of a group that stay. Those that are missing are rejected as `not_chosen`.

    To give another reason, return a draft as `.rejected(reason, detail)`.
    """

    async def __call__(self, drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]: ...


@runtime_checkable
class PreparedStep(Protocol):
    """A step that needs something of the whole input, such as a graph of all tools, before the first draft."""

    async def prepare(self, workshop: Workshop) -> None:
        """Called once per process, before any draft; draws depend on `workshop.seed` alone, so that they repeat."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredStep:
    """A step, made from its options."""

    kind: StepKind
    run: MakeStep | CheckStep | ChooseStep
    across_items: bool = False
    """Whether a step that chooses gets groups with drafts of several items."""


_SHIPPED = {
    "achieved": "hindsight",
    "arena_tools": "arena_tools",
    "borderline": "greedy_probe",
    "calibrated": "calibration",
    "director_actor": "director_actor",
    "error_variations": "error_variations",
    "expert_accepted": "expert_accepted",
    "fewest_calls": "rejection",
    "fewest_calls_of_goal": "hindsight",
    "filter": "program_checks",
    "graph_checks": "graph_checks",
    "greedy_probe": "greedy_probe",
    "hard_path": "hard_samples",
    "hinted_pairs": "hinted_pairs",
    "judge": "judging",
    "magnet": "magnet",
    "question_graph": "question_graph",
    "replay": "program_checks",
    "rollouts": "rejection",
    "still_hard": "hard_samples",
    "tool_chain": "tool_chains",
    "tool_path": "path_source",
    "verified_label": "label_verification",
}
"""{name of a step: its module here}"""
_steps: Registry[RegisteredStep] = Registry(
    "step",
    shipped={name: f"verl_pivot.synthesis.{module}" for name, module in _SHIPPED.items()},
    remedy="--step-module loads your own",
)


def make_step(name: str, *, options: type[BaseModel]) -> Callable[[SourceT], SourceT]:
    """Decorator of what makes a `MakeStep` from its options, such as a class with `__init__` and `__call__`.

    Args:
        name: A name that no other step has.
        options: Type of the options, whose instance the decorated function or class gets.

    Raises:
        ConfigError: If another step has the name already.
    """
    return _register(name, StepKind.MAKE, options)


def check_step(name: str, *, options: type[BaseModel]) -> Callable[[SourceT], SourceT]:
    """Decorator of what makes a `CheckStep` from its options; arguments and errors are those of `make_step`."""
    return _register(name, StepKind.CHECK, options)


def choose_step(name: str, *, options: type[BaseModel], across_items: bool = False) -> Callable[[SourceT], SourceT]:
    """Decorator of what makes a `ChooseStep` from its options; the other arguments and errors are those of `make_step`.

    Args:
        name: A name that no other step has.
        options: Type of the options.
        across_items: Whether groups hold drafts of several items, those with the same `Draft.group`. Such a step
            waits for all items, so that it stands behind all others in a recipe.
    """
    return _register(name, StepKind.CHOOSE, options, across_items=across_items)


def _register(
    name: str, kind: StepKind, options: type[BaseModel], *, across_items: bool = False
) -> Callable[[SourceT], SourceT]:
    def decorator(source: SourceT) -> SourceT:
        def made(chosen: BaseModel) -> RegisteredStep:
            return RegisteredStep(kind=kind, run=source(chosen), across_items=across_items)

        _steps.add(name, made, source=source, options=options)
        return source

    return decorator


def get_step(name: str, options: JsonObject) -> RegisteredStep:
    """The step of that name with these options.

    Raises:
        ConfigError: If no step has that name, or it does not take the options; the message lists what it takes.
    """
    return _steps.make(name, options)


def known_steps() -> tuple[str, ...]:
    """Every name that recipes can use, in alphabetical order."""
    return _steps.names


def step_options(name: str) -> type[BaseModel] | None:
    """Type of a step's options.

    Raises:
        ConfigError: If no step has that name.
    """
    return _steps.find(name).options


def load_step_modules(modules: Iterable[str]) -> None:
    """Import modules that register steps: dotted names, or paths of Python files.

    Raises:
        ConfigError: If a module cannot be found.
    """
    _steps.load(modules)
