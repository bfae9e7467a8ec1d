"""`Encoder`: a whole model with all methods: ids -> hidden states; texts -> vectors, words, scores and labels.

`Model` (model.py) computes hidden states and logits; `Sentences` adds vectors of texts; each of the other base
classes adds the methods of one use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from minibert.models.heads.labels import Labels, PairScoring
from minibert.models.heads.prediction import WordPrediction
from minibert.models.heads.sparse import Sparse
from minibert.models.sentences.token_pairs import TokenPairs


class Encoder(WordPrediction, PairScoring, Labels, Sparse, TokenPairs):
    """A whole model of one checkpoint: ids -> input layer -> blocks -> one vector a token.

    `minibert.load_encoder` makes it. Each use has a file; predicting words, scoring pairs and labels need a head in the
    checkpoint: `heads` lists its heads.

    | use | file of minibert/models |
    |---|---|
    | a call, `trace`, `logits`, `head`, `modules` | model.py |
    | `encode`, `encode_query`, `encode_document`, `similarity` | sentences/sentences.py |
    | `similarity_pairs` | sentences/token_pairs.py |
    | `encode_sparse`, `decode` | heads/sparse.py |
    | `classify`, `entities`, `answer`, `predict`, `rank` | heads/labels.py |
    | `fill`, `next_words`, `complete` | heads/prediction.py |

    The input layer has the bits of `EmbeddingLayer`. With `load_encoder(same_bits=True)`, and on some processors
    always, the bits of a text do not depend on other texts; otherwise its vectors change by about 1e-6 with the texts
    around it, since a matrix product of other rows rounds differently.

    Safe to call from many threads at once. A context manager; after `close()` every use raises ValueError. `pickle` and
    `copy.deepcopy` do not copy the weights, as with `EmbeddingLayer`. Only `max_seq_length` can be set; setting another
    attribute raises AttributeError.
    """

    @property
    def identity(self) -> str:
        """One string for this model: 64 hexadecimal digits, the same for the same numbers, tokens and settings.

        It covers the parameters that are used, as float32 numbers by module path, an adapter's merged; the tokenizer's
        rules; and every setting that changes a vector: config.json's, poolings and the modules after them, prompts,
        lengths, the measure, `truncate_dim`. It is the same after a rename, a copy, another number format of the same
        numbers, or another division into files. Options of one call, `dtype` and threads do not count. The parameters
        are read at the first use alone.

        A head counts if the folder is for its results: sparse vectors or scores of pairs, and without modules.json a
        head of classes.
        """
        from .sentences.identity import identity_of

        self.stack  # noqa: B018  raises if the encoder is closed
        return identity_of(self, self._settings, self._digests)

    @cached_property
    def _digests(self) -> Mapping[str, str]:
        from .sentences.identity import parameter_digests

        return parameter_digests(self)

    def __reduce__(self) -> tuple[Any, ...]:
        longest = self.max_seq_length
        return self._reopen, (), {"max_seq_length": longest} if self._length_set else None

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.max_seq_length = state["max_seq_length"]
