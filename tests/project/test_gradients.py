"""Backward formulas and a whole GPT-2 backward against finite differences in float64, and Adam by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import block_gradients
import gradients
import model_gradients
import numpy as np
from block_gradients import cross_entropy_gradient
from drawn import normal

from minibert import equations
from minibert.equations.blocks import Affine, Block
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import Gpt2Weights, gpt2_model

# central differences with step 1e-5 in float64: measured at most 1.8e-9 over the cases below
STEP = 1e-5
DIFFERENCE_TOLERANCE = 1e-8
# identities that hold exactly, computed in float64: measured at most 1.2e-15
IDENTITY_TOLERANCE = 1e-14

RNG_SEED = 3
BATCH, SEQ, DIM, VOCAB, POSITIONS = 3, 4, 6, 7, 9


def ids(rows: int, *shape: int) -> Array:
    return np.random.default_rng((RNG_SEED, rows)).integers(0, rows, shape)


def test_gradients_of_gelu_are_the_finite_differences() -> None:
    """From -6 to 6, so that both tails and the bend count."""
    x, grad = np.linspace(-6, 6, 49).reshape(7, 7), 1 + normal(7, 7) ** 2
    for name in ("gelu", "gelu_tanh"):
        formula, backward = getattr(equations, name), getattr(block_gradients, f"{name}_gradient")
        agree_along(lambda i, formula=formula: float(np.sum(grad * formula(i[0]))), [x], [backward(grad, x)])


def test_backward_formulas_keep_float32() -> None:
    found = arrays(loss_gradient(changed(weights(), lambda x: x.astype(np.float32)), *batch()))
    x = normal(SEQ, DIM).astype(np.float32)
    found.append(block_gradients.gelu_gradient(x, x))
    arguments = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in bert_arguments().items()}
    found += gradients.bert_input_gradient(normal(BATCH, SEQ, DIM).astype(np.float32), **arguments)
    assert {g.dtype.name for g in found} == {"float32"}


def bert_arguments() -> dict[str, Array]:
    rows = {"word": normal(VOCAB, DIM), "token_type": normal(2, DIM), "position": normal(POSITIONS, DIM)}
    given = {"input_ids": ids(VOCAB, BATCH, SEQ), "token_type_ids": ids(2, BATCH, SEQ)}
    return {**given, **rows, "weight": normal(DIM, seed=5)}


def test_gradients_of_input_layers_are_the_finite_differences() -> None:
    grad, input_ids, types = normal(BATCH, SEQ, DIM, seed=4), ids(VOCAB, BATCH, SEQ), ids(2, BATCH, SEQ)
    g = gradients.bert_input_gradient(grad, **bert_arguments(), eps=EPS)
    inputs = [x for x in bert_arguments().values() if x.dtype.kind == "f"] + [normal(DIM, seed=6)]
    agree_along(lambda i: float(np.sum(grad * equations.bert_input(input_ids, types, *i, eps=EPS))), inputs, g)
    tables = [normal(VOCAB, DIM), normal(POSITIONS, DIM)]
    two = gradients.gpt2_input_gradient(grad, input_ids, *tables)
    agree_along(lambda i: float(np.sum(grad * equations.gpt2_input(input_ids, *i))), tables, two)


def test_padding_row_gets_no_gradient_and_the_others_keep_theirs() -> None:
    arguments, grad = bert_arguments(), normal(BATCH, SEQ, DIM)
    padding = int(arguments["input_ids"][0, 0])  # a row that does occur
    free = gradients.bert_input_gradient(grad, **arguments)
    padded = gradients.bert_input_gradient(grad, **arguments, padding_idx=padding)
    others = np.arange(VOCAB) != padding
    assert np.any(free.word[padding])
    assert not np.any(padded.word[padding])
    assert np.array_equal(padded.word[others], free.word[others])
    # only the word table has a padding row: what stands at a padded place still moves types and positions
    for name in ("token_type", "position", "weight", "bias"):
        assert np.array_equal(getattr(padded, name), getattr(free, name))
    grad, rows = normal(5, DIM), np.array([0, 1, 2, 2, 0])
    from_end = gradients.lookup_gradient(grad, rows, 3, padding_idx=-1)
    assert np.array_equal(from_end, gradients.lookup_gradient(grad, rows, 3, padding_idx=2))
    assert not np.any(from_end[2]) and np.all(from_end[:2])


def test_each_word_approaches_at_the_rate_the_docstring_states() -> None:
    """One that does not occur has rate 0, and stays."""
    input_ids, wpe = np.array([[2, 2, 2, 5]]), normal(POSITIONS, DIM)
    hidden, start = normal(VOCAB, DIM, seed=8), normal(VOCAB, DIM, seed=9)
    before, target = start.copy(), equations.gpt2_input(input_ids, hidden, wpe)
    learned, losses = gradients.learn_word_table(target, input_ids, start, wpe, steps=10)
    left = (1 - np.bincount(input_ids[0], minlength=VOCAB)[:, None] / 4) ** 10
    assert np.abs(learned - hidden - (before - hidden) * left).max() <= IDENTITY_TOLERANCE
    assert len(losses) == 10 and np.all(np.diff(losses) < 0)
    assert np.array_equal(start, before), "the table passed in must stay as it is"


HEADS = 2
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


def changed(nested: Any, change: Callable[[Array], Array]) -> Any:
    """The same tuples and lists, each array changed, in order."""
    if isinstance(nested, np.ndarray):
        return change(nested)
    made = [changed(each, change) for each in nested]
    return type(nested)(*made) if isinstance(nested, tuple) else made


def agree_along(formula: Any, inputs: Any, gradient: Any) -> None:
    """Each array's gradient against the loss's difference, in several directions of that array alone."""
    assert [g.shape for g in arrays(gradient)] == [a.shape for a in arrays(inputs)]
    for place, (array, g) in enumerate(zip(arrays(inputs), arrays(gradient), strict=True)):
        along = []
        for seed in range(8):
            direction = normal(*array.shape, seed=1000 + seed)
            direction /= np.linalg.norm(direction)
            still = [np.zeros_like(each) for each in arrays(inputs)]
            still[place] = direction
            ways = [[by * each for each in still] for by in (STEP, -STEP)]
            more, less = (formula(changed(inputs, lambda x, way=way: x + way.pop(0))) for way in ways)
            along.append((more - less) / (2 * STEP))
            assert abs(np.sum(g * direction) - along[-1]) <= DIFFERENCE_TOLERANCE, place
        assert max(map(abs, along)) > 1e-3 or np.abs(g).max() < 1e-12, "nothing changes in these directions"


def loss(model: Gpt2Weights, input_ids: Array, targets: Array) -> float:
    return float(np.mean(cross_entropy(gpt2_model(input_ids, np.ones_like(input_ids), model, HEADS, EPS), targets)))


def batch() -> tuple[Array, Array]:
    drawn = np.random.default_rng(5).integers(0, VOCAB - 1, (BATCH, SEQ + 1))  # the last word does not occur
    return drawn[:, :-1], drawn[:, 1:]


def loss_gradient(model: Gpt2Weights, input_ids: Array, targets: Array) -> Gpt2Weights:
    logits = gpt2_model(input_ids, np.ones_like(input_ids), model, HEADS, EPS)
    grad = cross_entropy_gradient(np.full(targets.shape, 1 / targets.size, logits.dtype), logits, targets)
    return model_gradients.gpt2_model_gradient(grad, input_ids, model, HEADS, EPS)


def test_the_whole_model_is_the_finite_difference() -> None:
    model, given = weights(), batch()
    agree_along(lambda m: loss(m, *given), model, loss_gradient(model, *given))


def test_adam_by_hand_over_three_steps() -> None:
    gradients = [np.array([1.0, -2.0]), np.array([3.0, 2.0]), np.array([-1.0, 4.0])]
    weight, mean, square = np.array([10.0, 20.0]), np.zeros(2), np.zeros(2)
    expected = weight.copy()
    for step, grad in enumerate(gradients, 1):
        given = weight, grad, mean, square, step, 0.1
        weight, mean, square = model_gradients.adam(*given, beta_1=0.5, beta_2=0.75, eps=1e-3)
        one, two = (np.array([beta ** (step - i) for i in range(1, step + 1)]) for beta in (0.5, 0.75))
        so_far = np.array(gradients[:step])
        expected -= 0.1 * (one @ so_far / one.sum()) / (np.sqrt(two @ so_far**2 / two.sum()) + 1e-3)
        assert np.abs(weight - expected).max() <= IDENTITY_TOLERANCE * 20


def test_steps_of_training_by_hand() -> None:
    weight, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    after = model_gradients.adam(weight, weight, zeros, zeros, 1, 0.1)
    assert {array.dtype.name for array in after} == {"float32"}
    assert np.all(weight == 1) and not np.any(zeros)
    weight, grad, none = np.array([4.0, -2.0]), np.array([1.0, 3.0]), np.zeros(2)
    plain, pulled = (f(weight, grad, none, none, 1, 0.1) for f in (model_gradients.adam, model_gradients.adamw))
    np.testing.assert_allclose(pulled.weight - plain.weight, -0.1 * 0.01 * weight, rtol=1e-12)
    assert np.array_equal(pulled.square, plain.square), "the pull is no part of the gradient"
    gradients = [normal(3, 4), normal(5).astype(np.float32)]
    flat = np.concatenate([g.ravel() for g in gradients])
    for longest in (0.5, 100.0):
        clipped = model_gradients.clipped_gradients(gradients, longest)
        assert [g.dtype for g in clipped] == [g.dtype for g in gradients]
        factor = min(1, longest / np.linalg.norm(flat))
        np.testing.assert_allclose(np.concatenate([g.ravel() for g in clipped]), factor * flat, rtol=1e-6)
    x, random = np.full(100_000, 3.0, np.float32), np.random.default_rng(0)
    y = model_gradients.dropout(x, random.random(x.shape) >= 0.2, 0.2)
    assert y.dtype == np.float32 and set(np.unique(y)) == {np.float32(0), np.float32(3) / np.float32(0.8)}
    assert abs(y.mean() - 3) < 0.05
