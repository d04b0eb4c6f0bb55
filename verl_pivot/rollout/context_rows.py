"""Stretches of context -> the rows that an update sees, in one of two layouts that hold the same sampled tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.rollout.token_record import TokenRecord


class RowLayout(StrEnum):
    """How one trajectory is split into rows."""

    CONTEXT = "context"
    """A row for each stretch of context, with all its steps; a trim begins the next one."""
    STEP = "step"
    """A row for each step, as in L0's released code: its prompt is everything that the policy had read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A context from its beginning, or from a trim, to its last step."""

    tokens: TokenRecord
    """All tokens; the turns of the policy are the steps that were sampled in this stretch."""
    first_step: int
    """Index within the trajectory of the first of these steps, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One row: a prompt without loss, and a response that ends with a sampled token."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """[num_response_tokens] 1 where the policy sampled the token."""
    logprobs: list[float] | None
    """[num_response_tokens] 0 where the policy did not sample; None if the engine gives no logprobs."""
    step_ends: list[int]
    """[num_steps] positions in the response, each just after the last sampled token of a step."""
    steps: range
    """Indices of the row's steps within the trajectory."""


def rows_of(stretches: Sequence[Stretch], layout: RowLayout) -> list[ContextRow]:
    """Rows of a trajectory; each sampled token is in exactly one response.

    Args:
        stretches: The trajectory's stretches of context; those without a step give no row.
        layout: Layout of the rows.
    """
    rows: list[ContextRow] = []
    for stretch in (each for each in stretches if each.tokens.turn_starts):
        bounds = list(zip(stretch.tokens.turn_starts, stretch.tokens.turn_ends, strict=True))
        if layout is RowLayout.STEP:
            rows += [_row(stretch, index, index + 1, start, end) for index, (start, end) in enumerate(bounds)]
        else:
            rows.append(_row(stretch, 0, len(bounds), 0, bounds[-1][1]))
    return rows


def _row(stretch: Stretch, first: int, behind: int, start: int, end: int) -> ContextRow:
    """Row of the steps `first` to `behind - 1`, whose response is the stretch's response from `start` to `end`."""
    tokens = stretch.tokens
    begin = tokens.num_prompt_tokens + start
    return ContextRow(
        prompt_ids=tokens.token_ids[:begin],
        response_ids=tokens.token_ids[begin : tokens.num_prompt_tokens + end],
        mask=tokens.mask[start:end],
        logprobs=None if tokens.logprobs is None else tokens.logprobs[start:end],
        step_ends=[each - start for each in tokens.turn_ends[first:behind]],
        steps=range(stretch.first_step + first, stretch.first_step + behind),
    )
