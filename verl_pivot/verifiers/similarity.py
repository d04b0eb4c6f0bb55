"""Two texts -> their similarity as difflib measures it, or 0.0 if it is below a bound, which is found faster."""

from difflib import SequenceMatcher

from rapidfuzz import fuzz


def similarity(first: str, second: str, *, at_least: float) -> float:
    """Ratio of difflib's SequenceMatcher(None, first, second), or 0.0 where it is below `at_least`.

    difflib's matching blocks are one common subsequence of both texts. So its ratio is at most that of the longest
    common subsequence, which is found in a hundredth of the time.
    """
    if first == second:
        return 1.0
    if not fuzz.ratio(first, second, score_cutoff=max(0.0, 100.0 * at_least - 1e-6)):
        return 0.0
    ratio = SequenceMatcher(None, first, second).ratio()
    return ratio if ratio >= at_least else 0.0
