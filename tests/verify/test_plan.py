"""The steps of bound blocks: every intermediate of the plain computation, in its order, from one list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest

from minibert.families.plan import REAL, run
from minibert.models.load_encoder import load_encoder
from minibert.verify.blocks import encoder_batches
from minibert.verify.plain_blocks import plain_trace, real_tokens


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_the_steps_are_the_plain_computation(name: str, folders: dict[str, Path]) -> None:
    with load_encoder(folders[name]) as encoder:
        for batch in encoder_batches(encoder).values():
            plain = plain_trace(encoder, batch)
            values: dict[str, Any] = {"hidden_states.0": plain["hidden_states.0"]}
            values[REAL] = real_tokens(batch, plain["hidden_states.0"].shape[:2])
            found: dict[str, Any] = {}
            for i, block in enumerate(encoder.stack.blocks):
                found |= run(block.plan(i, encoder.stack), values)
            assert list(found) == list(plain)[list(plain).index("hidden_states.0") + 1 :]
            for key, x in found.items():
                assert np.array_equal(x, plain[key], equal_nan=True), key
