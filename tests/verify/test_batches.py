"""The batches that verify makes for a layer: of every kind that its family takes."""

from __future__ import annotations

import numpy as np
import pytest
from reference_files import CASES, Case

from minibert.verify.subjects import batches, padding_id
from minibert.verify.traces import trace


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches_are_those_that_the_family_allows(case: Case) -> None:
    with case.layer() as layer:
        made = batches(layer)
        again = batches(layer)
        positions = "position_ids" in trace(layer, made["plain"])
        vocab, padding = layer.steps[0].module.table.shape[0], padding_id(layer)
        for kind, batch in made.items():
            trace(layer, batch)  # each can be computed
            assert all(np.array_equal(array, again[kind][name]) for name, array in batch.items())
    ids, mask = made["mask_unlike_ids"].values()
    assert (ids[mask == 1] == padding).any() and (ids[mask == 0] != padding).any() and mask.any(axis=1).all()
    assert {"plain", "right_pad", "right_pad_no_mask", "left_pad", "pads_inside", "pads_inside_mask"} < set(made)
    assert (
        made["plain"]["input_ids"].max() >= vocab - 2
    )  # the table's last row, or the one before where that is padding
    assert ("explicit_positions" in made) == ("full_length" in made) == positions
    # every kind that the committed reference of this case was asked for
    asked = set(case.facts["kinds"])
    assert asked <= set(made), asked - set(made)
