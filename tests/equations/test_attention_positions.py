"""Theorems about the position schemes inside attention, values made by hand, and what each one refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from binders import Stored, scheme_of
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.equations import attention_positions as positions
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.config import Config
from minibert.families.parts.rotations import Rotation

# a rotation keeps the length of each pair: relative error of float32, measured at most 2.4e-7
LENGTH_TOLERANCE = 1e-6
# q . k depends on the distance alone: float32 angles at positions up to 4096, dims up to 64, measured 1.3e-5 of |q| |k|
DISTANCE_TOLERANCE = 1e-4
# ALiBi's float32 bias minus the distance form in float64, for 1..16 heads and 40 keys, measured 9.3e-7 from a constant
CONSTANT_TOLERANCE = 5e-6
# what is left of that after softmax, measured 3.5e-7
SOFTMAX_TOLERANCE = 2e-6
# XLNet's table against the same formula with the angle in float64, measured 3.0e-8 at distances up to 5
SINUSOID_TOLERANCE = 2e-7
# LayerNorm written once more by hand, measured 2.4e-7
NORM_TOLERANCE = 2e-6

LONGEST = 4096
lengths = st.integers(1, 40)


def normal(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def rejects(got: Array, want: Array) -> bool:
    """Say whether the comparison of the tests below tells two arrays of integers apart."""
    return not np.array_equal(got, want)


# rotary


def test_frequencies_of_the_original_paper_by_hand() -> None:
    powers_of_ten = np.array([1.0, 0.1, 0.01, 0.001], np.float32)
    np.testing.assert_array_equal(positions.rotary_frequencies(8, 10000.0), powers_of_ten)
    assert positions.rotary_frequencies(8).dtype == np.float32


@given(st.integers(1, 256), st.floats(1.5, 1e7))
def test_frequencies_fall_from_one(dim: int, base: float) -> None:
    frequencies = positions.rotary_frequencies(dim, base)
    assert frequencies.shape == (-(-dim // 2),)
    assert frequencies[0] == 1.0
    assert (np.diff(frequencies) < 0).all()
    assert frequencies[-1] >= np.float32(1 / base)


@given(st.lists(st.integers(0, LONGEST), min_size=1, max_size=6), st.sampled_from([2, 4, 6, 16, 64]))
def test_rotation_keeps_lengths_in_both_pairings(ids: list[int], dim: int) -> None:
    x = normal(3, len(ids), dim)
    cos, sin = positions.rotary_angles(ids, positions.rotary_frequencies(dim))
    for pairing in ("halves", "neighbours"):
        length, kept = (np.linalg.norm(y, axis=-1) for y in (x, positions.rotate(x, cos, sin, pairing)))
        np.testing.assert_allclose(kept, length, rtol=LENGTH_TOLERANCE)


@given(st.integers(0, LONGEST // 2), st.integers(0, LONGEST // 2), st.sampled_from([2, 8, 64]))
def test_rotated_dot_product_depends_on_the_distance_alone(start: int, distance: int, dim: int) -> None:
    q, k = normal(dim, seed=1), normal(dim, seed=2)
    frequencies = positions.rotary_frequencies(dim)
    for pairing in ("halves", "neighbours"):
        near, far = (
            float(
                positions.rotate(q, *positions.rotary_angles(p + distance, frequencies), pairing)
                @ positions.rotate(k, *positions.rotary_angles(p, frequencies), pairing)
            )
            for p in (0, start)
        )
        assert abs(near - far) <= DISTANCE_TOLERANCE * np.linalg.norm(q) * np.linalg.norm(k)


def test_rotated_dot_product_does_depend_on_the_distance() -> None:
    q = k = np.ones(8, np.float32)
    frequencies = positions.rotary_frequencies(8)
    scores = [float(positions.rotate(q, *positions.rotary_angles(p, frequencies)) @ k) for p in range(4)]
    assert np.diff(scores).max() < -0.5  # the distance off by one is far outside DISTANCE_TOLERANCE * |q| * |k| = 8e-4


def test_position_zero_rotates_nothing_to_the_bit() -> None:
    x = normal(2, 3, 8)
    for pairing in ("halves", "neighbours"):
        angles = positions.rotary_angles(np.zeros(3, int), positions.rotary_frequencies(8))
        np.testing.assert_array_equal(positions.rotate(x, *angles, pairing), x)


def test_only_the_first_part_of_a_head_rotates() -> None:
    x = normal(2, 3, 5, 16)
    cos, sin = positions.rotary_angles(np.arange(1, 6)[None], positions.rotary_frequencies(4))
    y = positions.rotate(x, cos[:, None], sin[:, None])
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(y[..., :4], positions.rotate(x[..., :4], cos[:, None], sin[:, None]))
    assert (y[..., :4] != x[..., :4]).all()


@given(st.sampled_from([2, 4, 10, 32]))
def test_pairings_are_one_formula_in_another_order(dim: int) -> None:
    x = normal(7, dim)
    angles = positions.rotary_angles(np.arange(7), positions.rotary_frequencies(dim))
    to_neighbours = np.arange(dim).reshape(2, -1).T.ravel()  # 0, n, 1, n + 1, ...
    neighbours = positions.rotate(x[:, to_neighbours], *angles, "neighbours")
    np.testing.assert_array_equal(neighbours, positions.rotate(x, *angles)[:, to_neighbours])
    if dim > 2:
        assert rejects(positions.rotate(x, *angles, "neighbours"), positions.rotate(x, *angles))


def test_angles_are_written_twice_and_rounded_once() -> None:
    cos, sin = positions.rotary_angles([[3, 0], [1, 2]], np.array([1.0, 0.25], np.float32))
    angle = np.array([[[3, 0.75], [0, 0]], [[1, 0.25], [2, 0.5]]])
    np.testing.assert_array_equal(cos, np.cos(np.tile(angle, 2)).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(np.tile(angle, 2)).astype(np.float32))
    assert cos.dtype == sin.dtype == np.float32


def test_rotate_leaves_its_input_alone() -> None:
    x = normal(3, 4)
    before = x.copy()
    positions.rotate(x, *positions.rotary_angles(np.arange(3), positions.rotary_frequencies(4)))
    np.testing.assert_array_equal(x, before)


# ALiBi


@given(st.integers(0, 3))
def test_slopes_of_few_heads_are_exact_powers_of_two(log_heads: int) -> None:
    heads = 2**log_heads
    exact = [Fraction(1, 2 ** (8 * i // heads)) for i in range(1, heads + 1)]
    assert [Fraction(float(slope)) for slope in positions.alibi_slopes(heads)] == exact


def test_slopes_of_six_heads_by_hand() -> None:
    # four heads of 2^-2 each step, then the first and the third of eight heads
    assert positions.alibi_slopes(6).tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    # the plain formula, right for powers of two alone, is a classic mistake
    plain = (2.0 ** (-8 / 6 * np.arange(1, 7))).astype(np.float32)
    assert rejects(plain, positions.alibi_slopes(6))


@given(st.integers(1, 200))
def test_slopes_are_distinct_and_between_zero_and_one(heads: int) -> None:
    slopes = positions.alibi_slopes(heads)
    assert slopes.shape == (heads,)
    assert slopes.dtype == np.float32
    assert len(set(slopes.tolist())) == heads
    assert slopes.min() >= 2**-8 - 1e-8  # the rounded base, raised to the power 128, is 2.6e-9 below
    assert slopes.max() < 1


def test_key_positions_skip_masked_tokens() -> None:
    mask = [[0, 0, 1, 1, 1], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]]
    want = [[0, 0, 0, 1, 2], [0, 1, 0, 2, 0], [0, 0, 0, 0, 0]]
    assert positions.alibi_key_positions(mask).tolist() == want
    assert positions.alibi_key_positions(np.array(mask, bool)).tolist() == want


@given(lengths, st.integers(1, 16))
def test_alibi_differs_from_the_distance_form_by_a_constant_for_each_query(length: int, heads: int) -> None:
    bias = positions.alibi_bias(np.ones((1, length), int), heads)[0].astype(np.float64)  # (heads, 1, key)
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    distance = -positions.alibi_slopes(heads)[:, None, None].astype(np.float64) * (query - key)
    constant = bias - distance  # (heads, query, key)
    np.testing.assert_allclose(constant, np.broadcast_to(constant[..., :1], constant.shape), atol=CONSTANT_TOLERANCE)
    scores = normal(heads, length, length).astype(np.float64)
    by_key, by_distance = (np.exp(s) / np.exp(s).sum(-1, keepdims=True) for s in (scores + bias, scores + distance))
    np.testing.assert_allclose(by_key, by_distance, atol=SOFTMAX_TOLERANCE)


def test_left_padding_moves_no_bias_of_a_real_token() -> None:
    padded, plain = positions.alibi_bias([[0, 0, 1, 1, 1]], 4), positions.alibi_bias([[1, 1, 1]], 4)
    np.testing.assert_array_equal(padded[..., 2:], plain)
    assert padded.shape == (1, 4, 1, 5)


# T5 and MPNet


def test_buckets_of_t5_by_hand() -> None:
    # causal: 16 exact ones; 16 + trunc(16 ln(n / 16) / ln 8): the last starts at 16 * 8^(15/16) = 112.4
    distances = [0, 1, 15, 16, 18, 19, 32, 112, 113, 128, 10**6]
    want = [0, 1, 15, 16, 16, 17, 21, 30, 31, 31, 31]
    back = [-n for n in distances]
    assert positions.relative_buckets(back, bidirectional=False).tolist() == want
    # both ways: 8 exact ones; 8 + trunc(8 ln(n / 8) / ln 16): 8, 16, 32, 64, 128 are two buckets apart
    exact = [0, 1, 7, 8, 11, 12, 16, 23, 32, 64, 128]
    half = [0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 15]
    assert positions.relative_buckets([-n for n in exact]).tolist() == half
    assert positions.relative_buckets(exact).tolist() == [0, *(b + 16 for b in half[1:])]


rules = st.tuples(st.integers(4, 130), st.integers(66, 2048), st.booleans())


@given(rules)
def test_buckets_stay_in_range_and_grow_with_the_distance(rule: tuple[int, int, bool]) -> None:
    buckets, max_distance, both_ways = rule
    before = positions.relative_buckets(-np.arange(LONGEST + 1), *rule)
    after = positions.relative_buckets(np.arange(LONGEST + 1), *rule)
    assert (np.diff(before) >= 0).all()
    assert before[0] == after[0] == 0
    assert 0 <= min(before.min(), after.min()) <= max(before.max(), after.max()) < buckets
    assert (before[max_distance:] == before[max_distance]).all()
    if both_ways:  # the two sides never share a bucket, and mirror each other
        np.testing.assert_array_equal(after[1:], before[1:] + buckets // 2)
        assert (np.diff(after[1:]) >= 0).all()
    else:  # what comes later cannot be told apart: causal attention never looks ahead
        assert (after == 0).all()


@given(lengths, lengths, st.booleans())
def test_bias_depends_on_the_distance_alone(query: int, key: int, both_ways: bool) -> None:
    bias = positions.relative_bias(normal(32, 3), query, key, bidirectional=both_ways)
    assert bias.shape == (3, query, key)
    np.testing.assert_array_equal(bias[:, 1:, 1:], bias[:, :-1, :-1])


@given(lengths, st.integers(0, 60), st.booleans())
def test_bias_of_a_cached_step_is_the_last_rows_of_the_whole(query: int, past: int, both_ways: bool) -> None:
    table, total = normal(32, 2), past + query
    whole = positions.relative_bias(table, total, total, bidirectional=both_ways)
    step = positions.relative_bias(table, query, total, bidirectional=both_ways, past_length=past)
    np.testing.assert_array_equal(step, whole[:, past:])
    if past and both_ways:  # forgetting the cache, a classic mistake
        assert rejects(positions.relative_bias(table, query, total), step)


def test_bias_is_the_row_of_each_bucket() -> None:
    table = normal(32, 4)
    bias = positions.relative_bias(table, 5, 7)
    for query in range(5):
        for key in range(7):
            row = table[positions.relative_buckets(key - query)]
            np.testing.assert_array_equal(bias[:, query, key], row)


def test_bias_of_nothing_is_empty() -> None:
    assert positions.relative_bias(normal(32, 4), 0, 0).shape == (4, 0, 0)
    assert positions.relative_bias(normal(32, 4), 0, 3).shape == (4, 0, 3)
    assert positions.relative_bias(normal(32, 4), 3, 0).shape == (4, 3, 0)


# DeBERTa


def test_log_buckets_of_deberta_v3_by_hand() -> None:
    # 256 buckets, 512 positions: 128 + ceil(127 ln(r / 128) / ln(511 / 128)); ln(511 / 128) = 1.38434
    distances = [0, 1, 127, 128, 129, 130, 256, 510, 511, 512]
    want = [0, 1, 127, 128, 129, 130, 192, 255, 255, 256]
    assert positions.log_buckets(distances, 256, 512).tolist() == want
    assert positions.log_buckets([-r for r in distances], 256, 512).tolist() == [-b for b in want]


@given(st.integers(2, 256), st.integers(0, 1900))
def test_log_buckets_are_odd_and_grow_with_the_distance(buckets: int, more: int) -> None:
    max_positions = buckets // 2 + 2 + more
    bucket = positions.log_buckets(np.arange(-LONGEST, LONGEST + 1), buckets, max_positions)
    np.testing.assert_array_equal(bucket, -bucket[::-1])
    assert (np.diff(bucket) >= 0).all()
    middle = slice(LONGEST - buckets // 2, LONGEST + buckets // 2 + 1)
    np.testing.assert_array_equal(bucket[middle], np.arange(-(buckets // 2), buckets // 2 + 1))


@given(lengths, lengths, st.sampled_from([(8, 17), (2, 40), (16, 13), (-1, 8), (0, 100)]))
def test_rows_stay_in_the_table_and_depend_on_the_distance_alone(query: int, key: int, rule: tuple[int, int]) -> None:
    rows, span = positions.log_bucket_rows(query, key, *rule), rule[0] if rule[0] > 0 else rule[1]
    assert rows.shape == (query, key)
    assert 0 <= rows.min() <= rows.max() < 2 * span
    np.testing.assert_array_equal(rows[1:, 1:], rows[:-1, :-1])
    assert rows[0, 0] == span  # distance 0 is the middle of the table


def test_rows_of_distances_without_buckets_are_clipped_to_the_table() -> None:
    want = np.clip(np.arange(40)[:, None] - np.arange(50)[None, :] + 16, 0, 31)
    np.testing.assert_array_equal(positions.log_bucket_rows(40, 50, -1, 16), want)
    assert rejects(positions.log_bucket_rows(50, 40, -1, 16).T, want)  # key - query, T5's sign


# XLNet


def test_relative_sinusoids_cover_every_distance() -> None:
    table = positions.relative_sinusoids(3, 5, 8)
    assert table.shape == (8, 8)
    assert table.dtype == np.float32
    angle = np.arange(5, -3, -1)[:, None] * np.array([1.0, 0.1, 0.01, 0.001], np.float32)
    want = np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)
    np.testing.assert_allclose(table, want, atol=SINUSOID_TOLERANCE)
    assert np.abs(np.roll(want, 1, axis=0) - table).max() > 0.1  # the distance off by one
    np.testing.assert_array_equal(positions.relative_sinusoids(3, 5, 8, attention="uni"), table[:6])


def test_clamped_distances_are_all_the_furthest() -> None:
    table = positions.relative_sinusoids(6, 6, 4, clamp_length=2)
    plain = positions.relative_sinusoids(2, 2, 4)  # distances 2, 1, 0, -1
    np.testing.assert_array_equal(table[4:8], plain)
    np.testing.assert_array_equal(table[:4], np.repeat(plain[:1], 4, axis=0))


# the schemes as a layer hands them out

SCHEMES: dict[str, schemes.AttentionPosition] = {
    "rotary": schemes.Rotary(rotations={None: Rotation(positions.rotary_frequencies(4))}),
    "relative_bias": schemes.RelativeBias(table=np.zeros((32, 2), np.float32)),
    "alibi": schemes.Alibi(heads=2),
    "relative_positions": schemes.LogBuckets(
        relative_embeddings=np.zeros((16, 4), np.float32), buckets=8, max_positions=17
    ),
    "relative_sinusoids": schemes.RelativeSinusoids(dim=4),
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "rotary": ([[0, 1]],),
    "relative_bias": (2, 3),
    "alibi": ([[1, 1]],),
    "relative_positions": (2, 3),
    "relative_sinusoids": (2, 3),
}


@pytest.mark.parametrize("asked", SCHEMES)
@pytest.mark.parametrize("has", SCHEMES)
def test_a_scheme_answers_to_its_own_method_and_names_it_elsewhere(has: str, asked: str) -> None:
    if has == asked:
        getattr(SCHEMES[has], asked)(*ARGUMENTS[asked])
    else:
        with pytest.raises(AttributeError, match=rf"this model has .*, not {asked}: call {has}\("):
            getattr(SCHEMES[has], asked)


def test_schemes_compute_what_the_functions_do() -> None:
    table, frequencies = normal(8, 2), positions.rotary_frequencies(4, 500.0)
    rotations = {"local": Rotation(frequencies), "global": Rotation(positions.rotary_frequencies(4))}
    rotary = schemes.Rotary(rotations=rotations)
    for got, want in zip(rotary.rotary([[5]], "local"), positions.rotary_angles([[5]], frequencies), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        schemes.RelativeBias(table=table, buckets=8, max_distance=20, bidirectional=False).relative_bias(
            2, 9, past_length=7
        ),
        positions.relative_bias(table, 2, 9, 8, 20, False, 7),
    )
    np.testing.assert_array_equal(
        schemes.RelativeSinusoids(dim=4, attention="uni", clamp_length=2).relative_sinusoids(3, 5),
        positions.relative_sinusoids(3, 5, 4, "uni", 2),
    )
    with pytest.raises(AttributeError):
        schemes.Alibi(heads=2).heads = 3  # type: ignore[misc]


def test_layer_types_are_asked_for_by_name() -> None:
    layered = schemes.layered_rotary(HEAD)
    with pytest.raises(ValueError, match=r"one of 'full_attention', 'sliding_attention' in this model, found None"):
        layered.rotary([[0]])
    with pytest.raises(ValueError, match=r"one of None in this model, found 'full_attention'"):
        schemes.rotary(HEAD).rotary([[0]], "full_attention")


# what a config says

HEAD = {"hidden_size": 64, "num_attention_heads": 4}  # heads of 16


@pytest.mark.parametrize(
    ("config", "family", "dim", "base"),
    [
        ({}, "llama", 16, 10000.0),
        ({}, "nomic_bert", 16, 1000.0),
        ({"rope_theta": 50.0, "rotary_emb_base": 9.0}, "nomic_bert", 16, 50.0),
        ({"rotary_emb_base": 9.0}, "nomic_bert", 16, 9.0),
        ({"rope_theta": 500000}, "llama", 16, 500000.0),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 700.0, "rope_type": "default"}}, "llama", 16, 700.0),
        ({"rope_parameters": None, "rope_scaling": None, "rope_theta": 300.0}, "llama", 16, 300.0),
        ({"rope_scaling": {"type": "default"}, "rope_theta": 300.0}, "llama", 16, 300.0),
        ({"head_dim": 8}, "llama", 8, 10000.0),
        ({"head_dim": None}, "llama", 16, 10000.0),
        ({"partial_rotary_factor": 0.5}, "llama", 16, 10000.0),  # Llama's code never reads it
        ({"partial_rotary_factor": 0.5}, "phi3", 8, 10000.0),
        ({}, "qwen3", 128, 10000.0),
        ({}, "gemma", 256, 10000.0),
        ({}, "mixtral", 16, 1000000.0),
        ({}, "gpt_neox", 4, 10000.0),
        ({"rotary_pct": 0.5, "rotary_emb_base": 20000, "rope_theta": 3.0}, "gpt_neox", 8, 20000.0),
        ({"rope_parameters": {"partial_rotary_factor": 1.0}, "rotary_pct": 0.5}, "gpt_neox", 16, 10000.0),
    ],
)
def test_rotary_numbers_come_from_the_config(config: dict[str, Any], family: str, dim: int, base: float) -> None:
    got = scheme_of(family, {**HEAD, **config}).frequencies
    assert list(got) == [None]
    np.testing.assert_array_equal(got[None], positions.rotary_frequencies(dim, base))


@pytest.mark.parametrize(
    ("config", "thetas"),
    [
        ({}, (160000.0, 10000.0)),
        ({"global_rope_theta": 80.0, "local_rope_theta": 90.0}, (80.0, 90.0)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 70.0}}, "local_rope_theta": 60.0}, (70.0, 60.0)),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 50}, "full_attention": None}}, (160000.0, 50.0)),
    ],
)
def test_rotary_numbers_differ_by_layer_type(config: dict[str, Any], thetas: tuple[float, float]) -> None:
    frequencies = schemes.layered_rotary({**HEAD, **config}).frequencies
    for layer_type, theta in zip(("full_attention", "sliding_attention"), thetas, strict=True):
        np.testing.assert_array_equal(frequencies[layer_type], positions.rotary_frequencies(16, theta))


@pytest.mark.parametrize(
    ("read", "config", "message"),
    [
        (schemes.rotary, {}, "must set 'hidden_size'"),
        (schemes.rotary, {"hidden_size": 2, "num_attention_heads": 4}, "too small for 4 heads"),
        (schemes.rotary, {**HEAD, "rope_theta": 0}, "'rope_theta' .* above 0, found 0"),
        (schemes.rotary, {**HEAD, "rope_theta": "1e4"}, "'rope_theta' .* found '1e4'"),
        (schemes.rotary, {**HEAD, "rope_theta": True}, "'rope_theta' .* found True"),
        (schemes.rotary, {**HEAD, "rope_theta": math.inf}, "'rope_theta' .* found inf"),
        (schemes.rotary, {**HEAD, "num_attention_heads": 0}, "'num_attention_heads' .* found 0"),
        (schemes.rotary, {**HEAD, "rope_scaling": 2.0}, "'rope_scaling' .* must be an object"),
        (schemes.rotary, {**HEAD, "rope_parameters": {"full_attention": {}}}, "one set per layer type"),
        (schemes.layered_rotary, {**HEAD, "rope_parameters": {"full_attention": 1}}, "must be an object"),
        (schemes.alibi, {}, "must set 'n_head' or 'num_attention_heads'"),
        (schemes.xlnet_sinusoids, {"d_model": 8, "bi_data": True}, "without bi_data"),
        (schemes.xlnet_sinusoids, {"d_model": 8, "attn_type": "both"}, "attn_type='both'"),
    ],
)
def test_configs_that_make_no_sense_are_refused(
    read: Callable[[Mapping[str, Any]], object], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(config)


def test_a_share_of_the_head_must_fit_in_the_head() -> None:
    for share in (0.01, 1.5):
        with pytest.raises(CheckpointError, match=r"rotate \d+ of the 16 dimensions"):
            scheme_of("gpt_neox", {**HEAD, "rotary_pct": share})


def test_bias_numbers_come_from_the_config() -> None:
    numbers = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "num_attention_heads": 3}
    for side in ("encoder", "decoder"):
        scheme = schemes.t5_bias(Config(numbers), Stored({}), side)
        assert (scheme.buckets, scheme.max_distance, scheme.bidirectional) == (8, 20, side == "encoder")
        assert scheme.table.shape == (8, 3)  # asked for so; another shape is an error of the checkpoint


def test_deberta_numbers_come_from_the_config() -> None:
    stored = {
        "encoder.rel_embeddings.weight": normal(40, 6),
        "encoder.LayerNorm.weight": normal(6, seed=6),
        "encoder.LayerNorm.bias": normal(6, seed=7),
    }
    table, weight, bias = stored.values()
    binder = Stored(stored)

    def read(**more: Any) -> schemes.LogBuckets:
        binder.asked.clear()
        config = {"relative_attention": True, "hidden_size": 6, "max_position_embeddings": 17, **more}
        scheme = schemes.deberta_log_buckets(minibert.FAMILIES["deberta-v2"].configure(config), binder)
        assert scheme is not None
        return scheme

    assert schemes.deberta_log_buckets({"relative_attention": False}, binder) is None
    assert schemes.deberta_log_buckets({}, binder) is None
    assert not binder.asked

    plain = read(position_buckets=8, norm_rel_ebd="none")
    assert (plain.buckets, plain.max_positions) == (8, 17)
    assert binder.asked == {"encoder.rel_embeddings.weight": (16, 6)}
    np.testing.assert_array_equal(plain.relative_embeddings, table[:16])
    assert read(norm_rel_ebd="not layer_norm").relative_embeddings.tobytes() == table[:34].tobytes()

    normed = read(norm_rel_ebd="LAYER_NORM | x", position_buckets=None)
    assert binder.asked["encoder.rel_embeddings.weight"] == (34, 6)
    row = (table[3] - table[3].mean()) / np.sqrt(table[3].var() + 1e-7) * weight + bias
    np.testing.assert_allclose(normed.relative_embeddings[3], row, atol=NORM_TOLERANCE)
    assert read(max_relative_positions=9).max_positions == 9
    assert read(max_relative_positions=0).max_positions == 17
    with pytest.raises(CheckpointError, match="'position_buckets' in config"):
        read(position_buckets="many")


def test_xlnet_numbers_come_from_the_config() -> None:
    scheme = schemes.xlnet_sinusoids({"d_model": 8, "attn_type": "uni", "clamp_len": 3})
    assert (scheme.dim, scheme.attention, scheme.clamp_length) == (8, "uni", 3)
