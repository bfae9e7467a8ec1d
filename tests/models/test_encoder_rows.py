"""Every row of blocks computes the same where little is computed at a time, or nothing, or much, or a text in parts.

Each of these ways is rare in use, and a mistake in one shows in some rows alone: those with a bias, a causal mask, a
norm before. Therefore all of them are tried on all rows.
"""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from encoder_files import CASE, TINY, EncoderCase, copied, off
from peaks import peak

import minibert
from minibert.equations import fast
from minibert.equations.fast import attention_scores
from minibert.equations.input_layer import Array
from minibert.models.heads.prediction import go_on
from minibert.models.run import packing, ready_blocks
from minibert.models.run.ready_blocks import KeyValueCache

CUT = 1e-5  # between two cuts of one batch: a product's bits depend on its rows; measured 2e-6
FLOAT64 = 1e-12  # the same in float64; measured 6e-15
LENGTHS = (9, 1, 3, 9, 2, 2, 5, 3, 9, 1)
every_row = pytest.mark.parametrize("case", TINY, ids=str)
LARGE = 1 << 15
# tokens of a tile, scores, numbers of a piece: one head, one text, a few texts, a tile for each text, small tiles
SMALL = [(LARGE, 1, LARGE), (LARGE, 9 * 9, 7), (LARGE, 9 * 9 * 3, LARGE), (1, LARGE, LARGE), (5, 40, LARGE)]


def batch(case: EncoderCase) -> tuple[Array, Array]:
    pad = case.load().config.get("pad_token_id") or 0
    mask = np.arange(9) < np.array(LENGTHS)[:, None]
    return np.where(mask, np.arange(90).reshape(10, 9) % 20 + 5, pad), mask.astype(int)


@every_row
def test_attention_in_parts_is_the_whole(case: EncoderCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace takes all texts and heads together; the call takes as many as fit."""
    ids, mask = batch(case)
    with case.load() as encoder:
        trace = encoder.trace(ids, attention_mask=mask)
        monkeypatch.setattr(packing, "ONE_TILE", 0)
        for tokens, scores, piece in SMALL:
            monkeypatch.setattr(packing, "SCORES", scores)
            monkeypatch.setattr(fast, "PIECE", piece)
            monkeypatch.setattr(packing, "TILE_TOKENS", tokens)
            found = encoder(ids, attention_mask=mask)
            assert off(found, trace[next(reversed(trace))]) <= CUT, (tokens, scores, piece)


@every_row
def test_a_long_text_s_attention_by_queries_is_the_whole(case: EncoderCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece takes only the keys that its window reaches; of three texts of nine tokens one has padding inside."""
    ids, mask = batch(case)
    mask[0, [2, 5, 6]] = 0
    with case.load(dtype="float64") as encoder:
        trace = encoder.trace(ids, attention_mask=mask)
        monkeypatch.setattr(packing, "LONG", 2)
        for queries in (1, 2, 4):
            monkeypatch.setattr(packing, "QUERIES", queries)
            assert off(encoder(ids, attention_mask=mask), trace[next(reversed(trace))]) <= FLOAT64, queries


@pytest.mark.parametrize("name", ["llama", "mistral", "modernbert", "t5", "umt5"])
def test_memory_of_a_long_text_grows_with_its_length(name: str) -> None:
    """All scores of one head of 3,000 tokens would be 36 MB, and a mask as many."""
    with CASE[name].load() as encoder:
        ids = np.arange(3000)[None] % 20 + 5
        encoder(ids[:, :4])
        assert peak(lambda: encoder(ids)) < 12e6


@every_row
def test_no_token_and_padding_inside(case: EncoderCase, monkeypatch: pytest.MonkeyPatch) -> None:
    with case.load() as encoder:
        for shape in ((0, 4), (2, 0), (0, 0)):
            for given in ({}, {"attention_mask": np.ones(shape, int)}):
                assert encoder(np.zeros(shape, int), **given).shape == (*shape, encoder.dim)
                trace = encoder.trace(np.zeros(shape, int), **given)
                assert trace["hidden_states.2"].shape == (*shape, encoder.dim)
                assert trace["attentions.1"].shape == (shape[0], encoder.stack.heads, shape[1], shape[1])
        # texts of as many tokens, one after the other and with padding between them
        mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0, 1, 1, 0, 1]])
        ids = np.where(mask, np.arange(20).reshape(4, 5) + 3, encoder.config.get("pad_token_id") or 0)
        together = encoder(ids, attention_mask=mask)
        for row in range(4):
            assert off(together[row], encoder(ids[row : row + 1], attention_mask=mask[row : row + 1])[0]) <= CUT
        monkeypatch.setattr(packing, "ONE_TILE", 0)
        monkeypatch.setattr(packing, "TILE_TOKENS", 3)
        assert off(encoder(ids, attention_mask=mask), together) <= CUT, "a tile for each text"


