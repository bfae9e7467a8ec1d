"""The blocks and whole models of the textbook against the same formulas as loops, no argument at its default."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from minibert.equations.activations import gelu, gelu_tanh, silu
from minibert.equations.blocks import (
    Affine,
    Block,
    additive_mask,
    bert_encoder,
    gpt2_blocks,
    post_norm_block,
    pre_norm_block,
)
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import BertWeights, Gpt2Weights, bert_model, gpt2_model

Row = list[float]

SAME = 1e-12  # both in float64, numbers up to 20; measured 1.1e-14
DIM, HEADS, WIDTH, SEQ, EPS = 6, 2, 5, 4, 0.7


def numbers(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def affine(out: int, dim: int, seed: int) -> Affine:
    return Affine(numbers(out, dim, seed=seed), numbers(out, seed=seed + 100))


def norm(seed: int) -> Affine:
    return Affine(1 + numbers(DIM, seed=seed) / 4, numbers(DIM, seed=seed + 100))


def block(seed: int) -> Block:
    square = [affine(DIM, DIM, seed + i) for i in range(4)]
    up, down = affine(WIDTH, DIM, seed + 4), affine(DIM, WIDTH, seed + 5)
    return Block(*square, norm(seed + 6), up, down, norm(seed + 7))


def mapped(rows: list[Row], part: Affine) -> list[Row]:
    weight, bias = part.weight.tolist(), part.bias.tolist()
    return [[b + sum(w * n for w, n in zip(ws, row, strict=True)) for ws, b in zip(weight, bias, strict=True)]
            for row in rows]  # fmt: skip


def normed(rows: list[Row], part: Affine, eps: float) -> list[Row]:
    made = []
    for row in rows:
        mean = sum(row) / len(row)
        root = math.sqrt(sum((n - mean) ** 2 for n in row) / len(row) + eps)
        made.append([(n - mean) / root * w + b for n, w, b in zip(row, *map(np.ndarray.tolist, part), strict=True)])
    return made


def summed(a: list[Row], b: list[Row]) -> list[Row]:
    return [[m + n for m, n in zip(x, y, strict=True)] for x, y in zip(a, b, strict=True)]


def attended(rows: list[Row], part: Block, keep: Array, bias: Array, memory: list[Row] | None = None) -> list[Row]:
    q, k, v = (mapped(each, own) for each, own in zip((rows, memory or rows, memory or rows), part[:3], strict=True))
    size = DIM // HEADS
    context = [[0.0] * DIM for _ in rows]
    for head in range(HEADS):
        own = range(head * size, (head + 1) * size)
        for i, query in enumerate(q):
            powers = [
                math.exp(sum(query[d] * key[d] for d in own) / math.sqrt(size) + bias[head, i, j]) * keep[i, j]
                for j, key in enumerate(k)
            ]
            for d in own:
                context[i][d] = sum(p * value[d] for p, value in zip(powers, v, strict=True)) / sum(powers)
    return mapped(context, part.output)


def fed(rows: list[Row], part: Block, f: Callable[[float], float]) -> list[Row]:
    return mapped([[f(n) for n in row] for row in mapped(rows, part.up)], part.down)


def post(rows: list[Row], part: Block, f: Callable[[float], float], keep: Array, bias: Array) -> list[Row]:
    rows = normed(summed(rows, attended(rows, part, keep, bias)), part.norm_1, EPS)
    return normed(summed(rows, fed(rows, part, f)), part.norm_2, EPS)


def pre(rows: list[Row], part: Block, f: Callable[[float], float], keep: Array) -> list[Row]:
    rows = summed(rows, attended(normed(rows, part.norm_1, EPS), part, keep, NO_BIAS))
    return summed(rows, fed(normed(rows, part.norm_2, EPS), part, f))


NO_BIAS = np.zeros((HEADS, SEQ, SEQ))
FORMULAS = {
    silu: lambda x: x / (1 + math.exp(-x)),
    gelu: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    gelu_tanh: lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


@pytest.fixture
def x() -> Array:
    return numbers(2, SEQ, DIM, seed=9) * 2


def test_post_norm_block(x: Array) -> None:
    keep, bias = np.array([[1, 1, 0, 1]] * SEQ), numbers(HEADS, SEQ, SEQ, seed=7)
    found = post_norm_block(x, block(1), HEADS, EPS, silu, additive_mask(keep != 0, "float64"), bias)
    want = np.array([post(text.tolist(), block(1), FORMULAS[silu], keep, bias) for text in x])
    np.testing.assert_allclose(found, want, rtol=0, atol=SAME)


def test_pre_norm_block(x: Array) -> None:
    keep = np.tri(SEQ)
    found = pre_norm_block(x, block(1), HEADS, EPS, silu, additive_mask(keep != 0, "float64"))
    want = np.array([pre(text.tolist(), block(1), FORMULAS[silu], keep) for text in x])
    np.testing.assert_allclose(found, want, rtol=0, atol=SAME)


def test_bert_encoder(x: Array) -> None:
    mask = np.array([[1, 1, 1, 0], [0, 1, 1, 1]])
    found = bert_encoder(x, mask, [block(1), block(20)], HEADS, EPS)
    for text, keep, y in zip(x, mask, found, strict=True):
        rows = text.tolist()
        for part in (block(1), block(20)):
            rows = post(rows, part, FORMULAS[gelu], np.tile(keep, (SEQ, 1)), NO_BIAS)
        np.testing.assert_allclose(y, rows, rtol=0, atol=SAME)


def test_gpt2_blocks(x: Array) -> None:
    mask = np.array([[1, 1, 1, 0], [1, 0, 1, 1]])
    found = gpt2_blocks(x, mask, [block(1), block(20)], norm(50), HEADS, EPS)
    for text, keep, y in zip(x, mask, found, strict=True):
        rows = text.tolist()
        for part in (block(1), block(20)):
            rows = pre(rows, part, FORMULAS[gelu_tanh], np.tri(SEQ) * keep)
        np.testing.assert_allclose(y, normed(rows, norm(50), EPS), rtol=0, atol=SAME)


# -- whole models ------------------------------------------------------------------------------------------------

IDS, TYPES = np.array([[3, 0, 6, 3], [1, 5, 5, 2]]), np.array([[0, 0, 1, 1], [1, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 1]])
WORD, PLACE, KIND = numbers(7, DIM, seed=70), numbers(SEQ + 2, DIM, seed=71), numbers(2, DIM, seed=72)


def against_all_words(rows: list[Row], bias: Row) -> list[Row]:
    words = WORD.tolist()
    return [[sum(a * b for a, b in zip(row, w, strict=True)) + n for w, n in zip(words, bias, strict=True)]
            for row in rows]  # fmt: skip


def test_bert_model() -> None:
    transform, bias, parts = affine(DIM, DIM, 80), numbers(7, seed=81), [block(1), block(20)]
    weights = BertWeights(WORD, KIND, PLACE, norm(50), parts, transform, norm(60), bias)
    found = bert_model(IDS, TYPES, MASK, weights, HEADS, EPS)
    for ids, types, keep, y in zip(IDS, TYPES, MASK, found, strict=True):
        rows = [(WORD[i] + KIND[t] + PLACE[p]).tolist() for p, (i, t) in enumerate(zip(ids, types, strict=True))]
        rows = normed(rows, norm(50), EPS)
        for part in parts:
            rows = post(rows, part, FORMULAS[gelu], np.tile(keep, (SEQ, 1)), NO_BIAS)
        rows = normed([[FORMULAS[gelu](n) for n in row] for row in mapped(rows, transform)], norm(60), EPS)
        np.testing.assert_allclose(y, against_all_words(rows, bias.tolist()), rtol=0, atol=SAME)


def test_gpt2_model() -> None:
    weights = Gpt2Weights(WORD, PLACE, [block(1), block(20)], norm(50))
    found = gpt2_model(IDS, MASK, weights, HEADS, EPS)
    for ids, keep, y in zip(IDS, MASK, found, strict=True):
        rows = [(WORD[i] + PLACE[p]).tolist() for p, i in enumerate(ids)]
        for part in weights.blocks:
            rows = pre(rows, part, FORMULAS[gelu_tanh], np.tri(SEQ) * keep)
        rows = normed(rows, norm(50), EPS)
        np.testing.assert_allclose(y, against_all_words(rows, [0.0] * 7), rtol=0, atol=SAME)
