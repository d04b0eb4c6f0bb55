"""Tool `look`: a page of HTML -> what is wrong with it, as the verifier `render` sees it; the best page counts."""

from typing import Annotated

from pydantic import Field

from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.tools.contract import Environment, Observation, ToolError, tool
from verl_pivot.tools.forced_optimization import MAX_REVISIONS, BestRevision
from verl_pivot.types import JsonObject, Message, Verdict
from verl_pivot.validation import validated
from verl_pivot.verifiers.extraction import MAX_CHARS, extract_program
from verl_pivot.verifiers.render import PageCritique, RenderVerifier
from verl_pivot.verifiers.render_options import RenderOptions
from verl_pivot.verifiers.verdicts import Reason, refuse

_MOST_LINES = 20
_MOST_LINE_CHARS = 300


class LookEnvironment(Environment):
    """The page that one rollout develops.

    `metadata.render` holds the options of the verifier `render`, and `metadata.task` the task for its judge.
    """

    has_own_limits = True  # of the page and of the judge; waiting for the browser has no limit

    def __init__(self, metadata: JsonObject) -> None:
        """Read the row's options for the page.

        Raises:
            ConfigError: If the row has no such options.
        """
        if "render" not in metadata:
            raise ConfigError("the row's metadata has no key render, which holds the options of the verifier render")
        options = validated(RenderOptions, metadata["render"], "metadata.render")
        if options.argument is not None:
            raise ConfigError(
                "metadata.render.argument does nothing, since the page is the argument html of look: leave it out"
            )
        self._verifier = RenderVerifier(options)
        self._task = str(metadata.get("task", ""))
        self._best = BestRevision()
        self._outcome: Verdict | None = None

    @tool
    async def look(self, html: Annotated[str, Field(description="The whole page, as HTML.")]) -> Observation:
        """Render a page without a network and read what is wrong with it. The best page counts, not the last."""
        if not self._best.num_left:
            raise ToolError(f"the page has been revised {MAX_REVISIONS} times; the best one counts, so end your turn")
        if len(html) > MAX_CHARS:
            raise ToolError(f"the page has {len(html)} characters; at most {MAX_CHARS} are rendered")
        critique = await self._critique(html)
        before, verdict = self._best.score, critique.verdict
        assert verdict.score is not None
        is_kept = self._best.add(verdict.score)
        if is_kept:
            self._outcome = verdict
        return Observation(_observation(critique, before, self._best, is_kept=is_kept), reward=verdict.score)

    async def score(self, answer: Message | None) -> Verdict:
        """Verdict on the best page; if no page was rendered, on the last code block of the answer."""
        if self._outcome is not None:
            return self._outcome
        if answer is None:
            return refuse(Reason.NO_ANSWER)
        html = extract_program(answer, None)
        return html if isinstance(html, Verdict) else (await self._verifier.critique(html, self._task)).verdict

    async def _critique(self, html: str) -> PageCritique:
        """What is wrong with a page.

        Raises:
            ToolFailureError: If the browser or the judge fails, which is no fault of the policy.
        """
        critique = await self._verifier.critique(html, self._task)
        if critique.verdict.score is None:
            raise ToolFailureError(f"{critique.verdict.reason}: {critique.verdict.detail}")
        return critique


def _observation(critique: PageCritique, before: float | None, best: BestRevision, *, is_kept: bool) -> str:
    score = critique.verdict.score
    head = f"Score {score:.2f}."
    if before is not None:
        head += " It is the best so far." if is_kept else f" It is not better than {before:.2f}: the page before stays."
    left = best.num_left
    shown = [f"- {line[:_MOST_LINE_CHARS]}" for line in critique.lines[:_MOST_LINES]]
    if len(critique.lines) > _MOST_LINES:
        shown.append(f"- and {len(critique.lines) - _MOST_LINES} more")
    return "\n".join([head, *shown, f"{left} revision{'' if left == 1 else 's'} left."])
