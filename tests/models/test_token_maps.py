"""A folder with sparse_linear.pt and colbert_linear.pt (bge-m3): weights and vectors of tokens, by loops."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch_files
from checkpoints import change_json
from reference_files import REFERENCE, opened

import minibert
from minibert.equations.input_layer import Array
from minibert.models.sentences.token_maps import VECTORS, WEIGHTS

TEXTS = ["we lived above the clouds", "the the", "", "we [UNK] ? we", "a b c d e f g h i j k l m n o p q r s"]
CLOSE = 1e-5  # of weights up to 5, sums of larger numbers, and of vectors of length 1; measured 2.1e-6


def maps(dim: int) -> dict[str, dict[str, Array]]:
    numbers = np.random.default_rng(1)
    return {
        WEIGHTS: {"weight": numbers.normal(size=(1, dim)).astype("<f4"), "bias": np.array([3], "<f4")},
        VECTORS: {
            "weight": numbers.normal(size=(dim, dim)).astype("<f4"),
            "bias": numbers.normal(size=dim).astype("<f4"),
        },
    }


@pytest.fixture(params=["sentences-cls", "sentences-bare"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With modules.json, where the model is in a subfolder, and without."""
    made = shutil.copytree(REFERENCE / str(request.param), tmp_path / "model")
    for name, arrays in maps(8).items():
        torch_files.write(made / name, arrays)
    return made


def test_weights_are_the_largest_of_each_id(folder: Path) -> None:
    encoder = minibert.load_encoder(folder)
    own = maps(8)[WEIGHTS]
    tokenizer = encoder.sentence_tokenizer
    left_out = {tokenizer.id_of(token) for token in ("[CLS]", "[PAD]", "[UNK]")}  # BERT's files name no eos
    found = encoder.encode_sparse(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        ids = tokenizer.encode([text], None, True, encoder.max_seq_length)[0].input_ids
        x = encoder([ids])[0]
        want: dict[int, float] = {}
        for i, row in zip(ids, x, strict=True):
            weight = max(0.0, float(row @ own["weight"][0] + own["bias"][0]))
            if weight and i not in left_out:
                want[i] = max(weight, want.get(i, 0))
        assert vector.ids.tolist() == sorted(want) and vector.weights.dtype == np.float32
        assert np.abs(vector.weights - [want[i] for i in sorted(want)]).max(initial=0) <= CLOSE
    assert sum(len(each.ids) for each in found) > 5
    assert [each.ids.tolist() for each in encoder.encode_sparse(TEXTS, max_active_dims=1)] == [
        each.ids[[each.weights.argmax()]].tolist() if len(each.ids) else [] for each in found
    ]
    alone = encoder.encode_sparse(TEXTS[0])
    assert encoder.decode(alone)[0][0] in TEXTS[0].split()
    score = encoder.similarity([found[0]], [found[3]])[0, 0]  # by dot product, as FlagEmbedding's
    weights = dict(zip(found[3].ids.tolist(), found[3].weights.tolist(), strict=True))
    pairs = zip(found[0].ids.tolist(), found[0].weights.tolist(), strict=True)
    assert score == pytest.approx(sum(weight * weights.get(i, 0) for i, weight in pairs), abs=1e-4)


def test_vectors_are_of_the_tokens_after_the_first(folder: Path) -> None:
    encoder = minibert.load_encoder(folder)
    own = maps(8)[VECTORS]
    found = encoder.encode_token_vectors(TEXTS)
    for text, vectors in zip(TEXTS, found, strict=True):
        ids = encoder.sentence_tokenizer.encode([text], None, True, encoder.max_seq_length)[0].input_ids
        y = encoder([ids])[0][1:] @ own["weight"].T + own["bias"]
        want = y / np.linalg.norm(y, axis=1, keepdims=True)
        assert vectors.shape == (len(ids) - 1, 8) and vectors.dtype == np.float32
        assert np.abs(vectors - want).max() <= CLOSE
    assert np.abs(encoder.encode_token_vectors(TEXTS[0]) - found[0]).max() <= CLOSE
    assert encoder.encode_token_vectors([]) == []
    scores = encoder.similarity(found[:2], found)
    want = np.array([[(a @ b.T).max(axis=1).sum() for b in found] for a in found[:2]])
    assert np.abs(scores - want).max() <= 2e-5


def test_sentence_vectors_stay_what_they_were(folder: Path) -> None:
    name = "sentences-cls" if (folder / "modules.json").exists() else "sentences-bare"
    encoder = minibert.load_encoder(folder)
    assert np.array_equal(encoder.encode(TEXTS), opened(name).encode(TEXTS))
    assert encoder.encode_token_vectors("we", prompt="the ").shape[0] == len(encoder.encode_token_vectors("the we"))


def test_what_is_missing_or_of_another_shape_is_said(folder: Path) -> None:
    (folder / VECTORS).unlink()
    torch_files.write(folder / WEIGHTS, maps(6)[WEIGHTS])
    encoder = minibert.load_encoder(folder)
    with pytest.raises(ValueError, match=r"has no colbert_linear\.pt, and is not saved as a MultiVectorEncoder"):
        encoder.encode_token_vectors(TEXTS)
    with pytest.raises(
        minibert.CheckpointError, match=r"sparse_linear\.pt is not read: expected 'weight' of shape \(1, 8\)"
    ):
        encoder.encode_sparse(TEXTS)
    (folder / WEIGHTS).write_bytes(torch_files.harmful(folder / "run", 2))
    with pytest.raises(minibert.CheckpointError, match="no zip archive as torch"):
        encoder.encode_sparse(TEXTS)
    assert not (folder / "run").exists()
    (folder / WEIGHTS).unlink()
    said = "saved as a SentenceTransformer" if (folder / "modules.json").exists() else "there is no head 'masked_word'"
    with pytest.raises((ValueError, minibert.CheckpointError), match=said):
        minibert.load_encoder(folder).encode_sparse(TEXTS)


def test_a_multi_vector_folder_gives_its_own() -> None:
    encoder = opened("late-fixed")
    for found, want in zip(encoder.encode_token_vectors(TEXTS), encoder.encode(TEXTS), strict=True):
        assert np.array_equal(found, want)


def test_a_measure_that_the_folder_names_is_kept(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "sentences-cls", tmp_path / "model")
    torch_files.write(folder / WEIGHTS, maps(8)[WEIGHTS])
    change_json(folder / "config_sentence_transformers.json", similarity_fn_name="cosine")
    found = minibert.load_encoder(folder).encode_sparse(TEXTS[:2])
    scores = minibert.load_encoder(folder).similarity(found, found)
    assert np.abs(np.diag(scores) - 1).max() <= 1e-6
