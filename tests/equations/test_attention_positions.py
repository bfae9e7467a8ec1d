"""The position schemes inside attention: values made by hand, scaled rotary frequencies pair by pair and beside the
numbers of the reference, and what each scheme refuses.
"""

from __future__ import annotations

import cmath
import json
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from binders import Stored, scheme_of
from drawn import normal
from reference_files import REFERENCE

import minibert
from minibert import equations as positions
from minibert.equations import rotary_scaling as scaling
from minibert.equations.rotary import rotary_angles, rotary_frequencies
from minibert.errors import CheckpointError
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.attention_schemes import RULES, Rotation
from minibert.families.parts.config import Config

ROTATION_TOLERANCE = 1e-6  # a pair turned in float32 against complex numbers, of numbers up to 3: measured 1.2e-7
SLOPE_ROUNDING = 2e-6  # the base is rounded before it is raised to a power: for 1..64 heads measured 4.8e-7

# rotary


def test_frequencies_of_the_original_paper_by_hand() -> None:
    powers_of_ten = np.array([1.0, 0.1, 0.01, 0.001], np.float32)
    for dim in (8, 7):  # of an odd dim the last pair has one number
        frequencies = positions.rotary_frequencies(dim, 10.0 ** (dim / 2))
        np.testing.assert_allclose(frequencies, powers_of_ten, rtol=1e-6)
        assert frequencies.dtype == np.float32
    np.testing.assert_array_equal(positions.rotary_frequencies(8), powers_of_ten)


@pytest.mark.parametrize(("pairing", "pairs"), [("halves", [(0, 2), (1, 3)]), ("neighbours", [(0, 1), (2, 3)])])
def test_each_pair_turns_by_its_angle(pairing: str, pairs: list[tuple[int, int]]) -> None:
    """As a complex number does; what is wider than the angles passes through, and x stays as it was."""
    x, ids, frequencies = normal(2, 3, 6).astype(np.float32), np.array([[0, 1, 5], [3, 4, 40]]), [1.0, 0.25]
    before, want = x.copy(), x.astype(np.complex128)
    y = positions.rotate(x, *positions.rotary_angles(ids, np.array(frequencies, np.float32)), pairing)
    for (a, b), frequency in zip(pairs, frequencies, strict=True):
        turned = (x[..., a] + 1j * x[..., b]) * np.vectorize(cmath.exp)(1j * frequency * ids)
        want[..., a], want[..., b] = turned.real, turned.imag
    assert y.dtype == np.float32 and np.abs(y - want).max() <= ROTATION_TOLERANCE
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(x, before)


def test_cosines_and_sines_are_rounded_once() -> None:
    ids, frequencies = np.arange(1000)[None], np.array([1.0, 0.25], np.float32)
    angle = np.tile(ids[..., None] * frequencies, 2)
    for found, function in zip(positions.rotary_angles(ids, frequencies), (np.cos, np.sin), strict=True):
        np.testing.assert_array_equal(found, function(angle).astype(np.float32), strict=True)


# ALiBi


@pytest.mark.parametrize("heads", range(1, 65))
def test_slopes_of_every_head_count(heads: int) -> None:
    """Those of the next lower power of two, then every other one of the next higher."""
    power = max(count for count in (1, 2, 4, 8, 16, 32, 64) if count <= heads)
    want = [2 ** (-8 * i / power) for i in range(1, power + 1)] + [2 ** (-4 * i / power) for i in range(1, 128, 2)]
    slopes = positions.alibi_slopes(heads)
    np.testing.assert_allclose(slopes, want[:heads], rtol=SLOPE_ROUNDING)
    assert slopes.dtype == np.float32


