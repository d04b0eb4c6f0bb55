"""SamplingRecord: how a profile was sampled, stored in pivots.parquet and compared with the settings of a launch."""

from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json, equal
from verl_pivot.types import Json, JsonObject


class SamplingDifference(NamedTuple):
    """One field in which two sampling records differ."""

    name: str
    """Field of SamplingRecord."""
    here: Json
    there: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRecord:
    """Everything, besides the state, that the distribution of an action depends on.

    Example:
        SamplingRecord(model="./sft", model_digest="4f2a...", max_new_tokens=2048, temperature=1.0, top_p=1.0, top_k=-1,
                       chat_template_kwargs={"enable_thinking": False}, template_digest="91bc...")
    """

    model: str
    """Folder of the policy's checkpoint, or its name on the Hugging Face hub."""
    model_digest: str | None
    """Digest of the weights; None if the model was not a folder."""
    max_new_tokens: int
    """Maximum number of tokens of one action."""
    temperature: float
    top_p: float
    top_k: int
    """Number of most probable tokens to sample from; -1 is all."""
    chat_template_kwargs: JsonObject
    """Variables of the chat template, such as {"enable_thinking": False}."""
    template_digest: str | None
    """Digest of the chat template; None if it was not known."""

    def encoded(self) -> str:
        """The record as a value of the column `sampling` of pivots.parquet."""
        return encode_json(asdict(self), sort_keys=True)

    @classmethod
    def decoded(cls, text: str) -> Self:
        """The record that `encoded` gave.

        Raises:
            BadRowError: If the text is no such record.
        """
        fields = as_object(decode_json(text, what="the column sampling"), "the column sampling")
        try:
            return cls(**fields)  # type: ignore[arg-type]  # encoded wrote it
        except TypeError as error:
            raise BadRowError(
                "bad_sampling", f"the column sampling was written by another version of verl-pivot: {error}"
            ) from error

    def differences(self, other: Self) -> list[SamplingDifference]:
        """Fields that differ. Models are compared by digest if both have one, else by name.

        Chat templates are compared only if both have a digest.
        """
        skipped = {"model_digest" if None in (self.model_digest, other.model_digest) else "model"}
        if None in (self.template_digest, other.template_digest):
            skipped.add("template_digest")
        here, there = asdict(self), asdict(other)
        return [
            SamplingDifference(name, value, there[name])
            for name, value in here.items()
            if name not in skipped and not equal(value, there[name])
        ]
