"""Variants of the tool `look`, each without one rule of ReLook."""

import re
from typing import Annotated

from pydantic import Field

from verl_pivot.tools.contract import Observation, tool
from verl_pivot.tools.look import LookEnvironment
from verl_pivot.types import JsonObject, Message, Verdict
from verl_pivot.verifiers.verdicts import graded

_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)
Html = Annotated[str, Field(description="The whole page, as HTML.")]


class LastPage(LookEnvironment):
    """Without Forced Optimization: the last page that was looked at counts, however good earlier ones were."""

    def __init__(self, metadata: JsonObject) -> None:
        super().__init__(metadata)
        self._last: float | None = None

    @tool
    async def look(self, html: Html) -> Observation:
        """Render a page without a network and read what is wrong with it."""
        observation = await super().look(html)
        self._last = observation.reward
        return observation

    async def score(self, answer: Message | None) -> Verdict:
        return await super().score(answer) if self._last is None else graded(self._last, "the last page")


class BrokenPagesPaid(LookEnvironment):
    """Without the rule that an invalid page scores 0: a page whose script raises is scored without its scripts.

    The policy reads the same observations as in the other arms.
    """

    def __init__(self, metadata: JsonObject) -> None:
        super().__init__(metadata)
        self._without_scripts: list[Verdict] = []

    @tool
    async def look(self, html: Html) -> Observation:
        """Render a page without a network and read what is wrong with it."""
        observation = await super().look(html)
        if observation.reward == 0.0:
            self._without_scripts.append((await self._critique(_SCRIPT.sub("", html))).verdict)
        return observation

    async def score(self, answer: Message | None) -> Verdict:
        verdicts = [await super().score(answer), *self._without_scripts]
        return max(verdicts, key=lambda each: -1.0 if each.score is None else each.score)
