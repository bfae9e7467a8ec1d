"""The shares of a prediction: they add up to the logits of every head; GPT-2's are computed by hand."""

from __future__ import annotations

from pathlib import Path

import encoders
import numpy as np
import pytest
from head_files import HEAD_CASES, HeadCase

import minibert
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show.prediction import Shares, logit_shares

IDS = np.array([[5, 9, 7, 2, 11]])
# share of the largest logit, float32 traces; measured 2e-6 at most
CLOSE = 2e-5


def taken_apart(encoder: Encoder, name: str, ids: Array = IDS) -> tuple[Shares, Array, Array]:
    """The shares of all labels, which labels, and the logits (rows, labels)."""
    head = encoder.head(name)
    trace = encoder.trace(ids, head=name)
    logits = trace["logits"].reshape(-1, head.labels)
    labels = np.tile(np.arange(head.labels)[::-1], (len(logits), 1))
    return logit_shares(encoder, ids, trace, head, labels), labels, logits


@pytest.mark.parametrize("case", HEAD_CASES, ids=lambda case: case.name)
def test_the_shares_of_every_head_add_up_to_its_logits(case: HeadCase) -> None:
    with minibert.load_encoder(case.folder) as encoder:
        found, labels, logits = taken_apart(encoder, case.head)
        blocks, heads = len(encoder.stack.blocks), encoder.stack.heads
    scale, logits = float(np.abs(logits).max()), logits.astype(np.float64)
    expected = np.take_along_axis(logits, labels, axis=1)
    if logits.shape[1] > 1:
        expected -= logits.mean(axis=1, keepdims=True)
    assert np.array_equal(found.total, expected)
    added = found.heads.sum(axis=(2, 3)) + found.feed_forward.sum(axis=2) + found.input_layer + found.biases
    assert added.shape == expected.shape
    assert np.abs(added - expected).max() < CLOSE * scale
    assert found.heads.shape[2:] == (blocks, heads) and found.feed_forward.shape[2:] == (blocks,)
    assert found.heads.all() and found.feed_forward.all()


def test_gpt2_s_shares_by_hand(tmp_path: Path) -> None:
    """Each part of the sum passes the last norm, whose divisor is kept, and then the word rows."""
    encoder = minibert.load_encoder(encoders.write(tmp_path / "gpt2", "gpt2"))
    found, labels, _ = taken_apart(encoder, "next_word")
    trace = {name: x[0].astype(np.float64) for name, x in encoder.trace(IDS).items()}
    norm, last = encoder["ln_f"], trace["h.1.mlp.sum"]
    words = encoder.embeddings.wte.weight.astype(np.float64)
    words = words[labels[0]] - words.mean(axis=0)

    def through(x: Array) -> Array:
        size = np.sqrt(last.var(axis=-1, keepdims=True) + norm.eps)
        return np.asarray((x - x.mean(axis=-1, keepdims=True)) / size * norm.weight @ words.T)

    assert np.allclose(found.input_layer[..., :], through(trace["hidden_states.0"]), rtol=0, atol=1e-9)
    biases = norm.bias.astype(np.float64) @ words.T
    for block in range(encoders.DEPTH):
        fed = through(trace[f"h.{block}.mlp.c_proj"])
        assert np.allclose(found.feed_forward[:, :, block], fed, rtol=0, atol=1e-9)
        output = encoder[f"h.{block}.attn.c_proj"]
        biases = biases + through(output.bias.astype(np.float64)[None])
        for head in range(encoders.HEADS):
            own = slice(4 * head, 4 * head + 4)
            context = trace[f"attentions.{block}"][head] @ trace[f"h.{block}.attn.c_attn"][:, 32:][:, own]
            assert np.allclose(context, trace[f"h.{block}.attn.context"][:, own], rtol=0, atol=1e-5), "its values"
            context = trace[f"h.{block}.attn.context"][:, own]
            by_hand = through(context @ output.weight[own].astype(np.float64))
            assert np.allclose(found.heads[:, :, block, head], by_hand, rtol=0, atol=1e-9)
    assert np.allclose(found.biases, biases, rtol=0, atol=1e-9)
