"""WorkflowRanking: a task -> the workflows that may help with it, the likeliest first, by site and BM25 of goals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_pivot.extras import extra
from verl_pivot.rollout.workflows import RankedWorkflows, Workflow, WorkflowTask
from verl_pivot.tools.search_ranking import best
from verl_pivot.tools.search_words import words_of

with extra("search"):
    import bm25s

_MAX_RANKED = 16
"""Most workflows that an agent loop gets; it shows those that fit."""


class WorkflowRanking:
    """Workflows of one version of a memory, ready to be searched."""

    def __init__(self, workflows: Sequence[Workflow], version: int) -> None:
        self.version = version
        self._workflows = list(workflows)
        words = words_of([each.goal for each in workflows]) if workflows else []
        self._index: bm25s.BM25 | None = None
        if any(words):
            self._index = bm25s.BM25()
            self._index.index(words, show_progress=False)

    def ranked(self, task: WorkflowTask) -> RankedWorkflows:
        """Workflows of the task's site or of no site; those whose goals share no word with the task's come last.

        A workflow for the same goal is included, since an episode with another seed may be solved by the same calls.
        """
        places = [
            ranked.number
            for ranked in best(self._scores(task.goal), len(self._workflows) or 1, above=-1.0)
            if self._workflows[ranked.number].site in ("", task.site)
        ]
        chosen = tuple(self._workflows[place] for place in places[:_MAX_RANKED])
        return RankedWorkflows(version=self.version, task=task, ranked=chosen)

    def _scores(self, goal: str) -> NDArray[Any]:
        """[num_workflows] BM25 score of the goal against each workflow's goal."""
        if self._index is None:
            return np.zeros(len(self._workflows), dtype=np.float32)
        ids = self._index.get_tokens_ids(words_of([goal])[0])
        scores: NDArray[Any] = self._index.get_scores_from_ids(ids)
        return scores
