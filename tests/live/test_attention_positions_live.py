"""The position schemes against transformers' own functions and modules, at lengths up to 4096."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from binders import Stored, scheme_of

import minibert
from minibert.equations import attention_positions as positions
from minibert.equations.input_layer import Array
from minibert.families.parts import attention_schemes as schemes

pytestmark = pytest.mark.reference

LONGEST = 4096
# cos and sin of equal frequencies, and XLNet's rows, one last bit: measured 6.0e-8
SAME_FREQUENCIES_TOLERANCE = 1.2e-7
# frequencies, relative: 15 of 2723 differ, measured at most 1.4e-7; all computed in float64: 1150 differ
FREQUENCY_TOLERANCE = 2.5e-7
FREQUENCIES_OFF = 0.02
# cos and sin of frequencies that may differ in the last bits: measured 6.2e-5; frequencies in float64: 2.5e-4
ANGLE_TOLERANCE = 1.3e-4
# ALiBi's biases for 1..64 heads and 4096 keys, relative: measured 2.0e-7, a last bit of slope and one of product
ALIBI_TOLERANCE = 4e-7
# DeBERTa's table after LayerNorm and the scores assembled from it: measured 9.6e-7 and 9.6e-7
NORM_TOLERANCE = 2e-6
SCORE_TOLERANCE = 4e-6

DISTANCES = np.arange(-LONGEST, LONGEST + 1)
HEAD = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 16}
BASES = (500.0, 1000.0, 10000.0, 160000.0, 500000.0, 1e6, 1e7)
DIMS = (2, 4, 8, 16, 20, 24, 32, 48, 64, 80, 96, 128, 256)


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return importlib.import_module("torch")  # imported here, so that a plain `pytest` does not wait for it


def reference(family: str, name: str) -> Any:
    """A class or function of one family's modeling file, or its config class."""
    part = "configuration" if name.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"transformers.models.{family}.{part}_{family}"), name)


def numpy(tensor: Any) -> Array:
    return np.asarray(tensor.detach().numpy())


