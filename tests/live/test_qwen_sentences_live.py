"""A folder like Qwen3-Embedding's, made and saved by sentence-transformers itself, with Qwen's own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from needed import need_sentence_transformers
from tokenizer_folders import BASES, vocabulary, write_tokenizer

import minibert

pytestmark = pytest.mark.reference

APART = 3e-6  # of a vector's numbers, whose length is 1; measured 4.2e-7
TEXTS = ["we lived", "We lived  above the clouds.", "the", "don't we, the he-lived cloud", "clouds " * 9]
PROMPTS = {"query": "Instruct: we lived\nQuery:", "document": ""}


def saved(folder: Path, padding_side: str) -> tuple[Any, Path]:
    """The reference's own model over seeded weights, and the folder that it writes."""
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    words = len(vocabulary(BASES["Qwen2Tokenizer"]))
    config = encoders.config("qwen3", vocab_size=words, architectures=["Qwen3Model"], max_position_embeddings=64)
    files = {
        "config.json": config,
        "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "padding_side": padding_side},
    }
    plain = write_tokenizer(folder / "plain", "Qwen2Tokenizer", files)
    checkpoints.write(plain, config, encoders.tensors(config))
    transformer = Transformer(str(plain), max_seq_length=40)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
    model = SentenceTransformer(modules=[transformer, pooling, Normalize()], prompts=PROMPTS, device="cpu")
    model.save(str(folder / "saved"))
    return model, folder / "saved"


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_vectors_of_queries_and_documents(tmp_path: Path, padding_side: str, low_memory: bool) -> None:
    model, folder = saved(tmp_path, padding_side)
    named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["tokenizer_class"]
    assert named.startswith("Qwen2Tokenizer")
    with minibert.load_encoder(folder, low_memory=low_memory) as encoder:
        for name in ("encode", "encode_query", "encode_document"):
            want, found = (getattr(each, name)(TEXTS) for each in (model, encoder))
            assert found.shape == want.shape and np.ptp(want, axis=0).max() > 0.1
            assert np.abs(found - want).max() <= APART, name
