"""A text taken through the blocks in parts, earlier keys and values kept, is the text taken through them at once."""

from __future__ import annotations

from pathlib import Path

import encoders
import numpy as np
import pytest
from encoder_files import CASE, off

import minibert
from minibert.models.heads.prediction import go_on
from minibert.models.run import blocks
from minibert.models.run.key_value_cache import KeyValueCache

CUT = 1e-5  # a product's bits depend on its rows; relative to max(1, |whole|), measured 3e-6
IDS = np.random.default_rng(3).integers(2, 29, 22)
PARTS = ([1] * len(IDS), [len(IDS)], [5, 1, 1, 9, 6], [len(IDS) - 1, 1])
CAUSAL = (
    "bert-causal", "gpt2", "gpt2-inverse", "gemma3_text", "llama", "mistral", "qwen2", "qwen3", "qwen3-window",
)  # fmt: skip


def compare(encoder: minibert.Encoder, parts: list[int]) -> None:
    assert encoder.stack.causal
    ids = IDS[: encoder.max_length]
    whole, cache = encoder(ids), KeyValueCache()
    for start, length in zip(np.cumsum(parts) - parts, parts, strict=True):
        if len(part := ids[start : start + length]):
            assert off(go_on(encoder, part.tolist(), cache), whole[start : start + length]) <= CUT
            assert cache.length == start + len(part)


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_parts_are_the_whole(name: str, parts: list[int]) -> None:
    """Rotated keys, windows, shared key heads, norms in each head."""
    with CASE[name].load() as encoder:
        compare(encoder, parts)


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_positions_that_skip_padding_go_on_too(tmp_path: Path, parts: list[int]) -> None:
    with minibert.load_encoder(encoders.write(tmp_path, "roberta", is_decoder=True)) as encoder:
        compare(encoder, parts)


def test_two_caches_know_nothing_of_each_other(tmp_path: Path) -> None:
    with minibert.load_encoder(encoders.write(tmp_path, "gpt2")) as encoder:
        texts = [IDS, IDS[::-1]]
        caches = [KeyValueCache() for _ in texts]
        for start in range(0, len(IDS), 7):
            for text, cache in zip(texts, caches, strict=True):
                rows = go_on(encoder, text[start : start + 7].tolist(), cache)
                assert off(rows, encoder(text)[start : start + 7]) <= CUT


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_one_more_token_is_one_row_of_each_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fills it up: a text that is written on is alone, and other rows would take as long as itself."""
    rows: list[int] = []
    plain = blocks.linear
    monkeypatch.setattr(blocks, "linear", lambda x, *rest: [rows.append(len(x)), plain(x, *rest)][1])
    with CASE[name].load() as encoder:
        cache = KeyValueCache()
        go_on(encoder, [5, 6, 7], cache)
        assert {*rows} == {3}
        rows.clear()
        go_on(encoder, [8], cache)
        assert {*rows} == {1}
