"""Sparse vectors of texts (SPLADE): a weight for each word of the vocabulary, most of them zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.equations.sentences import splade
from minibert.equations.similarity import top_indices
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.steps import Inputs
from minibert.files.tokenizer import Encoded, Texts, listed
from minibert.models.run.attributes import check_positive, hinted
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline, finite
from minibert.models.sentences.comparing import SparseVector, vectors_of
from minibert.models.sentences.folder import SPARSE
from minibert.models.sentences.sentences import ENCODE, Sentences, check_options, complete, given_once

from .heads import logit_pieces


class SparsePipeline(TextPipeline):
    """The pipeline of sparse vectors, pooled from the logits of a text's tokens."""

    head: BoundHead
    pooling: str
    activation: str
    most: int | None  # weights of a vector that are kept; None: all

    def pool(self, tile: Packed, x: Array) -> list[SparseVector]:
        """Pool the logits of a tile's tokens, some words at a time, so that memory never holds all logits."""
        ends = np.cumsum(tile.lengths)
        full = np.flatnonzero(tile.lengths)  # texts without a token have no weight
        texts, ids, weights = [full[:0]], [full[:0]], [x[:0, 0]]
        for words, logits in logit_pieces(self.head, x) if len(full) else ():
            y = splade(logits, (ends - tile.lengths)[full], self.pooling, self.activation)
            here, word = np.nonzero(y)
            texts.append(full[here])
            ids.append(word + words.start)
            weights.append(y[here, word])
        number = np.concatenate(texts)
        order = np.argsort(number, kind="stable")  # within a text the words stay in their order
        cuts = np.searchsorted(number[order], np.arange(len(ends) + 1))
        all_ids, all_weights = np.concatenate(ids)[order], finite(np.concatenate(weights)[order])
        spans = pairwise(cuts.tolist())
        return [keep_largest(SparseVector(all_ids[a:b], all_weights[a:b]), self.most) for a, b in spans]


class LookupPipeline(TextPipeline):
    """The pipeline of a Router's queries: the weights of a text's tokens, each token once, from a table."""

    weights: Array
    most: int | None

    def run(self, encoded: Sequence[Encoded], put: Callable[[Packed, Array], None]) -> None:
        """Make a tile of each text's tokens with a non-zero weight. Raises IndexError for an id beyond the table."""
        for i, sequence in enumerate(encoded):
            ids = np.unique(check_ids(sequence.input_ids, len(self.weights), "input_ids"))
            ids = ids[self.weights[ids] != 0]
            inputs = Inputs(1, len(ids), {"input_ids": ids[None]})
            put(Packed(inputs, np.array([i]), np.array([len(ids)])), self.weights[ids])

    def pool(self, tile: Packed, x: Array) -> list[SparseVector]:
        """Return the sparse vector of a tile's one text."""
        return [keep_largest(SparseVector(tile.ids, x), self.most)]


