"""Which tests `pytest --few N` and `--share N` leave: .ci/run tries the suite once more in other environments by the
one, and what is slow by the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


class Item:
    """One case, as pytest collects it."""

    def __init__(self, nodeid: str, mark: str = "") -> None:
        self.nodeid, self.mark = nodeid, mark

    def get_closest_marker(self, name: str) -> bool:
        return name == self.mark


def kept(pytestconfig: pytest.Config, items: list[Item], **options: Any) -> list[str]:
    """The remaining tests keep their order; nothing is lost on the way."""
    plugin: Any = pytestconfig.pluginmanager.get_plugin(str(CONFTEST))
    left_out, everything = list[Any](), list(items)
    given = {"few": None, "share": 1, "seed": ""} | options
    config = SimpleNamespace(
        getoption=given.__getitem__, hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    )
    plugin.pytest_collection_modifyitems(config, items)
    assert sorted(map(id, [*items, *left_out])) == sorted(map(id, everything))
    assert items == [item for item in everything if item in items]
    return [item.nodeid for item in items]


@pytest.mark.parametrize("seed", ["", "a", "b"])
def test_few_keeps_each_test_and_takes_other_rows_for_the_next(pytestconfig: pytest.Config, seed: str) -> None:
    """A test left out would be untried there, and so would a row that no test takes."""
    ids = [*(f"a.py::test_{i}[row{j}]" for i in range(4) for j in range(10)), "a.py::test_alone", "a.py::test_two[[x]"]
    bits = [f"b.py::test_bits[{i}]" for i in range(9)]
    found = kept(pytestconfig, [*map(Item, ids), *(Item(name, "bits") for name in bits)], few=3, seed=seed)
    assert found[-9:] == bits, "what promises bits runs whole"
    parts = [name.split("[", 1) for name in found[:-9]]
    assert {test for test, *_ in parts} == {name.split("[", 1)[0] for name in ids}
    assert max(Counter(test for test, *_ in parts).values()) <= 3
    assert {row for _, *rows in parts for row in rows} == {*(f"row{j}]" for j in range(10)), "[x]"}


def test_commits_take_each_slow_test_in_turn(pytestconfig: pytest.Config) -> None:
    """Six seeds in a row would be luck; of a hundred none leaves a test out. Tests that are not slow always remain."""
    chosen = Counter[str]()
    for seed in map(str, range(100)):
        items = [Item(f"a.py::test_slow[{i}]", "slow") for i in range(25)] + [Item(f"b.py::{i}") for i in range(3)]
        names = kept(pytestconfig, items, share=6, seed=seed)
        assert len(names) in (4 + 3, 5 + 3)
        chosen.update(names)
    assert len(chosen) == 28 and all(chosen[f"b.py::{i}"] == 100 for i in range(3))
