"""Heads: what a model computes from its last hidden state."""

from __future__ import annotations

import numpy as np
import pytest
from encoder_files import CASE, TINY, EncoderCase, off
from safetensors.numpy import load_file

from minibert.equations import gelu, layer_norm, linear
from minibert.equations.input_layer import Array
from minibert.models.blocks import run_blocks
from minibert.models.heads import logits_of
from minibert.models.packing import tile_of
from minibert.models.pipeline import Packed

IDS = np.array([[5, 6, 7, 8], [9, 4, 3, 11]])
PACKED = Packed(np.array([9, 4, 5, 6, 7]), None, np.array([1, 0]), np.array([2, 3]))
CUT = 2e-6  # relative to max(1, |value|): a matrix product with other rows rounds differently; measured 6e-7


def test_a_masked_word_by_the_textbook_s_formulas() -> None:
    tensors = load_file(CASE["bert"].folder / "model.safetensors")
    of = "cls.predictions.transform"
    with CASE["bert"].load() as encoder:
        assert encoder.heads == ("masked_word",)
        x = linear(encoder(IDS), tensors[f"{of}.dense.weight"], tensors[f"{of}.dense.bias"])
        x = layer_norm(gelu(x), tensors[f"{of}.LayerNorm.weight"], tensors[f"{of}.LayerNorm.bias"], 1e-12)
        want = linear(x, tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"])
        assert off(encoder.logits(IDS), want) <= CUT
        assert off(encoder.logits(IDS[0]), want[0]) <= CUT


@pytest.mark.parametrize("case", TINY, ids=str)
@pytest.mark.parametrize("take", [[4, 0], [1], [3, 1, 0, 2, 4], [2, 2], []], ids=str)
def test_only_what_is_taken_leaves_the_last_block(case: EncoderCase, take: list[int]) -> None:
    """In any order, some twice: the same rows as of all tokens."""
    with case.load() as encoder:
        tile, taken = tile_of(PACKED.lengths, encoder.stack.heads), np.array(take, np.int64)
        whole = run_blocks(encoder.stack, encoder.embeddings.rows(PACKED), tile)
        some = run_blocks(encoder.stack, encoder.embeddings.rows(PACKED), tile, take=taken)
        assert off(some, whole[taken]) <= CUT


def test_packed_texts_are_those_of_a_batch() -> None:
    with CASE["bert"].load() as encoder:
        packed = logits_of(encoder, encoder.head(), PACKED)
        want: list[Array] = [encoder.logits(np.array(ids)) for ids in ([9, 4], [5, 6, 7])]
        assert off(packed, np.concatenate(want)) <= CUT
        assert off(logits_of(encoder, encoder.head(), PACKED, np.array([4, 1])), packed[[4, 1]]) <= CUT
