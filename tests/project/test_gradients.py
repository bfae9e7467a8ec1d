"""The backward formulas against finite differences in float64, and what must hold for every gradient."""

from __future__ import annotations

from collections.abc import Callable

import block_gradients
import gradients
import numpy as np
import pytest
from drawn import normal

from minibert import equations
from minibert.equations.input_layer import Array

# central differences with step 1e-5 in float64: measured at most 1.8e-9 over the cases below
STEP = 1e-5
DIFFERENCE_TOLERANCE = 1e-8
# identities that hold exactly, computed in float64: measured at most 1.2e-15
IDENTITY_TOLERANCE = 2e-14
# loss of the demonstration after its 300 steps, started at 104: measured 3.1e-22, as (1 - 1/12)^600 * 20 says
LEARNED_LOSS = 1e-20

BACKWARD = {**vars(gradients), **vars(block_gradients)}
RNG_SEED = 3
BATCH, SEQ, DIM, WIDTH, VOCAB, POSITIONS = 3, 4, 6, 5, 7, 9


def ids(rows: int, *shape: int) -> Array:
    return np.random.default_rng((RNG_SEED, rows)).integers(0, rows, shape)


def finite_difference(loss: Callable[[Array], float], at: Array) -> Array:
    """Central differences, one entry at a time: `(loss(a + h) - loss(a - h)) / 2h`."""
    result = np.empty_like(at)
    for index in np.ndindex(at.shape):
        above, below = at.copy(), at.copy()
        above[index] += STEP
        below[index] -= STEP
        result[index] = (loss(above) - loss(below)) / (2 * STEP)
    return result


def agree(analytic: Array, formula: Callable[[Array], Array], at: Array, grad: Array) -> None:
    """Hold the gradient against the differences of the loss `sum(grad * formula(at))`."""
    numeric = finite_difference(lambda a: float(np.sum(grad * formula(a))), at)
    assert analytic.shape == at.shape
    assert np.abs(numeric).max() > 0.1, "a gradient of zeros would agree with anything"
    assert np.abs(analytic - numeric).max() <= DIFFERENCE_TOLERANCE


def test_gradients_of_lookup_and_scale_are_the_finite_differences() -> None:
    table, rows = normal(VOCAB, DIM), ids(VOCAB, BATCH, SEQ)
    grad = normal(BATCH, SEQ, DIM)
    g = gradients.lookup_gradient(grad, rows, VOCAB)
    agree(g, lambda t: equations.lookup(t, rows), table, grad)
    x = normal(BATCH, SEQ, DIM, seed=5)
    agree(gradients.scale_gradient(grad, 2.5), lambda a: equations.scale(a, 2.5), x, grad)


# eps 0.3 is as large as the variance: a formula that forgets eps in the backward cannot pass
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("shape", [(DIM,), (SEQ, DIM), (BATCH, SEQ, DIM)])
def test_layer_norm_gradient_is_the_finite_difference(eps: float, shape: tuple[int, ...]) -> None:
    x, grad = normal(*shape), normal(*shape, seed=4)
    weight, bias = normal(DIM, seed=5), normal(DIM, seed=6)
    g = gradients.layer_norm_gradient(grad, x, weight, eps)
    agree(g.x, lambda a: equations.layer_norm(a, weight, bias, eps), x, grad)
    agree(g.weight, lambda a: equations.layer_norm(x, a, bias, eps), weight, grad)
    agree(g.bias, lambda a: equations.layer_norm(x, weight, a, eps), bias, grad)


@pytest.mark.parametrize("lead", [(), (SEQ,), (BATCH, SEQ)])
@pytest.mark.parametrize("formula", [equations.project, equations.linear])
def test_gradients_of_a_map_are_the_finite_differences(formula: Callable[..., Array], lead: tuple[int, ...]) -> None:
    x, weight, bias = normal(*lead, WIDTH), normal(DIM, WIDTH), normal(DIM, seed=6)
    grad = normal(*lead, DIM, seed=4)
    g = BACKWARD[f"{formula.__name__}_gradient"](grad, x, weight)
    agree(g.x, lambda a: formula(a, weight, bias), x, grad)
    agree(g.weight, lambda a: formula(x, a, bias), weight, grad)
    agree(g.bias, lambda a: formula(x, weight, a), bias, grad)


@pytest.mark.parametrize("shape", [(DIM,), (SEQ, DIM), (BATCH, SEQ, DIM)])
def test_softmax_gradient_is_the_finite_difference(shape: tuple[int, ...]) -> None:
    x, grad = normal(*shape), normal(*shape, seed=4)
    g = block_gradients.softmax_gradient(grad, x)
    agree(g, equations.softmax, x, grad)
    assert np.abs(g.sum(axis=-1)).max() <= IDENTITY_TOLERANCE, "the probabilities have sum 1"


# from -6 to 6, so that both tails and the bend count
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gradients_of_gelu_are_the_finite_differences(name: str) -> None:
    x, grad = np.linspace(-6, 6, 49).reshape(7, 7), 1 + normal(7, 7) ** 2
    backward = BACKWARD[f"{name}_gradient"]
    agree(backward(grad, x), getattr(equations, name), x, grad)
    # both at once would hide that one was taken for the other: they differ by 1e-3
    other = BACKWARD["gelu_gradient" if name == "gelu_tanh" else "gelu_tanh_gradient"]
    assert np.abs(other(grad, x) - backward(grad, x)).max() > 1e-4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", block_gradients.AttentionGradients._fields)
