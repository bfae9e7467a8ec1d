"""`TokenPairs`: which tokens make two texts alike, as a sum over pairs of tokens."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.equations.token_pairs import SUMS, maxsim_pairs, pooled_parts, similarity_pairs
from minibert.errors import error_of
from minibert.families.parts.bound_blocks import TORCH
from minibert.models.run.pipeline import TextPipeline

from .folder import dense
from .late import LatePipeline
from .sentences import Prompt, Sentences

BIAS = "(bias)"  # the row of a linear map's bias, which no token has
TASKS = ("query", "document")
ONE_TOKEN = "; `trace` shows its attention, and `minibert.knock_out` takes a token's effect away"


class SimilarityPairs(NamedTuple):
    """The similarity of two texts, split: `pairs[i, j]` is what tokens[i] and others[j] add to it.

    tokens: n tokens of the first text, others: m tokens of the second; "(bias)" is the bias of a linear map.
    pairs: (n, m) float64; their sum is the similarity.
    """

    tokens: list[str]
    others: list[str]
    pairs: Array

    def largest(self, k: int) -> list[tuple[str, str, float]]:
        """Return the k pairs that add most, the largest first.

        >>> SimilarityPairs(["a", "b"], ["c"], np.array([[0.1], [0.3]])).largest(1)
        [('b', 'c', 0.3)]
        """
        order = np.argsort(-self.pairs, axis=None, kind="stable")[:k]
        places = zip(*np.unravel_index(order, self.pairs.shape), strict=True)
        return [(self.tokens[i], self.others[j], float(self.pairs[i, j])) for i, j in places]


class TokenPairs(Sentences):
    """A model that splits the similarity of two texts by their tokens."""

    def similarity_pairs(
        self,
        text: str,
        other: str,
        prompt_names: tuple[Prompt, Prompt] | None = None,
        *,
        truncate_dim: int | None = None,
    ) -> SimilarityPairs:
        """Split the similarity of two texts into a sum over pairs of tokens: `equations.token_pairs` has the formulas.

        The sum of all pairs is `similarity` of the vectors of `encode`, within 1e-6 of the vectors' lengths.
        prompt_names: the name of each text's prompt; "query" and "document" encode as `encode_query` and
        `encode_document`. By default `encode` makes both vectors; with late interaction the first text is a query and
        the other a document.

        A vector is a sum if the pooling is mean, mean_sqrt_len_tokens, weightedmean or max, if the modules after it are
        linear, and if the measure is cosine or dot; with late interaction the score is a sum. A large pair is no cause:
        a token's vector depends on its whole text.

        Raises ValueError for a vector that is no sum of its tokens' parts, for a model of sparse vectors and for
        another measure; otherwise as `encode`.

        >>> encoder = load_encoder("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> split = encoder.similarity_pairs(
        ...     "The bank raised its interest rates today.", "Loans became more expensive this week."
        ... )  # doctest: +SKIP
        >>> split.largest(2), split.pairs.sum()  # doctest: +SKIP
        ([('interest', 'loans', 0.0187), ('bank', 'loans', 0.0171)], 0.4233)
        """
        check_sum(self)
        settings = self.sentence_config
        names = prompt_names or (TASKS if settings.late else (None, None))
        first, second = (
            self.pipeline(name, task=name if name in TASKS else None, truncate_dim=truncate_dim) for name in names
        )
        return pairs_of(text, first, other, second, settings.measure)


def check_sum(model: Sentences) -> None:
    """Refuse a model with another similarity than a sum over pairs of tokens. Raises ValueError."""
    settings = model.sentence_config
    if settings.result in ("sparse", "scores"):
        settings.check_use("SentenceTransformer")
    wrong = ""
    if settings.measure in ("euclidean", "manhattan"):
        wrong = f"the measure {settings.measure} is no sum over pairs of tokens; cosine and dot are"
    elif settings.result == "dense" and len(settings.poolings) > 1:
        wrong = f"the vector joins the poolings {', '.join(settings.poolings)}, and one pooling alone is a sum"
    elif settings.result == "dense" and (settings.picks or settings.poolings[0] not in SUMS):
        token = "end" if settings.picks else {"cls": "first", "lasttoken": "last"}[settings.poolings[0]]
        wrong = f"the vector is that of the {token} token alone, no sum over tokens{ONE_TOKEN}"
    if wrong:
        raise error_of(ValueError, wrong)
    for step in settings.after if settings.result == "dense" else ():
        _check_linear(step)


def pairs_of(text: str, pipeline: TextPipeline, other: str, second: TextPipeline, measure: str) -> SimilarityPairs:
    """Split the similarity of two texts, each encoded by its pipeline; the model has passed `check_sum`."""
    (tokens, parts), (others, other_parts) = _parts(text, pipeline), _parts(other, second)
    late = isinstance(pipeline, LatePipeline)
    if late and not others:
        raise ValueError("the second text has no token with a vector, so no pair is there")
    split = maxsim_pairs if late else similarity_pairs
    return SimilarityPairs(tokens, others, split(parts, other_parts, measure))


def pairs_of_rows(model: Sentences, rows: Array, others: Array) -> Array:
    """Split the similarity of two texts by their last hidden states (tokens, dim), without prompts; biases come last.

    Raises ValueError as `check_sum`, and for late interaction, whose queries and documents have different tokens.
    """
    check_sum(model)
    if model.sentence_config.late:
        raise ValueError("late interaction encodes a query and a document differently; `similarity_pairs` does both")
    pipeline = model.pipeline(prompt="")
    return similarity_pairs(_pooled(rows, pipeline), _pooled(others, pipeline), model.sentence_config.measure)


def _parts(text: str, pipeline: TextPipeline) -> tuple[list[str], Array]:
    """Return a text's tokens, and each token's part of the vector (tokens, dim)."""
    unpooled = copy(pipeline)
    unpooled.truncated = None  # the text was noted when its vector was computed
    encoded = unpooled.tokenize([text], 0)
    ids = np.array(encoded[0].input_ids, np.int64)
    if isinstance(unpooled, LatePipeline):
        ids = ids[~np.isin(ids, unpooled.skipped)]
        return unpooled.tokenizer.tokens(ids), unpooled.vectors(encoded)[0]
    unpooled.dim, unpooled.poolings, unpooled.skip, unpooled.after, unpooled.normalize = None, (), 0, (), False
    tokens = unpooled.tokenizer.tokens(ids)
    parts = _pooled(unpooled.vectors(encoded)[0], pipeline)
    return tokens + [BIAS] * (len(parts) - len(tokens)), parts


def _pooled(rows: Array, pipeline: TextPipeline) -> Array:
    """Return each token's part of a vector (tokens, dim), and then the biases of linear maps."""
    parts = pooled_parts(rows, pipeline.poolings[0], pipeline.skip)
    for step in pipeline.after:
        parts = _mapped(step, parts)
    return parts[:, : pipeline.dim]


def _check_linear(step: Any) -> None:
    """Refuse a module of the folder that maps no sum to a sum. Raises ValueError."""
    is_dense = isinstance(step, partial) and step.func is dense
    if step in (normalized, TORCH["Identity"]) or (is_dense and step.keywords["activation"] is TORCH["Identity"]):
        return
    module = "a Dense with an activation" if is_dense else "a LayerNorm"
    raise ValueError(f"{module} comes after the pooling, and its result is no sum over tokens")


def _mapped(step: Any, parts: Array) -> Array:
    """Return the parts after a module of the folder; a bias becomes one more part."""
    if step is normalized:
        length = np.linalg.norm(parts.sum(axis=0))
        return parts / length if length else parts
    if step is TORCH["Identity"]:
        return parts
    weight, bias, residual = (step.keywords[name] for name in ("weight", "bias", "residual"))
    y = parts @ weight.astype(np.float64).T
    if step.keywords["keeps"]:
        y += parts if residual is None else parts @ residual.astype(np.float64).T
    return y if bias is None else np.vstack([y, bias.astype(np.float64)[None]])
