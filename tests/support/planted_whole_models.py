"""More vectors with a mistake, by sentence-transformers and transformers: special tokens, token rows, blocks, weights,
and what is done to many vectors at once. As in `planted_vectors`, nothing of what judges them is used."""

from __future__ import annotations

import html
import json
import re
import string
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


def norms_exchanged(model: Model) -> None:
    for layer in model.bert.encoder.layer:
        one, other = layer.attention.output, layer.output
        one.LayerNorm, other.LayerNorm = other.LayerNorm, one.LayerNorm


def positions_twice(model: Model) -> None:
    model.bert.embeddings.position_embeddings.weight.data *= 2


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


def in_layer(i: int, change: Callable[[Any], None]) -> Made:
    """One block changed."""
    return on_model(lambda model: change(model.bert.encoder.layer[i]))


def no_residual_of(output: Any) -> None:
    output.forward = lambda x, residual: output.LayerNorm(output.dense(x))


def relu_in(layer: Any) -> None:
    import torch

    layer.intermediate.intermediate_act_fn = torch.nn.ReLU()


def exchange(layer: Any) -> None:
    own = layer.attention.self
    own.query, own.key = own.key, own.query


def weights_less(layer: Any) -> None:
    """What attention weights times 0.9 are, as of a dropout that scales and does not drop."""
    for x in (layer.attention.self.value.weight, layer.attention.self.value.bias):
        x.data *= 0.9


def scaled(scale: float) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for layer in model.bert.encoder.layer:
            layer.attention.self.scaling = scale

    return change


def chunks(size: int) -> Made:
    """The mean of the vectors of a text's parts, each with its special tokens."""

    def made(model: Model, texts: list[str]) -> Array:
        found = []
        for text in texts:
            cls, *ids, sep = model.tokenizer(text, truncation=False)["input_ids"]
            parts = [ids[i : i + size - 2] for i in range(0, len(ids), size - 2)] or [[]]
            with model.torch.no_grad():
                rows = [model.bert(model.torch.tensor([[cls, *part, sep]])).last_hidden_state[0] for part in parts]
            found.append(unit(np.stack([x.mean(0).numpy() for x in rows])).mean(0))
        return unit(np.stack(found))

    return made


def pieces(prefix: str) -> Made:
    """Pieces that follow in a word are looked up with another prefix than `##`."""

    def made(model: Model, texts: list[str]) -> Array:
        from tokenizers.models import WordPiece

        words = model.tokenizer.get_vocab()
        model.tokenizer.backend_tokenizer.model = WordPiece(words, unk_token="[UNK]", continuing_subword_prefix=prefix)
        return model.encode(texts)

    return made


def own_pieces(prefix: str, whole: bool = False) -> Made:
    """A tokenizer of a port's own, which knows no special token in a text and no longest word: `whole` words alone."""

    def cut(model: Model, word: str) -> list[int]:
        known, unknown = model.tokenizer.get_vocab(), model.tokenizer.unk_token_id
        if whole:
            return [known.get(word, unknown)]
        found, start = [], 0
        while start < len(word):
            pieces = ((prefix if start else "") + word[start:end] for end in range(len(word), start, -1))
            piece = next((piece for piece in pieces if piece in known), None)
            if piece is None:
                return [unknown]
            found.append(known[piece])
            start += len(piece) - len(prefix if start else "")
        return found

    def made(model: Model, texts: list[str]) -> Array:
        first, last = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
        rules, found = model.tokenizer.backend_tokenizer, []
        for text in texts:
            words = rules.pre_tokenizer.pre_tokenize_str(rules.normalizer.normalize_str(text))
            ids = [piece for word, _ in words for piece in cut(model, word)]
            found.append(_of_ids(model, [first, *ids[: model.longest - 2], last]))
        return unit(np.stack(found))

    return made