@every_row
def test_a_norm_s_eps_is_the_config_s(case: EncoderCase, tmp_path: Path) -> None:
    key = next((key for key in case.load().config if "eps" in key), "layer_norm_eps")
    with minibert.load_encoder(copied(case, tmp_path, **{key: 0.25})) as encoder:
        norms = {m.eps for path, m in encoder.modules.items() if hasattr(m, "eps") and not path.startswith("embedd")}
    # DistilBERT's is fixed, and that of BART's kin
    fixed = {"distilbert": 1e-12, **dict.fromkeys(("bart", "mbart", "marian", "pegasus"), 1e-5)}
    assert norms == {fixed.get(case.facts["family"], 0.25)}


@pytest.mark.parametrize("name", ["llama", "mistral", "modernbert", "nomic_bert", "gemma3_text"])
def test_no_score_is_computed_beyond_a_window_nor_after_a_token(name: str) -> None:
    length = 2048
    with (
        CASE[name].load(threads=1) as encoder,
        mock.patch.object(ready_blocks, "attention_scores", wraps=attention_scores) as scores,
    ):
        encoder(np.arange(length)[None] % 20 + 5)
        stack = encoder.stack
    shapes = [(*call.args[0].shape[-3:-1], call.args[1].shape[-2]) for call in scores.call_args_list]
    most = 0
    for block in stack.blocks:
        window, sides = block.attention.window, 1 if stack.causal else 2
        for first in range(0, length, packing.QUERIES):
            keys = first + packing.QUERIES if stack.causal else length
            keys = keys if window is None else min(keys, packing.QUERIES + sides * window)
            most += stack.heads * packing.QUERIES * keys
    assert 0 < sum(map(math.prod, shapes)) <= most


IDS = np.random.default_rng(3).integers(2, 29, 22)
PARTS = ([1] * len(IDS), [len(IDS)], [5, 1, 1, 9, 6], [len(IDS) - 1, 1])
CAUSAL = (
    "bert-causal", "gpt2", "gpt2-inverse", "gemma3_text", "llama", "mistral", "ministral3", "qwen2", "qwen3",
    "qwen3-window", "roberta",  # whose positions skip padding
)  # fmt: skip


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_parts_are_the_whole(name: str, parts: list[int], tmp_path: Path) -> None:
    changes = {"is_decoder": True} if name == "roberta" else {}
    with minibert.load_encoder(copied(CASE[name], tmp_path, **changes)) as encoder:
        assert encoder.stack.causal
        ids = IDS[: encoder.max_length]
        whole, cache, other = encoder(ids), KeyValueCache(), KeyValueCache()
        for start, length in zip(np.cumsum(parts) - parts, parts, strict=True):
            if len(part := ids[start : start + length]):
                assert off(go_on(encoder, part.tolist(), cache), whole[start : start + length]) <= CUT
                assert cache.length == start + len(part)
                go_on(encoder, [5], other)  # two caches know nothing of each other


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_one_more_token_is_one_row_of_each_map(name: str) -> None:
    """Nothing fills it up: a text that is written on is alone, and other rows would take as long as itself."""
    cache, counted = KeyValueCache(), mock.patch.object(ready_blocks, "linear", wraps=ready_blocks.linear)
    with CASE[name].load() as encoder:
        for ids in ([5, 6, 7], [8]):
            with counted as linear:
                go_on(encoder, ids, cache)
            assert {len(call.args[0]) for call in linear.call_args_list} == {len(ids)}
