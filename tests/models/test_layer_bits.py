"""What never shows in the bits of a layer's result: tiles, views, other calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from checkpoints import ELECTRA, VOCAB, same_bits, write
from hypothesis import given
from hypothesis import strategies as st
from layers import CONFIGS, Make, some_ids, tile_of

import minibert
from minibert.families.parts import modules

# -- what never shows in the bits ----------------------------------------------------------------------------------


@given(name=st.sampled_from(sorted(CONFIGS)), seq=st.integers(1, 12), more=st.integers(1, 4), seed=st.integers(0, 99))
def test_right_padding_leaves_other_tokens_alone(load: Make, name: str, seq: int, more: int, seed: int) -> None:
    layer, ids = load(name), some_ids(2, seq, seed=seed)
    padding = np.full((2, more), layer.config.get("pad_token_id") or 0)
    mask = np.concatenate([np.ones_like(ids), np.zeros_like(padding)], axis=1)
    y = layer(np.concatenate([ids, padding], axis=1), attention_mask=mask)
    assert same_bits(np.ascontiguousarray(y[:, :seq]), layer(ids))


def test_real_size_is_cut_and_spread_without_a_trace(minilm: Path) -> None:
    layer, ids = minibert.load(minilm), some_ids(12, 500, below=30522)
    types = (np.arange(500) > 250).astype(int)[None]
    whole = np.stack([layer(row[None], token_type_ids=types, threads=1)[0] for row in ids])
    for threads in (1, 2, 5, None):
        assert same_bits(layer(ids, token_type_ids=types, threads=threads), whole)


def test_a_token_of_real_size_has_the_same_bits_alone(minilm: Path) -> None:
    """One row is normed at once, many in blocks of sixteen and with NumPy's buffer made shorter."""
    layer, ids = minibert.load(minilm), some_ids(1, 67, below=30522)
    alone = np.stack([layer([[int(token)]], position_ids=[[place]])[0, 0] for place, token in enumerate(ids[0])])
    assert same_bits(layer(ids)[0], alone)


def test_numpy_s_buffer_is_given_back(minilm: Path) -> None:
    layer, ids = minibert.load(minilm), some_ids(2, 300, below=30522)
    with np.errstate():
        np.setbufsize(4096)
        layer(ids, threads=2)
        assert np.getbufsize() == 4096
        with mock.patch.object(modules, "layer_norm", side_effect=MemoryError), pytest.raises(MemoryError):
            layer(ids)
        assert np.getbufsize() == 4096


def test_wide_projection_keeps_its_bits(tmp_path: Path) -> None:
    # as wide as a small ELECTRA: a matrix product of several rows would be another sum
    config = {**ELECTRA, "embedding_size": 128, "hidden_size": 256}
    rng = np.random.default_rng(0)
    shapes = {"word": VOCAB, "position": 16, "token_type": 2}
    t = {f"embeddings.{n}_embeddings.weight": rng.standard_normal((r, 128)).astype("f4") for n, r in shapes.items()}
    t |= {f"embeddings.LayerNorm.{part}": rng.standard_normal(128).astype("f4") for part in ("weight", "bias")}
    t |= {"embeddings_project.weight": rng.standard_normal((256, 128)).astype("f4")}
    t |= {"embeddings_project.bias": rng.standard_normal(256).astype("f4")}
    ids = some_ids(40, 16)
    for shift in (0, 1):
        layer = minibert.load(write(tmp_path / str(shift), config, t, shift=shift))
        y = layer(ids)
        alone = np.stack([[layer([[int(token)]], position_ids=[[j]])[0, 0] for j, token in enumerate(r)] for r in ids])
        assert same_bits(y, alone)
        assert same_bits(layer(ids, threads=3), y)


def test_many_threads_may_share_a_layer(load: Make) -> None:
    layer = load("bert")
    texts = [["we lived above the clouds"[: i % 25 + 1]] * (i % 3 + 1) for i in range(64)]
    serial = [layer.embed(some, threads=1) for some in texts]
    with tile_of(64), mock.patch("minibert.threads.pool.NUMBERS_A_THREAD", 1), ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda some: layer.embed(some, threads=2), texts))
        called = list(pool.map(lambda some: layer(**layer.tokenize(some)), texts))
    assert all(map(same_bits, together, serial))
    assert all(same_bits(y, layer(**layer.tokenize(some))) for y, some in zip(called, texts, strict=True))
