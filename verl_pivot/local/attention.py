"""Attention of SGLang's backend `torch_native` on a CPU: the same results in a fraction of the time."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def replace_attention(backend: Any) -> None:
    """Make SGLang's class `TorchNativeAttnBackend` compute with `attend`.

    The methods of sglang 0.5.12 (srt/layers/attention/torch_native_backend.py:28, 117) index the cache by a tensor,
    for which torch copies element by element, and compute each token of a request again whenever it is extended.
    """
    backend._run_sdpa_forward_extend = _extend
    backend._run_sdpa_forward_decode = _decode


def attend(
    query: torch.Tensor,
    output: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    requests: list[tuple[torch.Tensor, int]],
    *,
    causal: bool,
    scaling: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention of the newest tokens of several requests, each to all tokens of its own request.

    Args:
        query: (new tokens of all requests, heads, size of a head)
        output: Tensor of the same shape, to which the result is written.
        keys: Cache, (slots, heads of keys, size of a head)
        values: Cache, of the same shape.
        requests: For each request the slots of its tokens, in their order, and how many of them are new.
        causal: Whether a token attends to no later token.
        scaling: Factor of the products of queries and keys; None: 1 / sqrt(size of a head).
        enable_gqa: Whether several query heads share one key head.
    """
    start = 0
    for slots, num_new in requests:
        new = slice(start, start + num_new)
        attended = scaled_dot_product_attention(
            query[new].transpose(0, 1).unsqueeze(0),
            _of(keys, slots).to(query.dtype),
            _of(values, slots).to(query.dtype),
            attn_mask=_mask(num_new, len(slots)) if causal and 1 < num_new < len(slots) else None,
            is_causal=causal and num_new == len(slots),
            scale=scaling,
            enable_gqa=enable_gqa,
        )
        output[new] = attended.squeeze(0).transpose(0, 1)
        start += num_new
    return output


def _of(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of a cache, (1, heads, tokens, size of a head)."""
    return cache.index_select(0, slots).transpose(0, 1).unsqueeze(0)


def _mask(num_new: int, length: int) -> torch.Tensor:
    """Whether each of the newest tokens attends to each token, (num_new, length)."""
    return torch.ones(num_new, length, dtype=torch.bool).tril(length - num_new)


def _slots(req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> list[torch.Tensor]:
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    return [req_to_token[row, :length] for row, length in rows]


def _extend(
    self: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
) -> torch.Tensor:
    """Replacement with the parameters of SGLang's method; `extend_prefix_lens` follows from the other lengths."""
    slots = _slots(req_to_token, req_pool_indices, seq_lens)
    requests = list(zip(slots, extend_seq_lens.tolist(), strict=True))
    return attend(query, output, k_cache, v_cache, requests, causal=causal, scaling=scaling, enable_gqa=enable_gqa)


def _decode(
    self: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
) -> torch.Tensor:
    """Replacement with the parameters of SGLang's method; each request has one new token, its last."""
    requests = [(slots, 1) for slots in _slots(req_to_token, req_pool_indices, seq_lens)]
    return attend(query, output, k_cache, v_cache, requests, causal=False, scaling=scaling, enable_gqa=enable_gqa)
