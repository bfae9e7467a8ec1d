"""More vectors with a mistake, by sentence-transformers and transformers: special tokens, token rows, blocks, weights,
and what is done to many vectors at once. As in `planted_vectors`, nothing of what judges them is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from planted_vectors import Array, Made, Model, in_requests, on_ids, on_model, on_text, pooled, unit

Ids = list[int]


def special(change: Callable[[Ids, Ids, Ids], Ids]) -> Made:
    """Other special tokens: from the first one, the text's, and the last one."""
    return on_ids(lambda ids: change(ids[:1], ids[1:-1], ids[-1:]))


def states(pick: Callable[[Any], Any]) -> Made:
    """The mean of other rows: from all hidden states."""

    def made(model: Model, texts: list[str]) -> Array:
        found = []
        for text in texts:
            batch = model.tokenizer([text], truncation=True, max_length=model.longest, return_tensors="pt")
            with model.torch.no_grad():
                rows = pick(model.bert(**batch, output_hidden_states=True).hidden_states)
            found.append(rows[0].mean(0).numpy())
        return unit(np.stack(found))

    return made


def heads(many: int) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for layer in model.bert.encoder.layer:
            own = layer.attention.self
            own.num_attention_heads, own.attention_head_size = many, own.all_head_size // many
            own.scaling = own.attention_head_size**-0.5

    return change


def no_scale(model: Model) -> None:
    for layer in model.bert.encoder.layer:
        layer.attention.self.scaling = 1.0


def exchanged(one: int, other: int) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        layers = model.bert.encoder.layer
        layers[one], layers[other] = layers[other], layers[one]

    return change


def no_biases(where: Callable[[str], bool]) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for name, parameter in model.bert.named_parameters():
            if name.endswith(".bias") and where(name):
                parameter.data[...] = 0

    return change


def no_residual(output: Callable[[Any], Any]) -> Callable[[Model], None]:
    """The norm of what is added alone, by the module of a layer that adds it."""

    def change(model: Model) -> None:
        for module in map(output, model.bert.encoder.layer):
            module.forward = lambda x, residual, own=module: own.LayerNorm(own.dense(x))

    return change


def pooler_output(model: Model, texts: list[str]) -> Array:
    found = []
    for text in texts:
        batch = model.tokenizer([text], truncation=True, max_length=model.longest, return_tensors="pt")
        with model.torch.no_grad():
            found.append(model.bert(**batch).pooler_output[0].numpy())
    return unit(np.stack(found))


def with_dropout(model: Model, texts: list[str]) -> Array:
    model.torch.manual_seed(0)
    model.bert.train()
    return model.each(texts, lambda batch, rows: rows.mean(0))


def empty_as(number: float) -> Made:
    def made(model: Model, texts: list[str]) -> Array:
        found = model.encode(texts).copy()
        found[[not text.strip() for text in texts]] = number
        return found

    return made


def together(change: Callable[[Array], Array], norm: bool = True) -> Made:
    return lambda model, texts: np.asarray(change(model.each(texts, lambda batch, rows: rows.mean(0), norm)))


def inner(batch: Any, rows: Array) -> Array:
    return rows[1:-1].mean(0) if len(rows) > 2 else rows[0] * np.nan


PLANTED: dict[str, tuple[str, Made]] = {
    "SEP twice": ("special token at the end twice", special(lambda cls, text, sep: cls + text + sep + sep)),
    "CLS twice": ("special token at the beginning twice", special(lambda cls, text, sep: cls + cls + text + sep)),
    "special tokens in the text": ("all special tokens twice", on_text(lambda text: f"[CLS] {text} [SEP]")),
    "CLS and SEP exchanged": ("special tokens exchanged", special(lambda cls, text, sep: sep + text + cls)),
    "mean without CLS": ("special token at the beginning left out of pooling", pooled(lambda batch, x: x[1:].mean(0))),
    "mean without SEP": ("special token at the end left out of pooling", pooled(lambda batch, x: x[:-1].mean(0))),
    "tokens of length 1": ("tokens normalized before pooling", pooled(
        lambda batch, x: (x / np.linalg.norm(x, axis=1, keepdims=True)).mean(0))),
    "pooler_output": ("pooler_output in place of pooling", pooler_output),
    "sum": ("pooling sum + vectors not normalized", pooled(lambda batch, x: x.sum(0), norm=False)),
    "first and last block": ("first and last block averaged", states(lambda x: (x[1] + x[-1]) / 2)),
    "embeddings and last block": ("input layer and last block averaged", states(lambda x: (x[0] + x[-1]) / 2)),
    "last four blocks": ("last four blocks averaged", states(lambda x: sum(x[-4:]))),
    "centred": ("centred over the batch", together(lambda x: x - x.mean(0))),
    "centred before Normalize": ("centred over the batch", together(lambda x: unit(x - x.mean(0)), norm=False)),
    "batch norm": ("normalized over the batch", together(
        lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + np.float32(1e-5)))),
    "normalized along the texts": ("each dimension divided by its length over the batch", together(
        lambda x: x / np.maximum(np.linalg.norm(x, axis=0), 1e-12), norm=False)),
    "one length for all": ("divided by the length of all vectors together", together(
        lambda x: x / np.linalg.norm(x), norm=False)),
    "zeros appended": ("zeros appended", together(lambda x: np.pad(x, ((0, 0), (0, 128))))),
    "cls, zeros appended": ("pooling cls + zeros appended", lambda m, t: np.pad(
        m.each(t, lambda batch, x: x[0]), ((0, 0), (0, 128)))),
    "six heads": ("number of heads 6", on_model(heads(6))),
    "sixteen heads": ("number of heads 16", on_model(heads(16))),
    "no scale": ("no division by sqrt(head_dim)", on_model(no_scale)),
    "blocks 2 and 4 exchanged": ("blocks 2 and 4 exchanged", on_model(exchanged(2, 4))),
    "no biases": ("all biases missing", on_model(no_biases(lambda name: True))),
    "no biases of maps": ("biases of linear maps missing", on_model(no_biases(lambda name: "LayerNorm" not in name))),
    "no biases of q, k and v": ("biases of queries, keys and values missing", on_model(
        no_biases(lambda name: ".self." in name))),
    "no biases of norms": ("biases of norms missing", on_model(no_biases(lambda name: "LayerNorm" in name))),
    "empty text as zeros": ("the empty text as zeros", empty_as(0.0)),
    "empty text as NaN": ("the empty text as NaN", empty_as(np.nan)),
    "mean of nothing": ("special tokens left out of pooling + the empty text as NaN", pooled(inner)),
    "dropout": ("random", with_dropout),
    "no mask, 16 a request": ("padding seen", in_requests(16, seen=True)),
    "no mask, padding pooled, 32 a request": ("padding seen and pooled", in_requests(32, seen=True, pools=True)),
    "padding on the left, 32 a request": ("padding before the text counted in positions", in_requests(32, "left")),
    "padding on the left, no mask": ("padding seen, before the text", in_requests(16, "left", seen=True)),
    "no biases of the feed-forward's first map": ("biases of intermediate.dense missing", on_model(
        no_biases(lambda name: "intermediate" in name))),
    "no residual of attention": ("residual beside attention.output.dense missing", on_model(
        no_residual(lambda layer: layer.attention.output))),
    "no residual of the feed-forward": ("residual beside output.dense missing", on_model(
        no_residual(lambda layer: layer.output))),
}  # fmt: skip
