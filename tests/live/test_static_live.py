"""Static models beside sentence-transformers and model2vec themselves, made by `distill` too, on texts of all kinds."""

from __future__ import annotations

import json
from pathlib import Path

import distilled
import numpy as np
import pytest
from checkpoints import VOCAB, numbers
from command_line import Patch
from drawn import away
from many_texts import many_texts
from needed import need, need_sentence_transformers, opened_there
from reference_files import REFERENCE
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.equations.static import covariance_components, sif_weights, zipf_probabilities
from minibert.models.open.distill import static_tokenizer, token_rows

pytestmark = pytest.mark.reference

EXACT = 2e-6  # of a vector's numbers, as a share of its length; measured: 5.2e-7
HALF = 1e-3  # of vectors that both libraries compute in float16; measured: 6.6e-4


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    need_sentence_transformers()
    need("model2vec", "reference")


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("quantized", [False, True])
def test_folders_of_model2vec(tmp_path: Path, minilm: Path, kind: str, quantized: bool) -> None:
    """A real vocabulary in each format; model2vec's own vectors of texts without the unknown token, not too long."""
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    vocabulary, exact = Tokenizer.from_file(str(minilm / "tokenizer.json")), HALF if kind == "float16" else EXACT
    vocabulary.no_padding()
    count, texts = vocabulary.get_vocab_size(), many_texts(400)
    # as their `vocabulary_quantization` writes it
    shared = {"token_mapping": np.arange(count) * 7 % 500, "weights": np.linspace(0.1, 2, count, dtype="f4")}
    rows = numbers(500 if quantized else count, 16)
    whole = StaticModel(rows, vocabulary, normalize=True, **(shared if quantized else {}))
    whole.save_pretrained(tmp_path / "whole")
    StaticModel.from_pretrained(tmp_path / "whole", quantize_to=kind).save_pretrained(tmp_path / "model")
    theirs, ours = (load(tmp_path / "model") for load in (StaticModel.from_pretrained, minibert.load_encoder))
    assert ours.max_seq_length == 512
    unknown = vocabulary.token_to_id("[UNK]")
    ids = [ours.embeddings.tokenizer.pieces(text) for text in texts]
    both = [i for i, own in enumerate(ids) if own and unknown not in own and len(own) <= 512 and len(texts[i]) < 600]
    found, want = ours.encode(texts), np.asarray(theirs.encode(texts), "f4")
    assert len(both) > 200 and away(found[both], want[both]) <= exact
    odd = [i for i, own in enumerate(ids) if unknown in own and len(set(own)) > 1]
    assert away(found[odd], want[odd]) > 0.01
    if kind == "int8" and not quantized:  # sentence-transformers takes them with weights alone, which make floats
        return
    some = [i for i, own in enumerate(ids) if own]
    want = np.asarray(opened_there(tmp_path / "model").encode(texts), "f4")
    assert away(found[some], want[some]) <= (EXACT if quantized else exact)  # with weights in float32


def test_truncation_on_both_sides(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    texts = many_texts(200)
    for direction in ("left", "right"):
        for most in (1, 3, 50):
            vocabulary = Tokenizer.from_file(str(REFERENCE / "static-plain" / "tokenizer.json"))
            vocabulary.enable_truncation(most, direction=direction)
            model = SentenceTransformer(modules=[StaticEmbedding(vocabulary, numbers(VOCAB, 8))], device="cpu")
            model.save(str(tmp_path / f"{direction}{most}"), create_model_card=False)
            ours = minibert.load_encoder(tmp_path / f"{direction}{most}")
            assert away(ours.encode(texts), model.encode(texts)) <= EXACT and ours.max_seq_length == most


# of a row's length, before rounding to float16: measured 1.0e-5 of tiny models, 1.6e-5 of MiniLM at 256 components
ROWS_TOLERANCE = 1e-4
ROUNDED = 2**-10  # a vector's number in float16, which both libraries compute with


@pytest.mark.parametrize("kind", distilled.KINDS)
def test_rows_are_model2vec_s_signs_included(kind: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Before they are rounded."""
    need("skeletoken", "reference")
    from model2vec.distill import distillation
    from transformers import AutoModel, AutoTokenizer

    folder, kept, dims = distilled.write(tmp_path / kind, kind), list[Array](), 8
    rounded = distillation.quantize_embeddings
    monkeypatch.setattr(distillation, "quantize_embeddings", lambda x, to: (kept.append(x), rounded(x, to))[1])
    both = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    theirs = distillation.distill_from_model(*both, device="cpu", pca_dims=dims)
    with minibert.load_encoder(folder) as encoder:
        made = static_tokenizer(encoder.sentence_tokenizer)
        rows = covariance_components(token_rows(encoder, made), dims).coordinates
    rows = rows * sif_weights(zipf_probabilities(len(rows)))[:, None]
    assert made.tokens == list(theirs.tokens)
    off = np.linalg.norm(rows - kept[0], axis=1) / np.linalg.norm(kept[0], axis=1)
    assert off.max() <= ROWS_TOLERANCE


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "xlm-roberta"])
def test_other_programs_open_the_folder_and_all_give_the_mean_of_its_rows(kind: str, tmp_path: Path) -> None:
    from model2vec import StaticModel
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
    found = opened_there(folder).encode(some)
    assert found.shape == expected.shape and np.abs(found - expected).max() <= ROUNDED
    with minibert.load_encoder(folder) as made:
        assert np.abs(made.encode(some) - expected).max() <= 2e-6
    own = StaticModel.from_pretrained(folder)
    assert own.normalize and own.max_length == 512 and json.loads((folder / "config.json").read_text()) == own.config
    known = [i for i, text in enumerate(some) if not unknown & {*ids[i]} and len(text) < 400]
    assert len(known) > 3 and np.abs(own.encode(some)[known] - expected[known]).max() <= ROUNDED
