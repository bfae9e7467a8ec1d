"""Folders of newer rows of blocks, made and saved by sentence-transformers itself: vectors with their prompts, and
scores of pairs. Their files have the names that are published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from encoder_files import change_json
from needed import need_sentence_transformers
from safetensors.numpy import load_file, save_file
from tokenizer_folders import BASES, vocabulary, write_tokenizer

import minibert

pytestmark = pytest.mark.reference

APART = 3e-6  # of a vector's numbers, whose length is 1, and of scores; measured 4.2e-7
TEXTS = [
    "we lived", "We lived  above the clouds.", "the", "don't we, the he-lived cloud", "clouds " * 9, "", "a",
    "we the we", "Above, above the clouds: we", "lived " * 30,
]  # fmt: skip
PROMPTS = {"query": "query: ", "document": ""}
# the tokenizer, and what a published model of the kind pools by
KINDS = {
    "eurobert": ("PreTrainedTokenizerFast", "lasttoken"),  # jina-embeddings-v5-text-nano
    "gte": ("XLMRobertaTokenizer", "cls"),  # gte-multilingual-base, arctic-embed-m-v2.0
    "jina_embeddings_v3": ("XLMRobertaTokenizer", "mean"),
}
CLASSES = {"eurobert": "EuroBert", "gte": "Gte", "jina_embeddings_v3": "JinaEmbeddingsV3"}


def plain(folder: Path, name: str, **changes: Any) -> Path:
    """A model's own folder: config.json, seeded weights and a tokenizer."""
    tokenizer, _ = KINDS[name]
    base = BASES[tokenizer]
    pad = {"PreTrainedTokenizerFast": "[PAD]"}.get(tokenizer, "<pad>")
    named = {"tokenizer_class": tokenizer, "pad_token": pad, "model_max_length": 40}
    config = encoders.config(
        name,
        vocab_size=len(vocabulary(base)),
        max_position_embeddings=64,
        pad_token_id=base.special.index(pad),
        **changes,
    )
    files = {"config.json": config, "tokenizer_config.json": named}
    checkpoints.write(write_tokenizer(folder, tokenizer, files), config, encoders.tensors(config))
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_vectors_of_queries_and_documents(name: str, tmp_path: Path) -> None:
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    transformer = Transformer(str(plain(tmp_path / "plain", name)), max_seq_length=40)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=KINDS[name][1])
    model = SentenceTransformer(modules=[transformer, pooling, Normalize()], prompts=PROMPTS, device="cpu")
    model.save(str(tmp_path / "saved"))
    with minibert.load_encoder(tmp_path / "saved") as encoder:
        for way in ("encode", "encode_query", "encode_document"):
            want, found = (getattr(each, way)(TEXTS, batch_size=4) for each in (model, encoder))
            assert found.shape == want.shape and np.ptp(want, axis=0).max() > 0.1
            assert np.abs(found - want).max() <= APART, way
            for i, text in enumerate(TEXTS):
                assert np.abs(getattr(encoder, way)(text) - want[i]).max() <= APART, (way, text)


@pytest.mark.parametrize("name", KINDS)
def test_scores_of_a_reranker(name: str, tmp_path: Path) -> None:
    """gte's also by the model_type, the prefix and the words of gte-multilingual-reranker-base."""
    need_sentence_transformers()
    import torch
    import transformers
    from sentence_transformers import CrossEncoder

    folder = plain(tmp_path / "model", name, num_labels=1)
    torch.manual_seed(0)
    kind = getattr(transformers, f"{CLASSES[name]}ForSequenceClassification")
    model = kind(transformers.AutoConfig.from_pretrained(folder))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 3)
    model.save_pretrained(folder)
    pairs = [(TEXTS[1], text) for text in TEXTS]
    want = CrossEncoder(str(folder), device="cpu").predict(pairs, batch_size=3)
    assert np.ptp(want) > 1000 * APART
    folders = [folder, *([older(folder, tmp_path / "older")] if name == "gte" else [])]
    for each in folders:
        with minibert.load_encoder(each) as encoder:
            assert np.abs(encoder.predict(pairs) - want).max() <= APART
            assert encoder.predict(pairs[3]) == pytest.approx(want[3], abs=APART)


def older(folder: Path, to: Path) -> Path:
    """The same model as a file of the model_type "new"."""
    shutil.copytree(folder, to)
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace("gte.", "new."): x for name, x in tensors.items()}, to / "model.safetensors")
    said = {"model_type": "new", "architectures": ["NewForSequenceClassification"], "rope_parameters": None}
    change_json(to / "config.json", **said, rope_theta=160000, rope_scaling=None, position_embedding_type="rope")
    return to
