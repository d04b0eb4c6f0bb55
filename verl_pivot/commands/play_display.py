"""Display of `verl-pivot play`: messages as they come, the outcome of each conversation, and a summary of all."""

import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from verl_pivot.commands.tables import counts_table, printable, table_console
from verl_pivot.playing.conversation import OnMessage
from verl_pivot.playing.played_rows import PlayedProblem
from verl_pivot.playing.problems import Problem
from verl_pivot.playing.running import PlayedTotals
from verl_pivot.types import Message, Role

_STYLES = {Role.SYSTEM: "dim", Role.USER: "bold cyan", Role.ASSISTANT: "bold green", Role.TOOL: "bold yellow"}


class PlayDisplay:
    """Prints conversations to stdout: message by message if only one is played at a time, else each at its end.

    Messages that a person typed at the keyboard are on the screen already and are not printed again.
    """

    def __init__(self, *, num_conversations: int, is_live: bool, is_human: bool, is_quiet: bool) -> None:
        self._console = Console(highlight=False)
        self._num_conversations = num_conversations
        self._is_live = is_live
        self._is_human = is_human
        self._is_quiet = is_quiet
        self._num_ended = 0

    def on_begin(self, problem: Problem, sample: int) -> OnMessage:
        """Print the title of a conversation; returns the function that prints its messages."""
        if not self._is_live or self._is_quiet:
            return lambda message: None
        self._title(f"{problem.id}-{sample}", self._num_ended + 1)
        return self._print_live

    def on_end(self, played: PlayedProblem) -> None:
        """Print the outcome of a conversation, after its messages unless they were printed as they came."""
        self._num_ended += 1
        if self._is_quiet:
            return
        if not self._is_live:
            self._title(played.id, self._num_ended)
            for message in played.played.messages:
                self._print(message)
        for line in outcome_lines(played):
            self.say(line)

    def say(self, text: str) -> None:
        """Print a text as it is, control characters made visible."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def _title(self, name: str, number: int) -> None:
        place = f" ({number} of {self._num_conversations})" if self._num_conversations > 1 else ""
        self._console.print(Text(f"--- {printable(name)}{place}", style="bold"), soft_wrap=True)

    def _print_live(self, message: Message) -> None:
        if not (self._is_human and message.role is Role.ASSISTANT):
            self._print(message)

    def _print(self, message: Message) -> None:
        label = message.role.value if message.name is None else f"{message.role.value} {message.name}"
        lines = [(f"{printable(label)}: ", _STYLES[message.role])]
        if message.reasoning:
            lines.append((f"{printable(message.reasoning)}\n", "dim italic"))
        lines.append((printable(message.content), ""))
        for call in message.tool_calls:
            text = f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"
            lines.append((("\n" if message.content else "") + printable(text), "magenta"))
        self._console.print(Text.assemble(*lines), soft_wrap=True)


def outcome_lines(played: PlayedProblem) -> Iterator[str]:
    """Lines that tell how training would use a conversation."""
    outcome, record = played.outcome, played.played.record("")
    why = f"{outcome.by}: {outcome.reason}" + (f", {outcome.detail}" if outcome.detail else "")
    if outcome.is_masked:
        yield f"Masked, so that training would not use it: {outcome.reason}, {outcome.detail}"
    else:
        yield f"{'No reward' if outcome.reward is None else f'Reward {outcome.reward:g}'} ({why})"
    yield (
        f"Ended: {record.stop_reason.value}; turns: {len(played.played.turns)}, calls: {record.num_calls}, "
        f"of which the policy got wrong: {record.num_tool_errors}; tokens of prompt: {record.prompt_tokens}, "
        f"of response: {record.response_tokens}; seconds of the player: {record.generate_seconds:.1f}, "
        f"of tools: {record.tool_seconds:.1f}"
    )


def print_totals(totals: PlayedTotals) -> None:
    """Print a table over all conversations."""
    table = counts_table(f"{totals.num_played} conversations")
    if totals.rewards:
        mean = sum(totals.rewards) / len(totals.rewards)
        table.add_row("with a reward", str(len(totals.rewards)), f"mean {mean:.3g}")
    table.add_row("masked", str(totals.num_masked), "the system failed; training would not use them")
    for reason, count in totals.reasons.most_common():
        table.add_row(f"  {printable(reason)}", str(count), "")
    table.add_section()
    for reason, count in totals.stop_reasons.most_common():
        table.add_row(f"ended: {reason}", str(count), "")
    table.add_section()
    table.add_row("calls", str(totals.num_calls), f"{totals.num_tool_errors} of them wrong")
    if totals.max_prompt_tokens:
        prompt, response = totals.max_prompt_tokens, totals.max_response_tokens
        table.add_row("longest prompt", str(prompt), "tokens; data.max_prompt_length must not be less")
        table.add_row("longest response", str(response), "tokens; data.max_response_length should not be less")
    table_console().print(table)
