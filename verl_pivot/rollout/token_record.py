"""The tokens of one trajectory, exactly as sampled and as training will see them."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenRecord:
    """Prompt and response of a trajectory so far; what verl's continuous tokens merge is written here."""

    token_ids: list[int]
    """[num_prompt_tokens + num_response_tokens]"""
    num_prompt_tokens: int
    mask: list[int] = field(default_factory=list)
    """[num_response_tokens] 1 where the policy sampled."""
    logprobs: list[float] | None = None
    """[num_response_tokens], 0 where it did not; None where the engine gives none."""
    turn_starts: list[int] = field(default_factory=list)
    """[num_turns] positions in the response."""

    @classmethod
    def of_prompt(cls, prompt_ids: list[int]) -> "TokenRecord":
        return cls(token_ids=list(prompt_ids), num_prompt_tokens=len(prompt_ids))

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def response_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_sampled(self) -> int:
        return sum(self.mask)

    @property
    def turn_ends(self) -> list[int]:
        """[num_turns] behind the last sampled token of each turn."""
        bounds = zip(self.turn_starts, [*self.turn_starts[1:], len(self.mask)], strict=True)
        return [max(at for at in range(start, end) if self.mask[at]) + 1 for start, end in bounds]

    @property
    def turn_tokens(self) -> list[int]:
        """[num_turns] sampled in each."""
        bounds = zip(self.turn_starts, [*self.turn_starts[1:], len(self.mask)], strict=True)
        return [sum(self.mask[start:end]) for start, end in bounds]

    def append_text(self, token_ids: list[int]) -> None:
        """Add what the policy did not sample, as it is."""
        self.token_ids += token_ids
        self.mask += [0] * len(token_ids)
        if self.logprobs is not None:
            self.logprobs += [0.0] * len(token_ids)
