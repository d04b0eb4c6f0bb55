"""Options of the verifier `tool_call`, some of which belong to one mode alone."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.messages import parse_message
from verl_pivot.types import Role
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.composition import VerifierPart
from verl_pivot.verifiers.tool_call_functional import EqualityRules
from verl_pivot.verifiers.tool_call_nemo_gym import NemoGymSwitches


def _read_action(value: object) -> object:
    """Check one more action of an expert, written as a message of a row."""
    try:
        action = parse_message(value)  # type: ignore[arg-type]  # checked by parse_message
    except BadRowError as error:
        raise ValueError(f"is not a message: {error}") from error
    if action.role is not Role.ASSISTANT:
        raise ValueError(f"must be a message of the assistant, got role {action.role.value!r}")
    return value


OtherExpert = Annotated[dict[str, Any], BeforeValidator(_read_action)]
_OPTIONS_OF_MODE = {
    "functional": ("verifiers", *EqualityRules.__dataclass_fields__),
    "nemo_gym": ("switches", "threshold"),
    "accepted_values": ("accepted",),
}
"""{mode: options that no other mode takes}"""


class ToolCallOptions(Options):
    """Options of the verifier `tool_call`."""

    mode: Literal["functional", "strict", "name_only", "nemo_gym", "accepted_values", "toolrl"] = "functional"
    """
    functional: calls that are equal for the tool, by the schema of its arguments; see tool_call_functional.py.
    strict: the same calls in the same order with the same values, or the same text (PivotRL, equation 2).
    name_only: the same tools (PivotRL for SWE).
    nemo_gym, accepted_values, toolrl: published rules; see tool_call_nemo_gym.py, tool_call_bfcl.py and
    tool_call_toolrl.py.
    """
    number_tolerance: Annotated[float, Field(ge=0.0, lt=0.1)] = 1e-13
    """Largest relative difference of equal numbers if one of them has a fraction, for mode `functional`. This option
    and the next seven are described at EqualityRules in tool_call_functional.py; no other mode takes them."""
    dates: bool | frozenset[ToolArgument] = False
    paths: bool | frozenset[ToolArgument] = False
    enums: bool | frozenset[ToolArgument] = False
    free_text: frozenset[ToolArgument] = frozenset()
    min_similarity: Annotated[float, Field(ge=0.5, le=1.0)] = 0.8
    unordered: frozenset[ToolArgument] = frozenset()
    ignored: frozenset[ToolArgument] = frozenset()
    verifiers: dict[ToolArgument, VerifierPart] = Field(default_factory=dict)
    """Verifiers that compare one argument each, {"bash.command": {"name": "shell"}}, for mode `functional`; within
    objects "tool.argument.key". An argument that the expert leaves out is compared as without a verifier."""
    other_experts: tuple[OtherExpert, ...] = ()
    """More actions that are right, in addition to the expert's, written as assistant messages of a row."""
    threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """Smallest share of words at which two texts are equal in mode `nemo_gym`; in NVIDIA's configurations 0.1 for
    conversations, 0.3 for search, 0 for SWE."""
    switches: NemoGymSwitches = NemoGymSwitches()
    """Switches of NeMo Gym's rule, by its own names, for mode `nemo_gym`."""
    accepted: tuple[dict[str, Any], ...] = ()
    """Accepted values for mode `accepted_values`, one object per call of the expert; empty if the expert writes
    text."""
    message_judge: dict[str, Any] | None = None
    """Options of the verifier `judge`, which then decides on the action's message if the expert writes a message; None:
    any text is right."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for mode, names in _OPTIONS_OF_MODE.items():
            if mode != self.mode and (foreign := self.model_fields_set.intersection(names)):
                raise ValueError(f"{min(foreign)} is an option of mode {mode!r}, not of {self.mode!r}")
        if self.other_experts and self.mode == "accepted_values":
            raise ValueError("other_experts have no effect in mode 'accepted_values'; list their values in `accepted`")
        return self

    def rules(self) -> EqualityRules:
        return EqualityRules(
            number_tolerance=self.number_tolerance,
            dates=_as_texts(self.dates),
            paths=_as_texts(self.paths),
            enums=_as_texts(self.enums),
            free_text=frozenset(map(str, self.free_text)),
            min_similarity=self.min_similarity,
            unordered=frozenset(map(str, self.unordered)),
            ignored=frozenset(map(str, self.ignored)),
        )


def _as_texts(arguments: bool | frozenset[ToolArgument]) -> bool | frozenset[str]:
    return arguments if isinstance(arguments, bool) else frozenset(map(str, arguments))
