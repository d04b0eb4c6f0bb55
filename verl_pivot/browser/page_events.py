"""Events of a page besides its content: dialogs, windows, downloads, refused requests, errors of its scripts."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_MOST_KEPT = 20
_MOST_CHARACTERS = 300
_LISTS = ("dialogs", "refused_requests", "script_errors", "console_errors")
MOST_INTERRUPTIONS = 50
"""Number of dialogs and windows, together, after one action, above which a page is closed."""
MOST_REFUSED = 500
"""Number of refused requests after one action above which a page is closed."""


@dataclass(slots=True)
class PageEvents:
    """Counts of a page's events, and the texts of the first events of some kinds."""

    num_documents: int = 0
    """Number of documents that the page has shown; the number of an element is valid in one document alone."""
    num_frame_documents: int = 0
    """Number of addresses that frames within the page have gone to; numbers of their elements are valid at one."""
    num_dialogs: int = 0
    num_windows: int = 0
    """Windows that the page opened; each is closed at once."""
    num_downloads: int = 0
    num_refused_requests: int = 0
    """Requests to hosts that the page may not contact; each is aborted."""
    num_script_errors: int = 0
    """Exceptions that no script caught."""
    has_crashed: bool = False
    dialogs: list[str] = field(default_factory=list)
    """The first dialogs, as `alert: text`."""
    refused_requests: list[str] = field(default_factory=list)
    """Addresses of the first requests that were aborted."""
    script_errors: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)
    """The first lines that scripts, or the browser, wrote to the console as errors."""

    @property
    def num_interruptions(self) -> int:
        """Dialogs and windows, each of which stops the page's scripts until the browser has dealt with it."""
        return self.num_dialogs + self.num_windows

    def is_flooding(self, since: "PageEvents") -> bool:
        """Whether the page has made more dialogs, windows or refused requests than any page needs after one action.

        Args:
            since: Copy from before the action.
        """
        return (
            self.num_interruptions - since.num_interruptions > MOST_INTERRUPTIONS
            or self.num_refused_requests - since.num_refused_requests > MOST_REFUSED
        )

    def add_dialog(self, kind: str, text: str) -> None:
        self.num_dialogs += 1
        keep(self.dialogs, f"{kind}: {text}")

    def add_refused(self, address: str) -> None:
        self.num_refused_requests += 1
        keep(self.refused_requests, address)

    def add_script_error(self, text: str) -> None:
        self.num_script_errors += 1
        keep(self.script_errors, text)

    def add_console_error(self, text: str) -> None:
        keep(self.console_errors, text)

    def notes(self, since: "PageEvents") -> Iterator[str]:
        """Sentences for the policy about what happened after an earlier copy was taken.

        Args:
            since: The earlier copy.
        """
        for each in self.dialogs[len(since.dialogs) :]:
            yield f"The page showed a dialog, which was dismissed ({each})."
        if number := self.num_windows - since.num_windows:
            yield f"The page opened {number} window{'s' if number > 1 else ''}, closed at once."
        if number := self.num_downloads - since.num_downloads:
            yield f"The page began {number} download{'s' if number > 1 else ''}, refused."
        if number := self.num_refused_requests - since.num_refused_requests:
            first = self.refused_requests[len(since.refused_requests) :][:1]
            of = f", such as {first[0]}" if first else ""
            yield f"{number} request{'s' if number > 1 else ''} to addresses outside of the task refused{of}."

    def copy(self) -> "PageEvents":
        """A copy that later events do not change."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return replace(self, **lists)  # type: ignore[arg-type]  # the names are those of lists


def keep(texts: list[str], text: str) -> None:
    """Append the beginning of a text while the list is short; a lone surrogate is written as \\uNNNN."""
    if len(texts) < _MOST_KEPT:
        texts.append(text[:_MOST_CHARACTERS].encode("utf-8", "backslashreplace").decode())