def normal(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def largest(got: Array, want: Array) -> float:
    assert got.shape == want.shape
    return float(np.abs(got.astype(np.float64) - want).max())


def rotary_module(family: str, name: str, **config: Any) -> tuple[Any, dict[str, Any]]:
    """The reference's rotary module and the config.json that it writes."""
    configuration = reference(family, f"{name}Config")(**{**HEAD, **config})
    return reference(family, f"{name}RotaryEmbedding")(configuration), configuration.to_dict()


# rotary


def test_frequencies_over_dims_and_bases(torch: ModuleType) -> None:
    unequal = unequal_in_float64 = total = 0
    for dim in DIMS:
        for base in BASES:
            module, _ = rotary_module("llama", "Llama", head_dim=dim, rope_theta=base)
            want, got = numpy(module.inv_freq), positions.rotary_frequencies(dim, base)
            np.testing.assert_allclose(got, want, rtol=FREQUENCY_TOLERANCE, atol=0)
            unequal += int((got != want).sum())
            unequal_in_float64 += int((np.power(base, -np.arange(0, dim, 2) / dim).astype(np.float32) != want).sum())
            total += want.size
    assert unequal <= FREQUENCIES_OFF * total
    assert unequal_in_float64 > 10 * FREQUENCIES_OFF * total  # the simpler recipe is told apart


@pytest.mark.parametrize("base", BASES)
def test_angles_up_to_the_longest_position(torch: ModuleType, base: float) -> None:
    ids = np.arange(LONGEST + 1)[None]
    for dim in DIMS:
        module, config = rotary_module("llama", "Llama", head_dim=dim, rope_theta=base)
        want = module(torch.zeros(1), torch.from_numpy(ids))
        scheme = schemes.rotary(config)
        shared = positions.rotary_angles(ids, numpy(module.inv_freq))
        for got, same, cos_or_sin in zip(scheme.rotary(ids), shared, want, strict=True):
            assert largest(same, numpy(cos_or_sin)) <= SAME_FREQUENCIES_TOLERANCE
            assert largest(got, numpy(cos_or_sin)) <= ANGLE_TOLERANCE
        for off_by_one, cos_or_sin in zip(scheme.rotary(ids + 1), want, strict=True):
            assert largest(off_by_one, numpy(cos_or_sin)) > 1000 * ANGLE_TOLERANCE


FLAT = [
    ("llama", "Llama", {}),
    ("llama", "Llama", {"rope_theta": 500000.0}),
    ("llama", "Llama", {"rope_theta": 300, "rope_scaling": None}),
    ("llama", "Llama", {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 70.0}}),
    ("llama", "Llama", {"partial_rotary_factor": 0.5}),
    ("llama", "Llama", {"rope_theta": 300.0, "rope_scaling": {"type": "default"}}),
    ("mistral", "Mistral", {"num_key_value_heads": 2}),
    ("mistral", "Mistral", {"num_key_value_heads": 2, "head_dim": 32, "rope_theta": 1e6}),
    ("qwen2", "Qwen2", {"num_key_value_heads": 2, "rope_theta": 1e6}),
    ("qwen3", "Qwen3", {"num_key_value_heads": 2}),
    ("mixtral", "Mixtral", {"num_key_value_heads": 2}),
    ("olmo2", "Olmo2", {}),
    ("granite", "Granite", {}),
    ("phi3", "Phi3", {"pad_token_id": 0}),
    ("gpt_neox", "GPTNeoX", {}),
    ("gpt_neox", "GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 20000}),
    ("gpt_neox", "GPTNeoX", {"rotary_pct": 1.0, "rope_theta": 3.0}),
    ("nomic_bert", "NomicBert", {}),
    ("nomic_bert", "NomicBert", {"rope_theta": 10000.0}),
    ("nomic_bert", "NomicBert", {"rope_theta": 50.0, "rotary_emb_base": 1000.0}),
]


@pytest.mark.parametrize(("family", "name", "config"), FLAT)
def test_config_of_every_family_old_and_new(torch: ModuleType, family: str, name: str, config: dict[str, Any]) -> None:
    module, written = rotary_module(family, name, **config)
    ids = np.array([[0, 1, 5, LONGEST - 1], [7, 7, 0, 2]])
    for source in ({**HEAD, **config}, written):  # an old config.json, and the one that transformers writes today
        scheme = scheme_of(family, source)
        np.testing.assert_array_equal(scheme.frequencies[None], numpy(module.inv_freq))
        for got, want in zip(scheme.rotary(ids), module(torch.zeros(1), torch.from_numpy(ids)), strict=True):
            assert largest(got, numpy(want)) <= SAME_FREQUENCIES_TOLERANCE


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"global_rope_theta": 80000.0, "local_rope_theta": 90.0},
        {"rope_parameters": {"full_attention": {"rope_theta": 70.0, "rope_type": "default"}}},
    ],
)
def test_config_of_modernbert_old_and_new(torch: ModuleType, config: dict[str, Any]) -> None:
    module, written = rotary_module("modernbert", "ModernBert", **{"num_hidden_layers": 3, **config})
    ids = np.arange(0, LONGEST, 5)[None]
    for source in ({**HEAD, **config}, written):
        scheme = schemes.layered_rotary(source)
        for layer_type in ("full_attention", "sliding_attention"):
            want = module(torch.zeros(1), torch.from_numpy(ids), layer_type)
            for got, cos_or_sin in zip(scheme.rotary(ids, layer_type), want, strict=True):
                assert largest(got, numpy(cos_or_sin)) <= SAME_FREQUENCIES_TOLERANCE


@pytest.mark.parametrize(
    ("family", "rotary_dim"), [("llama", 16), ("gpt_neox", 4), ("gpt_neox", 16), ("modernbert", 16), ("nomic_bert", 16)]
)
def test_rotation_in_halves_to_the_bit(torch: ModuleType, family: str, rotary_dim: int) -> None:
    q, k = normal(2, 3, 64, 16, seed=1), normal(2, 3, 64, 16, seed=2)
    ids = np.arange(0, LONGEST, 32).reshape(2, 64)
    cos, sin = positions.rotary_angles(ids, positions.rotary_frequencies(rotary_dim))
    want = reference(family, "apply_rotary_pos_emb")(*(torch.from_numpy(x) for x in (q, k, cos, sin)))
    for x, rotated in zip((q, k), want, strict=True):
        np.testing.assert_array_equal(positions.rotate(x, cos[:, None], sin[:, None]), numpy(rotated))
        assert largest(positions.rotate(x, cos[:, None], sin[:, None], "neighbours"), numpy(rotated)) > 0.1
        assert largest(positions.rotate(x, cos[:, None], -sin[:, None]), numpy(rotated)) > 0.1