def test_attention_gradient_is_the_finite_difference(name: str, causal: bool) -> None:
    """The head's width is not the number of tokens: a scale by the wrong one cannot pass."""
    arrays = {each: normal(BATCH, 2, SEQ, DIM, seed=seed) for each, seed in (("q", 5), ("k", 6), ("v", 7))}
    mask = equations.additive_mask(np.tri(SEQ, dtype=bool), "float64") if causal else None
    grad = normal(BATCH, 2, SEQ, DIM, seed=4)
    g = block_gradients.attention_gradient(grad, **arrays, mask=mask)
    agree(getattr(g, name), lambda a: equations.attention(**(arrays | {name: a}), mask=mask), arrays[name], grad)


@pytest.mark.parametrize("lead", [(), (SEQ,), (BATCH, SEQ)])
def test_cross_entropy_gradient_is_the_finite_difference(lead: tuple[int, ...]) -> None:
    logits, targets, grad = normal(*lead, VOCAB), ids(VOCAB, *lead), normal(*lead, seed=4)
    g = block_gradients.cross_entropy_gradient(grad, logits, targets)
    agree(g, lambda a: equations.cross_entropy(a, targets), logits, np.asarray(grad))
    assert np.abs(g.sum(axis=-1)).max() <= IDENTITY_TOLERANCE, "what one logit gains the others lose"


def test_backward_formulas_keep_float32() -> None:
    x = normal(SEQ, DIM).astype(np.float32)
    mask = equations.additive_mask(np.tri(SEQ, dtype=bool))
    found = [
        *block_gradients.linear_gradient(x, x, np.eye(DIM, dtype=np.float32)),
        *block_gradients.attention_gradient(x, x, x, x, mask),
        *(
            f(x, x)
            for f in (
                block_gradients.softmax_gradient,
                block_gradients.gelu_gradient,
                block_gradients.gelu_tanh_gradient,
            )
        ),
        block_gradients.cross_entropy_gradient(x[:, 0], x, np.zeros(SEQ, np.int64)),
        gradients.scale_gradient(x, 2**0.5),
    ]
    arguments = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in bert_arguments().items()}
    found += gradients.bert_input_gradient(normal(BATCH, SEQ, DIM).astype(np.float32), **arguments)
    assert {g.dtype.name for g in found} == {"float32"}


def bert_arguments() -> dict[str, Array]:
    return {
        "input_ids": ids(VOCAB, BATCH, SEQ),
        "token_type_ids": ids(2, BATCH, SEQ),
        "word": normal(VOCAB, DIM),
        "token_type": normal(2, DIM),
        "position": normal(POSITIONS, DIM),
        "weight": normal(DIM, seed=5),
    }


@pytest.mark.parametrize("name", gradients.BertGradients._fields)
def test_bert_input_gradient_is_the_finite_difference(name: str) -> None:
    arguments, bias, grad = bert_arguments(), normal(DIM, seed=6), normal(BATCH, SEQ, DIM, seed=4)
    g = gradients.bert_input_gradient(grad, **arguments, eps=1e-5)
    whole = arguments | {"bias": bias}
    agree(getattr(g, name), lambda a: equations.bert_input(**(whole | {name: a}), eps=1e-5), whole[name], grad)


@pytest.mark.parametrize("name", gradients.GPT2Gradients._fields)
def test_gpt2_input_gradient_is_the_finite_difference(name: str) -> None:
    tables = {"wte": normal(VOCAB, DIM), "wpe": normal(POSITIONS, DIM)}
    input_ids, grad = ids(VOCAB, BATCH, SEQ), normal(BATCH, SEQ, DIM, seed=4)
    g = gradients.gpt2_input_gradient(grad, input_ids, **tables)
    agree(getattr(g, name), lambda a: equations.gpt2_input(input_ids, **(tables | {name: a})), tables[name], grad)


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


def test_negative_padding_idx_counts_from_the_end() -> None:
    grad, rows = normal(5, DIM), np.array([0, 1, 2, 2, 0])
    from_end = gradients.lookup_gradient(grad, rows, 3, padding_idx=-1)
    assert np.array_equal(from_end, gradients.lookup_gradient(grad, rows, 3, padding_idx=2))
    assert not np.any(from_end[2]) and np.all(from_end[:2])


def test_gradient_descent_recovers_the_words_that_occur() -> None:
    input_ids, wpe = ids(VOCAB - 1, BATCH, SEQ), normal(POSITIONS, DIM)  # the last word never occurs
    hidden, start = 5 * normal(VOCAB, DIM, seed=8), normal(VOCAB, DIM, seed=9)
    before = start.copy()
    learned, losses = gradients.learn_word_table(equations.gpt2_input(input_ids, hidden, wpe), input_ids, start, wpe)
    seen = np.unique(input_ids)
    assert losses[0] > 10 and losses[-1] <= LEARNED_LOSS
    assert np.all(np.diff(losses) <= 0)
    # the squared distance of one row is at most 2 * tokens times the loss that is left
    assert np.sum((learned[seen] - hidden[seen]) ** 2) <= 2 * input_ids.size * LEARNED_LOSS
    unseen = np.setdiff1d(np.arange(VOCAB), seen)
    assert VOCAB - 1 in unseen and np.array_equal(learned[unseen], before[unseen])
    assert np.array_equal(start, before), "the table passed in must stay as it is"


def test_each_word_approaches_at_the_rate_the_docstring_states() -> None:
    input_ids, wpe = np.array([[2, 2, 2, 5]]), np.zeros((4, DIM))
    hidden, start = normal(VOCAB, DIM, seed=8), np.zeros((VOCAB, DIM))
    learned, _ = gradients.learn_word_table(hidden[input_ids], input_ids, start, wpe, steps=10)
    for word, share in ((2, 3 / 4), (5, 1 / 4)):
        assert np.abs(hidden[word] - learned[word] - hidden[word] * (1 - share) ** 10).max() <= IDENTITY_TOLERANCE
