"""The README as a package index shows it: links that lead into the source tree lead to the repository, or are text."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Hatch calls `update` while it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, repository)}


def readme(text: str, repository: str | None) -> str:
    """Text whose links are all absolute: `[Tools](docs/tools.md)` -> `[Tools](<repository>/blob/main/docs/tools.md)`.

    Without a repository the link becomes `Tools (docs/tools.md)`, which is where it lies in the source archive.
    """
    if repository is None:
        return _RELATIVE.sub(r"\1 (`\2`)", text)
    return _RELATIVE.sub(rf"[\1]({repository.rstrip('/')}/blob/main/\2)", text)
