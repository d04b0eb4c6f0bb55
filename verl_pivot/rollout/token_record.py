"""TokenRecord: tokens, mask and logprobs of one rollout, exactly as the policy sampled and read them."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """Prompt and response of a rollout so far; a turn or an observation gives a new, longer record."""

    token_ids: list[int]
    """[num_prompt_tokens + num_response_tokens]"""
    num_prompt_tokens: int
    mask: list[int]
    """[num_response_tokens] 1 where the policy sampled the token."""
    logprobs: list[float] | None = None
    """[num_response_tokens] 0 where the policy did not sample; None if the engine gives no logprobs."""
    turn_starts: tuple[int, ...] = ()
    """[num_turns] position in the response at which each turn of the policy begins."""

    @classmethod
    def of_prompt(cls, prompt_ids: list[int]) -> "TokenRecord":
        return cls(token_ids=list(prompt_ids), num_prompt_tokens=len(prompt_ids), mask=[])

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
        """[num_turns] position in the response just after the last sampled token of each turn."""
        bounds = zip(self.turn_starts, [*self.turn_starts[1:], len(self.mask)], strict=True)
        return [max(at for at in range(start, end) if self.mask[at]) + 1 for start, end in bounds]

    @property
    def turn_tokens(self) -> list[int]:
        """[num_turns] number of tokens sampled in each turn."""
        bounds = zip(self.turn_starts, [*self.turn_starts[1:], len(self.mask)], strict=True)
        return [sum(self.mask[start:end]) for start, end in bounds]

    def with_merged(self, token_ids: list[int], mask: list[int], logprobs: list[float] | None) -> "TokenRecord":
        """A copy with the longer arrays that verl's continuous tokens returned, which begin with the tokens so far."""
        return replace(self, token_ids=token_ids, mask=mask, logprobs=logprobs)

    def with_turn(self, token_ids: list[int], mask: list[int], logprobs: list[float] | None) -> "TokenRecord":
        """A copy like that of `with_merged`, whose added tokens begin a turn of the policy."""
        grown = self.with_merged(token_ids, mask, logprobs)
        return replace(grown, turn_starts=(*self.turn_starts, len(self.mask)))

    def with_text(self, token_ids: list[int]) -> "TokenRecord":
        """A copy followed by tokens that the policy did not sample."""
        num = len(token_ids)
        logprobs = None if self.logprobs is None else [*self.logprobs, *[0.0] * num]
        return self.with_merged([*self.token_ids, *token_ids], [*self.mask, *[0] * num], logprobs)
