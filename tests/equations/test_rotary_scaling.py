"""Scaled rotary frequencies: the reference's own numbers, classic mistakes, theorems, and configs that are refused."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_files import REFERENCE

import minibert
from minibert.equations import rotary_scaling as scaling
from minibert.equations.attention_positions import rotary_angles, rotary_frequencies
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.config import Config
from minibert.families.parts.rotations import RULES

STORED: dict[str, dict[str, Any]] = json.loads((REFERENCE / "rotary_scaling.json").read_text(encoding="utf-8"))
# frequencies, relative: measured 8.5e-8, the last bit of a power
FREQUENCY_TOLERANCE = 2.5e-7
# cos and sin of the reference's own frequencies at positions up to 163839: measured 1.2e-7
SAME_FREQUENCIES_TOLERANCE = 2.4e-7

every_setting = pytest.mark.parametrize("name", STORED)


def scheme_of(config: dict[str, Any], family: str) -> schemes.Rotary:
    row = minibert.FAMILIES[{"gemma3": "gemma3_text"}.get(family, family)]
    assert row.attention is not None
    made = row.attention(Config(config, row.aliases, row.defaults), None, "encoder")  # type: ignore[arg-type]
    assert isinstance(made, schemes.Rotary)
    return made


def off(got: Array, want: Any) -> float:
    """The largest difference, relative to what is wanted; 0 may not be off at all."""
    wanted = np.asarray(want, np.float32).astype(np.float64)
    assert got.shape == wanted.shape and got.dtype == np.float32
    difference = np.abs(got - wanted)
    assert (difference[wanted == 0] == 0).all()
    return float((difference[wanted != 0] / wanted[wanted != 0]).max())


# -- the reference's numbers ---------------------------------------------------------------------------------------


@every_setting
def test_frequencies_and_factor_are_the_reference_s(name: str) -> None:
    stored = STORED[name]
    scheme = scheme_of(stored["config"], stored["family"])
    for text in stored["texts"]:
        rotation = scheme.rotations[text["layer_type"]]
        assert off(rotation.at(text["length"]), text["frequencies"]) <= FREQUENCY_TOLERANCE
        assert rotation.attention_factor == text["factor"]


@every_setting
def test_cos_and_sin_are_the_reference_s_up_to_the_longest_text(name: str) -> None:
    stored = STORED[name]
    scheme = scheme_of(stored["config"], stored["family"])
    for text in stored["texts"]:
        theirs = np.array(text["frequencies"], np.float32)
        same = rotary_angles(text["positions"], theirs, text["factor"])
        got = scheme.rotary(text["positions"], text["layer_type"])
        last_bits = 2 * FREQUENCY_TOLERANCE * text["length"] * theirs.max() + SAME_FREQUENCIES_TOLERANCE
        for ours, shared, key in zip(got, same, ("cos", "sin"), strict=True):
            want = np.tile(np.array(text[key], np.float32), 2)
            assert np.abs(shared - want).max() <= SAME_FREQUENCIES_TOLERANCE
            assert ours.shape == want.shape
            assert np.abs(ours - want).max() <= last_bits


def test_every_rule_has_a_stored_setting() -> None:
    read = [scheme_of(stored["config"], stored["family"]) for stored in STORED.values()]
    used = {rotation.rope_type for scheme in read for rotation in scheme.rotations.values()}
    assert used == set(RULES)


def respelled(config: dict[str, Any]) -> dict[str, Any]:
    """The same config in the other spelling: `rope_parameters` with "rope_type", or `rope_scaling` with "type"."""
    config = dict(config)
    if "rope_scaling" in config:
        inner = dict(config.pop("rope_scaling"))
        kind = inner.pop("type", None) or inner.pop("rope_type")
        theta = config.pop("rope_theta", config.pop("rotary_emb_base", 1e4))
        return {**config, "rope_parameters": {**inner, "rope_type": kind, "rope_theta": theta}}
    inner = dict(config.pop("rope_parameters"))
    kind, theta = inner.pop("rope_type"), inner.pop("rope_theta")
    return {**config, "rope_scaling": {**inner, "type": kind}, "rope_theta": theta}


@pytest.mark.parametrize("name", [name for name in STORED if name != "by layer type"])
def test_both_spellings_say_the_same(name: str) -> None:
    stored = STORED[name]
    one, other = (scheme_of(config, stored["family"]) for config in (stored["config"], respelled(stored["config"])))
    for text in stored["texts"]:
        np.testing.assert_array_equal(one.rotary(text["positions"]), other.rotary(text["positions"]))


def test_what_the_rows_say_of_their_own_rotation() -> None:
    """Thetas, head sizes, pairings and names, where config.json leaves them out."""
    head = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096}
    own = {
        "llama": (16, 1e4), "mistral": (16, 1e4), "qwen2": (16, 1e4), "olmo2": (16, 1e4), "granite": (16, 1e4),
        "cohere2": (16, 1e4), "phi3": (16, 1e4), "mixtral": (16, 1e6), "qwen3": (128, 1e4), "gemma": (256, 1e4),
        "gemma2": (256, 1e4),
    }  # fmt: skip
    for family, (dim, theta) in own.items():
        scheme = scheme_of(head, family)
        np.testing.assert_array_equal(scheme.frequencies[None], rotary_frequencies(dim, theta), family)
        assert scheme.pairing == ("neighbours" if family == "cohere2" else "halves"), family
    layered = scheme_of(head, "gemma3_text").frequencies
    for layer_type, theta in (("full_attention", 1e6), ("sliding_attention", 1e4)):
        np.testing.assert_array_equal(layered[layer_type], rotary_frequencies(256, theta))
    for name in ("su", "yarn", "longrope"):
        config = {**STORED["longrope"]["config"]}
        config["rope_scaling"] = {**config["rope_scaling"], "type": name}
        assert scheme_of(config, "phi3").rotations[None].rope_type == "longrope"


# -- classic mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STORED if "longrope" in name or "yarn" in name])
def test_factor_on_cos_and_sin_forgotten(name: str) -> None:
    for text in STORED[name]["texts"]:
        without = rotary_angles(text["positions"], np.array(text["frequencies"], np.float32))
        for ours, key in zip(without, ("cos", "sin"), strict=True):
            wrong = np.abs(ours - np.tile(np.array(text[key], np.float32), 2)).max()
            assert wrong > 1e5 * SAME_FREQUENCIES_TOLERANCE


@pytest.mark.parametrize("name", [name for name in STORED if "proportional" not in name])
def test_frequencies_scaled_the_wrong_way(name: str) -> None:
    """Multiplied by what they are divided by: the mirror image, f * (f / f')."""
    stored = STORED[name]
    for layer_type, rotation in scheme_of(stored["config"], stored["family"]).rotations.items():
        for text in stored["texts"]:
            if rotation.unscaled is None or text["layer_type"] != layer_type:
                continue
            theirs = np.array(text["frequencies"], np.float32)
            if rotation.rope_type != "dynamic" or text["length"] > 2 * stored["config"]["max_position_embeddings"]:
                assert off(rotation.unscaled * (rotation.unscaled / theirs), theirs) > 1e5 * FREQUENCY_TOLERANCE


@pytest.mark.parametrize("name", ["yarn", "yarn, not truncated", "yarn with mscale", "llama3", "longrope"])
def test_the_reached_length_taken_for_the_original_one(name: str) -> None:
    stored = STORED[name]
    config = {key: value for key, value in stored["config"].items() if not key.startswith("original")}
    for key in ("rope_scaling", "rope_parameters"):
        if key in config:
            given = {**config[key], "original_max_position_embeddings": config["max_position_embeddings"]}
            config[key] = given
    confused = schemes.rotary(config)
    wrong = 0.0
    for text in stored["texts"]:
        wrong = max(wrong, off(confused.rotations[None].at(text["length"]), text["frequencies"]))
    assert wrong > 1e5 * FREQUENCY_TOLERANCE


# -- by hand, and what always holds --------------------------------------------------------------------------------

dims = st.sampled_from([4, 8, 16, 64, 128])
bases = st.floats(100.0, 1e7)
factors = st.floats(1.0, 64.0)


@given(dims, bases, factors, st.integers(64, 40000))
def test_yarn_lies_between_kept_and_slowed(dim: int, base: float, factor: float, original: int) -> None:
    kept = rotary_frequencies(dim, base)
    got = scaling.yarn_frequencies(dim, base, factor, original)
    share = got / kept
    assert (share <= 1 + 1e-6).all() and (share >= (1 - 1e-6) / factor).all()
    assert (np.diff(share) <= 1e-6).all()  # the slower a pair, the more it is slowed


@given(dims, bases, factors, st.integers(64, 40000))
def test_llama3_keeps_pairs_by_their_turns_in_a_text_of_training(
    dim: int, base: float, factor: float, original: int
) -> None:
    kept = rotary_frequencies(dim, base)
    got = scaling.llama3_frequencies(kept, factor, 1.0, 4.0, original)
    turns = original * kept.astype(np.float64) / (2 * math.pi)
    np.testing.assert_array_equal(got[turns > 4.001], kept[turns > 4.001])
    np.testing.assert_array_equal(got[turns < 0.999], kept[turns < 0.999] / np.float32(factor))
    assert (np.diff(got) < 0).all()


@given(dims, bases, factors, st.integers(0, 300), st.integers(1, 3000))
def test_dynamic_leaves_short_texts_alone_and_the_first_pair_always(
    dim: int, base: float, factor: float, length: int, more: int
) -> None:
    unscaled = rotary_frequencies(dim, base)
    np.testing.assert_array_equal(scaling.dynamic_frequencies(dim, base, factor, 300, length), unscaled)
    got = scaling.dynamic_frequencies(dim, base, factor, 300, 300 + more)
    assert got[0] == 1
    slowest = unscaled[-1] / (factor * (300 + more) / 300 - (factor - 1))
    np.testing.assert_allclose(got[-1], slowest, rtol=1e-5)  # exact but for float32: (s^(d/(d-2)))^((d-2)/d) = s


@given(st.integers(0, 2000), st.sampled_from([2.0, 4.0, 8.0]))
def test_linear_turns_a_position_as_one_a_factor_before_was(position: int, factor: float) -> None:
    frequencies = rotary_frequencies(8)
    far = rotary_angles([int(factor) * position], scaling.linear_frequencies(frequencies, factor))
    np.testing.assert_array_equal(far, rotary_angles([position], frequencies))  # powers of two are exact


def test_proportional_is_not_partial_rotation() -> None:
    proportional = scaling.proportional_frequencies(16, 1e4, share=0.5)
    assert np.count_nonzero(proportional) == 4 and len(proportional) == 8
    partial = np.pad(rotary_frequencies(8, 1e4), (0, 4))
    assert off(partial[1:4], proportional[1:4]) > 0.5
    np.testing.assert_array_equal(scaling.proportional_frequencies(16, 1e4), rotary_frequencies(16, 1e4))
    assert not scaling.proportional_frequencies(16, 1e4, share=0).any()


def test_one_token_more_changes_every_frequency_of_longrope() -> None:
    stored = STORED["longrope"]
    scheme = scheme_of(stored["config"], stored["family"])
    before, after = ([0, 4095], [0, 4096])
    assert (np.abs(scheme.rotary(before)[1][0] - scheme.rotary(after)[1][0]) == 0).all()  # position 0 never turns
    short, long = (scheme.rotary([[1, last]])[1][0, 0] for last in (4095, 4096))
    assert (short != long)[1:8].all()
    np.testing.assert_array_equal(scheme.rotary([[1]], length=4097)[1][0, 0], long)  # a cache says how long the text is
    np.testing.assert_array_equal(scheme.rotary([[1]])[1][0, 0], short)
    assert scheme.rotary(np.zeros((1, 0), int))[0].shape == (1, 0, 16)


def test_scaled_schemes_can_be_pickled() -> None:
    for stored in STORED.values():
        scheme = scheme_of(stored["config"], stored["family"])
        again = pickle.loads(pickle.dumps(scheme))
        layer_type = stored["texts"][0]["layer_type"]
        for length in (5, 10**5):
            np.testing.assert_array_equal(
                scheme.rotary([[3]], layer_type, length), again.rotary([[3]], layer_type, length)
            )


# -- what is refused -----------------------------------------------------------------------------------------------

HEAD = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "linear"}, "must set 'factor'"),
        ({"rope_type": "linear", "factor": 0}, "'factor' .* above 0, found 0"),
        ({"rope_type": "linear", "factor": "8"}, "'factor' .* found '8'"),
        ({"rope_type": "dynamic", "factor": True}, "'factor' .* found True"),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, "more than one pair .* dim=2"),
        ({"rope_type": "yarn"}, "must set 'factor'"),
        ({"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.2}, "even dim .* dim=3"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, "base other than 1"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": "1", "mscale_all_dim": 1}, "'mscale' .* found '1'"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "must be a list of numbers"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}, "long_factor must be 8 num"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [0.0] * 8}, "a number above 0"),
        ({"rope_type": "longrope", "short_factor": ["x"] * 8, "long_factor": [1.0] * 8}, "found 'x'"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "must set 'high_freq_factor'"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor must be above low_freq_factor"),
        ({**LLAMA3, "original_max_position_embeddings": -1}, "'original_max_position_embeddings' .* found -1"),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "rotate 24 of the 16"),
        ({"rope_type": "mrope"}, "'mrope' scaling .* minibert does not compute; it knows default, linear"),
        ({"rope_type": ["linear"]}, "does not compute"),
        ({"type": None}, "asks for None scaling"),
    ],
)
def test_configs_that_no_frequencies_can_be_made_of(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        schemes.rotary({**HEAD, "rope_parameters": parameters})
    layered = dict.fromkeys(("full_attention", "sliding_attention"), parameters)
    with pytest.raises(CheckpointError, match=message):
        schemes.layered_rotary({**HEAD, "rope_parameters": layered})


def test_rules_that_need_the_length_ask_for_it() -> None:
    head = {"hidden_size": 32, "num_attention_heads": 2}
    for parameters in ({"rope_type": "dynamic", "factor": 2.0}, LLAMA3, {"rope_type": "yarn", "factor": 2.0}):
        with pytest.raises(CheckpointError, match="must set 'max_position_embeddings'"):
            schemes.rotary({**head, "rope_parameters": parameters})


def test_parameters_that_are_not_sorted_by_layer_type_are_refused() -> None:
    for flat in ({"rope_type": "linear", "factor": 2.0}, {"type": "linear"}, {"factor": 2.0}):
        with pytest.raises(CheckpointError, match="must hold one set per layer type"):
            schemes.layered_rotary({**HEAD, "rope_parameters": flat})
