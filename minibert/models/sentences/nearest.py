"""The words whose rows are nearest to a word's: what a word table knows about a language, before any context."""

from __future__ import annotations

import numpy as np

from minibert.equations.similarity import BLOCK, similarities_to
from minibert.files.tables import Table
from minibert.files.tokenizer import Tokenizer
from minibert.models.run.pipeline import check_positive


def nearest(table: Table, tokenizer: Tokenizer, word: str, k: int) -> list[tuple[str, float]]:
    """Give the k tokens whose rows have the largest cosine with the word's: see `EmbeddingLayer.nearest`."""
    check_positive("k", k)
    row = row_of_word(tokenizer, word)
    names = {i: name for i, name in tokenizer.names().items() if i < table.shape[0] and i != row}
    starts = range(0, table.shape[0], BLOCK)
    blocks = (table.rows(slice(start, min(start + BLOCK, table.shape[0]))) for start in starts)
    similarities = similarities_to(np.asarray(table.rows(np.array([row])))[0], blocks)
    ids = np.fromiter(names, np.int64, len(names))
    ids.sort()  # rows that are equally near are ordered by id
    ids = ids[np.argsort(-similarities[ids], kind="stable")[:k]]
    return [(names[i], similarity) for i, similarity in zip(ids.tolist(), similarities[ids].tolist(), strict=True)]


def row_of_word(tokenizer: Tokenizer, word: str) -> int:
    """Find the one row of a word: as it is inside a text, after a space; alone; or as the vocabulary writes it.

    Raises TypeError for anything but a str, ValueError for a word of several pieces, or of none.
    """
    if not isinstance(word, str):
        raise TypeError(f"word must be a str, found {type(word).__name__}")
    names = tokenizer.names()
    ways = [tokenizer.pieces(f" {word}"), tokenizer.pieces(word)]
    for ids in ways:
        if len(ids) == 1 and ids[0] in names:
            return ids[0]
    written = tokenizer.id_of(word)
    if written is not None:
        return written
    pieces = [str(tokenizer.tokens(np.array(i))) for i in min(ways, key=len)]
    if not pieces:
        raise ValueError(f"{word!r} has no token in this vocabulary; give a word")
    if len(pieces) == 1:
        raise ValueError(f"{word!r} is unknown to this vocabulary, which has {pieces[0]} for it; give another word")
    raise ValueError(
        f"{word!r} has no row of its own: it is {len(pieces)} pieces here, {' '.join(pieces)}; ask for one of them, as "
        "it is written, or for another word"
    )