def test_rotation_of_neighbours_to_the_bit(torch: ModuleType) -> None:
    x = normal(2, 64, 3, 16)  # GPT-J has the heads after the sequence
    ids = np.arange(0, LONGEST, 32).reshape(2, 64)
    cos, sin = positions.rotary_angles(ids, positions.rotary_frequencies(16))
    halves = (torch.from_numpy(np.ascontiguousarray(y[..., :8])) for y in (sin, cos))
    want = numpy(reference("gptj", "apply_rotary_pos_emb")(torch.from_numpy(x), *halves))
    got = positions.rotate(x, cos[:, :, None], sin[:, :, None], "neighbours")
    np.testing.assert_array_equal(got, want)
    assert largest(positions.rotate(x, cos[:, :, None], sin[:, :, None]), want) > 0.1


# ALiBi


@pytest.mark.parametrize("heads", range(1, 65))
def test_alibi_of_every_head_count(torch: ModuleType, heads: int) -> None:
    mask = np.ones((3, LONGEST), np.int64)
    mask[0, :1000] = mask[1, 3000:] = mask[2, 5:9] = 0
    want = numpy(reference("bloom", "build_alibi_tensor")(torch.from_numpy(mask), heads, torch.float32))
    got = schemes.Alibi(heads=heads).alibi(mask)
    assert got.shape == (3, heads, 1, LONGEST)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=ALIBI_TOLERANCE, atol=0)

    slopes = numpy(reference("bloom", "_get_alibi_slopes")(heads, "cpu"))
    assert (positions.alibi_slopes(heads) != slopes).sum() <= 1
    plain = 2.0 ** (-8 / heads * np.arange(1, heads + 1))  # right for powers of two alone
    assert np.allclose(plain, slopes, rtol=1e-6, atol=0) == (heads & (heads - 1) == 0)
    ignoring_the_mask = positions.alibi_bias(np.ones_like(mask), heads)
    assert largest(ignoring_the_mask.reshape(want.shape), want) > 0.1


def test_heads_of_bloom_from_the_config(torch: ModuleType) -> None:
    written = reference("bloom", "BloomConfig")(n_head=6, hidden_size=12).to_dict()
    assert schemes.alibi(written).heads == 6


# T5 and MPNet


