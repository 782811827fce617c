"""Makes the README of the repository the description that a package index shows.

An index has none of the files that the README links to, and gives headings no names, so that each
relative link leads to the source's main branch there.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[(?:!\[[^]]*]|[^]])*])\((?!https?:|mailto:)([^)\s]+)\)")


def absolute(text: str, root: Path, source: str) -> str:
    """Returns Markdown of the root folder whose links lead to the repository at ``source``."""

    def leads(match: re.Match[str]) -> str:
        picture, shown, target = match.groups()
        path, _, _ = target.partition("#")
        kind = "raw" if picture else "tree" if (root / path).is_dir() else "blob"
        place = f"/{kind}/main/{target}" if path else target
        return f"{picture}{shown}({source}{place})"

    return LINK.sub(leads, text)


class Description(MetadataHookInterface):
    """Reads the README when anything is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the description to the project's metadata."""
        root = Path(self.root)
        text = absolute((root / "README.md").read_text(), root, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
