"""What all live tests share: torch computes on one thread, since two wait for each other in models so small."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread_of_torch(request: pytest.FixtureRequest) -> None:
    """Beside another process that tests, torch's second thread takes four times the work of the first."""
    if request.node.get_closest_marker("reference"):
        import torch

        torch.set_num_threads(1)