def bucket_differences(torch: ModuleType, buckets: int, max_distance: int, both_ways: bool) -> Array:
    """The distances up to 4096 whose bucket is another one in the reference."""
    theirs = reference("t5", "T5Attention")._relative_position_bucket
    want = numpy(theirs(torch.from_numpy(DISTANCES), both_ways, buckets, max_distance))
    return np.asarray(DISTANCES[positions.relative_buckets(DISTANCES, buckets, max_distance, both_ways) != want])


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("buckets", [4, 8, 16, 32, 64, 128, 256])
def test_buckets_of_t5(torch: ModuleType, buckets: int, both_ways: bool) -> None:
    small = (buckets // 2 if both_ways else buckets) // 2
    for max_distance in (20, 32, 64, 100, 128, 200, 256, 512, 800, 1000, 1024, 2048, 4096):
        if max_distance > small:
            assert bucket_differences(torch, buckets, max_distance, both_ways).size == 0


def test_buckets_of_t5_in_settings_that_no_model_has(torch: ModuleType) -> None:
    settings = [
        (buckets, max_distance, both_ways)
        for buckets in range(4, 130)
        for max_distance in (66, 100, 128, 256, 800, 1024)
        for both_ways in (True, False)
    ]
    off = {setting: bucket_differences(torch, *setting) for setting in settings}
    wrong = {setting: distances.tolist() for setting, distances in off.items() if distances.size}
    # one logarithm of torch's is a bit off the true one there: {(72, 100, False): [-60]} where this was measured
    assert sum(map(len, wrong.values())) <= 2, wrong


def test_buckets_of_mpnet_and_of_wrong_variants(torch: ModuleType) -> None:
    want = numpy(reference("mpnet", "MPNetEncoder").relative_position_bucket(torch.from_numpy(DISTANCES)))
    np.testing.assert_array_equal(positions.relative_buckets(DISTANCES), want)
    for wrong in (
        positions.relative_buckets(-DISTANCES),
        positions.relative_buckets(DISTANCES + 1),
        positions.relative_buckets(DISTANCES, max_distance=127),
        positions.relative_buckets(DISTANCES, buckets=30),
        positions.relative_buckets(DISTANCES, bidirectional=False),
    ):
        assert (wrong != want).any()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(("query", "key", "past"), [(512, 512, 0), (1, LONGEST, LONGEST - 1), (3, LONGEST, 2000)])
@pytest.mark.parametrize(("family", "name"), [("t5", "T5"), ("mt5", "MT5")])
def test_bias_of_t5(torch: ModuleType, family: str, name: str, side: str, query: int, key: int, past: int) -> None:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_heads": 3, "num_layers": 1, "vocab_size": 8}
    model = reference(family, f"{name}Model")(reference(family, f"{name}Config")(**sizes))
    attention = getattr(model, side).block[0].layer[0].SelfAttention
    attention.relative_attention_bias.weight.data = torch.from_numpy(normal(32, 3))
    want = numpy(attention.compute_bias(query, key, past_seen_tokens=past))[0]

    table = numpy(attention.relative_attention_bias.weight)
    config = minibert.FAMILIES[family].configure(model.config.to_dict())
    name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    scheme = schemes.t5_bias(config, Stored({name: table}), side)
    np.testing.assert_array_equal(scheme.relative_bias(query, key, past), want)
    other_side = schemes.RelativeBias(table=table, bidirectional=side == "decoder")
    assert largest(other_side.relative_bias(query, key, past), want) > 0.1
    assert largest(scheme.relative_bias(query, key, past + 1), want) > 0.1


def test_bias_of_mpnet(torch: ModuleType) -> None:
    config = reference("mpnet", "MPNetConfig")(**HEAD)
    encoder = reference("mpnet", "MPNetEncoder")(config)
    encoder.relative_attention_bias.weight.data = torch.from_numpy(normal(32, 4))
    want = numpy(encoder.compute_position_bias(torch.zeros(2, 700, 64)))
    got = schemes.RelativeBias(table=numpy(encoder.relative_attention_bias.weight)).relative_bias(700, 700)
    np.testing.assert_array_equal(got, want[0])
    np.testing.assert_array_equal(got, want[1])


# DeBERTa


def test_log_buckets_of_deberta(torch: ModuleType) -> None:
    theirs = reference("deberta_v2", "make_log_bucket_position")
    off: dict[tuple[int, int], list[int]] = {}
    for buckets in [*range(2, 130), 256, 512]:
        for max_positions in (13, 32, 33, 64, 65, 100, 128, 256, 512, 513, 1024, 2048, 4096):
            if max_positions - 1 <= buckets // 2:
                continue
            want = numpy(theirs(torch.from_numpy(DISTANCES), buckets, max_positions)).astype(np.int64)
            got = positions.log_buckets(DISTANCES, buckets, max_positions)
            if (got != want).any():
                off[buckets, max_positions] = DISTANCES[got != want].tolist()
            # past the end of the table the buckets are clipped, and nothing is left of a difference
            in_table, theirs_in_table = (np.clip(bucket, -buckets, buckets - 1) for bucket in (got, want))
            np.testing.assert_array_equal(in_table, theirs_in_table)
    assert len(off) <= 16, off  # measured 8, all of them far past the end of their tables
    assert (256, 512) not in off
    assert (512, 512) not in off


@pytest.mark.parametrize(("buckets", "max_positions"), [(256, 512), (8, 17), (0, 300), (-1, 5000)])
@pytest.mark.parametrize(("query", "key"), [(600, 600), (1, LONGEST), (LONGEST, 1), (20, 700)])
def test_rows_of_deberta(torch: ModuleType, query: int, key: int, buckets: int, max_positions: int) -> None:
    build = reference("deberta_v2", "build_relative_position")
    distance = numpy(build(torch.zeros(1, query, 1), torch.zeros(1, key, 1), buckets, max_positions))[0]
    span = buckets if buckets > 0 else max_positions
    want = np.clip(distance + span, 0, 2 * span - 1)
    np.testing.assert_array_equal(positions.log_bucket_rows(query, key, buckets, max_positions), want)
    assert (want != positions.log_bucket_rows(key, query, buckets, max_positions).T).any()  # key - query


@pytest.mark.parametrize("buckets", [8, -1])
@pytest.mark.parametrize("norm", ["layer_norm", "none"])
def test_scores_of_deberta_assembled_from_rows(torch: ModuleType, buckets: int, norm: str) -> None:
    config = reference("deberta_v2", "DebertaV2Config")(
        **HEAD, relative_attention=True, pos_att_type=["p2c", "c2p"], max_position_embeddings=20
    )
    config.position_buckets, config.norm_rel_ebd, config.share_att_key = buckets, norm, False
    encoder = reference("deberta_v2", "DebertaV2Encoder")(config).eval()
    encoder.rel_embeddings.weight.data = torch.from_numpy(normal(len(encoder.rel_embeddings.weight), 64))
    if norm == "layer_norm":
        weight, bias = normal(64, seed=6), normal(64, seed=7)
        encoder.LayerNorm.weight.data, encoder.LayerNorm.bias.data = map(torch.from_numpy, (weight, bias))
    stored = {f"encoder.{name}": numpy(value) for name, value in encoder.state_dict().items()}
    scheme = schemes.deberta_log_buckets(config.to_dict(), Stored(stored))
    assert scheme is not None
    assert largest(scheme.relative_embeddings, numpy(encoder.get_rel_embedding())) <= NORM_TOLERANCE

    attention = encoder.layer[0].attention.self
    q, k = normal(4, 30, 16, seed=1), normal(4, 30, 16, seed=2)  # (heads, seq, head_dim) of one text
    distance = encoder.get_rel_pos(torch.zeros(1, 30, 64))
    arguments = torch.from_numpy(q), torch.from_numpy(k), distance, encoder.get_rel_embedding(), 3
    want = numpy(attention.disentangled_attention_bias(*arguments))

    def heads_of(projection: Any) -> Array:
        rows = scheme.relative_embeddings @ numpy(projection.weight).T + numpy(projection.bias)
        return rows.reshape(-1, 4, 16).transpose(1, 0, 2)

    def scores(rows: Array) -> Array:
        content_to_position = np.einsum("hqd,hqkd->hqk", q, heads_of(attention.pos_key_proj)[:, rows])
        position_to_content = np.einsum("hkd,hqkd->hqk", k, heads_of(attention.pos_query_proj)[:, rows])
        return np.asarray((content_to_position + position_to_content) / np.sqrt(16 * 3))

    rows = scheme.relative_positions(30, 30)
    assert largest(scores(rows), want) <= SCORE_TOLERANCE
    assert largest(scores(rows.T), want) > 0.1  # the sign of the distance
    assert largest(scores(np.clip(rows - 1, 0, None)), want) > 0.1  # the distance off by one


# XLNet


@pytest.mark.parametrize("attention", ["bi", "uni"])
@pytest.mark.parametrize("clamp_length", [-1, 100])
@pytest.mark.parametrize(("query", "key"), [(1, 1), (7, 7), (64, 100), (LONGEST, LONGEST), (1, LONGEST)])
def test_sinusoids_of_xlnet(torch: ModuleType, query: int, key: int, clamp_length: int, attention: str) -> None:
    config = reference("xlnet", "XLNetConfig")(
        vocab_size=8, d_model=64, n_layer=1, n_head=4, d_inner=8, attn_type=attention, clamp_len=clamp_length
    )
    want = numpy(reference("xlnet", "XLNetModel")(config).relative_positional_encoding(query, key))[:, 0]
    scheme = schemes.xlnet_sinusoids(config.to_dict())
    assert largest(scheme.relative_sinusoids(query, key), want) <= SAME_FREQUENCIES_TOLERANCE
    if clamp_length < 0:
        off_by_one = scheme.relative_sinusoids(query + 1, key + 1)[: len(want)]
        assert largest(off_by_one, want) > 0.1
