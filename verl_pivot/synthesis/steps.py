"""Steps of recipes: three kinds of steps over drafts, and the registry in which recipes find them by name.

    make     Draft -> Drafts               writes, plays or cuts new drafts
    check    Draft -> Verdict              passes a draft only with score 1; an undecided verdict does not pass
    choose   Drafts of a group -> Drafts   keeps the best drafts of the group

No draft is lost: a draft that a step does not return goes to rejected.jsonl with a reason.
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
    """Makes new drafts from a draft, which they replace.

    Return `draft.made(number, ...)` for each new draft; for one that failed, add `.rejected(reason, detail)`. If you
    return nothing, the draft itself is rejected as `nothing_made`. If a model made a mistake, return a rejected draft;
    raise an exception only for a bug.

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
    """Judges a draft. Only a score of 1 passes; otherwise the draft is rejected with the reason of the verdict."""

    async def __call__(self, draft: Draft, workshop: Workshop) -> Verdict: ...


class ChooseStep(Protocol):
    """Returns the drafts of a group that are kept. Drafts that are not returned are rejected as `not_chosen`.

    To give another reason, return a draft as `.rejected(reason, detail)`.
    """

    async def __call__(self, drafts: Sequence[Draft], workshop: Workshop) -> Sequence[Draft]: ...


@runtime_checkable
class PreparedStep(Protocol):
    """A step that prepares something from the whole input, such as a graph of all tools, before the first draft."""

    async def prepare(self, workshop: Workshop) -> None:
        """Called once per process, before any draft; draws must depend only on `workshop.seed`, to be reproducible."""
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
"""{name of a step: its module in this package}"""
_steps: Registry[RegisteredStep] = Registry(
    "step",
    shipped={name: f"verl_pivot.synthesis.{module}" for name, module in _SHIPPED.items()},
    remedy="--step-module loads your own",
)


def make_step(name: str, *, options: type[BaseModel]) -> Callable[[SourceT], SourceT]:
    """Decorator for a function or class that makes a `MakeStep` from its options.

    A class takes the options in `__init__` and is the step by its `__call__`.

    Args:
        name: A name that no other step has.
        options: Type of the options; the decorated function or class gets an instance of it.

    Raises:
        ConfigError: If another step already has the name.
    """
    return _register(name, StepKind.MAKE, options)


def check_step(name: str, *, options: type[BaseModel]) -> Callable[[SourceT], SourceT]:
    """Decorator for a function or class that makes a `CheckStep`; arguments and errors are those of `make_step`."""
    return _register(name, StepKind.CHECK, options)


def choose_step(name: str, *, options: type[BaseModel], across_items: bool = False) -> Callable[[SourceT], SourceT]:
    """Decorator for a function or class that makes a `ChooseStep` from its options; raises as `make_step`.

    Args:
        name: A name that no other step has.
        options: Type of the options; the decorated function or class gets an instance of it.
        across_items: Whether groups hold drafts of several items, namely all drafts with the same `Draft.group`. Such a
            step waits for all items, so it must come after all other steps in a recipe.
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
    """The step with the given name and options.

    Raises:
        ConfigError: If no step has that name, or the options are invalid; the message lists the known ones.
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
