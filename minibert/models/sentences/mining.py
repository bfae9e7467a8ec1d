"""Searches by the names of sentence-transformers, and in its form: the nearest texts, pairs of like ones, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import cosine, dot, normalized
from minibert.models.run.pipeline import check_positive, chunked, shown

from .comparing import Compare, Given, compared, vectors_of
from .search import search
from .sentences import Sentences

NAMES = ("embeddings", "embeddings")


def semantic_search(
    query_embeddings: Given,
    corpus_embeddings: Given,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500000,
    top_k: int = 10,
    score_function: Compare = cosine,
) -> list[list[dict[str, Any]]]:
    """Give what `search` gives as sentence-transformers' `semantic_search`: for each query a list of dicts, best first.

    Each has corpus_id, the vector's number, and score. score_function: as `compare` of `search`, a function of arrays.
    The sizes of chunks are without effect. Raises as `search`.

    >>> semantic_search([1.0, 0.0], [[0.0, 2.0], [3.0, 0.0]], top_k=1)
    [[{'corpus_id': 1, 'score': 1.0}]]
    """
    check_positive("query_chunk_size", query_chunk_size)
    check_positive("corpus_chunk_size", corpus_chunk_size)
    corpus = vectors_of(corpus_embeddings, "corpus_embeddings")
    ids, scores = search(query_embeddings, corpus, compare=score_function, top_k=top_k)
    pairs = (zip(*each, strict=True) for each in zip(ids.tolist(), scores.tolist(), strict=True))
    return [[{"corpus_id": i, "score": score} for i, score in each] for each in pairs]


def paraphrase_mining(
    model: Sentences,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: Compare = cosine,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
) -> list[list[Any]]:
    """Give the pairs of texts that are most alike, best first, as sentence-transformers: [score, i, j] with i < j.

    Each text is compared with all others, of which its `top_k` nearest are taken; at most `max_pairs` pairs are given.
    Of equal scores the pair of the smaller numbers comes first. score_function: as `compare` of `search`, the same for
    (a, b) and (b, a). query_chunk_size: texts compared at once; corpus_chunk_size is without effect.

    Raises TypeError for one str and for a model of token vectors, else as `encode` and `search`.
    """
    if isinstance(sentences, str):
        raise TypeError("sentences must be many texts, found one str; pass a list")
    for name, size in (("max_pairs", max_pairs), ("top_k", top_k), ("query_chunk_size", query_chunk_size)):
        check_positive(name, size)
    check_positive("corpus_chunk_size", corpus_chunk_size)
    vectors: Array = model.encode(
        list(sentences), prompt_name, prompt, batch_size, show_progress_bar, truncate_dim=truncate_dim
    )
    if isinstance(vectors, list):
        raise TypeError("model must give a vector for each text, found one for each token; search compares such")
    if score_function is cosine:  # once, and not for every chunk
        vectors, score_function = normalized(vectors), dot
    pairs, best = np.empty((0, 2), np.int64), np.empty(0)
    for start in range(0, len(vectors), query_chunk_size):
        some = vectors[start : start + query_chunk_size]
        ids, scores = search(some, vectors, compare=score_function, top_k=top_k + 1)
        own = np.broadcast_to(np.arange(start, start + len(some))[:, None], ids.shape)
        others = ids != own
        others &= np.cumsum(others, axis=1) <= top_k  # one too many where the text itself is not among them
        found = np.sort(np.stack([own[others], ids[others]], axis=1), axis=1)
        pairs, first = np.unique(np.concatenate([pairs, found]), axis=0, return_index=True)
        best = np.concatenate([best, scores[others]])[first]
        order = np.argsort(-best, kind="stable")[:max_pairs]
        pairs, best = pairs[order], best[order]
    return [[score, i, j] for score, (i, j) in zip(best.tolist(), pairs.tolist(), strict=True)]


def community_detection(
    embeddings: Given,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Give groups of vectors whose cosine with a central one is at least `threshold`, as sentence-transformers.

    Each group is a list of numbers, the central one's first, then by falling cosine; the largest group comes first.
    Groups of fewer than `min_community_size` are left out, and no vector is in two: the larger group takes it.
    batch_size: vectors compared with all at once.

    Raises ValueError for a threshold that is no number, else as `search`.
    """
    if not isinstance(threshold, float | int | np.number) or threshold != threshold:
        raise ValueError(f"threshold must be a number, found {threshold!r}")
    check_positive("min_community_size", min_community_size)
    check_positive("batch_size", batch_size)
    vectors, found = vectors_of(embeddings, NAMES[0]), list[tuple[int, Array]]()
    chunks = chunked(range(len(vectors)), batch_size)
    for numbers in shown(chunks, len(vectors), "community_detection") if show_progress_bar else chunks:
        scores = compared(cosine, vectors[numbers[0] : numbers[-1] + 1], vectors, NAMES)
        for i, row in zip(numbers, scores, strict=True):
            near = np.flatnonzero(row >= np.float32(threshold))
            if len(near) >= min_community_size:
                found.append((i, near[np.argsort(-row[near], kind="stable")]))
    communities, used = list[list[int]](), np.zeros(len(vectors), bool)
    for center, near in sorted(found, key=lambda each: len(each[1]), reverse=True):
        free = near[~used[near]]
        if not used[center] and len(free) >= min_community_size:
            community = [center, *free[free != center].tolist()]
            used[community] = True
            communities.append(community)
    return sorted(communities, key=len, reverse=True)
