"""Make tests/reference/static-*: small static models, and sentence-transformers' results for them.

    python scripts/reference/static.py            write the folders anew
    python scripts/reference/static.py --check    make them elsewhere, compare; exit 1 on a difference

It needs sentence-transformers and model2vec (`pip install sentence-transformers==6.2.0 model2vec==0.10.0`). Each folder
is written by one of the two libraries. Its numbers are seeded, and beside the model it has the same files as a folder
of `sentences.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from model2vec import StaticModel
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentences import TEXTS, Call, checkpoints, each, rewrite, run, save
from tokenizers import Tokenizer

VOCAB = checkpoints.VOCAB
LONG = "the clouds above, we lived! " * 9
MORE = [*TEXTS, LONG, "été ü ☃", " "]


def tokenizer(most: int | None = None, left: bool = False) -> Tokenizer:
    """The words of the other small models; `most`: the number of a text's tokens that are kept."""
    found = Tokenizer.from_str(checkpoints.wordpiece_json())
    if most is not None:
        found.enable_truncation(most, direction="left" if left else "right")
    return found


def rows(count: int = VOCAB, seed: int = 0) -> np.ndarray[Any, Any]:
    return checkpoints.numbers(count, 8, seed=seed)


def every(texts: list[str]) -> list[Call]:
    return [
        ("encode", texts, {}), ("encode", "we lived", {}), ("encode", texts, {"truncate_dim": 3}),
        ("encode", texts, {"normalize_embeddings": True, "prompt": "the "}), ("similarity", texts, {}),
    ]  # fmt: skip


def plain(parts: Path, folder: Path) -> list[Call]:
    """Only StaticEmbedding, in the top folder; no config.json."""
    save([StaticEmbedding(tokenizer(), rows())], folder, similarity_fn_name="dot")
    return every(MORE)


def dense(parts: Path, folder: Path) -> list[Call]:
    """StaticEmbedding in 0_StaticEmbedding, a dense layer, Normalize; prompts; texts are truncated from the left."""
    named = {"query": "the clouds: ", "document": "above! "}
    chain = [StaticEmbedding(tokenizer(6, left=True), rows(seed=1)), Dense(8, 6), Normalize()]
    save(chain, folder, prompts=named, truncate_dim=5)
    inside = folder / "0_StaticEmbedding"
    inside.mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json"):
        if (folder / name).exists():
            (folder / name).rename(inside / name)
    named = {"path": inside.name, "type": "sentence_transformers.models.StaticEmbedding"}
    rewrite(folder / "modules.json", lambda modules: [modules[0] | named, *modules[1:]])
    return [*every(MORE), *each(MORE, "encode_query", "encode_document")]


def half(parts: Path, folder: Path) -> list[Call]:
    """model2vec in float16, normalized, as distill writes it; truncated at 10 tokens."""
    config = {"model_type": "model2vec", "normalize": True}
    StaticModel(rows(seed=2).astype("f2"), tokenizer(), config, True, max_length=10).save_pretrained(folder)
    # sentence-transformers computes NaN for a text without tokens: its smallest divisor, 1e-12, is 0 in float16
    return every([text for text in MORE if text.strip()])


def quantized(parts: Path, folder: Path) -> list[Call]:
    """model2vec with a quantized vocabulary: ids share rows, each id with its own weight."""
    mapping = np.arange(VOCAB) * 7 % 11
    weights = np.linspace(0.1, 2, VOCAB, dtype="f4")
    model = StaticModel(rows(11, seed=3), tokenizer(), weights=weights, token_mapping=mapping, max_length=None)
    model.save_pretrained(folder)
    return every(MORE)


FOLDERS = (plain, dense, half, quantized)


if __name__ == "__main__":
    sys.exit(run(__doc__, "static", FOLDERS))