def test_a_bias_is_the_slope_times_the_place_among_what_is_not_masked() -> None:
    mask = [[0, 0, 1, 1, 1], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]]
    want = np.array([[0, 0, 0, 1, 2], [0, 1, 0, 2, 0], [0, 0, 0, 0, 0]])
    slopes = positions.alibi_slopes(6)[:, None, None]
    for given in (mask, np.array(mask, bool)):
        assert positions.alibi_key_positions(given).tolist() == want.tolist()
        np.testing.assert_array_equal(positions.alibi_bias(given, 6), (want[:, None, None] * slopes).astype("f4"))


# T5 and MPNet


def test_buckets_of_t5_by_hand() -> None:
    # causal: 16 exact ones; 16 + trunc(16 ln(n / 16) / ln 8): the last starts at 16 * 8^(15/16) = 112.4
    distances = [0, 1, 15, 16, 18, 19, 32, 112, 113, 128, 10**6]
    want = [0, 1, 15, 16, 16, 17, 21, 30, 31, 31, 31]
    back = [9, *(-n for n in distances)]  # it looks ahead at nothing
    assert positions.relative_buckets(back, bidirectional=False).tolist() == [0, *want]
    # both ways: 8 exact ones; 8 + trunc(8 ln(n / 8) / ln 16): 8, 16, 32, 64, 128 are two buckets apart
    exact = [0, 1, 7, 8, 11, 12, 16, 23, 32, 64, 128]
    half = [0, 1, 7, 8, 8, 9, 10, 11, 12, 14, 15]
    assert positions.relative_buckets([-n for n in exact]).tolist() == half
    assert positions.relative_buckets(exact).tolist() == [0, *(b + 16 for b in half[1:])]


@pytest.mark.parametrize(("query", "key", "past"), [(5, 9, 0), (5, 9, 3), (0, 3, 0), (3, 0, 0)])
@pytest.mark.parametrize("rule", [(32, 128, True), (8, 20, False)])
def test_bias_is_the_row_of_each_bucket(rule: tuple[int, int, bool], query: int, key: int, past: int) -> None:
    table = normal(32, 4)
    bias = positions.relative_bias(table, query, key, *rule, past)
    assert bias.shape == (4, query, key)
    for i, j in np.ndindex(query, key):
        np.testing.assert_array_equal(bias[:, i, j], table[positions.relative_buckets(j - i - past, *rule)])


# DeBERTa


def test_log_buckets_of_deberta_v3_by_hand() -> None:
    # 256 buckets, 512 positions: 128 + ceil(127 ln(r / 128) / ln(511 / 128)); ln(511 / 128) = 1.38434
    distances = [0, 1, 127, 128, 129, 130, 256, 510, 511, 512]
    want = [0, 1, 127, 128, 129, 130, 192, 255, 255, 256]
    assert positions.log_buckets(distances, 256, 512).tolist() == want
    assert positions.log_buckets([-r for r in distances], 256, 512).tolist() == [-b for b in want]


@pytest.mark.parametrize(("buckets", "most"), [(8, 17), (2, 40), (16, 13), (-1, 16), (0, 100)])
def test_rows_are_the_buckets_from_the_middle_of_the_table_on(buckets: int, most: int) -> None:
    """Of query - key, T5's sign turned round; without buckets the distances themselves; clipped to the table."""
    distance, span = np.arange(40)[:, None] - np.arange(50), buckets if buckets > 0 else most
    bucket = positions.log_buckets(distance, buckets, most) if buckets > 0 else distance
    want = np.clip(bucket + span, 0, 2 * span - 1)
    np.testing.assert_array_equal(positions.log_bucket_rows(40, 50, buckets, most), want)


# the schemes as a layer hands them out

SCHEMES: dict[str, tuple[schemes.AttentionPosition, tuple[Any, ...]]] = {
    "rotary": (schemes.Rotary(rotations={None: Rotation(positions.rotary_frequencies(4))}), ([[0, 1]],)),
    "relative_bias": (schemes.RelativeBias(table=np.zeros((32, 2), np.float32)), (2, 3)),
    "alibi": (schemes.Alibi(heads=2), ([[1, 1]],)),
    "relative_positions": (schemes.LogBuckets(table=np.zeros((16, 4)), buckets=8, max_positions=17), (2, 3)),
}


