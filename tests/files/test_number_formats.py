"""Number formats: what each one stores is converted exactly, and read where it lies."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, IDS, Array, as_stored, entries, numbers, pack, result, same_bits, tensors, write

import minibert
from minibert import CheckpointError
from minibert.files.checkpoint import BITS, open_folder, parse_header
from minibert.files.tables import NUMPY_DTYPE, as_table, convert

POSITION = "embeddings.position_embeddings.weight"


def float_of(bits: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The number that bits mean, by IEEE 754 in plain Python; the largest exponent is infinity and NaN."""
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == (1 << exponent_bits) - 1:
        return sign * (math.nan if mantissa else math.inf)
    if exponent:
        return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
    return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)


NARROW = {"F16": (5, 10), "BF16": (8, 7)}  # bits of the exponent and of the mantissa


def same_numbers(a: Array, b: Array) -> bool:
    """Equal with the sign of zero, and NaN where NaN is."""
    return bool(np.array_equal(a, b, equal_nan=True) and (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all())


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", NARROW)
def test_every_narrow_number_is_converted_exactly(
    tmp_path: Path, kind: str, dtype: str, shift: int, mmap: bool
) -> None:
    stored = kind, (1 << 12, 16), np.arange(1 << 16, dtype="<u2").tobytes()
    (tmp_path / "model.safetensors").write_bytes(pack({"before": numbers(3), "table": stored}, shift=shift))
    truth = np.array([float_of(bits, *NARROW[kind]) for bits in range(1 << 16)]).reshape(-1, 16)
    table = open_folder(str(tmp_path), mmap).table("table", dtype)
    assert table.stored == kind and table.dtype == dtype and table.shape == truth.shape
    whole = table.array()
    assert whole.dtype == dtype and not whole.flags.writeable
    assert same_numbers(whole, truth)
    assert same_numbers(table.rows(np.arange(len(truth))[::-1]), truth[::-1])
    assert same_numbers(table.rows(slice(1, 9)), truth[1:9])
    ids, out = np.array([[0, 3], [7, 7]]), np.empty((2, 2, 16), dtype)
    assert table.rows(ids, out) is out
    assert same_numbers(out, truth[ids])


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7BFF])
def test_infinity_is_converted_without_a_nan_beside_it(bits: int) -> None:
    found = convert(np.array([1, bits], "<u2").view("<f2"), "F16", np.dtype("float32"))
    assert found.tolist() == [2.0**-24, float_of(bits, 5, 10)]


@pytest.mark.parametrize("kind", ["F16", "BF16", "F64"])
def test_a_layer_of_another_format_gives_the_rows_its_file_holds(tmp_path: Path, kind: str) -> None:
    named = {name: as_stored(array, kind) for name, array in tensors(BERT).items()}
    folder = write(tmp_path / "narrow", BERT, named)
    layer = minibert.load(folder)
    held = {name: layer[name.removesuffix(".weight")].weight for name in named if name.endswith("_embeddings.weight")}
    assert {str(weight.dtype) for weight in held.values()} == {"float32"}
    norm = {f"embeddings.LayerNorm.{part}": getattr(layer.LayerNorm, part) for part in ("weight", "bias")}
    wide = write(tmp_path / "wide", BERT, {name: np.array(array) for name, array in (held | norm).items()})
    assert same_bits(layer(IDS), result(wide))
    for shift in (1, 2):
        assert same_bits(result(write(tmp_path / f"shifted{shift}", BERT, named, shift=shift)), result(wide))
    assert same_bits(result(folder, mmap=False), result(wide))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_table_hands_out_nothing_that_would_change_it(dtype: str) -> None:
    """Also one over an array of a caller's own, such as the sinusoids that a family computes."""
    own = np.ones((4, 3), dtype)
    table = as_table(own)
    for handed_out in (table.array(), table.stored_numbers, table.rows(slice(0, 2))):
        with pytest.raises(ValueError):
            handed_out[0, 0] = 7
    table.rows(np.array([0, 1]))[...] = 7  # rows by ids are a copy
    assert (table.array() == 1).all() and own.flags.writeable


def test_float64_tables_are_rounded_to_nearest(tmp_path: Path) -> None:
    finite = [0.1, 1 + 2**-24, 1 + 3 * 2**-24, 2**-150, 1e-40, -1e-300, 1e300, -1e300]
    hard = [*finite, math.inf, -math.inf, math.nan, -0.0]
    with np.errstate(all="ignore"):
        expected = np.array(hard).astype(np.float32)
    named = {"finite": np.array([finite]), "hard": np.array([hard])}
    (tmp_path / "model.safetensors").write_bytes(pack(named))
    checkpoint = open_folder(str(tmp_path))
    assert same_numbers(checkpoint.table("hard").rows(np.array([0])), expected[None])  # warnings are errors here
    assert same_numbers(checkpoint.table("hard").array(), expected[None])
    assert same_numbers(checkpoint.table("hard", "float64").array(), np.array([hard]))
    assert same_numbers(checkpoint.table("finite").rows(np.array([0])), expected[None, :8])


@pytest.mark.parametrize("kind", sorted(set(BITS) - set(NUMPY_DTYPE)))
def test_other_formats_are_refused_where_they_are_needed(tmp_path: Path, kind: str) -> None:
    from safetensors import SafetensorError, safe_open

    named: dict[str, Any] = tensors(BERT)
    named[POSITION] = (kind, (16, 8), bytes(16 * 8 * BITS[kind] // 8))
    folder = write(tmp_path, BERT, named)
    try:
        with safe_open(str(folder / "model.safetensors"), framework="np"):
            says = f"tensor '{POSITION}' is stored as {kind}; this layer reads F64, F32, F16, BF16\\Z"
    except SafetensorError:  # a release that is older than the format
        says = "not a whole safetensors file"
    with pytest.raises(CheckpointError, match=says):
        minibert.load(folder)
    # outside the input layer it does not matter
    header, data = entries({**tensors(BERT), "extra": (kind, (2,), bytes(2 * BITS[kind] // 8 or 1))})
    if BITS[kind] % 8 == 0:
        assert "extra" in parse_header(json.dumps(header).encode(), 0, len(data), "file")[0]
