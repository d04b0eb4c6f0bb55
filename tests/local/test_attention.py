"""The attention that replaces SGLang's on a CPU gives the same results as SGLang's own."""

import importlib.util
import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from verl_pivot.local.attention import replace_attention
from verl_pivot.local.environment import activate_shims, has_accelerator

_BACKEND = "sglang.srt.layers.attention.torch_native_backend"
_SLOTS, _SIZE = 4096, 16


@pytest.fixture(scope="module")
def stock() -> ModuleType:
    """SGLang's module as it is installed, without the changes of the shims."""
    activate_shims()
    found = importlib.util.find_spec(_BACKEND)
    assert found is not None
    assert found.origin is not None
    spec = importlib.util.spec_from_file_location("stock_torch_native_backend", found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _both(stock: ModuleType) -> tuple[Any, Any]:
    """SGLang's backend, and one whose attention is replaced."""

    class Replaced(stock.TorchNativeAttnBackend):  # type: ignore[misc, name-defined]
        """Subclass whose methods are replaced, so that SGLang's class keeps its own."""

    replace_attention(Replaced)
    runner = SimpleNamespace(device="cpu")
    return stock.TorchNativeAttnBackend(runner), Replaced(runner)


def _cache(num_key_heads: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values, and the slots of eight requests of up to 512 tokens."""
    keys, values = (torch.randn(_SLOTS, num_key_heads, _SIZE, generator=generator) for _ in range(2))
    return keys, values, torch.randperm(_SLOTS, generator=generator).view(8, 512).to(torch.int32)


@pytest.mark.parametrize("num_key_heads", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_new_tokens_get_what_sglangs_own_loop_gives_them(
    stock: ModuleType, num_key_heads: int, *, causal: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values, slots = _cache(num_key_heads, generator)
    prefixes, news = torch.tensor([0, 0, 7, 300, 511]), torch.tensor([1, 40, 5, 64, 1])
    query = torch.randn(int(news.sum()), 4, _SIZE, generator=generator)
    requests = torch.tensor([3, 0, 7, 1, 5])
    outputs = [
        backend._run_sdpa_forward_extend(
            query,
            torch.full_like(query, torch.nan),
            keys,
            values,
            slots,
            requests,
            prefixes + news,
            prefixes,
            news,
            scaling=0.3,
            enable_gqa=num_key_heads != 4,
            causal=causal,
        )
        for backend in _both(stock)
    ]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_key_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_gives_what_sglangs_own_loop_gives(stock: ModuleType, num_key_heads: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    keys, values, slots = _cache(num_key_heads, generator)
    lengths, requests = torch.tensor([1, 2, 130, 512]), torch.tensor([2, 6, 0, 4])
    query = torch.randn(4, 4, _SIZE, generator=generator).to(dtype)
    outputs = [
        backend._run_sdpa_forward_decode(
            query,
            torch.full_like(query, torch.nan),
            keys,
            values,
            slots,
            requests,
            lengths,
            enable_gqa=num_key_heads != 4,
        )
        for backend in _both(stock)
    ]
    assert torch.equal(*outputs)


def test_the_methods_that_are_replaced_have_the_same_parameters(stock: ModuleType) -> None:
    own, replaced = (type(each) for each in _both(stock))
    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        assert [*inspect.signature(getattr(own, name)).parameters] == [
            *inspect.signature(getattr(replaced, name)).parameters
        ]


@pytest.mark.skipif(has_accelerator(), reason="the shims are inert beside an accelerator")
def test_the_shims_replace_the_attention_that_sglang_imports() -> None:
    activate_shims()
    backend = importlib.import_module(_BACKEND).TorchNativeAttnBackend
    assert backend._run_sdpa_forward_decode.__module__ == "verl_pivot.local.attention"
