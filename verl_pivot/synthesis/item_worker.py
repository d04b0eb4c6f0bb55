"""ItemWorker: runs the steps of a recipe in a worker process on one node (`verl-pivot synthesize --ray`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.item_steps import ItemRunner
from verl_pivot.synthesis.recipes import recipe_of
from verl_pivot.synthesis.steps import load_step_modules
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import Writer, WriterQuestion
from verl_pivot.workers.command_home import CommandHome


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWorkerSettings:
    """Settings that all workers of a run share."""

    home: CommandHome
    recipe_name: str
    recipe: list[object]
    """The recipe's steps, from `Recipe.content`."""
    seed: int
    tasks: Path | None
    """File of --tasks; steps that need the whole input read it on every node."""
    trajectories: Path | None
    """File of --trajectories; steps that need the whole input read it on every node."""
    tools: str | None
    modules: tuple[str, ...]
    """Modules that register steps, verifiers and filters."""
    writers: Mapping[str, Writer]
    """{role: writer that forwards the role's questions to the question desk}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTask:
    """One item to make."""

    item: Draft
    worked: frozenset[str]
    """Labels of the steps in which the user's code has worked, in any process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeItem:
    """Answer of a worker for one item."""

    drafts: list[Draft]
    worked: frozenset[str]
    """Labels of the steps in which the user's code has worked, as far as this worker knows."""


class OpenGate:
    """Gate that passes every question to its writer, because the question desk has the cache and the budget."""

    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer:
        return await writer.answer(question)


class ItemWorker:
    """An ItemRunner in its own process, for one event loop."""

    def __init__(self, settings: ItemWorkerSettings, number: int) -> None:
        """Take over the command's working directory and environment; `number` is not used."""
        settings.home.move_in()
        self._settings = settings

    async def start(self) -> None:
        """Load the user's modules and tools, and prepare the steps.

        Raises:
            ConfigError: If the settings do not fit this node.
            EngineError: If an endpoint cannot be reached or keeps failing.
        """
        self._runner = _runner(self._settings)
        await self._runner.prepare()

    async def work(self, task: ItemTask) -> MadeItem:
        """Make one item; raises the errors of `ItemRunner.run`."""
        self._runner.worked |= task.worked
        drafts = await self._runner.run(task.item)
        return MadeItem(drafts=drafts, worked=frozenset(self._runner.worked))


def _runner(settings: ItemWorkerSettings) -> ItemRunner:
    load_step_modules(settings.modules)
    recipe = recipe_of(settings.recipe, Path(settings.recipe_name), {}, settings.modules)
    toolset = None if settings.tools is None else open_toolset(settings.tools)
    inputs = Inputs(tasks=settings.tasks, trajectories=settings.trajectories, toolset=toolset)
    return ItemRunner(recipe, inputs, settings.writers, OpenGate(), recipe_seed=settings.seed)
