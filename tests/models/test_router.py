"""A Router: which texts are looked up in a table, and which go through the model."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import FakeHub, use
from reference_files import REFERENCE, changed, opened
from safetensors.numpy import load_file, save_file

import minibert
from minibert.models.heads.sparse import SparseVector

ROUTES = "must have the routes query, SparseStaticEmbedding alone, and document, a model"
NAME, FILE = "uses-sparse-router", "router_config.json"
QUERY, MODEL, SPLADE = "query_0_SparseStaticEmbedding", "document_0_Transformer", "document_1_SpladePooling"
TEXTS = ["", "we", "We lived above the clouds, we lived!", "a b c d e f g h i j k l m n"]


def alike(found: Any, want: Any) -> bool:
    pairs = zip(found, want, strict=True)
    return all(a.ids.tolist() == b.ids.tolist() and np.allclose(a.weights, b.weights, 0, 5e-6) for a, b in pairs)


def parameters(**change: Any) -> Callable[[Any], Any]:
    return lambda data: data | {"parameters": {k: v for k, v in (data["parameters"] | change).items() if v != "absent"}}


def test_a_query_is_its_tokens_weights() -> None:
    """Each token counts once, the first seven of a text, after its prompt; weights of zero are left out."""
    encoder = opened(NAME)
    weights = load_file(REFERENCE / NAME / QUERY / "model.safetensors")["weight"]
    tokenizer = encoder.embeddings.tokenizer
    for text, found in zip(TEXTS, encoder.encode_query(TEXTS), strict=True):
        ids = sorted({i for i in tokenizer.pieces(f"the {text}")[:7] if weights[i]})
        assert isinstance(found, SparseVector) and found.ids.dtype == np.int64 and found.weights.dtype == np.float32
        assert found.ids.tolist() == ids and found.weights.tolist() == weights[ids].tolist()
    many = encoder.encode_query(TEXTS * 400, prompt="", show_progress_bar=False)
    assert alike(many[-4:], encoder.encode_sparse(TEXTS, task="query")) and encoder.encode_query([]) == []
    assert not many[0].ids.size and alike([encoder.encode_query("we")], encoder.encode_query(["we"]))
    assert encoder.decode(encoder.encode_query("we lived"), 1)[0][0] == "the"
    scores = encoder.similarity(encoder.encode_query("clouds"), encoder.encode_document(["we", "clouds"]))
    assert scores.shape == (1, 2) and np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("change", "default"),
    [
        (parameters(), "document"), (parameters(default_route="query"), "query"),
        (parameters(default_route=None), "query"), (parameters(default_route="absent"), "query"),
        (parameters(allow_empty_key="absent", default_route="absent"), "query"),
        (parameters(route_mappings="absent"), "document"), (lambda data: data | {"parameters": None}, "query"),
    ],
)  # fmt: skip
def test_the_route_of_a_text_without_a_task(tmp_path: Path, change: Callable[[Any], Any], default: str) -> None:
    """Each key left out once; without a default route the first one is taken."""
    encoder = changed(tmp_path, NAME, FILE, change)
    routes = {"query": encoder.encode_query(TEXTS, prompt=""), "document": encoder.encode_document(TEXTS)}
    assert not alike(*routes.values())
    assert alike(encoder.encode_sparse(TEXTS), routes[default])
    assert all(alike(encoder.encode_sparse(TEXTS, task=task), vectors) for task, vectors in routes.items())
    with pytest.raises(ValueError, match="task must be None, 'query' or 'document', found 'passage'"):
        encoder.encode_sparse("we", task="passage")


def test_a_model_without_routes_has_one_for_every_task() -> None:
    encoder = opened("uses-sparse")  # its prompt "query" is "the clouds: "
    assert alike(encoder.encode_document(TEXTS), encoder.encode_sparse(TEXTS))
    assert alike(encoder.encode_query(TEXTS), encoder.encode_sparse(TEXTS, "query"))
    with pytest.raises(ValueError, match="was saved as a SparseEncoder"):
        encoder.encode("we")


def test_weights_in_json_and_a_model_at_the_top(tmp_path: Path) -> None:
    """As OpenSearch's folders have them; a token that the file does not name weighs nothing."""
    folder = shutil.copytree(REFERENCE / NAME, tmp_path / "model")
    want = opened(NAME)
    for path in (folder / MODEL).iterdir():
        path.rename(folder / path.name)
    text = (folder / FILE).read_text(encoding="utf-8").replace(f'"{MODEL}"', '""')
    (folder / FILE).unlink()
    (folder / "router_config.json").write_text(text, encoding="utf-8")
    weights = load_file(folder / QUERY / "model.safetensors")["weight"].tolist()
    tokens = want.tokens(range(64))
    (folder / QUERY / "model.safetensors").unlink()
    for place in (folder / QUERY / "idf.json", folder / "idf.json"):
        idf = {token: weight for token, weight in zip(tokens, weights, strict=True) if weight}
        place.write_text(json.dumps(idf), encoding="utf-8")
        (folder / QUERY / "config.json").write_text('{"frozen": true, "path": "idf.json"}', encoding="utf-8")
        found = minibert.load_encoder(folder)
        assert alike(found.encode_query(TEXTS), want.encode_query(TEXTS))
        assert alike(found.encode_document(TEXTS), want.encode_document(TEXTS))
        for bad, message in (
            ({"weeee": 1.0}, "idf.json: the vocabulary has no token 'weeee'; is this the right tokenizer"),
            ({"we": "1"}, "idf.json: the weight of 'we' must be a number, found '1'"),
            ({"we": True}, "must be a number, found True"),
            ({"we": float("nan")}, "must be a number, found nan"),
            ({"we": 10**400}, "must be a number, found 1000"),
        ):
            place.write_text(json.dumps(bad), encoding="utf-8")
            with pytest.raises(minibert.CheckpointError, match=message):
                minibert.load_encoder(folder)
        place.unlink()
    for path in ("idf.json", "../idf.json", 7):
        (folder / QUERY / "config.json").write_text(json.dumps({"path": path}), encoding="utf-8")
        with pytest.raises(minibert.CheckpointError, match=r"the weights are in .* expected a file of this model"):
            minibert.load_encoder(folder)


