"""Gemma's factor sqrt(hidden size) is a float32 number, whatever format a file stores: which bits that gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import Stored, write

import minibert

DIM = 3072  # Gemma 7B: sqrt(3072) = 55.4256..., of which bfloat16 would make 55.5
# the numbers 1, -0.1 and 0.3 as each format holds them, and the bits that the reference, transformers 5.23, makes of
# them when it is told to load such a file in float32
NUMBERS = {
    "BF16": np.array([0x3F80, 0xBDCD, 0x3E9A], np.uint16),
    "F16": np.array([1, -0.1, 0.3], np.float16).view(np.uint16),
    "F32": np.array([1, -0.1, 0.3], np.float32).view(np.uint32),
}
REFERENCE = {
    "BF16": [0x425DB3D7, 0xC0B18903, 0x41855E2F],
    "F16": [0x425DB3D7, 0xC0B15196, 0x41850B0C],
    "F32": [0x425DB3D7, 0xC0B15CAC, 0x41850581],
}
FAMILIES = ("gemma", "gemma2", "gemma3_text")


def gemma(folder: Path, stored: str, family: str = "gemma") -> Path:
    row = np.resize(NUMBERS[stored], DIM)
    config = {"model_type": family, "vocab_size": 1, "hidden_size": DIM, "num_attention_heads": 16}
    tensor: Stored = (stored, (1, DIM), row.tobytes())
    return write(folder, config, {"model.embed_tokens.weight": tensor})


@pytest.mark.parametrize("stored", NUMBERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_the_bits_of_the_reference_in_float32(tmp_path: Path, family: str, stored: str) -> None:
    with minibert.load(gemma(tmp_path, stored, family)) as layer, minibert.load(tmp_path, dtype="float64") as exact:
        row, called = layer([[0]])[0, 0], layer.embed_tokens([0])[0]
        assert row[:3].view(np.uint32).tolist() == REFERENCE[stored]
        assert row.tobytes() == called.tobytes()
        np.testing.assert_array_equal(exact([[0]])[0, 0], exact.embed_tokens.weight[0] * DIM**0.5)