class Sparse(Sentences):
    """A model that computes sparse vectors of texts, like sentence-transformers' SparseEncoder."""

    @overload
    def encode_sparse(self, texts: str, *options: Any, **named: Any) -> SparseVector: ...
    @overload
    def encode_sparse(self, texts: Iterable[str], *options: Any, **named: Any) -> list[SparseVector]: ...
    @overload
    def encode_sparse(self, *texts: Any, **options: Any) -> Any: ...

    @hinted
    def encode_sparse(
        self,
        texts: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        max_active_dims: int | None = None,
        task: str | None = None,
        inputs: Texts | None = None,
        sentences: Texts | None = None,
    ) -> Any:
        """Turn texts into sparse vectors as sentence-transformers' SparseEncoder does (SPLADE).

        One str -> `SparseVector(ids, weights)`, many -> a list: the non-zero weights of the vocabulary's words, which
        `decode` names. A weight is the largest log(1 + relu(logit)) over the text's tokens, by the head `masked_word`;
        a folder may name another pooling and activation.

        max_active_dims  the number of weights that are kept, the largest absolute values; None: the folder's number
        task             "query" or "document"; a folder with a Router looks up a query's weights in a table, and has
                         a default task
        batch_size       no effect, as in `encode`
        inputs           sentence-transformers' name for `texts`; sentences: the older name

        Raises as `encode`, and CheckpointError for a file without that head.
        """
        check_positive("batch_size", batch_size)
        if texts is None or inputs is not None or sentences is not None:
            texts = given_once("a str or a list of str", texts=texts, inputs=inputs, sentences=sentences)
        self.sentence_config.check_use(SPARSE)
        pipeline = self._sparse_pipeline(max_active_dims, prompt_name=prompt_name, prompt=prompt, task=task)
        vectors = pipeline.all(listed(texts), "encode_sparse" if show_progress_bar else "")
        return vectors[0] if isinstance(texts, str) else vectors

    def pipeline(self, *args: Any, single_threaded: bool = False, **options: Any) -> TextPipeline:
        """Return the pipeline of `encode`, or of `encode_sparse` for a SparseEncoder's folder."""
        if self.result != "sparse":
            return super().pipeline(*args, single_threaded=single_threaded, **options)
        return self._sparse_pipeline(None, single_threaded, **complete(ENCODE, self.encode, args, options))

    def _sparse_pipeline(self, most: int | None, single_threaded: bool = False, **options: Any) -> TextPipeline:
        settings, options = self.sentence_config, {**ENCODE, **options}
        check_options(options)
        check_positive("max_active_dims", most, or_none=True)
        most = settings.max_active_dims if most is None else most
        steps = {**self.text_steps(options, single_threaded), "most": most}
        if table := settings.table(options["task"]):
            return self.pipeline_of(LookupPipeline, **steps, weights=table.weights)
        pooling, activation = settings.splade
        head = self.head("masked_word")
        return self.pipeline_of(SparsePipeline, **steps, head=head, pooling=pooling, activation=activation)

    def _encode(self, *texts: Any, **options: Any) -> Any:
        method = self.encode_sparse if self.result == "sparse" else self.encode
        return method(*texts, **options)

    @overload
    def decode(self, vectors: SparseVector, k: int | None = ...) -> list[tuple[str, float]]: ...
    @overload
    def decode(self, vectors: Sequence[SparseVector], k: int | None = ...) -> list[list[tuple[str, float]]]: ...

    def decode(self, vectors: SparseVector | Sequence[SparseVector], k: int | None = None) -> Any:
        """List the words of a sparse vector with their weights, the largest first: [(token, weight), ...].

        Many vectors -> a list of lists. k: at most k words. Words with equal weights are in the order of their ids.

        Raises TypeError for anything but results of `encode_sparse`, ValueError for a k below 1.
        """
        check_positive("k", k, or_none=True)
        items = vectors_of(vectors, "vectors")
        if not isinstance(items, list):
            raise TypeError("vectors must be sparse, as encode_sparse gives them; found an array")
        decoded = []
        for vector in items:
            (order,) = top_indices(vector.weights[None], len(vector.ids) if k is None else k)
            tokens = self.embeddings.tokens(vector.ids[order])
            decoded.append([*zip(tokens, vector.weights[order].tolist(), strict=True)])
        return decoded[0] if isinstance(vectors, SparseVector) else decoded


def keep_largest(vector: SparseVector, most: int | None) -> SparseVector:
    """Keep the `most` weights of the largest absolute value; with equal weights, the smaller ids.

    >>> keep_largest(SparseVector(np.array([2, 5, 7]), np.array([1.0, -3.0, 2.0])), most=2).ids
    array([5, 7])
    """
    if most is None or len(vector.ids) <= most:
        return vector
    keep = np.sort(top_indices(np.abs(vector.weights)[None], most)[0])
    return SparseVector(vector.ids[keep], vector.weights[keep])
