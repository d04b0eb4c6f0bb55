"""Workshop: the writers, seeds, tools and inputs that a step uses for one draft."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel

from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.seeds import seed_of
from verl_pivot.synthesis.structured import asked_for, read_form, schema_of
from verl_pivot.synthesis.writer import WRITER, Writer, WriterQuestion
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import JsonObject, Malformed

FormT = TypeVar("FormT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of the command, which every step can read."""

    tasks: Path | None = None
    """File of rows as for training; None without --tasks."""
    trajectories: Path | None = None
    """File of trajectories in the format of `verl-pivot import`; None without --trajectories."""
    toolset: Toolset | None = None
    """Tools or environment of rollouts; None without --tools."""


@dataclass(slots=True)
class Spending:
    """Counts of the answers that a step got for one draft, including answers from the cache."""

    models: list[str] = field(default_factory=list)
    """Names of the models, each once, in the order in which they were first asked."""
    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0

    def begin(self, model: str) -> None:
        """Note that a model is asked."""
        if model not in self.models:
            self.models.append(model)

    def add(self, answer: ChatAnswer) -> None:
        """Count an answer."""
        self.num_calls += 1
        self.num_prompt_tokens += answer.num_prompt_tokens
        self.num_completion_tokens += answer.num_completion_tokens


class Gate(Protocol):
    """Sends a question to its writer, within the budget and the limit of concurrent questions."""

    async def answer(self, writer: Writer, question: WriterQuestion) -> ChatAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Writers, seeds, tools and inputs for one step at one draft."""

    recipe_seed: int
    item: str
    """Id of the draft, or name of the group; "" while steps are prepared."""
    step: str
    """Label of the step."""
    inputs: Inputs
    writers: Mapping[str, Writer]
    """{role: the role's writer}; the writer of the role `writer` is used for every role that is not named."""
    gate: Gate
    spending: Spending = field(default_factory=Spending)

    def seed(self, *numbers: int) -> int:
        """Seed of a draw by its numbers, at this draft; a step draws with `random.Random(workshop.seed(k))`."""
        return seed_of(self.recipe_seed, self.item, self.step, *numbers)

    def writer(self, role: str = WRITER) -> Writer:
        """The writer of a role.

        Raises:
            ConfigError: If the role has no writer.
        """
        found = self.writers.get(role) or self.writers.get(WRITER)
        if found is None:
            raise ConfigError(
                f"step {self.step} needs a model for the role {role}: give --openai URL, or name a model for {role} in "
                "the file of --writers"
            )
        return found

    def toolset(self, purpose: str) -> Toolset:
        """The tools of the command.

        Args:
            purpose: What the step does with the tools, for the error message, such as "plays rollouts".

        Raises:
            ConfigError: If the command has no tools.
        """
        if self.inputs.toolset is None:
            raise ConfigError(f"step {self.step} {purpose}: give a tools file or an environment with --tools")
        return self.inputs.toolset

    async def answer(self, question: WriterQuestion, role: str = WRITER) -> ChatAnswer:
        """The answer to a question that the step itself built; it is counted, cached and within the budget.

        Raises:
            EngineError: If the endpoint cannot be reached or keeps failing.
        """
        writer = self.writer(role)
        self.spending.begin(writer.name)
        answer = await self.gate.answer(writer, question)
        self.spending.add(answer)
        return answer

    async def ask(
        self,
        messages: Sequence[JsonObject],
        *,
        role: str = WRITER,
        k: int = 0,
        max_tokens: int = 1024,
        temperature: float = 1.0,
    ) -> ChatAnswer:
        """An answer in free text.

        Args:
            messages: The conversation so far, in OpenAI's format.
            role: Role of the writer that is asked.
            k: Number of the draw within the step, from which its seed derives.
            max_tokens: Maximum number of tokens of the answer.
            temperature: Sampling temperature.
        """
        question = WriterQuestion(
            messages=tuple(messages), seed=self.seed(k), max_tokens=max_tokens, temperature=temperature
        )
        return await self.answer(question, role)

    async def ask_for(
        self,
        form: type[FormT],
        messages: Sequence[JsonObject],
        *,
        role: str = WRITER,
        k: int = 0,
        max_tokens: int = 1024,
        temperature: float = 1.0,
    ) -> FormT | Malformed:
        """A structured answer, or Malformed if it cannot be read; the other arguments are those of `ask`.

        The writer's `answer_format` decides whether the JSON schema is sent in the request or in the last message.

        Args:
            form: Type of the answer.
        """
        writer = self.writer(role)
        question = WriterQuestion(
            messages=asked_for(form, messages, writer.answer_format),
            seed=self.seed(k),
            max_tokens=max_tokens,
            temperature=temperature,
            schema=schema_of(form),
        )
        return read_form(form, await self.answer(question, role))