@pytest.mark.parametrize("has", SCHEMES)
def test_a_scheme_answers_to_its_own_method_and_names_it_elsewhere(has: str) -> None:
    scheme, arguments = SCHEMES[has]
    getattr(scheme, has)(*arguments)
    for asked in SCHEMES.keys() - {has}:
        with pytest.raises(AttributeError, match=f"{asked}.*{has}"):
            getattr(scheme, asked)


def test_schemes_compute_what_the_functions_do() -> None:
    table, frequencies = normal(8, 2), positions.rotary_frequencies(4, 500.0)
    rotations = {"local": Rotation(frequencies), "global": Rotation(positions.rotary_frequencies(4))}
    found = schemes.Rotary(rotations=rotations).rotary([[5]], "local")
    np.testing.assert_array_equal(found, positions.rotary_angles([[5]], frequencies))
    scheme = schemes.RelativeBias(table=table, buckets=8, max_distance=20, bidirectional=False)
    want = positions.relative_bias(table, 2, 9, 8, 20, False, 7)
    np.testing.assert_array_equal(scheme.relative_bias(2, 9, past_length=7), want)
    with pytest.raises(AttributeError):
        schemes.Alibi(heads=2).heads = 3  # type: ignore[misc]
    for read, asked, named in (
        (schemes.layered_rotary, (), "sliding_attention"), (schemes.rotary, ("full_attention",), "full_attention"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"'{named}'"):
            read(Config(HEAD)).rotary([[0]], *asked)


# what a config says

HEAD = {"hidden_size": 64, "num_attention_heads": 4}  # heads of 16


OWN = {  # head sizes and thetas, where config.json leaves them out
    "llama": (16, 1e4), "mistral": (16, 1e4), "qwen2": (16, 1e4), "olmo2": (16, 1e4), "granite": (16, 1e4),
    "cohere2": (16, 1e4), "phi3": (16, 1e4), "mixtral": (16, 1e6), "qwen3": (128, 1e4), "gemma": (256, 1e4),
    "gemma2": (256, 1e4), "nomic_bert": (16, 1e3), "gpt_neox": (4, 1e4),
}  # fmt: skip
READ: list[tuple[dict[str, Any], str, int, float]] = [
    *(({}, family, *numbers) for family, numbers in OWN.items()),
    ({"rope_theta": 50.0, "rotary_emb_base": 9.0}, "nomic_bert", 16, 50.0),
    ({"rotary_emb_base": 9.0}, "nomic_bert", 16, 9.0), ({"rope_theta": 500000}, "llama", 16, 500000.0),
    ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 700.0, "rope_type": "default"}}, "llama", 16, 700.0),
    ({"rope_parameters": None, "rope_scaling": None, "rope_theta": 300.0}, "llama", 16, 300.0),
    ({"rope_scaling": {"type": "default"}, "rope_theta": 300.0}, "llama", 16, 300.0),
    ({"rope_scaling": {"rope_theta": 50.0}, "rope_parameters": {"rope_theta": 7.0}}, "llama", 16, 50.0),
    ({"head_dim": 8}, "llama", 8, 10000.0), ({"head_dim": None}, "llama", 16, 10000.0),
    ({"partial_rotary_factor": 0.5}, "llama", 16, 10000.0),  # Llama's code never reads it
    ({"partial_rotary_factor": 0.5}, "phi3", 8, 10000.0),
    ({"rotary_pct": 0.5, "rotary_emb_base": 20000, "rope_theta": 3.0}, "gpt_neox", 8, 20000.0),
    ({"rope_parameters": {"partial_rotary_factor": 1.0}, "rotary_pct": 0.5}, "gpt_neox", 16, 10000.0),
]  # fmt: skip


