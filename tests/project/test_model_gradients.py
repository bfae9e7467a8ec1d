"""A whole GPT-2 backward against finite differences, the two gradients of its table, and Adam by hand."""

from __future__ import annotations

from typing import Any

import block_gradients
import model_gradients
import numpy as np
from block_gradients import cross_entropy_gradient
from drawn import normal

from minibert.equations.activations import gelu_tanh
from minibert.equations.blocks import (
    Affine,
    Block,
    additive_mask,
    feed_forward,
    gpt2_blocks,
    linear,
    pre_norm_block,
    self_attention,
)
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import Gpt2Weights, gpt2_model

# central differences with step 1e-5 in float64, in directions of length 1: measured at most 7.7e-10
STEP = 1e-5
DIFFERENCE_TOLERANCE = 1e-8
# what is equal but for rounding, in float64: measured at most 2.3e-16
IDENTITY_TOLERANCE = 1e-14

BATCH, SEQ, DIM, HEADS, VOCAB, POSITIONS = 2, 5, 8, 2, 7, 6
EPS = 0.3  # not the default, and as large as a variance: a part that is not handed it is seen


def affine(*shape: int, seed: int) -> Affine:
    return Affine(normal(*shape, seed=seed) / shape[-1] ** 0.5, normal(shape[0], seed=seed + 100))


def norm(seed: int) -> Affine:
    return Affine(1 + normal(DIM, seed=seed) / 4, normal(DIM, seed=seed + 100) / 4)


def block(seed: int) -> Block:
    square = [affine(DIM, DIM, seed=seed + i) for i in range(4)]
    up, down = affine(4 * DIM, DIM, seed=seed + 4), affine(DIM, 4 * DIM, seed=seed + 5)
    return Block(*square, norm(seed + 6), up, down, norm(seed + 7))


def weights() -> Gpt2Weights:
    return Gpt2Weights(normal(VOCAB, DIM), normal(POSITIONS, DIM), [block(10), block(20)], norm(30))


def arrays(nested: Any) -> list[Array]:
    """All arrays of nested tuples and lists, in order."""
    return [nested] if isinstance(nested, np.ndarray) else [array for each in nested for array in arrays(each)]


def moved(nested: Any, directions: list[Array], by: float) -> Any:
    """The same tuples, each array moved in its direction; `directions` is used up."""
    if isinstance(nested, np.ndarray):
        return nested + by * directions.pop(0)
    made = [moved(each, directions, by) for each in nested]
    return type(nested)(*made) if isinstance(nested, tuple) else made


def agree(formula: Any, inputs: Any, gradient: Any) -> None:
    """Each array's gradient against the loss's difference, in several directions of that array alone."""
    assert [g.shape for g in arrays(gradient)] == [a.shape for a in arrays(inputs)]
    for place, (array, g) in enumerate(zip(arrays(inputs), arrays(gradient), strict=True)):
        along = []
        for seed in range(8):
            direction = normal(*array.shape, seed=1000 + seed)
            direction /= np.linalg.norm(direction)
            still = [np.zeros_like(each) for each in arrays(inputs)]
            still[place] = direction
            more, less = (formula(moved(inputs, list(still), by)) for by in (STEP, -STEP))
            along.append((more - less) / (2 * STEP))
            assert abs(np.sum(g * direction) - along[-1]) <= DIFFERENCE_TOLERANCE, place
        assert max(map(abs, along)) > 1e-3 or np.abs(g).max() < 1e-12, "nothing changes in these directions"


def test_parts_of_a_block_are_the_finite_differences() -> None:
    x, grad, one = normal(BATCH, SEQ, DIM), normal(BATCH, SEQ, DIM, seed=4), block(10)
    mask = additive_mask(np.tri(SEQ, dtype=bool), "float64")

    def look(inputs: Any) -> float:
        x, *maps = inputs
        own = one._replace(**dict(zip(("query", "key", "value", "output"), maps, strict=True)))
        return float(np.sum(grad * self_attention(x, own, HEADS, mask)))

    g = block_gradients.self_attention_gradient(grad, x, one, HEADS, mask)
    agree(look, [x, one.query, one.key, one.value, one.output], g)
    work = block_gradients.feed_forward_gradient(grad, x, one.up, one.down)
    agree(lambda i: float(np.sum(grad * feed_forward(*i, gelu_tanh))), [x, one.up, one.down], work)
    whole = block_gradients.pre_norm_block_gradient(grad, x, one, HEADS, EPS, mask)
    agree(lambda i: float(np.sum(grad * pre_norm_block(*i, HEADS, EPS, mask=mask))), [x, one], whole)


def loss(model: Gpt2Weights, input_ids: Array, targets: Array) -> float:
    return float(np.mean(cross_entropy(gpt2_model(input_ids, np.ones_like(input_ids), model, HEADS, EPS), targets)))


def batch() -> tuple[Array, Array]:
    drawn = np.random.default_rng(5).integers(0, VOCAB - 1, (BATCH, SEQ + 1))  # the last word does not occur
    return drawn[:, :-1], drawn[:, 1:]


def loss_gradient(model: Gpt2Weights, input_ids: Array, targets: Array) -> Gpt2Weights:
    logits = gpt2_model(input_ids, np.ones_like(input_ids), model, HEADS, EPS)
    grad = cross_entropy_gradient(np.full(targets.shape, 1 / targets.size), logits, targets)
    return model_gradients.gpt2_model_gradient(grad, input_ids, model, HEADS, EPS)


