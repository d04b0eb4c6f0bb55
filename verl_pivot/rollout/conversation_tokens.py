"""Messages and sampled turns -> TokenRecord, by verl's continuous tokens: sampled tokens are never tokenised again."""

from collections.abc import Sequence

from verl_pivot.errors import DataError
from verl_pivot.rollout.loop_parts import LoopParts
from verl_pivot.rollout.token_record import TokenRecord
from verl_pivot.rollout.turn_sampler import SampledTurn
from verl_pivot.types import JsonObject


async def prompt_tokens(
    parts: LoopParts, messages: Sequence[JsonObject], schemas: Sequence[JsonObject] = (), prefix: str = ""
) -> TokenRecord:
    """Tokens of a prompt, up to where the policy begins to write.

    Args:
        parts: The agent loop.
        messages: Messages of the prompt.
        schemas: Schemas of the tools that the chat template shows.
        prefix: Text after the prompt with which the first turn begins, and which is not sampled.

    Raises:
        DataError: If the prompt is too long, or holds anything but text.
    """
    check_texts(messages)
    tokens = await rendered(parts, messages, schemas, prefix)
    if problem := prompt_problem(parts, tokens.num_prompt_tokens):
        raise DataError(problem)
    return tokens


def check_texts(messages: Sequence[JsonObject]) -> None:
    """Raises DataError if a message holds anything but text."""
    if any(not isinstance(message.get("content"), str | None) for message in messages):
        raise DataError(
            "a prompt has content that is not text, such as images, which the agent loop cannot read: remove the row"
        )


def prompt_problem(parts: LoopParts, num_tokens: int) -> str:
    """Why a prompt of so many tokens is too long, with the remedy; "" if it is not."""
    limit = parts.loop.rollout_config.prompt_length
    if num_tokens > limit:
        return (
            f"a prompt of {num_tokens} tokens, its tools included, is longer than data.max_prompt_length={limit}: "
            "raise that limit, or remove the row"
        )
    if num_tokens + 1 >= parts.max_model_len:
        return (
            f"a prompt of {num_tokens} tokens leaves no room for a response in the engine's context of "
            f"{parts.max_model_len} tokens (actor_rollout_ref.rollout.max_model_len, or else the model's limit): raise "
            "it, or remove the row"
        )
    return ""


async def rendered(
    parts: LoopParts, messages: Sequence[JsonObject], schemas: Sequence[JsonObject] = (), prefix: str = ""
) -> TokenRecord:
    """Tokens of messages of any length, as a prompt; arguments are those of `prompt_tokens`."""
    builder = parts.loop.continuous_token_builder
    prompt_ids = await parts.loop.loop.run_in_executor(
        None, lambda: builder.build_initial_tokens(list(messages), tools=list(schemas) or None)
    )
    return TokenRecord.of_prompt([*prompt_ids, *parts.encode(prefix)])


async def with_sampled_turn(parts: LoopParts, tokens: TokenRecord, sampled: SampledTurn) -> TokenRecord:
    """A record followed by a turn of the policy, exactly as the engine sampled it."""
    is_first_with_logprobs = tokens.logprobs is None and sampled.logprobs is not None
    merged, mask, logprobs = await parts.loop.ct_merge_assistant_token(
        tokens.token_ids,
        sampled.token_ids,
        tokens.mask,
        [0.0] * len(tokens.mask) if is_first_with_logprobs else tokens.logprobs,
        assistant_logprobs=sampled.logprobs,
    )
    return tokens.with_turn(merged.token_ids, mask, logprobs)


async def with_messages(
    parts: LoopParts,
    tokens: TokenRecord,
    messages: Sequence[JsonObject],
    added: Sequence[JsonObject],
    schemas: Sequence[JsonObject] = (),
) -> TokenRecord:
    """A record followed by messages that the policy reads.

    Some of verl's builders, such as that of GLM, take away a last token that also begins the next message. Of a turn
    that is nothing else the token stays, so that every turn has a sampled token.

    Args:
        parts: The agent loop.
        tokens: Record of `messages`, the last of which is the policy's.
        messages: Messages so far.
        added: Messages that follow them.
        schemas: Schemas of the tools that the chat template shows.
    """
    merged, mask, logprobs = await parts.loop.ct_merge_context_msg(
        list(messages),
        [*messages, *added],
        tokens.token_ids,
        tokens.mask,
        tokens.logprobs,
        tools=list(schemas) or None,
    )
    removed = merged.removed_prefix_token_count
    if removed and tokens.turn_starts and len(tokens.mask) - removed <= tokens.turn_starts[-1]:
        return tokens.with_text(merged.token_ids[len(tokens.token_ids) - removed :])
    return tokens.with_merged(merged.token_ids, mask, logprobs)