@pytest.mark.parametrize(("config", "family", "dim", "base"), READ)
def test_rotary_numbers_come_from_the_config(config: dict[str, Any], family: str, dim: int, base: float) -> None:
    scheme = scheme_of(family, {**HEAD, **config})
    assert list(scheme.frequencies) == [None]
    np.testing.assert_array_equal(scheme.frequencies[None], positions.rotary_frequencies(dim, base))
    assert scheme.pairing == ("neighbours" if family == "cohere2" else "halves")


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
    frequencies = schemes.layered_rotary(Config({**HEAD, **config})).frequencies
    for layer_type, theta in zip(("full_attention", "sliding_attention"), thetas, strict=True):
        np.testing.assert_array_equal(frequencies[layer_type], positions.rotary_frequencies(16, theta))


NO_TABLE = Stored({})
T5, MPNET = (partial(read, binder=NO_TABLE, side="encoder") for read in (schemes.t5_bias, schemes.mpnet_bias))
DEBERTA = partial(schemes.deberta_log_buckets, binder=NO_TABLE)
BUCKETS, DISTANCE = "relative_attention_num_buckets", "relative_attention_max_distance"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LOGS = {"relative_attention": True, "max_position_embeddings": 9}


@pytest.mark.parametrize(
    ("read", "config", "message"),
    [
        (schemes.rotary, {}, "'hidden_size'.* 0.*None"),
        (schemes.rotary, {"hidden_size": 2, "num_attention_heads": 4}, r"\b4 heads"),
        (schemes.rotary, {**HEAD, "rope_theta": 0}, "'rope_theta' .* 0;"),
        (schemes.rotary, {**HEAD, "rope_theta": np.inf}, "'rope_theta' .*inf"),
        (schemes.rotary, {**HEAD, "rope_scaling": 2.0}, "'rope_scaling'"),
        (schemes.rotary, {**HEAD, "rope_parameters": {"full_attention": {}}}, "one set per layer type"),
        (schemes.layered_rotary, {**HEAD, "rope_parameters": {"full_attention": 1}}, "must be an object"),
        *(
            (schemes.layered_rotary, {**HEAD, "rope_parameters": flat}, "one set per layer type")
            for flat in ({"rope_type": "linear", "factor": 2.0}, {"type": "linear"}, {"factor": 2.0})
        ),
        (schemes.rotary, {**HEAD, "rope_parameters": LLAMA3}, "'max_position_embeddings'"),
        (partial(schemes.rotary, share=0.01), HEAD, "0 .*16"),
        (schemes.alibi, {}, "'num_attention_heads'"),
        (T5, {BUCKETS: 3, DISTANCE: 128}, f"'{DISTANCE}': .*buckets=3, max_distance=128"),
        (T5, {BUCKETS: 32, DISTANCE: 8}, f"'{DISTANCE}': .*buckets=32, max_distance=8"),
        (DEBERTA, LOGS | {"position_buckets": 1}, "'position_buckets' .*buckets=1, max_positions=9"),
        (DEBERTA, LOGS | {"position_buckets": 16}, "'position_buckets' .*buckets=16, max_positions=9"),
        (MPNET, {BUCKETS: 17, "num_attention_heads": 2}, "_num_buckets' .*32.* 17"),
    ],
)
def test_configs_that_make_no_sense_are_refused(
    read: Callable[[Config], object], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(Config(config))


def test_words_of_deberta_s_config() -> None:
    """Numbers and rows, as they are and after a norm, are the reference's: tests/models/test_encoder.py."""

    def read(**more: Any) -> tuple[Any, Stored]:
        binder, config = Stored(), {"hidden_size": 6, "max_position_embeddings": 17, "relative_attention": True, **more}
        return schemes.deberta_log_buckets(minibert.FAMILIES["deberta-v2"].configure(config), binder), binder

    for word, normed in (("none", False), ("not layer_norm", False), ("LAYER_NORM | x", True)):
        assert ("encoder.LayerNorm.weight" in read(norm_rel_ebd=word)[1].asked) == normed
    assert [read(max_relative_positions=most)[0].max_positions for most in (0, 9)] == [17, 9]
    with pytest.raises(CheckpointError, match="'position_buckets'"):
        read(position_buckets="many")


STORED: dict[str, dict[str, Any]] = json.loads((REFERENCE / "rotary_scaling.json").read_text(encoding="utf-8"))
FAMILY = {name: stored["family"].replace("gemma3", "gemma3_text") for name, stored in STORED.items()}
FREQUENCY_TOLERANCE = 2.5e-7  # relative: measured 8.5e-8, the last bit of a power
SAME_FREQUENCIES_TOLERANCE = 2.4e-7  # cos and sin of the reference's own at positions up to 163839: measured 1.2e-7
ROUNDING = 6e-7  # of each frequency: float32 against float64; measured 2.4e-7


def respelled(config: dict[str, Any]) -> dict[str, Any]:
    """The same config in the other spelling: `rope_parameters` with "rope_type", or `rope_scaling` with "type"."""
    config = dict(config)
    inner = dict(config.pop("rope_scaling", {}) or config.pop("rope_parameters"))
    if "rope_theta" in inner:
        kind, theta = inner.pop("rope_type"), inner.pop("rope_theta")
        return {**config, "rope_scaling": {**inner, "type": kind}, "rope_theta": theta}
    kind = inner.pop("type", None) or inner.pop("rope_type")
    theta = config.pop("rope_theta", config.pop("rotary_emb_base", 1e4))
    return {**config, "rope_parameters": {**inner, "rope_type": kind, "rope_theta": theta}}


def test_each_rule_has_a_stored_setting() -> None:
    assert {name.partition(" ")[0].strip(",") for name in STORED} == {*RULES, "by"} - {"default"}


@pytest.mark.parametrize("name", STORED)
def test_both_spellings_give_the_reference_s_numbers(name: str) -> None:
    """Frequencies, the factor, cos and sin, up to the longest text; of a scheme that was pickled, too."""
    config = STORED[name]["config"]
    for source in (config, config if "layer type" in name else respelled(config)):
        scheme = pickle.loads(pickle.dumps(scheme_of(FAMILY[name], source)))
        for text in STORED[name]["texts"]:
            layer_type, theirs = text["layer_type"], np.array(text["frequencies"], np.float32)
            rotation = scheme.rotations[layer_type]
            np.testing.assert_allclose(rotation.frequencies, theirs, rtol=FREQUENCY_TOLERANCE, atol=0)
            assert rotation.attention_factor == text["factor"]
            same = rotary_angles(text["positions"], theirs, text["factor"])
            last_bits = 2 * FREQUENCY_TOLERANCE * text["length"] * theirs.max() + SAME_FREQUENCIES_TOLERANCE
            rotary = scheme.rotary(text["positions"], layer_type)
            for ours, shared, key in zip(rotary, same, ("cos", "sin"), strict=True):
                want = np.tile(np.array(text[key], np.float32), 2)
                assert ours.dtype == np.float32 and ours.shape == want.shape
                assert np.abs(shared - want).max() <= SAME_FREQUENCIES_TOLERANCE
                assert np.abs(ours - want).max() <= last_bits


def test_what_the_rows_of_ministral_and_gemma_say_of_their_own_rotation() -> None:
    head = {**HEAD, "max_position_embeddings": 4096}
    scaled = scheme_of("ministral3", head)  # yarn, and a factor of queries from 16,384 tokens on
    assert scaled.growth == (0.1, 16384) and scaled.rotations[None].original_length == 16384
    factors = scaled.query_factor([16383, 16384, 3 * 16384])
    np.testing.assert_allclose(factors, [1, 1 + 0.1 * np.log(2), 1 + 0.1 * np.log(4)], rtol=1e-6)
    layered = scheme_of("gemma3_text", head).frequencies
    for layer_type, theta in (("full_attention", 1e6), ("sliding_attention", 1e4)):
        np.testing.assert_array_equal(layered[layer_type], rotary_frequencies(256, theta))


# -- pair by pair in float64 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "base"), [(8, 10000.0), (64, 500000.0), (6, 20.0)])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("length", "fast", "slow"),
    # as published; one pair wide or none; from before the first pair; to past the last
    [(2048, 32.0, 1.0), (64, 4.0, 4.0), (64, 32.0, 4.0), (2048, 1e9, 1.0), (2**40, 32.0, 1e-9)],
)
def test_yarn(dim: int, base: float, truncate: bool, length: int, fast: float, slow: float) -> None:
    low, high = (dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramps = [min(max((i - low) / (high - low or 0.001), 0.0), 1.0) for i in range(dim // 2)]
    want = [base ** (-2 * i / dim) * (ramp / 4 + 1 - ramp) for i, ramp in enumerate(ramps)]
    found = scaling.yarn_frequencies(dim, base, 4.0, length, fast, slow, truncate)
    np.testing.assert_allclose(found, want, rtol=ROUNDING, atol=0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 40.0])
def test_factor_of_yarn(factor: float) -> None:
    one, some, few = (0.1 * scale * math.log(max(factor, 1)) + 1 for scale in (1, 0.7, 0.3))
    assert scaling.yarn_attention_factor(factor, 0.7, 0.3) == pytest.approx(some / few)
    for alone in ({}, {"mscale": 0.7}, {"mscale_all_dim": 0.3}):  # one of the two counts for nothing
        assert scaling.yarn_attention_factor(factor, **alone) == pytest.approx(one)


# -- what is refused -----------------------------------------------------------------------------------------------


UNSCALED: list[tuple[dict[str, Any], str]] = [
    ({"rope_type": "linear"}, "'factor' .*None"), ({"rope_type": "linear", "factor": 0}, "'factor' .* 0;"),
    ({"rope_type": "llama3", "factor": True}, "'factor' .*True"), ({"rope_type": "yarn"}, "'factor' .*None"),
    ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),  # a text's vectors would change with the texts around it
    ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, "base=1"),
    ({"rope_type": "yarn", "factor": 2.0, "mscale": "1", "mscale_all_dim": 1}, "'mscale' .*'1'"),
    *(({**kind, "short_factor": [1.0] * 8}, "'longrope'") for kind in ({"rope_type": "longrope"}, {"type": "yarn"})),
    ({**LLAMA3, "original_max_position_embeddings": -1}, "'original_max_position_embeddings' .*-1"),
    ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.5}, "24 .*16"),
    ({"rope_type": "mrope"}, "'mrope' .*default, linear"), ({"rope_type": ["linear"]}, "does not compute"),
    ({"type": None}, "None"),
]  # fmt: skip
LONG = {**HEAD, "max_position_embeddings": 4096}


@pytest.mark.parametrize(("parameters", "message"), UNSCALED)
def test_configs_that_no_frequencies_can_be_made_of(parameters: dict[str, Any], message: str) -> None:
    layered = dict.fromkeys(("full_attention", "sliding_attention"), parameters)
    for read, given in ((schemes.rotary, parameters), (schemes.layered_rotary, layered)):
        with pytest.raises(CheckpointError, match=message):
            read(Config({**LONG, "rope_parameters": given}))


def test_truncate_is_read_beside_the_layer_types_alone() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}

    def frequencies(beside: dict[str, Any], inside: dict[str, Any]) -> Any:
        parameters = dict.fromkeys(("full_attention", "sliding_attention"), yarn | inside) | beside
        found = schemes.layered_rotary(Config({**LONG, "rope_parameters": parameters}))
        return found.frequencies["full_attention"].tolist()

    assert frequencies({}, {"truncate": False}) == frequencies({}, {}) != frequencies({"truncate": False}, {})
