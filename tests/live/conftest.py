"""What all live tests share: a mark, and one thread of torch, since two wait for each other in models so small."""

from __future__ import annotations

from pathlib import Path

import pytest

MARKS = {"reference", "network", "browser", "adapters", "clients", "slow"}


@pytest.hookimpl(tryfirst=True)  # before -m leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test without a mark: a plain run does not look into this folder."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    if lost := [item.nodeid for item in here if not MARKS & {mark.name for mark in item.iter_markers()}]:
        raise pytest.UsageError(f"give a mark to, or move to another folder: {', '.join(lost)}")


@pytest.fixture(autouse=True)
def one_thread_of_torch(request: pytest.FixtureRequest) -> None:
    """Beside another process that tests, torch's second thread takes four times the work of the first."""
    if request.node.get_closest_marker("reference"):
        import torch

        torch.set_num_threads(1)
