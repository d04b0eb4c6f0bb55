"""Lines of the tables in an example's README, made from its results."""

from examples.comparison import shown_difference
from examples.contrasts import Contrasted
from examples.evaluation_results import EARLIER


def cells(*values: str) -> str:
    """A line of a table in Markdown."""
    return "|" + "".join(f" {value} |" if value else " |" for value in values)


def shown_arms(contrast: Contrasted) -> str:
    """The arms of a contrast, as a README names them."""
    earlier = contrast.arm.removesuffix(EARLIER.format(""))
    if earlier != contrast.arm:
        return f"`{earlier}` at two thirds of its steps over `{contrast.over}` at its end"
    return f"`{contrast.arm}` over `{contrast.over}`"


def contrast_line(name: str, contrast: Contrasted) -> str:
    """Line of a contrast: its difference, values by seed, and interval over trainings."""
    interval = contrast.over_trainings
    return cells(
        name,
        shown_difference(contrast.difference),
        ", ".join(f"{value:+.3f}" for value in contrast.by_seed),
        "" if interval is None else f"[{interval.low:+.3f}, {interval.high:+.3f}]",
    )
