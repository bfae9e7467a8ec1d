"""What `pytest --few N` leaves, with which .ci/run tries the suite once more in other environments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


class Item:
    """One case, as pytest collects it."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_few_keeps_each_test_and_takes_other_rows_for_the_next(pytestconfig: pytest.Config) -> None:
    """A test left out would be untried there, and so would a row that no test takes."""
    plugin: Any = pytestconfig.pluginmanager.get_plugin(str(CONFTEST))
    ids = [*(f"a.py::test_{i}[row{j}]" for i in range(4) for j in range(10)), "a.py::test_alone", "a.py::test_two[[x]"]
    items, left_out = [Item(name) for name in ids], list[Any]()
    config = SimpleNamespace(
        getoption=lambda _: 3, hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    )
    everything = list(items)
    plugin.pytest_collection_modifyitems(config, items)
    kept = [item.nodeid.split("[", 1) for item in items]
    assert {test for test, *_ in kept} == {name.split("[", 1)[0] for name in ids}
    assert max(Counter(test for test, *_ in kept).values()) <= 3
    assert {row for _, *rows in kept for row in rows} == {*(f"row{j}]" for j in range(10)), "[x]"}
    assert sorted(map(id, [*items, *left_out])) == sorted(map(id, everything))
