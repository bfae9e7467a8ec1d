"""What several tests of verify share."""

from __future__ import annotations

import pytest

from minibert.verify import verify


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify as it is where torch and transformers are not installed, also where they are."""
    monkeypatch.setattr(verify, "installed", lambda: False)
