"""Scores, labels, entities and sparse vectors beside the libraries themselves, on the real MiniLM with seeded heads."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoints import change_json
from many_texts import many_texts
from needed import opened_there
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file
from tokenizer_folders import BASES, tokenizer_json, vocabulary, write_tokenizer

import minibert

pytestmark = pytest.mark.reference

SCORES = 5e-6  # of scores between 0 and 1; measured: 1.1e-6
PROBABILITIES = 1e-5  # measured: 3.1e-6
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_pairs_of_all_kinds_have_the_scores_of_the_cross_encoder(minilm: Path, tmp_path: Path) -> None:
    """Odd texts with each other, long ones on either side, on both, and on none; a head that tells texts apart."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification.from_pretrained(minilm, num_labels=1)
    model.classifier.weight.data.mul_(100)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path)
    theirs, ours = opened_there(tmp_path, "CrossEncoder"), minibert.load_encoder(tmp_path)
    texts = many_texts(60)
    pairs = [(texts[(7 * i + 3) % 60], texts[i]) if i % 3 else (texts[i], texts[11 * i % 60]) for i in range(60)]
    cut = theirs.tokenizer(pairs, truncation="longest_first", max_length=theirs.max_seq_length)["input_ids"]
    lengths = [len(ids) for ids in cut]
    assert max(lengths) == 512 and min(lengths) < 8
    found, expected = ours.predict(pairs), theirs.predict(pairs)
    assert np.abs(found - expected).max() <= SCORES and np.ptp(expected) > 0.5


@pytest.mark.parametrize("model_type", ["modernbert", "ultrabert", "llama", "qwen3", "bert"])
@pytest.mark.parametrize("kind", ["Sequence", "Token"])
def test_what_a_long_text_gives(tmp_path: Path, model_type: str, kind: str) -> None:
    """The whole text's labels where positions have no table, else an error; spans up to the tokenizer's length."""
    import torch
    import transformers

    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
             "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 0, "num_labels": 5}  # fmt: skip
    tokens = {"bos_token_id": None, "eos_token_id": None, "vocab_size": len(vocabulary(BASES["BertTokenizer"]))}
    config = transformers.AutoConfig.for_model(model_type, **sizes, **tokens)
    config.id2label = dict(enumerate(NAMES))
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_config(config)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 2)
    model.save_pretrained(tmp_path)
    rules = {"tokenizer.json": tokenizer_json(BASES["BertTokenizer"], post_processor=None)}
    stored = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    write_tokenizer(tmp_path, "PreTrainedTokenizerFast", {"config.json": stored, **rules})
    settings = tmp_path / "tokenizer_config.json"
    for length in (None, 30):
        change_json(settings, pad_token="[PAD]", **({"model_max_length": length} if length else {}))
        pipe = transformers.pipeline(f"{'text' if kind == 'Sequence' else 'token'}-classification", model=str(tmp_path))
        ours = minibert.load_encoder(tmp_path)
        for words in (1, 9, 29, 30, 31, 40, 41, 70, 200, 700):
            text = " ".join(("we lived the clouds above " * words).split()[:words])
            whole = kind == "Sequence"
            asked = (
                partial(pipe, text, **({"top_k": None} if whole else {"aggregation_strategy": "simple"})),
                partial(ours.classify if whole else ours.entities, text),
            )
            if model_type == "bert" and words > 40 and (whole or length is None):
                for call, error in zip(asked, ((RuntimeError, IndexError), ValueError), strict=True):
                    with pytest.raises(error):
                        call()
                continue
            want, found = (call() for call in asked)
            assert [each[0] for each in found] == [each.get("entity_group", each.get("label")) for each in want]
            scores = [each["score"] for each in want]
            assert np.allclose([each.probability for each in found], scores, rtol=0, atol=PROBABILITIES)


@pytest.mark.parametrize(("default", "most"), [("document", None), ("query", 3), (None, 5)])
def test_routes_of_a_sparse_encoder(tmp_path: Path, default: str | None, most: int | None) -> None:
    """Each task's vectors and those of a text without one; a Router's table may hold negative weights."""
    folder = shutil.copytree(REFERENCE / "uses-sparse-router", tmp_path / "model")
    table = folder / "query_0_SparseStaticEmbedding/model.safetensors"
    weight = load_file(table)["weight"]
    weight[::2] *= -1
    save_file({"weight": weight}, table)
    change_json(folder / "config_sentence_transformers.json", max_active_dims=most)
    router = json.loads((folder / "router_config.json").read_text(encoding="utf-8"))
    change_json(folder / "router_config.json", parameters=router["parameters"] | {"default_route": default})
    texts, theirs, ours = many_texts(150), opened_there(folder, "SparseEncoder"), minibert.load_encoder(folder)
    for mine, other in (("encode_query",) * 2, ("encode_document",) * 2, ("encode_sparse", "encode")):
        want = getattr(theirs, other)(texts, convert_to_sparse_tensor=False).numpy()
        assert (want > 0).any() and ((want < 0).any() or mine == "encode_document" or default == "document")
        for row, found in zip(want, getattr(ours, mine)(texts), strict=True):
            assert found.ids.tolist() == np.flatnonzero(row).tolist()
            assert np.abs(found.weights - row[found.ids]).max(initial=0) <= 1e-5
