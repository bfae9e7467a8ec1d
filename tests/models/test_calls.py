"""Calls of sentence-transformers and of transformers' pipelines, stored with what they gave: the same calls here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE, opened
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.models.heads.labels import Entity, Label
from minibert.models.sentences.comparing import SparseVector

FOLDERS = sorted(path.parent.name for path in REFERENCE.glob("*/calls.json"))
SCORES = 1e-5  # of max(1, |number|); measured: 1.6e-6, with Sandybridge's kernels 6.1e-6
# largest difference of a vector's numbers, of max(1, the vector's length); measured: 8.0e-7, and 1.3e-6 in the causal
# folder, whose vectors nothing normalizes, with the kernel SkylakeX of OpenBLAS
EXACT = 2e-6
HALF = 1e-3  # a static model stored in float16, in which sentence-transformers adds and divides; measured: 4.9e-4
QUERIES = ["the clouds", "", "we lived above the clouds we lived above the clouds"]  # of late interaction


def called(encoder: minibert.Encoder, call: dict[str, Any]) -> Any:
    """Call a method as the library was called."""
    method, late = getattr(encoder, call["method"]), encoder.result == "tokens"
    if call["method"] == "classify":
        encoder.max_seq_length = encoder.max_seq_length  # the library was called with truncation=True
    if not call["method"].startswith("similarity"):
        return method(*call.get("arguments", [call.get("texts")]), **call.get("options", {}))
    texts = call["texts"]
    if not late:
        return method((vectors := encoder.encode(texts))[:3], vectors)
    pairs = call["method"] == "similarity_pairwise"
    return method(encoder.encode_query(texts if pairs else QUERIES), encoder.encode_document(texts))


def away(found: Array, want: Array) -> float:
    assert found.shape == want.shape and found.dtype == want.dtype == np.float32
    lengths = np.linalg.norm(want.astype("f8"), axis=-1, keepdims=True)
    return float((np.abs(found.astype("f8") - want) / np.maximum(1, lengths)).max(initial=0))


def same(found: Any, want: Any) -> bool:
    """Compare results with what JSON has of the library's; its names of keys."""
    if isinstance(found, Entity):
        word = want["word"]  # pieces put together; here it is the text's own letters
        found = {"entity_group": found.label, "word": word, "start": found.start, "end": found.end,
                 "score": found.probability}  # fmt: skip
    elif isinstance(found, Label):
        found = {"label": found.label, "score": found.probability}
    elif isinstance(found, SparseVector):
        found = found._asdict()
    elif isinstance(found, np.ndarray | np.generic):
        assert found.dtype in (np.float32, np.int64)
        found = found.tolist()
    if isinstance(want, dict):
        return found.keys() == want.keys() and all(same(found[key], want[key]) for key in want)
    if isinstance(want, list):
        return len(found) == len(want) and all(map(same, found, want))
    return abs(found - want) <= SCORES * max(1, abs(want)) if isinstance(found, float) else found == want


@pytest.mark.parametrize("name", FOLDERS)
def test_every_call_gives_what_it_gave_there(name: str) -> None:
    folder, half = REFERENCE / name, name == "static-half"
    arrays = load_file(folder / "vectors.safetensors") if (folder / "vectors.safetensors").exists() else {}
    for key, call in json.loads((folder / "calls.json").read_text(encoding="utf-8")).items():
        found = called(opened(name), call)
        if "gave" in call:
            wanted = call["gave"]
            assert same(found, wanted), (key, found, wanted)
        elif call["method"].startswith("similarity"):
            allowed = HALF if half else SCORES  # a distance of nearly equal vectors has the rounding of the vectors
            assert found.shape == arrays[key].shape and found.dtype == np.float32
            assert np.abs(found - arrays[key]).max() <= allowed * max(1, np.abs(arrays[key]).max()), key
        elif (lengths := arrays.get(f"{key}.lengths")) is not None:
            found = [found] if isinstance(call["texts"], str) else found
            assert [len(each) for each in found] == lengths.tolist(), key
            assert away(np.concatenate(found), arrays[key]) <= EXACT, key
        else:
            assert away(found, arrays[key]) <= (HALF if half else EXACT), key
