"""Answers: what was computed, in OpenAI's, Cohere's or text-embeddings-inference's form."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, quantized
from minibert.models.sentences.comparing import SparseVector

from .fields import Refusal
from .requests import Embedding, Rerank
from .worker import Job


def embeddings(asked: Embedding, found: Array, job: Job, name: str) -> dict[str, Any]:
    """Give vectors in OpenAI's form; `truncated`: how many texts were."""
    found = quantized(check_finite(found), asked.form) if asked.form in BITS else check_finite(found).astype("<f4")
    in_bytes = asked.form == "base64"
    written = [base64.b64encode(vector.tobytes()).decode() for vector in found] if in_bytes else found.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(written)],
        "model": name,
        "usage": usage(job),
        "truncated": len(job.truncated),
    }


def listed(found: Array) -> list[Any]:
    """Give an array as lists of numbers."""
    return list(check_finite(found).tolist())


def sparse(found: Sequence[SparseVector]) -> list[Any]:
    """Give sparse vectors in text-embeddings-inference's form."""
    rows = [zip(vector.ids.tolist(), listed(vector.weights), strict=True) for vector in found]
    return [[{"index": index, "value": value} for index, value in row] for row in rows]


def ranked(asked: Rerank, found: Array, job: Job, name: str) -> Any:
    """Order documents by their scores, the best first; equal scores keep their order. `truncated`: as of vectors."""
    values = listed(found)
    order = sorted(range(len(values)), key=lambda i: -values[i])[: asked.top_n]
    score = "score" if asked.plain else "relevance_score"
    results: list[dict[str, Any]] = [{"index": i, score: values[i]} for i in order]
    if asked.with_text:
        for i, result in zip(order, results, strict=True):
            sent = asked.sent[i] if isinstance(asked.sent[i], dict) else {"text": asked.documents[i]}
            result.update(sent if asked.plain else {"document": sent})
    if asked.plain:
        return results
    return {"model": name, "results": results, "usage": usage(job), "truncated": len(job.truncated)}


def usage(job: Job) -> dict[str, int]:
    """Say how many tokens were computed."""
    return {"prompt_tokens": job.tokens, "total_tokens": job.tokens}


def check_finite(found: Array) -> Array:
    """Refuse NaN and infinity, which JSON cannot write. Raises Refusal."""
    if not np.isfinite(found).all():
        raise Refusal(500, "the model gives NaN or infinity: a weight in its file is NaN, or too large")
    return found
