"""The shares of a prediction add up to the logits of every head; GPT-2's are computed by hand. The page's part about a
head has them, and the encoder's logits after each block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
import word_models
from head_files import HEAD_CASES, HeadCase
from reference_files import changed
from safetensors.numpy import load_file, save_file
from strict_html import data_of_script, read, unpacked

import minibert
from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder
from minibert.show import prediction
from minibert.show.page import page
from minibert.show.prediction import Shares, logit_shares

IDS = np.array([[5, 9, 7, 2, 11]])
CLOSE = 2e-5  # share of the largest logit, float32 traces; measured 2e-6 at most
CHANCE = 1e-5  # error of a page's probabilities and shares in float32: measured 4e-7


def taken_apart(encoder: Encoder, name: str) -> tuple[Shares, Array, Array]:
    """The shares of all labels, which labels, and the logits (rows, labels)."""
    head = encoder.head(name)
    trace = encoder.trace(IDS, head=name)
    logits = trace["logits"].reshape(-1, head.labels)
    labels = np.tile(np.arange(head.labels)[::-1], (len(logits), 1))
    return logit_shares(encoder, IDS, trace, head, labels), labels, logits


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


def test_what_adds_nothing_has_no_share(tmp_path: Path) -> None:
    """In a BERT, whose norms come after the sums: one head of block 0, and the feed-forward of block 1."""
    path = word_models.write(tmp_path, "bert") / "model.safetensors"
    tensors, own = load_file(path), slice(4, 8)
    for name, part in (("0.attention.output.dense.weight", (..., own)), ("1.output.dense.weight", ...),
                       ("1.output.dense.bias", ...)):  # fmt: skip
        tensors[f"encoder.layer.{name}"][part] = 0
    save_file(tensors, path)
    found, _, _ = taken_apart(minibert.load_encoder(tmp_path), "masked_word")
    assert np.argwhere(~found.heads.any(axis=(0, 1))).tolist() == [[0, 1]]
    assert np.argwhere(~found.feed_forward.any(axis=(0, 1))).tolist() == [[1]]


def data_of(html: str, rows: int, encoder: Encoder) -> dict[str, Any]:
    data = data_of_script(html, "predictdata")
    blocks, k = len(encoder.stack.blocks), data["k"]
    data["lens"] = unpacked(data["lens"], rows, blocks + 1, k)
    data["shares"] = unpacked(data["shares"], rows, k, blocks * (encoder.stack.heads + 1) + 2)
    data["totals"] = unpacked(data["totals"], rows, k)
    return data


def of_each_state(encoder: Encoder, trace: dict[str, Array], head: str) -> list[Array]:
    """The logits of each block's state, by the head's modules one by one."""
    bound, found = encoder.head(head), []
    for i in range(len(encoder.stack.blocks) + 1):
        x = trace[f"hidden_states.{i}"][0]
        if encoder.stack.last_norm and i < len(encoder.stack.blocks):
            x = encoder[encoder.stack.last_norm](x)
        x = x[:1] if bound.pooling == "first" else x
        for _, work in bound.works:
            x = work(x)
        found.append(bound.last(x))
    return found


@pytest.mark.parametrize("name", ["masked_word", "next_word"])
def test_the_likeliest_words_and_how_they_grow(name: str, tmp_path: Path) -> None:
    masked = name == "masked_word"
    folder = word_models.write(tmp_path, "bert") if masked else encoders.write_gpt2(tmp_path)
    encoder, text = encoders.computed_once(minibert.load_encoder(folder)), "we [MASK] above" if masked else "he was"
    batch = encoder.tokenize(text)
    ids, logits = batch["input_ids"], encoder.logits(**batch, head=name)[0]
    data = data_of(page(encoder, text, name="someone/tiny"), ids.shape[1], encoder)
    trace = encoder.trace(**batch, head=name)
    assert data["each"] and data["chance"] and data["k"] == prediction.LIKELIEST
    labels = np.argsort(-logits, axis=1)[:, : data["k"]]
    for row, best in enumerate(labels):
        assert data["names"][row] == [prediction.token_name(encoder, i) for i in best.tolist()]
        for state, of_state in enumerate(of_each_state(encoder, trace, name)):
            chances = softmax(of_state[row].astype(np.float64))
            assert np.abs(data["lens"][row, state] - chances[best]).max() < CHANCE
            named, its = data["best"][row][state]
            assert named == prediction.token_name(encoder, int(chances.argmax()))
            assert its == pytest.approx(chances.max(), abs=CHANCE)
    found = logit_shares(encoder, ids, trace, encoder.head(name), labels)
    assert np.abs(data["shares"].sum(axis=2) - data["totals"]).max() < CHANCE * np.abs(logits).max()
    own = data["shares"][..., :-2].reshape(*labels.shape, encoders.DEPTH, encoders.HEADS + 1)
    assert np.array_equal(own[..., :-1], found.heads.astype(np.float32))
    assert np.array_equal(own[..., -1], found.feed_forward.astype(np.float32))
    assert np.array_equal(data["shares"][..., -2], found.input_layer.astype(np.float32))
    assert np.array_equal(data["totals"], found.total.astype(np.float32))


@pytest.mark.parametrize(("kind", "activation"), [
    ("single_label_classification", softmax), ("multi_label_classification", sigmoid), ("regression", np.asarray),
])  # fmt: skip
def test_classes_are_of_the_whole_text(kind: str, activation: Any, tmp_path: Path) -> None:
    labels = {"0": "sky", "1": "</script>", "2": "sea"}
    encoder = changed(tmp_path, "uses-inference", "config.json", {"id2label": labels, "problem_type": kind})
    data = data_of(page(encoder, "we lived above"), 1, encoder)
    logits = encoder.logits(**encoder.tokenize("we lived above"))[0].astype(np.float64)
    order, size = np.argsort(-logits), np.abs(logits).max()
    assert not data["each"] and data["k"] == 3 and data["chance"] == (kind != "regression")
    assert data["names"] == [[list(labels.values())[i] for i in order]]
    assert np.abs(data["lens"][0, -1] - activation(logits)[order]).max() < CHANCE * max(1, size)
    assert np.abs(data["shares"].sum(axis=2)[0] - (logits - logits.mean())[order]).max() < CHANCE * size


def test_a_head_that_cannot_be_computed_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = word_models.write(tmp_path, "bert")
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.transform.dense.weight"] = np.ones((3, 3), np.float32)
    save_file(tensors, folder / "model.safetensors")
    html = page(minibert.load_encoder(folder), "we lived")
    read(html)
    assert "cls.predictions.transform.dense.weight" in html and "predictdata" not in html and "blockdata" in html
