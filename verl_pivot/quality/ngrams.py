"""Text -> its words -> hashes of their n-grams."""

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]

# Scripts without spaces between words: each character counts as a word.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ASCII_SEPARATORS = {code: " " for code in range(128) if chr(code) not in string.ascii_letters + string.digits}
_BREAK = "\n"
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """Words of a text: runs of letters and digits in one case and Unicode form; everything else separates them."""
    if text.isascii():  # a faster way to the same words
        return text.lower().translate(_ASCII_SEPARATORS).split()
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def words_of_all(texts: Iterable[str]) -> list[str]:
    """Words of several texts, with a separator that is no word, so that no n-gram of words alone spans two texts."""
    joined: list[str] = []
    for text in texts:
        joined.extend(words_of(text))
        joined.append(_BREAK)
    return joined


def ngram_hashes(words: Sequence[str], n: int) -> Hashes:
    """[max(len(words) - n + 1, 0)] 64-bit hash of each n words in a row; equal n-grams have equal hashes."""
    count = len(words) - n + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    hashes = np.array([crc32(word.encode(errors="surrogatepass")) for word in words], dtype=np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(n):
        total = total * _MULTIPLIER + hashes[offset : offset + count]  # modulo 2^64
    # Low bits of the sum do not depend on the high bits of the words' hashes; xor mixes the halves.
    return total ^ (total >> np.uint64(32))
