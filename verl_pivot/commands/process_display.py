"""Table that `verl-pivot process label` prints at its end."""

from statistics import fmean
from typing import TYPE_CHECKING

from verl_pivot.commands.tables import counts_table, printable, table_console

if TYPE_CHECKING:
    from verl_pivot.rewards.dumped_turns import DumpCounts
    from verl_pivot.rewards.turn_labelling import Labels


def print_counts(labels: "Labels", counts: "DumpCounts") -> None:
    """Print the numbers of turns that were left out and labelled, and what the answers cost."""
    table = counts_table(f"{counts.num_rollouts} rollouts")
    for reason, number in counts.left_out.most_common():
        table.add_row("left out", str(number), reason)
    for reason, number in labels.left_out.most_common():
        table.add_row("left out", str(number), printable(reason))
    if labels.num_unlabelled:
        table.add_row("left out", str(labels.num_unlabelled), "turns without a valid answer")
    if labels.turns:
        mean, spread = (
            fmean(values) for values in zip(*((each.label, each.spread) for each in labels.turns), strict=True)
        )
        table.add_row("labelled", str(len(labels.turns)), f"turns; mean label {mean:.3f}, mean spread {spread:.3f}")
    if labels.num_asked:
        tokens = (
            f"{labels.num_prompt_tokens} prompt + {labels.num_completion_tokens} answer tokens, "
            f"{labels.num_cached} cached answers"
        )
        table.add_section()
        table.add_row("answers", str(labels.num_asked), tokens)
        table.add_row("invalid", str(labels.invalid.total()), "")
        for reason, number in labels.invalid.most_common(5):
            table.add_row("", str(number), printable(reason))
    table_console().print(table)
