"""Rotary positions, scaled and not, against transformers' own modules, up to the longest position of each config."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from binders import scheme_of

from minibert import equations as positions
from minibert.equations import rotary_scaling as scaling
from minibert.equations.input_layer import Array
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.config import Config

pytestmark = pytest.mark.reference

# frequencies, relative, and the share of them that differs: measured 2.2e-7 and 1.5 % (dynamic), 1.2 % (the others),
# last bits of the powers
FREQUENCY_TOLERANCE = 4e-7
FREQUENCIES_OFF = 0.03
# cos and sin of equal frequencies: measured 1.2e-7, a last bit of a number between 1 and 2
SAME_FREQUENCIES_TOLERANCE = 2.4e-7
# of frequencies that differ in last bits, at positions up to 131071: measured 7.8e-3, the last bit of one near 1
ANGLE_TOLERANCE = 1.6e-2

DIMS = (8, 32, 64, 80, 96, 128, 256)
BASES = (1e4, 1.5e5, 5e5, 1e6)
FACTORS = (1.5, 2.0, 4.0, 8.0, 32.0, 40.0)
SIZES = {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 16, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    importlib.import_module("transformers").logging.set_verbosity_error()  # it warns of settings that we make up
    return importlib.import_module("torch")


def rotary_module(family: str, name: str, **config: Any) -> tuple[Any, dict[str, Any]]:
    """The reference's rotary module and the config.json that it writes."""
    package = f"transformers.models.{family}"
    configuration = importlib.import_module(f"{package}.configuration_{family}")
    modeling = importlib.import_module(f"{package}.modeling_{family}")
    made = getattr(configuration, f"{name}Config")(**{**SIZES, **config})
    stem = name.removesuffix("Text")
    return getattr(modeling, f"{stem}RotaryEmbedding")(made), made.to_dict()


def llama(dim: int, reached: int, **parameters: Any) -> Any:
    """Llama's module with heads of one size, for texts up to `reached`."""
    config = {"hidden_size": 2 * dim, "head_dim": dim, "max_position_embeddings": reached}
    return rotary_module("llama", "Llama", rope_parameters=parameters, **config)[0]


def numpy(tensor: Any) -> Array:
    return np.array(tensor.detach().numpy())  # a copy: a module changes its frequencies in place


def seen(module: Any, torch: ModuleType, length: int) -> Array:
    """Its frequencies after one text of this length."""
    module(torch.zeros(1), torch.tensor([[length - 1]]))
    return numpy(module.inv_freq)


# -- frequencies and factors over many settings --------------------------------------------------------------------


def test_every_rule_of_the_reference_has_one_here(torch: ModuleType) -> None:
    known = importlib.import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    rules = importlib.import_module("minibert.families.parts.rotations").RULES
    assert set(known) | {"default"} == set(rules)


Pair = tuple[Array, Array]  # ours, and the reference's


