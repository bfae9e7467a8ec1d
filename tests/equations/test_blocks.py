"""The formulas after the input layer: against the standard library, by identities, and as a whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import seeded
from drawn import normal
from encoder_files import off

from minibert.equations import activations, blocks, fast
from minibert.equations.activations import erf, gelu, gelu_tanh, relu, silu
from minibert.equations.blocks import Affine, Block, additive_mask, attention, attention_scores, linear, softmax
from minibert.equations.heads import tied_logits
from minibert.equations.input_layer import Array, bert_input, gpt2_input, layer_norm
from minibert.equations.whole_models import BertWeights, Gpt2Weights, bert_model, gpt2_model
from minibert.threads.kernels import kernel

FAST_GELU = 2e-7  # times max(1, |y|); measured 1.33e-7
TAIL = {-4.0: 0.002, -7.0: 0.03}  # where y is small, as a share of it; measured 0.00035 and 0.011
ACTIVATION = 1e-6  # times max(1, |x|); measured 1.3e-7
FLOAT64 = 1e-14  # the same in float64; measured 8.9e-16
FAST = 2e-6  # between fast's and the textbook's, relative to max(1, |y|); measured 3.6e-7
COLUMNS = 16  # rows
SUM = 1e-6  # of a row after softmax; measured 2.4e-7
ROOT = math.sqrt(2 / math.pi)
SWEEP = np.linspace(-8, 8, 100_001).astype(np.float32)


def exact(function: Any, x: Array) -> Array:
    return np.array([function(float(number)) for number in x])


def test_fast_gelu() -> None:
    found, want = fast.gelu(SWEEP), exact(lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, SWEEP)
    assert found.dtype == np.float32
    assert (np.abs(found - want) / np.maximum(1, np.abs(want))).max() <= FAST_GELU
    for place, share in TAIL.items():
        (there,) = np.flatnonzero(place == SWEEP)
        assert abs(found[there] / want[there] - 1) <= share
    x = np.array([-1e38, -20, 0, -0.0, 20, 1e38, np.inf, np.nan], np.float32)
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(fast.gelu(x), np.maximum(x, 0), atol=1e-17)
        assert abs(fast.gelu(np.float32([-np.inf]))[0]) <= 1e-17
    assert fast.gelu(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_erf_is_the_standard_library_s() -> None:
    x = np.linspace(-5, 5, 101)
    np.testing.assert_array_equal(erf(x), exact(math.erf, x), strict=True)
    assert erf(x.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("function", "formula", "ends"),
    [
        (gelu, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2, [0, 0, 200, 1e4]),
        (gelu_tanh, lambda x: x * (1 + math.tanh(ROOT * (x + 0.044715 * x**3))) / 2, [0, 0, 200, 1e4]),
        (silu, lambda x: x / (1 + math.exp(-x)), [0, 0, 200, 1e4]),
        (activations.quick_gelu, lambda x: x / (1 + math.exp(-1.702 * x)), [0, 0, 200, 1e4]),
        (relu, lambda x: max(x, 0), [0, 0, 200, 1e4]),
        (activations.tanh, math.tanh, [-1, -1, 1, 1]),
        (activations.sigmoid, lambda x: 1 / (1 + math.exp(-x)), [0, 0, 1, 1]),
        (activations.leaky_relu, lambda x: x if x > 0 else x / 100, [-100, -2, 200, 1e4]),
        (activations.relu6, lambda x: min(max(x, 0), 6), [0, 0, 6, 6]),
        (activations.identity, lambda x: x, [-1e4, -200, 200, 1e4]),
    ],
)
def test_activations(function: Any, formula: Any, ends: list[float]) -> None:
    found = function(SWEEP)
    off_by = np.abs(found - exact(formula, SWEEP)) / np.maximum(1, np.abs(SWEEP))
    assert found.dtype == np.float32 and off_by.max() <= ACTIVATION
    some = SWEEP[::100].astype(np.float64)
    assert np.abs(function(some) - exact(formula, some)).max() <= FLOAT64
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(function(np.array([-1e4, -200, 200, 1e4], np.float32)), ends, atol=1e-30)


def numbers(*shape: int, salt: int = 0) -> Array:
    return 20 * seeded.values(shape, salt=salt)


# -- what is there for speed is the textbook's -------------------------------------------------------------------


@pytest.mark.parametrize("keys", [1, 2, 3, 7, 8, 25, 255, 256, 257])
def test_each_row_s_largest_number_is_subtracted_in_either_order_of_memory(keys: int) -> None:
    x = numbers(2, 3, 5, keys)
    for rows in (x, np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)):
        want = np.exp(rows - rows.max(axis=-1, keepdims=True))
        np.testing.assert_array_equal(fast.softmax(rows), want / np.matmul(want, np.ones((keys, 1), np.float32)))


def test_everything_fast_is_compared() -> None:
    made = {name for name, value in vars(fast).items() if getattr(value, "__module__", "") == fast.__name__}
    own = {"linear", "steady_linear", "softmax", "gelu", "activated", "attention_scores", "faster"}
    assert made == {*own, "by_distance", "check_ids", "layer_norm", "_ones", "Panels", "cut_of_blas"}
    assert fast.faster(gelu) is fast.gelu and fast.faster(relu) is relu


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (4, 4), (2, 5), (5, 2)])
def test_numbers_of_distances_for_all_pairs(rows: int, keys: int) -> None:
    of_each = numbers(3, rows, rows + keys - 1)
    found = fast.by_distance(of_each, keys)
    assert found.shape == (3, rows, keys) and np.shares_memory(found, of_each)
    for i, j in np.ndindex(rows, keys):
        assert np.array_equal(found[:, i, j], of_each[:, i, j - i + rows - 1])


@pytest.mark.parametrize("rows", [0, 1, 2, COLUMNS, COLUMNS + 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fast_linear(rows: int, dtype: str) -> None:
    x, weight, bias = (part.astype(dtype) for part in (numbers(rows, 7), numbers(9, 7, salt=1), numbers(9, salt=2)))
    out = np.empty((rows, 9), dtype)
    for y in (
        fast.linear(x, weight, bias), fast.linear(x[None], weight, bias)[0], fast.linear(x, weight) + bias,
        fast.linear(x, weight, bias, out), fast.linear(x, np.ascontiguousarray(weight.T).T, bias),
        fast.linear(x, weight, bias, np.empty_like(out), COLUMNS), fast.linear(x, weight, columns=COLUMNS) + bias,
        fast.steady_linear(x, weight, bias, 12), fast.steady_linear(x, weight, None, 1, COLUMNS) + bias,
    ):  # fmt: skip
        assert y.dtype == dtype and off(y, linear(x, weight, bias)) <= FAST
    assert np.shares_memory(fast.linear(x, weight, bias, out, COLUMNS), out) or not rows
    assert fast.linear(x, weight, columns=COLUMNS).flags.f_contiguous or rows > COLUMNS


@pytest.mark.parametrize("width", [1, 7, 448, 449, 896, 1536])
def test_panels(width: int) -> None:
    weight, bias = numbers(192, width, salt=1), numbers(192, salt=2)
    laid = [fast.Panels.of(weight, np.empty(weight.size, "f4")), fast.Panels.of(np.asfortranarray(weight))]
    for rows in (2, 3, fast.FEW, fast.FEW + 1, 3 * fast.FEW + 4):
        x, out = numbers(rows, width), np.empty((rows, 192), np.float32)
        want = linear(x.astype(np.float64), weight.astype(np.float64), bias.astype(np.float64))
        for panels in laid:
            assert panels.linear(x, bias, out) is out and off(out, want) <= 1e-6 * max(1.0, float(np.abs(want).max()))
            part, part_out = panels.part(slice(64, 192)), np.empty((rows, 128), "f4")
            assert part is not None and np.array_equal(part.linear(x, bias[64:], part_out), out[:, 64:])
    assert laid[0].part(slice(0, 96)) is None
    view = np.ascontiguousarray(weight.T).T
    assert np.shares_memory(fast.Panels.of(view).pieces[0][1], view)


@pytest.mark.skipif(not kernel().small, reason=f"{kernel().name} packs small matrices")
@pytest.mark.parametrize("width", [384, 512, 700, 701, 1536, 1801, 3072])
def test_panels_have_the_bits_of_the_usual_product(width: int) -> None:
    """Another version of OpenBLAS may cut otherwise: then `cut_of_blas` is 0, and nothing has panels."""
    x, weight = np.sin(numbers(40, width) * 7), np.sin(numbers(192, width, salt=1) * 7)
    out = np.empty((40, 192), np.float32)
    for panels in (fast.Panels.of(weight, np.empty(weight.size, "f4")), fast.Panels.of(np.asfortranarray(weight))):
        assert fast.cut_of_blas() and np.array_equal(panels.linear(x, None, out), x @ weight.T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fast_softmax_scores_and_gelu(dtype: str) -> None:
    x, q, k = (part.astype(dtype) for part in (numbers(3, 5, 33), numbers(3, 5, 4), numbers(3, 7, 4, salt=1)))
    bias = numbers(5, 7, salt=2).astype(dtype)
    for given in (x, x.swapaxes(0, 2)):
        assert off(fast.softmax(given), softmax(given)) <= FAST
        assert fast.softmax(given).dtype == dtype
    for added in (None, bias):
        scores = fast.attention_scores(q, k, 0.3, added)
        assert scores.dtype == dtype and off(scores, attention_scores(q, k, 0.3, added)) <= FAST
    assert fast.gelu(x).dtype == dtype and off(fast.gelu(x), gelu(x)) <= FAST
    want = softmax(x)
    assert (want > 0).all() and np.abs(want.sum(axis=-1) - 1).max() <= SUM
    np.testing.assert_allclose(want[..., 1:], want[..., :1] * np.exp(x[..., 1:] - x[..., :1]), rtol=1e-5)
    np.testing.assert_array_equal(softmax(np.full((1, 2), 3e38, dtype)), 0.5)
    assert fast.softmax(x, out=x) is x
    assert off(x, want) <= FAST


@pytest.mark.parametrize("rows", [0, 7, fast.PIECE // 4, fast.PIECE // 4 + 1])
def test_an_activation_piece_by_piece(rows: int) -> None:
    for x in (numbers(rows, 4), numbers(4, rows).T):
        want = gelu(x)
        assert fast.activated(gelu, x) is x and np.array_equal(x, want)


@pytest.mark.parametrize("window", [None, 0, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_who_sees_whom_by_a_loop(causal: bool, window: int | None) -> None:
    for (i, key), seen in np.ndenumerate(blocks.visible(np.arange(3, 7), np.arange(9), causal, window)):
        query = i + 3
        assert seen == ((key <= query or not causal) and (window is None or abs(query - key) <= window))


def test_a_masked_key_has_no_share() -> None:
    """As if it were not there, to the last bit of the result's tolerance, whatever stands in it."""
    q, k, v = (numbers(2, 5, 4, salt=salt) for salt in range(3))
    keep = np.array([True, False, True, True, False])
    few = attention(q, k[:, keep], v[:, keep])
    k[:, ~keep], v[:, ~keep] = 100, 1e6
    assert off(attention(q, k, v, mask=additive_mask(keep)), few) <= 1e-6
    assert np.isfinite(attention(q, k, v, mask=additive_mask(np.zeros(5, bool)))).all()


