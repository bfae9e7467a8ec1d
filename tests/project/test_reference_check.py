"""scripts/reference/check.py: how far new values may differ from the stored values."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from minibert.equations.input_layer import Array

# at the end: a module there may have the name of one of tests/support, which other tests import after this one
sys.path.append(str(Path(__file__).parents[2] / "scripts" / "reference"))
import check  # it imports neither torch nor transformers

ROW = np.array([[0.5, -3]], np.float32)
IDS = np.array([[3, 4]])
MINILM = {"text 1|inputs|input_ids": IDS, "text 1|sum": ROW, "text 1|embeddings.LayerNorm": ROW}
MINILM["text 1|hidden_states.1"] = ROW
TRACE = {"plain|inputs|input_ids": IDS, "plain|wte": ROW, "plain|sum": ROW, "plain|LayerNorm": ROW}


def differences(folder: Path, name: str, values: dict[str, Array], **changes: float) -> list[str]:
    """Name the differences after each value of some keys is moved by `changes[key]` x max(1, |value|)."""
    for side in ("old", "new"):
        path = folder / side / name
        path.parent.mkdir(parents=True, exist_ok=True)
        moved = {
            key: x + x.dtype.type(changes.get(key.split("|")[-1], 0) if side == "new" else 0) * np.maximum(1, np.abs(x))
            for key, x in values.items()
        }
        save_file(moved, path, {"about": '{"versions": {}}'})
        if name.endswith("trace.safetensors"):
            path.with_name("case.json").write_text('{"order": {"plain": ["wte", "sum", "LayerNorm"]}}')
    return list(check.compare_file(folder / "old", folder / "new", name))


@pytest.mark.parametrize(
    ("name", "values", "key", "allowed"),
    [
        (check.SHIPPED, MINILM, "embeddings.LayerNorm", check.TOLERANCE),
        (check.SHIPPED, MINILM, "hidden_states.1", check.BLOCKS),
        ("bert/trace.safetensors", TRACE, "LayerNorm", check.TOLERANCE),
    ],
)
def test_what_comes_after_a_product_may_differ_by_what_kernels_differ(
    name: str, values: dict[str, Array], key: str, allowed: float, tmp_path: Path
) -> None:
    assert differences(tmp_path, name, values, **{key: 0.9 * allowed}) == []
    (found,) = differences(tmp_path, name, values, **{key: 1.1 * allowed})
    assert found.startswith(f"{name}: ") and f"|{key} differs by " in found


@pytest.mark.parametrize(("name", "values"), [(check.SHIPPED, MINILM), ("bert/trace.safetensors", TRACE)])
@pytest.mark.parametrize("key", ["input_ids", "sum"])
def test_what_comes_before_it_is_equal_to_the_bit(
    key: str, name: str, values: dict[str, Array], tmp_path: Path
) -> None:
    assert differences(tmp_path, name, values) == []
    assert len(differences(tmp_path, name, values, **{key: 1 if key == "input_ids" else 1e-7})) == 1
