"""Text -> words -> hashes of its word n-grams."""

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]

# Scripts without spaces between words: each character counts as one.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ASCII_SEPARATORS = {code: " " for code in range(128) if chr(code) not in string.ascii_letters + string.digits}
_BREAK = "\n"
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, in one case and one Unicode form; everything else only parts them."""
    if text.isascii():  # the same, faster
        return text.lower().translate(_ASCII_SEPARATORS).split()
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def words_of_all(texts: Iterable[str]) -> list[str]:
    """Words of several texts, parted so that no n-gram of another text's words runs from one into the next."""
    joined: list[str] = []
    for text in texts:
        joined.extend(words_of(text))
        joined.append(_BREAK)
    return joined


def ngram_hashes(words: Sequence[str], n: int) -> Hashes:
    """[max(len(words) - n + 1, 0)] a 64-bit hash of each n words in a row; equal n-grams have equal ones."""
    count = len(words) - n + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    hashes = np.array([crc32(word.encode(errors="surrogatepass")) for word in words], dtype=np.uint64)
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(n):
        total = total * _MULTIPLIER + hashes[offset : offset + count]  # modulo 2^64
    # Low bits know nothing of the high ones; xor lets both tell.
    return total ^ (total >> np.uint64(32))
