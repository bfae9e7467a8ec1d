"""Gemma's factor sqrt(hidden size) is rounded to the format that the file stores: which bits that gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import Array, Stored, write

import minibert
from minibert.equations.input_layer import scale
from minibert.files.tables import rounded

DIM = 3072  # Gemma 7B: sqrt(3072) = 55.4256...
# the numbers 1, -0.1 and 0.3 as each format holds them, and what the reference's module, transformers 5.23, makes of
# them when it loads such a file without being told a dtype: the factor, then the rows' bits
NUMBERS = {
    "BF16": np.array([0x3F80, 0xBDCD, 0x3E9A], np.uint16),
    "F16": np.array([1, -0.1, 0.3], np.float16).view(np.uint16),
    "F32": np.array([1, -0.1, 0.3], np.float32).view(np.uint32),
}
FACTOR = {"BF16": 0x425E, "F16": 0x52EE, "F32": 0x425DB3D7}
REFERENCE = {
    "BF16": [0x425E, 0xC0B2, 0x4186],
    "F16": [0x52EE, 0xC58B, 0x4C29],
    "F32": [0x425DB3D7, 0xC0B15CAC, 0x41850581],
}
FAMILIES = ("gemma", "gemma2", "gemma3_text")


def as_bits(numbers: Array, stored: str) -> list[int]:
    """Round float32 numbers to a format and show their bits."""
    if stored == "BF16":
        bits: list[int] = [int(np.float32(rounded(float(x), "BF16")).view(np.uint32)) >> 16 for x in numbers]
        return bits
    return numbers.astype({"F16": "<f2", "F32": "<f4"}[stored]).view({"F16": "<u2", "F32": "<u4"}[stored]).tolist()


def gemma(folder: Path, stored: str, family: str = "gemma") -> Path:
    row = np.resize(NUMBERS[stored], DIM)
    config = {"model_type": family, "vocab_size": 1, "hidden_size": DIM, "num_attention_heads": 16}
    tensor: Stored = (stored, (1, DIM), row.tobytes())
    return write(folder, config, {"model.embed_tokens.weight": tensor})


@pytest.mark.parametrize("stored", NUMBERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_the_reference_s_bits_in_the_stored_format(tmp_path: Path, family: str, stored: str) -> None:
    with minibert.load(gemma(tmp_path, stored, family)) as layer:
        row, factor = layer([[0]])[0, 0], layer.embed_tokens.scale
        table, called = layer.embed_tokens.weight, layer.embed_tokens([0])[0]
    assert as_bits(np.array([factor], np.float32), stored) == [FACTOR[stored]]
    assert as_bits(row[:3], stored) == REFERENCE[stored]
    assert row.tobytes() == called.tobytes()
    product = table[0].astype(np.float64) * factor
    if stored != "F32":
        assert (row == product).all()  # two short numbers have an exact product in float32
        plain = scale(table, DIM**0.5)[0]
        assert as_bits(plain[:3], stored) != REFERENCE[stored]  # sqrt(dim) in float32, as in BART


def test_what_a_float32_run_of_a_bfloat16_file_is_off(tmp_path: Path) -> None:
    """The reference told to load it in float32 multiplies by 55.4256; here it is the stored 55.5, 0.13 % more."""
    with minibert.load(gemma(tmp_path, "BF16")) as layer, minibert.load(tmp_path, dtype="float64") as exact:
        assert (layer.embed_tokens.scale, exact.embed_tokens.scale) == (55.5, 55.5)
        np.testing.assert_array_equal(layer([[0]]), exact([[0]]))
    assert abs(55.5 / DIM**0.5 - 1.0013419) < 1e-7


def test_rounding_is_to_nearest_and_ties_go_to_even() -> None:
    step = 2.0**-7  # of bfloat16 between 1 and 2
    assert [rounded(1 + share * step, "BF16") for share in (0.49, 0.5, 0.51, 1.5)] == [1, 1, 1 + step, 1 + 2 * step]
    assert rounded(-1 - 0.51 * step, "BF16") == -1 - step
    assert rounded(0.1, "F64") == rounded(0.1, "F32") == float(np.float32(0.1))


def test_the_callers_own_rows_are_not_scaled(tmp_path: Path) -> None:
    own = np.full((1, 2, DIM), 0.3, np.float32)
    with minibert.load(gemma(tmp_path, "BF16")) as layer:
        np.testing.assert_array_equal(layer(inputs_embeds=own), own)
