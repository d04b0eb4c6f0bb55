"""Folder of a Hugging Face encoder, and texts -> one unit vector per text, made from the mean over its tokens."""

from collections.abc import Sequence
from enum import StrEnum
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from verl_pivot.errors import ConfigError
from verl_pivot.local.environment import activate_shims
from verl_pivot.tools.search_files import EncoderFacts, Prefixes

_MAX_TOKENS = 512
_BATCH = 64
"""Texts that are encoded at a time."""


class TextRole(StrEnum):
    """Role of a text in the search."""

    QUERY = "query"
    DOCUMENT = "document"


_TEXT_BEFORE = {
    (Prefixes.E5, TextRole.QUERY): "query: ",
    (Prefixes.E5, TextRole.DOCUMENT): "passage: ",
    (Prefixes.BGE, TextRole.QUERY): "Represent this sentence for searching relevant passages: ",
}
"""Prefix that models of these families expect before a text, as their model cards say; other models have none."""


class Encoded(NamedTuple):
    """Vectors of some texts."""

    vectors: NDArray[np.float32]
    """[num_texts, num_dimensions]"""
    num_cut: int
    """Number of texts that are longer than the model can read, so that it read only their beginning."""


class TextEncoder:
    """A Hugging Face encoder, such as E5 or BGE, on a GPU if there is one."""

    def __init__(self, facts: EncoderFacts) -> None:
        """Load the model.

        Raises:
            ConfigError: If the folder holds no encoder.
        """
        activate_shims()
        from transformers import AutoModel, AutoTokenizer

        self._prefixes = facts.prefixes
        self._one_at_a_time = Lock()  # a tokenizer changes its state while it cuts texts
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(facts.folder, local_files_only=True)
            model = AutoModel.from_pretrained(facts.folder, local_files_only=True)
        except (OSError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            raise ConfigError(f"{facts.folder} is not the folder of a Hugging Face encoder: {first_line}") from error
        if model.config.is_encoder_decoder:
            raise ConfigError(f"{facts.folder} holds a model with a decoder; give a model with only an encoder")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device, torch.float32).eval()
        positions = getattr(model.config, "max_position_embeddings", _MAX_TOKENS)  # models with relative ones lack it
        self._max_tokens = min(_MAX_TOKENS, self._tokenizer.model_max_length, positions)

    def encode(self, texts: Sequence[str], role: TextRole) -> Encoded:
        """Encode any number of texts."""
        before = _TEXT_BEFORE.get((self._prefixes, role), "")
        batches = [[before + text for text in texts[at : at + _BATCH]] for at in range(0, len(texts), _BATCH)]
        with self._one_at_a_time:
            parts = [self._encode(batch) for batch in batches]
        return Encoded(np.concatenate([part.vectors for part in parts]), sum(part.num_cut for part in parts))

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> Encoded:
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_overflowing_tokens=True,
            return_tensors="pt",
        )  # fmt: skip
        # A text that is cut has further rows for its rest; only its first row is read.
        owners = tokens["overflow_to_sample_mapping"]
        first = torch.cat((torch.tensor([True]), owners[1:] != owners[:-1]))
        ids = tokens["input_ids"][first].to(self._device)
        mask = tokens["attention_mask"][first].to(self._device)
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        means = (states * weights).sum(dim=1) / weights.sum(dim=1)
        vectors: NDArray[np.float32] = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
        return Encoded(vectors, int((owners.bincount() > 1).sum()))
