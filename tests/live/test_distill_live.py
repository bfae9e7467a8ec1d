"""`distill` beside model2vec's own, with torch and transformers: the same tokens, the same rows before rounding; and
other programs open the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import distilled
import numpy as np
import pytest
from many_texts import many_texts
from needed import absent, missing
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.equations.static import covariance_components, sif_weights, zipf_probabilities
from minibert.models.open.distill import static_tokenizer, token_rows

pytestmark = pytest.mark.reference
# of a row's length, before rounding to float16: measured 1.0e-5 of tiny models, 1.6e-5 of MiniLM at 256 components
ROWS_TOLERANCE = 1e-4
HALF = 2**-10  # a vector's number in float16, which both libraries compute with


def theirs(folder: Path, dims: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Array]:
    """model2vec's static model, and its rows before they are rounded."""
    if absent("skeletoken"):
        missing("skeletoken not installed; it is in the extra `reference`")
    from model2vec.distill import distillation
    from transformers import AutoModel, AutoTokenizer

    rows = []
    rounded = distillation.quantize_embeddings
    monkeypatch.setattr(distillation, "quantize_embeddings", lambda x, to: (rows.append(x), rounded(x, to))[1])
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return distillation.distill_from_model(model, tokenizer, device="cpu", pca_dims=dims), rows[0]


def ours(folder: Path, dims: int) -> tuple[list[str], Array]:
    with minibert.load_encoder(folder) as encoder:
        made = static_tokenizer(encoder.sentence_tokenizer)
        found = covariance_components(token_rows(encoder, made), dims).coordinates
    return made.tokens, found * sif_weights(zipf_probabilities(len(found)))[:, None]


def compare(folder: Path, dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, expected = theirs(folder, dims, monkeypatch)
    tokens, rows = ours(folder, dims)
    assert tokens == list(model.tokens)
    off = np.linalg.norm(rows - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert off.max() <= ROWS_TOLERANCE


@pytest.mark.parametrize("kind", distilled.KINDS)
def test_rows_are_model2vec_s_signs_included(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(distilled.write(tmp_path / kind, kind), 8, monkeypatch)


def test_rows_of_minilm_are_model2vec_s(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(with_few_words(minilm, tmp_path / "few"), 256, monkeypatch)


def with_few_words(minilm: Path, folder: Path, count: int = 4000) -> Path:
    """The real model with its first words alone: both sides would compute all 30,522 for a minute."""
    shutil.copytree(minilm, folder)
    config, words = (json.loads((folder / name).read_text("utf-8")) for name in ("config.json", "tokenizer.json"))
    words["model"]["vocab"] = {word: i for word, i in words["model"]["vocab"].items() if i < count}
    for name, content in (("config.json", config | {"vocab_size": count}), ("tokenizer.json", words)):
        (folder / name).write_text(json.dumps(content), "utf-8")
    tensors = load_file(minilm / "model.safetensors")
    table = "embeddings.word_embeddings.weight"
    save_file(tensors | {table: tensors[table][:count].copy()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "xlm-roberta"])
def test_other_programs_open_the_folder_and_all_give_the_mean_of_its_rows(kind: str, tmp_path: Path) -> None:
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    with minibert.load_encoder(distilled.write(tmp_path / kind, kind)) as encoder:
        folder = minibert.distill(encoder, tmp_path / "made", 8).folder
    rows = load_file(folder / "model.safetensors")["embeddings"].astype(np.float32)
    reader = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unknown = {reader.token_to_id("[UNK]"), reader.token_to_id("<unk>")}
    some = ["we lived above the clouds", "the dog", "a" * 20, "we " * 700, *many_texts(40)]
    some = [text for text in some if reader.encode(text).ids]  # of nothing float16 gives NaN in both libraries
    ids = [reader.encode(text).ids for text in some]
    expected = normalized(np.array([rows[each].mean(axis=0) for each in ids]))
    found = SentenceTransformer(str(folder), device="cpu").encode(some)
    assert found.shape == expected.shape and np.abs(found - expected).max() <= HALF
    with minibert.load_encoder(folder) as made:
        assert np.abs(made.encode(some) - expected).max() <= 2e-6
    own = StaticModel.from_pretrained(folder)
    assert own.normalize and own.max_length == 512 and json.loads((folder / "config.json").read_text()) == own.config
    known = [i for i, text in enumerate(some) if not unknown & {*ids[i]} and len(text) < 400]
    assert len(known) > 3 and np.abs(own.encode(some)[known] - expected[known]).max() <= HALF
