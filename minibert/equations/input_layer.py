"""The input layer of BERT, GPT-2, T5 and their relatives: every formula, from the leaves to the root.

Read it from top to bottom. Each function is one formula; `bert_input` and `gpt2_input` are whole layers. The steps
below these two belong to relatives of BERT and GPT-2. Nothing here knows a file, a checkpoint or a model's name: arrays
come in, an array goes out. A tokenizer has already cut the text into tokens, words or pieces of words (by WordPiece in
BERT, by BPE in GPT-2), and each token has an id. The models compute the same formulas in place: the check of ids and
the faster norm are in `fast`, and a test compares each pair.

Axes are written as words: batch, seq, dim, vocab. Arrays are float32 unless you pass float64.

Sources
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762): sinusoids, the scale sqrt(dim)
    Devlin et al. 2018, "BERT" (arXiv:1810.04805): word + token type + position, then LayerNorm
    Ba, Kiros, Hinton 2016, "Layer Normalization" (arXiv:1607.06450)
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": GPT-2
    Liu et al. 2019, "RoBERTa" (arXiv:1907.11692): positions that skip padding
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def lookup(table: Array, ids: Array) -> Array:
    """Read one row of the table for each id: `y[i] = table[ids[i]]`.

    table (rows, dim), ids of any shape (...) -> (..., dim), in the table's dtype.
    A padding row is a row like any other: trained files hold numbers in it, and these numbers are returned.

    The trap: NumPy reads row -1 as the last row, and a table of embeddings has no row -1. Models therefore check their
    ids first (`fast.check_ids`). NumPy itself raises IndexError for an id past the table and for floats.

    >>> lookup(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0, 1]))
    array([[3., 4.],
           [1., 2.],
           [3., 4.]])
    """
    y: Array = table[ids]
    return y


def default_position_ids(length: int, past_length: int = 0) -> Array:
    """Count the tokens: `p = past, past + 1, ..., past + length - 1`, shape (1, length), int64.

    `past_length` tokens were computed before. Padding, which is added to the shorter texts of a batch, is counted like
    any token: with padding on the left the first word is not at position 0.

    >>> default_position_ids(3, past_length=2)
    array([[2, 3, 4]])
    """
    return np.arange(past_length, past_length + length)[None]


def layer_norm(x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-12) -> Array:
    """Shift and stretch each row to mean 0 and variance 1, then scale and shift each column.

        y = (x - mean) / sqrt(variance + eps) * weight + bias

    x (..., dim), weight and bias (dim,) -> (..., dim). Each row has a mean and a variance. The variance is the biased
    one (divided by dim, not dim - 1), and eps stands under the root.

    The row is read twice. One pass, E[x^2] - E[x]^2, loses three digits at mean 100. float16 ends at 65504, and so do
    its squares: pass float32. With eps 0 a row of equal numbers becomes nan, and NumPy warns. Models compute
    `fast.layer_norm`, which is equal within 2e-6. Source: Ba et al. 2016.

    >>> layer_norm(np.array([[1.0, 3.0]]), weight=np.array([1.0, 1.0]), bias=np.array([0.0, 10.0]), eps=0.0)
    array([[-1., 11.]])
    """
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.square(x - mean).mean(axis=-1, keepdims=True)
    y: Array = (x - mean) / np.sqrt(variance + eps) * weight
    return y if bias is None else y + bias


def bert_input(
    input_ids: Array,
    token_type_ids: Array,
    word: Array,
    token_type: Array,
    position: Array,
    weight: Array,
    bias: Array,
    eps: float = 1e-12,
) -> Array:
    """Compute BERT's whole input layer: `LayerNorm((word + token type) + position)`.

    input_ids and token_type_ids (batch, seq) -> (batch, seq, dim). The order of the sum matters: another order
    changes the last bit of a third of all entries. Source: Devlin et al. 2018 and its reference implementation.

    >>> table, ones, zeros = np.array([[0.0, 1.0], [2.0, 5.0]]), np.ones(2), np.zeros(2)
    >>> bert_input(np.array([[1, 0]]), np.array([[0, 0]]), table, table, table, ones, zeros)
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """
    position_ids = default_position_ids(input_ids.shape[-1])
    x = lookup(word, input_ids)
    x = x + lookup(token_type, token_type_ids)
    x = x + lookup(position, position_ids)
    return layer_norm(x, weight, bias, eps)


def gpt2_input(input_ids: Array, wte: Array, wpe: Array) -> Array:
    """Compute GPT-2's whole input layer: `word + position`, nothing else.

    input_ids (batch, seq) -> (batch, seq, dim). LayerNorm comes later, inside the first block.

    >>> gpt2_input(np.array([[1, 0]]), wte=np.array([[1.0], [2.0]]), wpe=np.array([[10.0], [20.0]]))
    array([[[12.],
            [21.]]])
    """
    return lookup(wte, input_ids) + lookup(wpe, default_position_ids(input_ids.shape[-1]))


def padding_position_ids(input_ids: Array, padding_idx: int, past_length: int = 0) -> Array:
    """Count the tokens and skip padding, as RoBERTa does: `p = (cumsum(m) + past) * m + padding_idx`.

    m = 1 if input_ids != padding_idx, else 0. input_ids (batch, seq) -> (batch, seq), int64. Padding gets row
    `padding_idx`, the first token `padding_idx + 1`. The ids decide, not the attention mask.
    Source: RoBERTa's reference implementation.

    >>> padding_position_ids(np.array([[0, 9, 2, 1, 1]]), padding_idx=1)
    array([[2, 3, 4, 1, 1]])
    """
    real = (input_ids != padding_idx).astype(np.int64)
    position_ids: Array = (np.cumsum(real, axis=-1) + past_length) * real + padding_idx
    return position_ids


def mask_position_ids(attention_mask: Array, past_length: int = 0) -> Array:
    """Count the tokens that the attention mask keeps, as OPT does: `p = cumsum(m) * m - 1`, without the past columns.

    attention_mask (batch, past + seq), 1 for a token and 0 for padding -> (batch, seq), int64. Padding gets -1, the
    first token 0; OPT's table has two more rows in front, so -1 is its row 1. Source: OPT's reference implementation.

    >>> mask_position_ids(np.array([[0, 1, 1]]))
    array([[-1,  0,  1]])
    """
    real = (attention_mask != 0).astype(np.int64)
    position_ids: Array = np.cumsum(real, axis=-1) * real - 1
    return position_ids[:, past_length:]


def sinusoidal_positions(length: int, dim: int, base: float = 10000.0, layout: str = "interleaved") -> Array:
    """Compute for each position a row of sines and cosines of falling frequency.

        angle(p, i) = p / base^(2i / dim)
        "interleaved":  y[p, 2i] = sin(angle(p, i)),  y[p, 2i + 1] = cos(angle(p, i))      (Vaswani et al.)
        "halves":       the same columns, all sines first, then all cosines                (Marian, Pegasus)

    -> (length, dim), float32; p and angle in radians. Angles are computed in float64 and rounded once at the
    end: float32 angles are wrong by 1e-4 at position 4095. An odd dim has one sine more than cosines.

    Raises ValueError for a negative length, a dim below 1, a base that is not positive, an unknown layout.

    >>> sinusoidal_positions(2, 4).round(4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.01  , 1.    ]], dtype=float32)
    """
    if length < 0 or dim < 1 or not 0 < base < np.inf:
        raise ValueError(f"need length >= 0, dim >= 1 and base > 0; found length={length}, dim={dim}, base={base}")
    if layout not in ("interleaved", "halves"):
        raise ValueError(f"layout must be 'interleaved' or 'halves', found {layout!r}")
    # exactly the reference's expression: 2 * (j // 2) / dim for every column j, sine and cosine alike
    exponent = 2 * (np.arange(dim) // 2) / dim
    angle = np.arange(length)[:, None] / np.power(base, exponent)
    sine, cosine = np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])
    table = np.empty((length, dim), np.float32)
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = sine, cosine
    else:
        half = (dim + 1) // 2
        table[:, :half], table[:, half:] = sine, cosine
    return table


def scale(x: Array, factor: float) -> Array:
    """Multiply by one number: `y = factor * x`, as Vaswani et al. do with factor = sqrt(dim).

    The factor is rounded to x's dtype first: a float64 factor would change the last bit of float32 rows.

    >>> scale(np.array([1.0, 2.0], np.float32), 2 ** 0.5)
    array([1.4142135, 2.828427 ], dtype=float32)
    """
    y: Array = x * x.dtype.type(factor)
    return y


def project(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Map each row to another width: `y = weight @ x + bias`.

    x (..., width), weight (dim, width), bias (dim,) -> (..., dim). Each row is one matrix-vector product: a single
    matrix product would be faster, but its bits depend on how many rows are passed.

    >>> project(np.array([[1.0, 2.0]]), weight=np.array([[1.0, 1.0], [0.0, 3.0], [2.0, 0.0]]))
    array([[3., 6., 2.]])
    """
    y: Array = (weight @ x[..., None])[..., 0]
    return y if bias is None else y + bias