# -- blocks and models, of smaller formulas ----------------------------------------------------------------------

EPS = 0.7


def drawn_block(seed: int) -> Block:
    shapes = [*[(6, 6)] * 4, (6,), (5, 6), (6, 5), (6,)]
    drawn = [(normal(*shape, seed=seed + i), normal(shape[0], seed=seed + i + 50)) for i, shape in enumerate(shapes)]
    return Block(*(Affine(*part) for part in drawn))


def test_blocks_and_models_pass_each_argument_on() -> None:
    """No argument at its default; beside the reference, with those that it has: below."""
    x, one, two, last = normal(2, 4, 6), drawn_block(1), drawn_block(20), drawn_block(40).norm_1
    mask, bias = np.array([[1, 1, 1, 0], [1, 0, 1, 1]]), normal(2, 4, 4)
    keep = mask[:, None, None, :] != 0
    hidden, later = (additive_mask(each, "float64") for each in (keep, keep & np.tri(4, dtype=bool)))

    def post(x: Array, part: Block, f: Any, bias: Array | None = None) -> Array:
        x = layer_norm(x + blocks.self_attention(x, part, 2, hidden, bias), *part.norm_1, EPS)
        return layer_norm(x + blocks.feed_forward(x, part.up, part.down, f), *part.norm_2, EPS)

    def pre(x: Array, part: Block, f: Any) -> Array:
        x = x + blocks.self_attention(layer_norm(x, *part.norm_1, EPS), part, 2, later)
        return x + blocks.feed_forward(layer_norm(x, *part.norm_2, EPS), part.up, part.down, f)

    same = np.testing.assert_array_equal
    same(blocks.post_norm_block(x, one, 2, EPS, silu, hidden, bias), post(x, one, silu, bias))
    same(blocks.pre_norm_block(x, one, 2, EPS, silu, later), pre(x, one, silu))
    same(blocks.bert_encoder(x, mask, [one, two], 2, EPS), post(post(x, one, gelu), two, gelu))
    both = pre(pre(x, one, gelu_tanh), two, gelu_tanh)
    same(blocks.gpt2_blocks(x, mask, [one, two], last, 2, EPS), layer_norm(both, *last, EPS))

    ids, types, tables = np.array([[3, 0, 6, 3], [1, 5, 5, 2]]), mask, (normal(7, 6), normal(2, 6), normal(5, 6))
    weights = BertWeights(*tables, last, [one], one.query, two.norm_1, normal(7))
    y = post(bert_input(ids, types, *tables, *last, EPS), one, gelu)
    y = layer_norm(gelu(linear(y, *one.query)), *two.norm_1, EPS)
    same(bert_model(ids, types, mask, weights, 2, EPS), tied_logits(y, tables[0], weights.bias))
    y = layer_norm(pre(gpt2_input(ids, tables[0], tables[2]), one, gelu_tanh), *last, EPS)
    found = gpt2_model(ids, mask, Gpt2Weights(tables[0], tables[2], [one], last), 2, EPS)
    same(found, tied_logits(y, tables[0]))
