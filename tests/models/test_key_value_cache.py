"""A text taken through the blocks in parts, earlier keys and values kept, is the text taken through them at once."""

from __future__ import annotations

from pathlib import Path

import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert
from minibert.models.key_value_cache import KeyValueCache
from minibert.models.prediction import go_on

CUT = 1e-5  # a product's bits depend on its rows; relative to max(1, |whole|), measured 1.2e-6
IDS = np.random.default_rng(3).integers(2, encoders.checkpoints.VOCAB, encoders.LONGEST - 2)
PARTS = ([1] * len(IDS), [len(IDS)], [5, 1, 1, 9, 6], [len(IDS) - 1, 1])
DECODERS = {"gpt2": {}, "bert": {"is_decoder": True}, "roberta": {"is_decoder": True}}


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_parts_are_the_whole(tmp_path: Path, name: str, parts: list[int]) -> None:
    with minibert.load_encoder(encoders.write(tmp_path, name, **DECODERS[name])) as encoder:
        whole, cache = encoder(IDS), KeyValueCache(len(IDS))
        for start, length in zip(np.cumsum(parts) - parts, parts, strict=True):
            rows = go_on(encoder, IDS[start : start + length].tolist(), cache)
            assert off(rows, whole[start : start + length]) <= CUT
            assert cache.length == start + length


def test_two_caches_know_nothing_of_each_other(tmp_path: Path) -> None:
    with minibert.load_encoder(encoders.write(tmp_path, "gpt2")) as encoder:
        texts = [IDS, IDS[::-1]]
        caches = [KeyValueCache(len(IDS)) for _ in texts]
        for start in range(0, len(IDS), 7):
            for text, cache in zip(texts, caches, strict=True):
                rows = go_on(encoder, text[start : start + 7].tolist(), cache)
                assert off(rows, encoder(text)[start : start + 7]) <= CUT