def test_the_whole_model_is_the_finite_difference() -> None:
    model, (input_ids, targets) = weights(), batch()
    agree(lambda m: loss(m, input_ids, targets), model, loss_gradient(model, input_ids, targets))


def test_the_tied_table_gets_the_gradient_of_both_its_uses() -> None:
    """With a table of its own at each end, the two gradients are those whose sum the one table gets."""
    model, (input_ids, targets) = weights(), batch()
    together = loss_gradient(model, input_ids, targets).wte

    def untied(tables: list[Array]) -> float:
        rows, columns = tables
        x = rows[input_ids] + model.wpe[:SEQ]
        x = gpt2_blocks(x, np.ones_like(input_ids), model.blocks, model.last_norm, HEADS, EPS)
        return float(np.mean(cross_entropy(linear(x, columns), targets)))

    for row in range(VOCAB):
        direction = np.zeros_like(model.wte)
        direction[row] = normal(DIM, seed=row)
        ends = [[model.wte + by * direction * (end == 0), model.wte + by * direction * (end == 1)]
                for end in (0, 1) for by in (STEP, -STEP)]  # fmt: skip
        entrance, exit_ = ((untied(ends[i]) - untied(ends[i + 1])) / (2 * STEP) for i in (0, 2))
        assert abs(np.sum(together * direction) - (entrance + exit_)) <= DIFFERENCE_TOLERANCE * DIM
        assert abs(exit_) > 1e-4, "the output compares with every row"
        assert (abs(entrance) > 1e-4) == (row in input_ids), "the lookup reaches the rows it took"


def test_padding_at_the_end_changes_no_gradient() -> None:
    """Longer rows whose further places have grad 0 give the same gradients, but for the sums' rounding."""
    model, (input_ids, targets) = weights(), batch()
    wider = np.pad(input_ids, ((0, 0), (0, 1)), constant_values=3)
    logits = gpt2_model(wider, np.ones_like(wider), model, HEADS, EPS)
    share = np.full(wider.shape, 1 / targets.size)
    share[:, SEQ:] = 0
    grad = cross_entropy_gradient(share, logits, np.pad(targets, ((0, 0), (0, 1))))
    padded = model_gradients.gpt2_model_gradient(grad, wider, model, HEADS, EPS)
    for a, b in zip(arrays(padded), arrays(loss_gradient(model, input_ids, targets)), strict=True):
        assert np.abs(a - b).max() <= IDENTITY_TOLERANCE * 100
    assert not np.any(padded.wpe[SEQ:])


def test_adam_by_hand_over_three_steps() -> None:
    """Two numbers, gradients that change: the averages weighted as the paper's closed form says."""
    gradients = [np.array([1.0, -2.0]), np.array([3.0, 2.0]), np.array([-1.0, 4.0])]
    weight, mean, square = np.array([10.0, 20.0]), np.zeros(2), np.zeros(2)
    expected = weight.copy()
    for step, grad in enumerate(gradients, 1):
        weight, mean, square = model_gradients.adam(
            weight, grad, mean, square, step, 0.1, beta_1=0.5, beta_2=0.75, eps=1e-3
        )
        one, two = (np.array([beta ** (step - i) for i in range(1, step + 1)]) for beta in (0.5, 0.75))
        so_far = np.array(gradients[:step])
        expected -= 0.1 * (one @ so_far / one.sum()) / (np.sqrt(two @ so_far**2 / two.sum()) + 1e-3)
        assert np.abs(weight - expected).max() <= IDENTITY_TOLERANCE * 20


def test_adam_keeps_float32_and_what_it_was_given() -> None:
    weight, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    after = model_gradients.adam(weight, weight, zeros, zeros, 1, 0.1)
    assert {array.dtype.name for array in after} == {"float32"}
    assert np.all(weight == 1) and not np.any(zeros)


def test_adamw_pulls_each_weight_by_its_own_share() -> None:
    weight, grad, none = np.array([4.0, -2.0]), np.array([1.0, 3.0]), np.zeros(2)
    plain, pulled = (f(weight, grad, none, none, 1, 0.1) for f in (model_gradients.adam, model_gradients.adamw))
    np.testing.assert_allclose(pulled.weight - plain.weight, -0.1 * 0.01 * weight, rtol=1e-12)
    assert np.array_equal(pulled.square, plain.square), "the pull is no part of the gradient"


def test_clipped_gradients_keep_their_direction_and_have_one_length_together() -> None:
    gradients = [normal(3, 4), normal(5).astype(np.float32)]
    flat = np.concatenate([g.ravel() for g in gradients])
    for longest in (0.5, 100.0):
        clipped = model_gradients.clipped_gradients(gradients, longest)
        assert [g.dtype for g in clipped] == [g.dtype for g in gradients]
        factor = min(1, longest / np.linalg.norm(flat))
        np.testing.assert_allclose(np.concatenate([g.ravel() for g in clipped]), factor * flat, rtol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    x, random = np.full(100_000, 3.0, np.float32), np.random.default_rng(0)
    y = model_gradients.dropout(x, random.random(x.shape) >= 0.2, 0.2)
    assert y.dtype == np.float32 and set(np.unique(y)) == {np.float32(0), np.float32(3) / np.float32(0.8)}
    assert abs(y.mean() - 3) < 0.05