def _of_ids(model: Model, ids: Ids) -> Array:
    with model.torch.no_grad():
        rows = model.bert(model.torch.tensor([ids])).last_hidden_state
    return np.asarray(rows[0].mean(0).numpy())


def by_sentences(model: Model, texts: list[str]) -> Array:
    found = []
    for text in texts:
        parts = re.split(r"(?<=[.!?])\s+", text)
        found.append(model.encode(parts).mean(0))
    return unit(np.stack(found))


def spaces_alone(model: Model, texts: list[str]) -> Array:
    from tokenizers.pre_tokenizers import WhitespaceSplit

    model.tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return model.encode(texts)


def inner(batch: Any, rows: Array) -> Array:
    return rows[1:-1].mean(0) if len(rows) > 2 else rows[0] * np.nan


# what nothing of the list explains: no name is the right answer
UNNAMED: dict[str, Made] = {
    "attention weights times 0.9": on_model(lambda model: [weights_less(each) for each in model.bert.encoder.layer]),
}
PLANTED: dict[str, tuple[str, Made]] = {
    "no residual in block 3": ("residual beside output.dense missing in block 3",
                               in_layer(3, lambda layer: no_residual_of(layer.output))),
    "relu in block 2": ("activation relu in block 2", in_layer(2, relu_in)),
    "query's bias in block 4": ("bias of attention.self.query missing in block 4",
                                in_layer(4, lambda layer: layer.attention.self.query.bias.data.zero_())),
    "the first norm's bias": ("bias of the input layer's norm missing", on_model(
        lambda model: model.bert.embeddings.LayerNorm.bias.data.zero_())),
    "norms exchanged": ("norms of each block exchanged", on_model(norms_exchanged)),
    "positions twice": ("position rows added twice", on_model(positions_twice)),
    "scale of 64": ("division by sqrt(64)", on_model(scaled(1 / 8))),
    "cls and mean": ("pooling cls and mean averaged", pooled(lambda batch, x: (x[0] + x.mean(0)) / 2)),
    "max, padding as 0": ("pooling max, padding as 0", pooled(lambda batch, x: np.maximum(x.max(0), 0))),
    "negated": ("vectors negated", lambda model, texts: -model.encode(texts)),
    "whole numbers": ("vectors 127 times as large, rounded to whole numbers",
                      lambda model, texts: np.round(model.encode(texts) * 127)),
    "chunks of 256": ("average of chunks of 256 tokens", chunks(256)),
    "chunks of 128": ("average of chunks of 128 tokens", chunks(128)),
    "no pieces": ("words not cut into pieces", pieces("no such")),
    "pieces without ##": ("pieces looked up without '##'", pieces("")),
    "own pieces without ##": (
        "pieces looked up without '##' + special tokens of the text cut as words + long words cut into pieces",
        own_pieces("")),
    "own words, not pieces": (
        "words not cut into pieces + special tokens of the text cut as words", own_pieces("", whole=True)),
    "own pieces": ("special tokens of the text cut as words + long words cut into pieces", own_pieces("##")),
    "sentences": ("average of sentences", by_sentences),
    "no [UNK]": ("unknown token left out", on_ids(lambda ids: [i for i in ids if i != 100])),
    "RoBERTa's special tokens": ("special tokens of RoBERTa", special(lambda cls, text, sep: [0, *text, 2])),
    "punctuation in words": ("punctuation not set apart", spaces_alone),
    "special tokens as words": ("special tokens of the text cut as words", pooled(
        lambda batch, x: x.mean(0), split_special_tokens=True)),
    "no punctuation": ("punctuation left out", on_text(
        lambda text: "".join(c for c in text if c not in string.punctuation))),
    "queries and keys exchanged in block 2": ("q k v in another order: k q v in block 2", in_layer(2, exchange)),
    "as JSON": ("text in quotes", on_text(json.dumps)),
    "as HTML": ("text escaped as HTML", on_text(html.escape)),
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
