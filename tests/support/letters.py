"""A tokenizer with one token for each character, and one that notes who asks it."""

import threading


class Letters:
    """A tokenizer with one token for each character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


class ThreadLetters(Letters):
    """Letters that note the threads in which texts were encoded."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.threads.add(threading.get_ident())
        return super().encode(text, add_special_tokens=add_special_tokens)

    @property
    def has_blocked(self) -> bool:
        """Whether a text was encoded in the thread that asks, which runs the event loop."""
        return threading.get_ident() in self.threads
