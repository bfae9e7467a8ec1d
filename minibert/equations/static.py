"""A static model is a table: each token has one row, and a text's vector is the mean of its tokens' rows.

Its rows can be made from an encoder. x[i] is the encoder's vector of token i alone, [CLS] i [SEP], the mean over these
three tokens:

    p = zipf_probabilities(vocab)                        how often each token occurs in a text
    row[i] = sif_weights(p)[i] * covariance_components(x).coordinates[i]

Sources
    Zipf 1949, "Human Behavior and the Principle of Least Effort"
    Arora, Liang, Ma 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings" (ICLR): the weights
    Pearson 1901, "On Lines and Planes of Closest Fit to Systems of Points in Space": principal components
    Tulkens, van Dongen 2024, "Model2Vec" (github.com/MinishLab/model2vec): all of it together
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .input_layer import Array

BLOCK = 1024  # rows that are converted to float64 at a time: 6 MB at 768 columns


def zipf_probabilities(count: int) -> Array:
    """Estimate each token's frequency from its rank in the vocabulary: `p[i] = 1 / (i + 2) / sum_j 1 / (j + 2)`.

    -> (count,) float64, falling, the sum is 1. By Zipf's law the r-th most frequent word is 1 / r as frequent as the
    first. Many vocabularies have the frequent tokens first; ranks begin at 2, as in model2vec. The trap: letters and
    special tokens often come before all words, and so count as the most frequent tokens.

    Raises ValueError for a count below 1.

    >>> zipf_probabilities(3) * 13  # 1/2, 1/3, 1/4 are to each other as 6, 4, 3
    array([6., 4., 3.])
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, found {count}; a vocabulary has a token")
    p = 1 / np.arange(2, count + 2)
    return np.asarray(p / p.sum())


def sif_weights(probabilities: ArrayLike, a: float = 1e-4) -> Array:
    """Weight frequent tokens less, for they tell less about a text: `w[i] = a / (a + p[i])`, smooth inverse frequency.

    probabilities (vocab,) -> (vocab,) float64 in 0..1, 1 for a token that never occurs. A token with p = a weighs half.

    Raises ValueError for a <= 0, and for probabilities outside 0..1.

    >>> sif_weights([0.0, 1e-4, 3e-4])
    array([1.  , 0.5 , 0.25])
    """
    p = np.asarray(probabilities, np.float64)
    if not a > 0 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"a must be > 0 and probabilities within 0..1; found a = {a} and {p.size} probabilities")
    return np.asarray(a / (a + p))


class PrincipalComponents(NamedTuple):
    """Coordinates (rows, count), directions (count, dim), and each direction's part of the variance (count,)."""

    coordinates: Array
    directions: Array
    shares: Array


def covariance_components(x: ArrayLike, count: int = 256) -> PrincipalComponents:
    """Compute the directions in which rows differ most, and each row's coordinates along them: principal components.

        C = (x - mean)^T (x - mean) / (rows - 1),   C v_k = s_k v_k,   coordinates[:, k] = (x - mean) . v_k

    x (rows, dim) of any float type -> coordinates (rows, count), directions (count, dim) and shares (count,), float64,
    the largest s first. An eigenvector's sign is arbitrary: here the coordinate of the largest size in each column is
    positive (the first of several). C is (dim, dim) for any number of rows; the rows are read in blocks.

    Raises ValueError for a count outside 1..dim, for fewer than two rows, for NaN or infinity.

    >>> pc = covariance_components([[0.0, 1.0], [6.0, 9.0], [-3.0, -3.0]], count=1)  # on a line; the mean is 1, 7/3
    >>> pc.coordinates.round(4).tolist(), pc.directions.round(4).tolist()
    ([[-1.6667], [8.3333], [-6.6667]], [[0.6, 0.8]])
    """
    x = np.asarray(x)
    if x.ndim != 2 or len(x) < 2 or not 1 <= count <= x.shape[1]:
        raise ValueError(f"x must be (rows, dim) with two rows or more, and count in 1..dim; found {x.shape}, {count}")
    mean = np.add.reduce(x, axis=0, dtype=np.float64) / len(x)
    if not np.isfinite(mean).all():
        raise ValueError("x must be finite numbers, found NaN or infinity; they have no direction of largest variance")
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for _, centred in _centred(x, mean):
        covariance += centred.T @ centred
    sizes, vectors = np.linalg.eigh(covariance / (len(x) - 1))  # the smallest first
    sizes, vectors = np.maximum(sizes[::-1], 0), np.ascontiguousarray(vectors[:, : -count - 1 : -1])
    coordinates = np.empty((len(x), count))
    for rows, centred in _centred(x, mean):
        coordinates[rows] = centred @ vectors
    largest = [float(column[np.argmax(np.abs(column))]) for column in coordinates.T]
    sign = np.where(np.array(largest) < 0, -1.0, 1.0)
    coordinates *= sign
    return PrincipalComponents(coordinates, (vectors * sign).T, sizes[:count] / (sizes.sum() or 1.0))


def _centred(x: Array, mean: Array) -> Iterator[tuple[slice, Array]]:
    for start in range(0, len(x), BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, x[rows] - mean
