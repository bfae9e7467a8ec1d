"""Scaled rotary frequencies: the reference's numbers, each rule pair by pair in float64, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from binders import scheme_of
from reference_files import REFERENCE

from minibert.equations import rotary_scaling as scaling
from minibert.equations.rotary import rotary_angles, rotary_frequencies
from minibert.errors import CheckpointError
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.attention_schemes import RULES
from minibert.families.parts.config import Config

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


def test_what_the_rows_say_of_their_own_rotation() -> None:
    """Thetas, head sizes, pairings and names, where config.json leaves them out."""
    head = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096}
    own = {
        "llama": (16, 1e4), "mistral": (16, 1e4), "qwen2": (16, 1e4), "olmo2": (16, 1e4), "granite": (16, 1e4),
        "cohere2": (16, 1e4), "phi3": (16, 1e4), "mixtral": (16, 1e6), "qwen3": (128, 1e4), "gemma": (256, 1e4),
        "gemma2": (256, 1e4), "nomic_bert": (16, 1e3), "gpt_neox": (4, 1e4),
    }  # fmt: skip
    for family, (dim, theta) in own.items():
        scheme = scheme_of(family, head)
        np.testing.assert_array_equal(scheme.frequencies[None], rotary_frequencies(dim, theta), family)
        assert scheme.pairing == ("neighbours" if family == "cohere2" else "halves"), family
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

HEAD = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "linear"}, "'factor' .*None"),
        ({"rope_type": "linear", "factor": 0}, "'factor' .* 0;"),
        ({"rope_type": "llama3", "factor": True}, "'factor' .*True"),
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "yarn"}, "'factor' .*None"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}, "base=1"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": "1", "mscale_all_dim": 1}, "'mscale' .*'1'"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "'longrope'"),
        ({"type": "yarn", "short_factor": [1.0] * 8}, "'longrope'"),
        ({**LLAMA3, "original_max_position_embeddings": -1}, "'original_max_position_embeddings' .*-1"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.5}, "24 .*16"),
        ({"rope_type": "mrope"}, "'mrope' .*default, linear"),
        ({"rope_type": ["linear"]}, "does not compute"),
        ({"type": None}, "None"),
    ],
)
def test_configs_that_no_frequencies_can_be_made_of(parameters: dict[str, Any], message: str) -> None:
    layered = dict.fromkeys(("full_attention", "sliding_attention"), parameters)
    for read, given in ((schemes.rotary, parameters), (schemes.layered_rotary, layered)):
        with pytest.raises(CheckpointError, match=message):
            read(Config({**HEAD, "rope_parameters": given}))


def test_truncate_is_read_beside_the_layer_types_alone() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}

    def frequencies(beside: dict[str, Any], inside: dict[str, Any]) -> Any:
        parameters = dict.fromkeys(("full_attention", "sliding_attention"), yarn | inside) | beside
        found = schemes.layered_rotary(Config({**HEAD, "rope_parameters": parameters})).frequencies
        return found["full_attention"].tolist()

    assert frequencies({}, {"truncate": False}) == frequencies({}, {}) != frequencies({"truncate": False}, {})


@pytest.mark.parametrize("flat", [{"rope_type": "linear", "factor": 2.0}, {"type": "linear"}, {"factor": 2.0}])
def test_parameters_that_are_not_sorted_by_layer_type_are_refused(flat: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        schemes.layered_rotary(Config({**HEAD, "rope_parameters": flat}))