def structure(**routes: Any) -> Callable[[Any], Any]:
    return lambda data: data | {"structure": data["structure"] | routes}


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        *((FILE, change, ROUTES) for change in (
            lambda data: {}, lambda data: data | {"structure": {"query": [QUERY]}},
            lambda data: data | {"types": []} | {"structure": [1]}, structure(image=[MODEL]), structure(query=[]),
            structure(query=QUERY), structure(query=[7]), structure(query=["../other"]), structure(query=[SPLADE]),
            structure(query=[QUERY, SPLADE]), structure(document=["../other"]),
            lambda data: data | {"types": data["types"] | {QUERY: f"mine.{QUERY[8:]}"}},
        )),
        (FILE, structure(document=[QUERY]), "names '.*SparseStaticEmbedding', but only"),
        (FILE, structure(document=[MODEL]), "lists Transformer; expected a Transformer and a SpladePooling"),
        (FILE, lambda data: data | {"types": data["types"] | {MODEL: "os.path"}}, "names 'os.path', but only"),
        (FILE, parameters(default_route="text"), "'parameters' that are not known here: .*'text'"),
        (FILE, parameters(route_mappings={"('a', 'text')": "query"}), "'parameters' that are not known here"),
        (FILE, parameters(default_route=None, allow_empty_key=False), "'parameters' that are not known here"),
        (f"{QUERY}/config.json", {"scale": 2}, "config.json has 'scale', not known here; known are frozen, path"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "Router', .* save one of its"),
    ],
)  # fmt: skip
def test_what_is_no_such_router(tmp_path: Path, file: str, change: Any, message: str) -> None:
    with pytest.raises(minibert.CheckpointError, match=message):
        changed(tmp_path, NAME, file, change)


def test_a_table_that_does_not_fit(tmp_path: Path) -> None:
    """One that is no list of numbers, or shorter than the vocabulary of its own tokenizer, or not there."""
    folder = shutil.copytree(REFERENCE / NAME, tmp_path / "model")
    path = folder / QUERY / "model.safetensors"
    save_file({"weight": np.ones(60, np.float32)}, path)
    with pytest.raises(IndexError, match=r"input_ids\[0\] is 63, but the table has rows 0\.\.59"):
        minibert.load_encoder(folder).encode_query("clouds", prompt="")
    for tensors, message in (
        ({"weight": np.ones((2, 64), np.float32)}, "'weight' must be a list of numbers"),
        ({"bias": np.ones(64, np.float32)}, "no tensor for 'weight'"),
        ({"weight": np.ones(64, np.float32), "bias": np.ones(64, np.float32)}, "does not use: bias"),
    ):
        save_file(tensors, path)
        with pytest.raises(minibert.CheckpointError, match=message):
            minibert.load_encoder(folder)
    path.unlink()
    with pytest.raises(
        minibert.CheckpointError, match=r"Embedding: there is no model\.safetensors; .*SparseEncoder\(folder\)\.sa"
    ):
        minibert.load_encoder(folder)


def test_from_the_hub_and_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REFERENCE / NAME
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    with FakeHub() as hub:
        hub.add("org/router", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        found = minibert.load_encoder("org/router")
        again = pickle.loads(pickle.dumps(found))
        for method in ("encode_query", "encode_document"):
            want = getattr(opened(NAME), method)(TEXTS)
            assert alike(getattr(found, method)(TEXTS), want) and alike(getattr(again, method)(TEXTS), want)
        with pytest.raises(minibert.CheckpointError, match=f"it is in '{MODEL}': load_encoder finds it there"):
            minibert.load("org/router")
