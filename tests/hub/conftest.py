"""A fake Hub for all tests of the Hub, with one small model; this process asks it instead of the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, quick_pauses, use
from tiny_model import FILES


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add("org/tiny", FILES)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        yield hub


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_pauses(monkeypatch)
