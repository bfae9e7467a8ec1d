"""The other position schemes that act inside attention: ALiBi, T5's and DeBERTa's buckets.

None of these schemes adds anything to the word rows. The input layer of a model with such a scheme knows nothing of
positions. Attention uses them: as a number added to the scores, or, in `rotary`, as a rotation of queries and keys.

    ALiBi               BLOOM                                 a slope per head, times the key's position
    relative bias       T5, mT5, MPNet                        a learned number per head and bucket of distances
    log buckets         DeBERTa v2 and v3                     a learned row per bucket of distances

**T5 has no sinusoids.** Many notebooks add Vaswani's sine table to T5's word rows. T5 adds nothing at all: its
only positions are the relative bias, in the attention scores of each stack.

Here are the formulas, arrays in and arrays out; `attention_schemes` binds them to a checkpoint's numbers.

Buckets, rows and every bias taken from a table equal the reference's at lengths up to 4096, in the settings of
all published models. For computed floats the docstring states the measured difference.

DeBERTa's scores stand last. A token's content is its query and its key. A position is the row of a distance, mapped as
keys or as queries are.

Sources
    Press, Smith, Lewis 2021, "Train Short, Test Long" (arXiv:2108.12409): ALiBi
    Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683): T5's buckets
    He et al. 2021, "DeBERTa" (arXiv:2006.03654) and "DeBERTaV3" (arXiv:2111.09543): log buckets
    DeBERTaV2's reference implementation: the scores of content and position, each in both directions
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .input_layer import Array
from .rotary import check_positions


def _relative_position(query_length: int, key_length: int, past_length: int = 0) -> Array:
    """Subtract query positions from key positions: (query, key); the queries follow `past_length` cached tokens."""
    if min(query_length, key_length, past_length) < 0:
        lengths = f"query_length={query_length}, key_length={key_length}, past_length={past_length}"
        raise ValueError(f"lengths must not be negative, found {lengths}")
    return np.arange(key_length)[None, :] - np.arange(past_length, past_length + query_length)[:, None]


def _log(ratio: Array) -> Array:
    """Compute the logarithm of a float32, rounded once to float32.

    NumPy's float32 logarithm differs by a bit from processor to processor, and one bit moves a bucket.
    """
    return np.log(ratio.astype(np.float32).astype(np.float64)).astype(np.float32)


def alibi_slopes(heads: int) -> Array:
    """Compute each head's slope: the cost of one token of distance.

        slope[i] = 2^(-8i / heads),  i = 1..heads                              heads a power of two
        otherwise the slopes of P, the next lower power of two, and then every other slope of 2P

    -> (heads,), float32. The base 2^(-8 / P) is rounded to float32 before it is raised to the power i, as the
    reference does: for 1..64 heads the slopes differ from torch's by at most 7.5e-9, in at most 1 head.

    Raises ValueError for heads below 1. Source: Press et al. 2021; the rule for counts that are not powers of two is in
    their code.

    >>> alibi_slopes(3)  # 2^-4 and 2^-8, then the first of four heads' slopes
    array([0.0625    , 0.00390625, 0.25      ], dtype=float32)
    """
    if heads < 1:
        raise ValueError(f"need at least one head, found heads={heads}")
    power = 2 ** (heads.bit_length() - 1)

    def slopes(count: int, exponents: Array) -> Array:
        return (float(np.float32(2.0 ** (-8.0 / count))) ** exponents).astype(np.float32)

    odd_exponents = np.arange(1, 2 * (heads - power), 2)
    return np.concatenate([slopes(power, np.arange(1, power + 1)), slopes(2 * power, odd_exponents)])


def alibi_key_positions(attention_mask: ArrayLike) -> Array:
    """Count the tokens that are not masked: `p = (cumsum(mask) - 1) * mask`; masked tokens get 0.

    attention_mask (batch, key) of zeros and ones, cached tokens included -> (batch, key), int64. With padding
    on the left the first real token is at 0.

    Raises ValueError for another shape or for values that are neither 0 nor 1. Source: BLOOM's reference.

    >>> alibi_key_positions([[0, 0, 1, 1]])
    array([[0, 0, 0, 1]])
    """
    mask = np.asarray(attention_mask)
    if mask.ndim != 2 or not np.isin(mask, (0, 1)).all():
        expected = "attention_mask must be (batch, key) of zeros and ones"
        raise ValueError(f"{expected}; found shape {mask.shape}, dtype {mask.dtype}; pass the tokenizer's mask")
    mask = mask.astype(np.int64)
    return np.asarray((np.cumsum(mask, axis=-1) - 1) * mask)


def alibi_bias(attention_mask: ArrayLike, heads: int) -> Array:
    """Compute the number that is added to the scaled scores of a head and a key: `bias = slope * key position`.

    attention_mask (batch, key) -> (batch, heads, 1, key), float32; the 1 stands for every query. The reference
    holds the same numbers as (batch * heads, 1, key).

    The paper subtracts slope * (query - key). The difference is slope * query, a constant in each row of scores,
    which softmax removes. At 4096 keys and 1..64 heads the difference from torch is at most 3.1e-5, at a bias above
    256: at most 2.0e-7 of the bias.

    Raises as `alibi_slopes` and `alibi_key_positions`. Source: Press et al. 2021; BLOOM's reference.

    >>> alibi_bias([[1, 1, 1]], heads=1)
    array([[[[0.        , 0.00390625, 0.0078125 ]]]], dtype=float32)
    """
    positions = alibi_key_positions(attention_mask).astype(np.float32)
    return alibi_slopes(heads)[:, None, None] * positions[:, None, None, :]


def relative_buckets(
    relative_position: ArrayLike, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Array:
    """Sort distances into buckets: one for each small distance, then wider and wider ones.

        bidirectional:  n = |key - query|, half of the buckets; keys after the query use the upper half
        causal:         n = max(query - key, 0), all of the buckets; keys after the query are as distance 0
        small = half of these buckets
        bucket = n                                                                         n < small
        bucket = small + trunc(ln(n / small) / ln(max_distance / small) * small')           else, at most the last

    with small' the buckets that are left. relative_position = key - query, any shape -> the same shape, int64.

    The trap: the sign. It is key minus query here, query minus key in DeBERTa. The buckets equal torch's for every
    distance up to 4096 in 3171 of 3172 settings swept (72 buckets, distance 100: one distance falls into another
    bucket). The logarithm is rounded to float32 as in torch: in float64, 20 settings would differ.

    Raises TypeError for floats, ValueError for too few buckets or a max_distance not above the small ones.
    Source: Raffel et al. 2020; MPNet uses 32 buckets and distance 128, bidirectional.

    >>> relative_buckets([-3, 0, 3, 16, 200])  # 16 + 3; 16 + 8 + trunc(ln 2 / ln 16 * 8); the last one
    array([ 3,  0, 19, 26, 31])
    """
    relative = check_positions(relative_position, "relative_position")
    count = buckets // 2 if bidirectional else buckets
    small = count // 2
    if small < 1 or max_distance <= small:
        need = f"at least {4 if bidirectional else 2} buckets and max_distance > {max(small, 1)}"
        raise ValueError(f"need {need}; found buckets={buckets}, max_distance={max_distance}")
    n = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    share = _log(np.maximum(n, small) / small) / np.float32(math.log(max_distance / small))
    large = small + (share * np.float32(count - small)).astype(np.int64)
    upper = (relative > 0) * count if bidirectional else 0
    return np.asarray(np.where(n < small, n, np.minimum(large, count - 1)) + upper)


def relative_bias(
    table: Array,
    query_length: int,
    key_length: int,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    past_length: int = 0,
) -> Array:
    """Look up each head's number for each distance: `bias[h, q, k] = table[bucket(k - q), h]`.

    table (rows, heads) -> (heads, query, key), in the table's dtype, added to the scores of self-attention.
    With a cache the queries are the tokens `past_length, past_length + 1, ...`, and key_length counts all keys.

    T5 has no other positions: it adds no sinusoids and no position rows, whatever a notebook says. One table per
    stack, stored in its first block, serves all blocks of the stack; cross-attention has none. T5 adds the bias to
    scores that are **not** divided by sqrt(head_dim), MPNet to scores that are. The bias equals torch's to the bit.

    Raises as `relative_buckets`; IndexError for a table with too few rows; ValueError for negative lengths.
    Source: Raffel et al. 2020, section 2.1.

    >>> table = np.arange(32.0)[:, None]  # one head; row b holds the number b
    >>> relative_bias(table, query_length=1, key_length=3, past_length=1)
    array([[[ 1.,  0., 17.]]])
    """
    relative = _relative_position(query_length, key_length, past_length)
    lowest = 1 - query_length - past_length  # every distance between this and key_length - 1 occurs: bucket it once
    bucket = relative_buckets(np.arange(lowest, key_length), buckets, max_distance, bidirectional)
    if (last := bucket.max(initial=0)) >= len(table):
        raise IndexError(f"the table has rows 0..{len(table) - 1}, but a distance of these tokens is in bucket {last}")
    by_distance = np.ascontiguousarray(table.T[:, bucket])
    return np.take(by_distance, relative - lowest, axis=1, mode="clip")  # never clips, and is ten times as fast


def log_buckets(relative_position: ArrayLike, buckets: int, max_positions: int) -> Array:
    """Keep small distances, and squeeze larger distances by their logarithm; the sign stays.

        mid = buckets // 2
        bucket = r                                                                          |r| <= mid
        bucket = sign(r) * (mid + ceil(ln(|r| / mid) / ln((max_positions - 1) / mid) * (mid - 1)))     else

    relative_position r = query - key (T5 has it the other way round), any shape -> the same shape, int64.
    Distances from max_positions on get buckets past +-(buckets - 1): `log_bucket_rows` clips them.

    ceil depends on the quotient's last bit, so the logarithms are rounded to float32 as in torch: every distance up
    to 4096 is equal in 1933 of 1941 settings swept; in each of the 8 settings left, one distance far past the clip
    differs. In float64, 122 settings would differ.

    Raises TypeError for floats; ValueError for buckets below 2 or max_positions not above mid + 1.
    Source: He et al. 2021, DeBERTaV2's reference implementation.

    >>> log_buckets([0, -4, 5, 10, 16], buckets=8, max_positions=17)  # 4 + ceil(.48), 4 + ceil(1.98), 4 + 3
    array([ 0, -4,  5,  6,  7])
    """
    relative = check_positions(relative_position, "relative_position")
    mid = buckets // 2
    if mid < 1 or max_positions - 1 <= mid:
        need = f"buckets >= 2 and max_positions > {max(mid, 1) + 1}"
        raise ValueError(f"need {need}; found buckets={buckets}, max_positions={max_positions}")
    distance = np.abs(relative)
    share = _log(np.maximum(distance, mid) / mid) / _log(np.asarray((max_positions - 1) / mid))
    large = mid + np.ceil(share * np.float32(mid - 1)).astype(np.int64)
    return np.asarray(np.where(distance <= mid, relative, np.sign(relative) * large))


def log_bucket_rows(query_length: int, key_length: int, buckets: int, max_positions: int) -> Array:
    """Compute each pair's row in DeBERTa's table: `row = clip(bucket(query - key) + span, 0, 2 span - 1)`.

    -> (query, key), int64. span = buckets; or max_positions if buckets < 1: then the bucket is the distance.
    The same rows serve both of DeBERTa's terms, content to position and position to content. The rows equal torch's in
    every setting swept, up to length 4096.

    Raises as `log_buckets`; ValueError for negative lengths. Source: He et al. 2021, section 3.

    >>> log_bucket_rows(2, 4, buckets=-1, max_positions=2)  # distances 0, -1, -2, -3 and 1, 0, -1, -2
    array([[2, 1, 0, 0],
           [3, 2, 1, 0]])
    """
    relative = -_relative_position(query_length, key_length)
    span = buckets if buckets > 0 else max_positions
    if buckets > 0:
        lowest = 1 - key_length  # every distance between this and query_length - 1 occurs: bucket it once
        relative = log_buckets(np.arange(lowest, query_length), buckets, max_positions)[relative - lowest]
    return np.asarray(np.clip(relative + span, 0, 2 * span - 1))


def content_to_position(q: Array, rows: Array, places: Array, scale: float) -> Array:
    """Score each query's response to its distance from each key: `scores[i, j] = scale * q[i] . rows[places[i, j]]`.

    q (..., heads, query, head_dim), rows (heads, distances, head_dim) mapped as keys are, places (query, key) from
    `log_bucket_rows` -> (..., heads, query, key). scale is 1 / sqrt(s * head_dim); s counts the terms of the
    score, content-to-content included.

    >>> rows = np.array([[[1.0], [10.0], [100.0]]])  # one head; the distances query - key are -1, 0, 1
    >>> places = np.array([[1, 0], [2, 1]])
    >>> content_to_position(np.array([[[2.0], [3.0]]]), rows, places, scale=1.0)
    array([[[ 20.,   2.],
            [300.,  30.]]])
    """
    by_row = (q * q.dtype.type(scale)) @ rows.swapaxes(-1, -2)  # (..., heads, query, distances)
    return np.take_along_axis(by_row, np.broadcast_to(places, (*by_row.shape[:-1], places.shape[1])), axis=-1)


def position_to_content(k: Array, rows: Array, places: Array, scale: float) -> Array:
    """Score each key's response to its distance from each query: `scores[i, j] = scale * k[j] . rows[places[i, j]]`.

    As `content_to_position`, k (..., heads, key, head_dim), rows mapped as queries are -> (..., heads, query, key).

    The trap: both functions use the same places, of query - key. The reference computes this term key by key, with
    distance and sign turned round, and then transposes it.

    >>> rows = np.array([[[1.0], [10.0], [100.0]]])
    >>> places = np.array([[1, 0], [2, 1]])
    >>> position_to_content(np.array([[[2.0], [3.0]]]), rows, places, scale=1.0)
    array([[[ 20.,   3.],
            [200.,  30.]]])
    """
    return content_to_position(k, rows, places.T, scale).swapaxes(-1, -2)