def default(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    theirs = llama(dim, 4096, rope_type="default", rope_theta=base * factor)
    yield positions.rotary_frequencies(dim, base * factor), numpy(theirs.inv_freq)


def linear(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    unscaled = numpy(llama(dim, 4096, rope_type="default", rope_theta=base).inv_freq)
    theirs = llama(dim, 4096, rope_type="linear", rope_theta=base, factor=factor)
    yield scaling.linear_frequencies(unscaled, factor), numpy(theirs.inv_freq)


def llama3(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    unscaled = numpy(llama(dim, 131072, rope_type="default", rope_theta=base).inv_freq)
    theirs = llama(dim, 131072, rope_type="llama3", rope_theta=base, **{**LLAMA31, "factor": factor})
    yield scaling.llama3_frequencies(unscaled, factor, 1.0, 4.0, 8192), numpy(theirs.inv_freq)


def proportional(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    for share in (0.25, 0.6, 1.0):
        given = {"rope_theta": base, "factor": factor, "partial_rotary_factor": share}
        theirs = llama(dim, 4096, rope_type="proportional", **given)
        yield scaling.proportional_frequencies(dim, base, share, factor), numpy(theirs.inv_freq)


def dynamic(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    for trained in (2048, 8192):
        for length in (trained + 1, trained + 7, 3 * trained, 16 * trained + 5):
            theirs = llama(dim, trained, rope_type="dynamic", rope_theta=base, factor=factor)
            yield scaling.dynamic_frequencies(dim, base, factor, trained, length), seen(theirs, torch, length)


def yarn(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    for original in (4096, 32768):
        for truncate in (True, False):
            given = {"original_max_position_embeddings": original, "factor": factor, "truncate": truncate}
            theirs = llama(dim, int(original * factor), rope_type="yarn", rope_theta=base, **given)
            assert scaling.yarn_attention_factor(factor) == theirs.attention_scaling > 1
            yield scaling.yarn_frequencies(dim, base, factor, original, truncate=truncate), numpy(theirs.inv_freq)


def longrope(torch: ModuleType, dim: int, base: float, factor: float) -> Iterator[Pair]:
    random = np.random.default_rng(dim).random
    short, long = ((1 + most * random(dim // 2)).round(3).tolist() for most in (1, factor))
    given = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096}
    theirs = llama(dim, 131072, rope_type="longrope", rope_theta=base, **given)
    assert scaling.longrope_attention_factor(32.0, 4096) == theirs.attention_scaling > 1
    for length in (4096, 4097):
        yield scaling.longrope_frequencies(dim, base, short, long, 4096, length), seen(theirs, torch, length)


@pytest.mark.parametrize("rule", [default, linear, llama3, proportional, dynamic, yarn, longrope])
def test_frequencies_over_many_settings(torch: ModuleType, rule: Callable[..., Iterator[Pair]]) -> None:
    found = [pair for each in product(DIMS, BASES, FACTORS) for pair in rule(torch, *each)]
    unequal = total = 0
    for got, want in found:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=FREQUENCY_TOLERANCE, atol=0)
        unequal, total = unequal + int((got != want).sum()), total + want.size
    assert unequal <= (0 if rule in (linear, llama3) else FREQUENCIES_OFF) * total


def test_dynamic_in_the_reference_remembers_the_longest_text(torch: ModuleType) -> None:
    module = llama(64, 2048, rope_type="dynamic", rope_theta=1e4, factor=2.0)

    def ours(length: int) -> Array:
        return scaling.dynamic_frequencies(64, 1e4, 2.0, 2048, length)

    for text, as_if in ((2047, 2048), (5000, 5000), (3000, 5000), (2048, 5000), (2047, 2047), (3000, 3000)):
        np.testing.assert_allclose(ours(as_if), seen(module, torch, text), rtol=FREQUENCY_TOLERANCE, atol=0)
    assert not np.allclose(ours(3000), ours(5000), rtol=0.01, atol=0)


@pytest.mark.parametrize("mscale", [0.0, 0.707, 1.0, None])
@pytest.mark.parametrize("all_dim", [0.0, 0.5, 1.0, None])
@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0, 40.0])
def test_factor_of_yarn(torch: ModuleType, factor: float, mscale: float | None, all_dim: float | None) -> None:
    scales = {"mscale": mscale, "mscale_all_dim": all_dim}
    given = {"original_max_position_embeddings": 4096, "factor": factor, **scales}
    module = llama(64, 131072, rope_type="yarn", rope_theta=1e4, **given)
    assert scaling.yarn_attention_factor(factor, **scales) == module.attention_scaling


# -- whole configs, both spellings, up to the longest position -----------------------------------------------------

HEAD = {"hidden_size": 256}  # heads of 128
SHORT, LONG = [1.0 + i / 64 for i in range(64)], [1.0 + i for i in range(64)]
LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LISTS = {"short_factor": SHORT, "long_factor": LONG}
FIRST = {"original_max_position_embeddings": 4096}
# besides those that tests/reference/rotary_scaling.json holds
PUBLISHED: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "Llama 3.2": ("llama", "Llama", 131072, 5e5, {"rope_type": "llama3", **LLAMA31, "factor": 32.0}),
    "yarn, length unsaid": ("qwen3", "Qwen3", 32768, 1e6, {"rope_type": "yarn", "factor": 4.0}),
    "yarn, factor null": ("llama", "Llama", 65536, 1e4, {"rope_type": "yarn", "factor": None, **FIRST}),
    "yarn, factor said": ("llama", "Llama", 131072, 1e4,
                          {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5, **FIRST,
                           "attention_factor": 0.7, "beta_fast": 16, "beta_slow": 2}),
    "longrope, factor said": ("llama", "Llama", 131072, 1e4,
                              {"rope_type": "longrope", **LISTS, **FIRST, "factor": 16.0}),
    "longrope, cos said": ("llama", "Llama", 131072, 1e4,
                           {"rope_type": "longrope", **LISTS, **FIRST, "attention_factor": 1.25}),
    "longrope of half a head": ("llama", "Llama", 131072, 1e4,
                                {"rope_type": "longrope", "short_factor": SHORT[::2], "long_factor": LONG[::2],
                                 **FIRST, "partial_rotary_factor": 0.5}),
    "GPT-NeoX, dynamic": ("gpt_neox", "GPTNeoX", 2048, 1e4, {"rope_type": "dynamic", "factor": 4.0}),
    "Mixtral": ("mixtral", "Mixtral", 32768, 1e6, {"rope_type": "linear", "factor": 2.0}),
}  # fmt: skip


def configs(name: str) -> list[dict[str, Any]]:
    """One model's config.json as it is spelled today and as it was."""
    _, _, reached, theta, parameters = PUBLISHED[name]
    common = {**HEAD, "max_position_embeddings": reached}
    renamed = {"type" if key == "rope_type" else key: value for key, value in parameters.items()}
    older = {**common, "rope_scaling": renamed, "rope_theta": theta}
    if name.startswith("GPT-NeoX"):
        older["rotary_emb_base"] = older.pop("rope_theta")
    return [{**common, "rope_parameters": {**parameters, "rope_theta": theta}}, older]


def compare_texts(torch: ModuleType, module: Any, scheme: schemes.Rotary, length: int, layer: str | None) -> None:
    """Frequencies, the factor, cos and sin of one text, from the first position to the last."""
    ids = np.unique(np.append(np.arange(0, length, 61), [length - 2, length - 1]))[None]
    more = () if layer is None else (layer,)
    want = [numpy(part) for part in module(torch.zeros(1), torch.from_numpy(ids), *more)]
    prefix = "" if layer is None else f"{layer}_"
    theirs = numpy(getattr(module, f"{prefix}inv_freq"))
    rotation = scheme.rotations[layer]
    np.testing.assert_allclose(rotation.at(length), theirs, rtol=FREQUENCY_TOLERANCE, atol=0)
    factor = getattr(module, f"{prefix}attention_scaling", module.__dict__.get("attention_scaling"))
    assert rotation.attention_factor == factor
    got, same = scheme.rotary(ids, layer), positions.rotary_angles(ids, theirs, factor)
    for ours, shared, cos_or_sin in zip(got, same, want, strict=True):
        assert ours.shape == cos_or_sin.shape and ours.dtype == np.float32
        assert np.abs(shared.astype(np.float64) - cos_or_sin).max() <= SAME_FREQUENCIES_TOLERANCE
        assert np.abs(ours.astype(np.float64) - cos_or_sin).max() <= ANGLE_TOLERANCE


def compare_spellings(torch: ModuleType, family: str, name: str, config: dict[str, Any], *lengths: int) -> None:
    """A config.json as it is given, and as transformers writes it today; a new module for each text."""
    written = rotary_module(family, name, **config)[1]
    for source, length in product(({**SIZES, **config}, written), lengths):
        module = rotary_module(family, name, **config)[0]
        compare_texts(torch, module, scheme_of(family, source), length, None)


FLAT = [
    ("llama", "Llama", {}),
    ("llama", "Llama", {"rope_theta": 300, "rope_scaling": None}),
    ("llama", "Llama", {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 70.0}}),
    ("llama", "Llama", {"partial_rotary_factor": 0.5}),
    ("llama", "Llama", {"rope_theta": 300.0, "rope_scaling": {"type": "default"}}),
    ("mistral", "Mistral", {"head_dim": 32, "rope_theta": 1e6}),
    ("qwen2", "Qwen2", {"rope_theta": 1e6}),
    ("qwen3", "Qwen3", {}),
    ("mixtral", "Mixtral", {}),
    ("olmo2", "Olmo2", {}),
    ("granite", "Granite", {}),
    ("phi3", "Phi3", {"pad_token_id": 0}),
    ("gpt_neox", "GPTNeoX", {}),
    ("gpt_neox", "GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 20000}),
    ("gpt_neox", "GPTNeoX", {"rotary_pct": 1.0, "rope_theta": 3.0}),
    ("nomic_bert", "NomicBert", {}),
    ("nomic_bert", "NomicBert", {"rope_theta": 50.0, "rotary_emb_base": 1000.0}),
]


@pytest.mark.parametrize(("family", "name", "config"), FLAT)
def test_config_of_every_family_old_and_new(torch: ModuleType, family: str, name: str, config: dict[str, Any]) -> None:
    """An old config.json, and the one that transformers writes today."""
    config = {**HEAD, "num_key_value_heads": 2, **config}
    compare_spellings(torch, family, name, config, 4096)


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_in_both_spellings(torch: ModuleType, name: str) -> None:
    family, stem, reached, _, _ = PUBLISHED[name]
    lengths = [reached, 3 * reached] if name.endswith("dynamic") else [4096, reached]
    for config in configs(name):
        compare_spellings(torch, family, stem, config, *lengths)


@pytest.mark.parametrize("word", ["type", "rope_type"])
@pytest.mark.parametrize("rope_type", ["su", "yarn", "longrope"])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_phi3_calls_longrope_by_three_names(torch: ModuleType, share: float, rope_type: str, word: str) -> None:
    pairs = int(128 * share) // 2
    config: dict[str, Any] = {
        **HEAD, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_scaling": {word: rope_type, "short_factor": SHORT[:pairs], "long_factor": LONG[:pairs]},
        "partial_rotary_factor": share, "pad_token_id": 0,
    }  # fmt: skip
    if rope_type == "su":  # the reference then asks for the length among the parameters, not beside them
        config["rope_scaling"]["original_max_position_embeddings"] = 4096
    compare_spellings(torch, "phi3", "Phi3", config, 4096, 4097, 131072)


GEMMA3 = {"thetas": schemes.GEMMA3_THETAS, "scaled": ("full_attention",)}
SLIDING = ["sliding_attention", "full_attention"]
LAYERED: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "Gemma 3": ("gemma3", "Gemma3Text", GEMMA3, {}),
    "Gemma 3, as published": (
        "gemma3", "Gemma3Text", GEMMA3,
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "Gemma 3, older word": ("gemma3", "Gemma3Text", GEMMA3, {"rope_scaling": {"factor": 8.0, "type": "linear"}}),
    "Gemma 3, by layer type": (
        "gemma3", "Gemma3Text", GEMMA3,
        {"rope_parameters": {
            "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
            "sliding_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 70.0}}}),
    "Gemma 3, truncate": (
        "gemma3", "Gemma3Text", GEMMA3,
        {"rope_parameters": {
            "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "truncate": False},
            "sliding_attention": {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 1024}}}),
    "ModernBERT, older": ("modernbert", "ModernBert", {}, {"global_rope_theta": 80000.0, "local_rope_theta": 90.0}),
    "ModernBERT, one type": (
        "modernbert", "ModernBert", {},
        {"rope_parameters": {"full_attention": {"rope_theta": 70.0, "rope_type": "default"}}}),
    "ModernBERT": ("modernbert", "ModernBert", {}, {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERED)
def test_configs_by_layer_type(torch: ModuleType, name: str) -> None:
    family, stem, own, rope = LAYERED[name]
    reached = 131072 if family == "gemma3" else 8192
    config = {
        **HEAD, "head_dim": 128, "max_position_embeddings": reached, "layer_types": SLIDING, **SIZES,
        "num_hidden_layers": 2, "pad_token_id": 0, **rope,
    }  # fmt: skip
    module, written = rotary_module(family, stem, **config)
    for source in (config, written):
        scheme = schemes.layered_rotary(Config(source), **own)
        for layer in SLIDING:
            compare_texts(torch, module, scheme, reached, layer)


# -- what Cohere turns ---------------------------------------------------------------------------------------------


def test_cohere_turns_neighbours_to_the_bit(torch: ModuleType) -> None:
    module, config = rotary_module("cohere2", "Cohere2", **HEAD, rope_theta=5e4)
    scheme = schemes.rotary(Config(config), pairing="neighbours")
    ids = np.arange(0, 8192, 128)[None]
    compare = positions.rotary_angles(ids, numpy(module.inv_freq))
    twice = module(torch.zeros(1), torch.from_numpy(ids))
    np.testing.assert_allclose(scheme.frequencies[None], numpy(module.inv_freq), rtol=FREQUENCY_TOLERANCE, atol=0)
    for ours, theirs in zip(compare, twice, strict=True):
        assert np.abs(np.repeat(ours[..., :64], 2, axis=-1) - numpy(theirs)).max() <= SAME_FREQUENCIES_TOLERANCE
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 128)).astype(np.float32)
    modeling = importlib.import_module("transformers.models.cohere2.modeling_cohere2")
    cos, sin = (np.concatenate([numpy(t)[..., ::2]] * 2, axis=-1) for t in twice)
    want = modeling.apply_rotary_pos_emb(torch.from_numpy(x), torch.from_numpy(x), *twice)[0]
    np.testing.assert_array_equal(positions.rotate(x, cos[:, None], sin[:, None], scheme.pairing), numpy(want))
