"""Sparse vectors of texts (SPLADE): one weight for each word of the vocabulary, most of them zero."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from minibert.equations.sentences import splade
from minibert.families.heads import BoundHead
from minibert.files.tokenizer import Encoded, Texts, listed

from .comparing import SparseVector, vectors_of
from .head_model import HeadModel
from .heads import logit_pieces
from .pipeline import Packed, check_positive


def encode_sparse(
    encoder: HeadModel,
    texts: Texts,
    prompt_name: str | None = None,
    prompt: str | None = None,
    max_active_dims: int | None = None,
    shown_as: str = "",
) -> Any:
    """Give sparse vectors: see `Encoder.encode_sparse`."""
    own, tokenizer = encoder.sentence_config, encoder.sentence_tokenizer
    own.check_use("SparseEncoder")
    head, before = encoder.head("masked_word"), own.prompt(prompt_name, prompt)
    if max_active_dims is not None:
        check_positive("max_active_dims", max_active_dims)
    most = own.max_active_dims if max_active_dims is None else max_active_dims

    def tokenize(chunk: list[Any], start: int) -> list[Encoded]:
        chunk = [before + text if isinstance(text, str) else text for text in chunk]
        return tokenizer.encode(chunk, None, True, own.longest, start)

    def vectors(tile: Packed) -> list[SparseVector]:
        return [largest(each, most) for each in _pooled(encoder, head, tile, *own.splade)]

    items, _ = listed(texts)
    found = encoder.each_text(tokenize, vectors).all(items, shown_as)
    return found[0] if isinstance(texts, str) else found


def _pooled(encoder: HeadModel, head: BoundHead, tile: Packed, pooling: str, activation: str) -> list[SparseVector]:
    """Pool the logits of a tile's tokens, some words at a time: never are all words' logits in memory."""
    x = encoder.rows(tile)
    ends = np.cumsum(tile.lengths)
    full = np.flatnonzero(tile.lengths)  # texts without a token have no weight
    texts, ids, weights = [full[:0]], [full[:0]], [x[:0, 0]]
    for words, logits in logit_pieces(head, x) if len(full) else ():
        y = splade(logits, (ends - tile.lengths)[full], pooling, activation)
        here, word = np.nonzero(y)
        texts.append(full[here])
        ids.append(word + words.start)
        weights.append(y[here, word])
    number = np.concatenate(texts)
    order = np.argsort(number, kind="stable")  # within a text the words stay in their order
    cuts = np.searchsorted(number[order], np.arange(len(ends) + 1))
    all_ids, all_weights = np.concatenate(ids)[order], np.concatenate(weights)[order]
    return [SparseVector(all_ids[a:b], all_weights[a:b]) for a, b in pairwise(cuts.tolist())]


def largest(vector: SparseVector, most: int | None) -> SparseVector:
    """Keep so many of the largest weights; of equal ones those with the smaller ids.

    >>> largest(SparseVector(np.array([2, 5, 7]), np.array([1.0, 3.0, 2.0])), most=2).ids
    array([5, 7])
    """
    if most is None or len(vector.ids) <= most:
        return vector
    keep = np.sort(np.argsort(-vector.weights, kind="stable")[:most])
    return SparseVector(vector.ids[keep], vector.weights[keep])


def decode(encoder: HeadModel, vectors: Any, k: int | None) -> Any:
    """Name the words of sparse vectors: see `Encoder.decode`."""
    if k is not None:
        check_positive("k", k)
    items = [] if isinstance(vectors, list) and not vectors else vectors_of(vectors, "vectors")
    if not isinstance(items, list):
        raise TypeError("vectors must be sparse, as encode_sparse gives them; found an array")
    found = []
    for vector in items:
        order = np.argsort(-vector.weights, kind="stable")[:k]
        tokens = encoder.embeddings.tokens(vector.ids[order])
        found.append([*zip(tokens, vector.weights[order].tolist(), strict=True)])
    return found[0] if isinstance(vectors, SparseVector) else found
