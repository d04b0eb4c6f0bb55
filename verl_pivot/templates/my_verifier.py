"""Verifier `my_verifier`: an action is right if it makes the expert's calls with the same arguments."""

from verl_pivot.types import Message, ToolCall, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register


class MyVerifierOptions(Options):
    """Options that a row, or --verifier-options, may set."""

    ignored: tuple[str, ...] = ()
    """Arguments whose values do not matter, such as the text of a note."""


@register("my_verifier", options=MyVerifierOptions)
class MyVerifier:
    """Compares one sampled action with the expert's, from the same state."""

    def __init__(self, options: MyVerifierOptions) -> None:
        self._ignored = options.ignored

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        """The verdict: `accept`, `refuse` with a short reason, or `undecided` where the row itself is broken."""
        expert_calls, calls = turn.expert.tool_calls, action.tool_calls
        if not expert_calls:
            return Verdict.refuse("call_instead_of_message") if calls else Verdict.accept()
        if [call.name for call in expert_calls] != [call.name for call in calls]:
            return Verdict.refuse("other_tools", ", ".join(call.name for call in calls))
        if any(self._compared(one) != self._compared(other) for one, other in zip(expert_calls, calls, strict=True)):
            return Verdict.refuse("other_arguments", str([call.arguments for call in calls]))
        return Verdict.accept()

    def _compared(self, call: ToolCall) -> dict[str, object]:
        return {name: value for name, value in call.arguments.items() if name not in self._ignored}
