"""Formulas against the same formulas in plain Python, and theorems that hold for every input."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, GPT2, same_bits, tensors, write
from hypothesis import example, given
from hypothesis import strategies as st

import minibert
from minibert.equations import fast
from minibert.equations import input_layer as equations
from minibert.equations.blocks import rms_norm
from minibert.equations.input_layer import Array

NORM_TOLERANCE = 1e-6  # float32 against float64: measured at most 1.8e-7 times the largest weight
SAME_NORM = 2e-6  # the layer's against the textbook's, of the reference's rows: measured at most 4.8e-7, in MiniLM too
HALF_A_BIT = 2.0**-25  # one rounding of a number in -1..1 to float32
PROJECTION_TOLERANCE = 1e-5  # rows of up to 9 float32 products: measured at most 1.6e-6

NORM = ("LayerNorm.weight", "LayerNorm.bias")
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 64))
SEEDS = st.integers(0, 2**32 - 1)


def condition(x: Array) -> Array:
    """How much larger than its spread a row's numbers are, one number a row. float64."""
    wide = x.astype(np.float64)
    return np.asarray(1 + np.abs(wide).max(axis=-1) / wide.std(axis=-1))


def normal(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- LayerNorm -----------------------------------------------------------------------------------------------------


@given(SHAPES, SEEDS)
def test_norm_in_float32_is_close_to_the_formula_in_float64(shape: tuple[int, ...], seed: int) -> None:
    x, weight, bias = (normal(s, seed + i) for i, s in enumerate((shape, shape[-1:], shape[-1:])))
    wide = x.astype(np.float64)
    variance = ((wide - wide.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
    truth = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-5) * weight + bias
    for formula in (equations.layer_norm, fast.layer_norm):
        y = formula(x, weight, bias, eps=1e-5)
        assert y.dtype == np.float32
        assert (np.abs(y - truth).max(axis=-1) <= NORM_TOLERANCE * condition(x) * max(1, np.abs(weight).max())).all()


def test_norm_of_two_numbers_by_hand() -> None:
    # mean 2, biased variance 1 (the unbiased one is 2), eps under the root: 1 + 3 = 4
    y = equations.layer_norm(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([0.5, 0.5]), eps=3.0)
    assert y.tolist() == [-0.5, 1.5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norm_without_eps_of_a_row_that_has_no_spread_is_nan_without_a_warning(dtype: str) -> None:
    """As torch gives it; the row beside it is not touched. A warning would be an error here."""
    x, ones = np.array([[2, 2], [1, -1]], dtype), np.ones(2, dtype)
    wanted = np.array([[np.nan, np.nan], [1, -1]], dtype)
    np.testing.assert_array_equal(fast.layer_norm(x, ones, eps=0.0), wanted)
    np.testing.assert_array_equal(rms_norm(x * [[0], [1]], ones, eps=0.0), wanted)


def test_norm_needs_two_passes() -> None:
    x = normal((64, 768), 0) + np.float32(1000)
    wide = x.astype(np.float64)
    truth = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    for formula in (equations.layer_norm, fast.layer_norm):
        assert np.abs(formula(x, np.ones(768, np.float32)) - truth).max() < 1e-3  # measured 1.1e-4; in one pass 0.41


@given(SHAPES, SEEDS, st.booleans())
def test_norm_of_a_row_does_not_depend_on_its_neighbours(shape: tuple[int, ...], seed: int, in_place: bool) -> None:
    x, weight, bias = (normal(s, seed + i) for i, s in enumerate((shape, shape[-1:], shape[-1:])))
    alone = np.array([[fast.layer_norm(row[None], weight, bias)[0] for row in rows] for rows in x])
    y = fast.layer_norm(x, weight, bias, out=x if in_place else None)
    assert (y is x) == in_place
    assert same_bits(y, alone)


@given(st.integers(0, 40), st.integers(1, 33), st.floats(2.0, 1e6))
@example(4096, 8, 10000.0)  # far out float32 angles miss by 1e-4
def test_sinusoids_are_the_formula_rounded_once(length: int, dim: int, base: float) -> None:
    table = equations.sinusoidal_positions(length, dim, base)
    assert table.shape == (length, dim) and table.dtype == np.float32
    for p, j in np.ndindex(table.shape):
        angle = p / base ** (2 * (j // 2) / dim)
        truth = math.cos(angle) if j % 2 else math.sin(angle)
        assert abs(float(table[p, j]) - truth) <= 1.001 * HALF_A_BIT


@given(st.integers(1, 20), st.integers(1, 33))
def test_halves_are_the_interleaved_columns_sorted(length: int, dim: int) -> None:
    table = equations.sinusoidal_positions(length, dim)
    halves = equations.sinusoidal_positions(length, dim, layout="halves")
    assert same_bits(halves, np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1))


# -- lookup, positions, scale, projection --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "intp"])
def test_lookup_takes_every_integer(dtype: str) -> None:
    table, ids = normal((9, 4), 0), np.array([[8, 0], [3, 3]], dtype)
    assert same_bits(equations.lookup(table, ids), table[[[8, 0], [3, 3]]])
    checked = fast.check_ids(ids, 9)
    assert checked.dtype == np.int64 and np.array_equal(checked, ids)


def test_an_id_before_the_table_s_first_is_refused_whatever_its_bits() -> None:
    assert fast.check_ids(np.array([-1, 8]), 9, first=-1).tolist() == [-1, 8]
    for ids in (np.array([-2]), np.array([9]), np.array([2**64 - 1], np.uint64)):  # whose bits are those of -1
        with pytest.raises(IndexError):
            fast.check_ids(ids, 9, first=-1)


ROWS_OF_IDS = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=3)


@given(ROWS_OF_IDS, st.integers(0, 3), st.integers(0, 50))
def test_padding_positions_count_what_is_not_padding(rows: list[list[int]], pad: int, past: int) -> None:
    expected = [
        [pad if row[i] == pad else pad + past + sum(token != pad for token in row[: i + 1]) for i in range(6)]
        for row in rows
    ]
    assert equations.padding_position_ids(np.array(rows), pad, past).tolist() == expected


@given(ROWS_OF_IDS, st.integers(0, 6))
def test_mask_positions_count_what_the_mask_keeps(rows: list[list[int]], past: int) -> None:
    expected = [[sum(map(bool, row[: i + 1])) - 1 if row[i] else -1 for i in range(past, 6)] for row in rows]
    assert equations.mask_position_ids(np.array(rows), past).tolist() == expected


def test_default_positions() -> None:
    assert equations.default_position_ids(0).shape == (1, 0)
    assert equations.default_position_ids(4, past_length=3).tolist() == [[3, 4, 5, 6]]


def test_scale_rounds_its_factor_first() -> None:
    x = normal((1000,), 0)
    wide = (x * np.float64(math.sqrt(768))).astype(np.float32)
    ours = equations.scale(x, math.sqrt(768))
    assert same_bits(ours, x * np.float32(math.sqrt(768)))
    assert (ours != wide).any(), "with a factor for which it makes no difference this test says nothing"


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), SEEDS)
def test_projection_is_a_product_of_one_row_at_a_time(rows: int, dim: int, width: int, seed: int) -> None:
    x, weight, bias = normal((rows, width), seed), normal((dim, width), seed + 1), normal((dim,), seed + 2)
    y = equations.project(x, weight, bias)
    truth = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    assert y.shape == (rows, dim) and np.abs(y - truth).max() <= PROJECTION_TOLERANCE
    assert same_bits(y, np.concatenate([equations.project(x[i : i + 1], weight, bias) for i in range(rows)]))


# -- whole layers --------------------------------------------------------------------------------------------------


def test_the_layers_of_bert_and_gpt2_are_their_formulas(tmp_path: Path) -> None:
    random, t = np.random.default_rng(0), tensors(BERT)
    ids, types = (random.integers(0, rows, (40, 16)) for rows in (BERT["vocab_size"], 2))
    names = (*(f"{name}_embeddings.weight" for name in ("word", "token_type", "position")), *NORM)
    by_hand = equations.bert_input(ids, types, *(t[f"embeddings.{name}"] for name in names))
    found = minibert.load(write(tmp_path / "bert"))(ids, token_type_ids=types)
    assert np.abs(found - by_hand).max() <= SAME_NORM * condition(by_hand).max()
    layer, t = minibert.load(write(tmp_path / "gpt2", GPT2)), tensors(GPT2)
    assert same_bits(layer(ids), equations.gpt2_input(ids, t["wte.weight"], t["wpe.weight"]))


def test_the_two_whole_layers_stand_before_what_other_families_do() -> None:
    """A reader meets all that BERT and GPT-2 need, and nothing else, above `gpt2_input`."""
    found = re.findall(r"^def ([a-z]\w+)", inspect.getsource(equations), re.MULTILINE)[:5]
    assert " ".join(found) == "lookup default_position_ids layer_norm bert_input gpt2_input"
