"""Answer of the helper that moves files of a pod -> FetchedFields."""

from verl_pivot.sandbox.lane.answers import AnswerError, AnswerSocket
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.files import encode_files
from verl_pivot.sandbox.lane.running_task import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.answers import Fields
    from verl_pivot.sandbox.lane.messages import FetchedFields

_MAX_REASON_BYTES = 1024
"""Maximum bytes of the reason why a file could not be read."""


class FilesReply:
    """Answer of a helper: for each name the content, or the reason why there is none."""

    def __init__(self, loop: EventLoop, written: list[str], fetched: list[str], max_bytes: int) -> None:
        """Wait for the answer.

        Args:
            loop: The lane's event loop.
            written: Names of the files that the helper writes.
            fetched: Names of the files that it reads.
            max_bytes: Maximum bytes of all files together.
        """
        self._loop = loop
        self._written = written
        self._fetched = fetched
        total = max_bytes + _MAX_REASON_BYTES * len(fetched)
        self._socket = AnswerSocket(num_fields=2 * len(fetched), max_bytes=max_bytes, max_total_bytes=total)
        self._fields: Fields | None = None
        loop.on_readable(self._socket.fileno(), self._on_readable)

    @property
    def control(self) -> int:
        """Descriptor for the helper's answer."""
        return self._socket.theirs.fileno()

    def on_sent(self) -> None:
        """Close this process's copy of the descriptor for the helper, which has its own by now."""
        self._socket.theirs.close()

    def close(self, ending: Ending) -> "FetchedFields":
        """Files and reasons, after the helper has ended."""
        while self._fields is None and self._read():
            pass
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        if ending.failure is not None or ending.status != 0:
            return self._nothing(ending.failure or "it could not be copied: the program ended the helper process")
        if self._fields is None and self._fetched:
            return self._nothing("it could not be read: the helper process gave no answer")
        fields, num_names = self._fields or (), len(self._fetched)
        contents = zip(self._fetched, fields[:num_names], strict=True)
        reasons = zip(self._fetched, fields[num_names:], strict=True)
        return {
            "files": encode_files({name: content for name, content in contents if content is not None}),
            "file_errors": {
                name: reason.decode("utf-8", "backslashreplace") for name, reason in reasons if reason is not None
            },
        }

    def _nothing(self, reason: str) -> "FetchedFields":
        return {"files": {}, "file_errors": dict.fromkeys([*self._written, *self._fetched], reason)}

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read one piece of the answer; False if nothing more is to come now."""
        try:
            self._fields = self._socket.receive(None)
        except BlockingIOError:
            return False
        except (OSError, EOFError, AnswerError):
            self._loop.forget(self._socket.fileno())
            return False
        return True
