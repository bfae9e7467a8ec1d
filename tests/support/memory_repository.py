"""A repository in memory, for what reads tables by range without a Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minibert.errors import HubError
from minibert.hub.remote import Span


class Memory:
    """A repository whose files are bytes; it writes down which spans were asked for."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder, self.files = folder, files
        self.asked: list[Span] = []
        self.reachable = True

    def cached(self, name: str) -> Path | None:
        return None

    def ranges(self, name: str) -> Path:
        return self.folder / name

    def part(self, name: str, span: Span) -> tuple[bytes, int]:
        if not self.reachable:
            raise HubError("no answer")
        self.asked.append(span)
        return self.files[name][span[0] : span[1]], len(self.files[name])

    def describe(self, name: str) -> str:
        return name


def open_memory(memory: Any, lazy: bool = True) -> Any:
    """Open the one file of a repository in memory."""
    from minibert.hub.remote import RemoteCheckpoint

    return RemoteCheckpoint(memory, None, lazy, True, False, "")
