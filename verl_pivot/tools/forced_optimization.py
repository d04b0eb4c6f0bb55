"""Forced Optimization: scores of a draft and its revisions -> the draft that counts (ReLook)."""

from dataclasses import dataclass

MAX_REVISIONS = 3
"""Most revisions of the first draft, as ReLook has at inference."""


@dataclass(slots=True)
class BestRevision:
    """The best draft so far. A revision replaces it only if its score is strictly greater.

    Source: ReLook (arXiv:2510.11498), abstract and method. There a revision that is not better is rejected and sampled
    again; here it costs one of the `MAX_REVISIONS`, and the policy reads that the earlier page stays.

    Example:
        best = BestRevision()
        [best.add(score) for score in (0.5, 0.5, 0.4, 0.75)] == [True, False, False, True]
    """

    score: float | None = None
    """The greatest score; None before the first draft."""
    number: int = 0
    """Number of the draft that counts, from 1; 0 before the first."""
    num_tried: int = 0

    @property
    def num_left(self) -> int:
        """Drafts that may still be tried."""
        return 1 + MAX_REVISIONS - self.num_tried

    def add(self, score: float) -> bool:
        """Count a further draft, and say whether its score makes it the best.

        Raises:
            ValueError: If no revision is left.
        """
        if not self.num_left:
            raise ValueError(f"the draft has been revised {MAX_REVISIONS} times")
        self.num_tried += 1
        if self.score is not None and score <= self.score:
            return False
        self.score, self.number = score, self.num_tried
        return True
