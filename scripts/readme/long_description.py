"""Write README.md for a package index, which has none of the linked files: each link becomes a file's name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^][]+)\]\((?!https?:)([\w./-]+)[\w#-]*\)")


class LongDescription(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        told = LINK.sub(lambda link: "" if link[1] else f"{link[2]} (`{link[3]}`)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": told}
