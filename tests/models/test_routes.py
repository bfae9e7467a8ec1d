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
from minibert.models.open.vectors import open_vectors

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
        (parameters(default_route=None, allow_empty_key=False), None),
    ],
)  # fmt: skip
def test_the_route_of_a_text_without_a_task(tmp_path: Path, change: Callable[[Any], Any], default: str | None) -> None:
    """Each key left out once; without a default route the first one is taken, unless the file forbids it."""
    encoder = changed(tmp_path, NAME, FILE, change)
    routes = {"query": encoder.encode_query(TEXTS, prompt=""), "document": encoder.encode_document(TEXTS)}
    assert not alike(*routes.values())
    if default is None:
        with pytest.raises(ValueError, match="this model has no default route; use encode_query or encode_document"):
            encoder.encode_sparse(TEXTS)
        return
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
        (FILE, lambda data: {}, "must have the routes document and query, found {}"),
        (FILE, lambda data: data | {"structure": {"query": [QUERY]}}, "must have the routes document and query"),
        (FILE, lambda data: data | {"types": []} | {"structure": [1]}, "must have the routes document and query"),
        (FILE, structure(image=[MODEL]), "must have the routes document and query"),
        (FILE, structure(query=[]), r"a route must list folders inside the model's that 'types' has, found \[\]"),
        (FILE, structure(query=QUERY), "a route must list folders"), (FILE, structure(query=[7]), "a route must list"),
        (FILE, structure(query=["../other"]), "a route must list folders"),
        (FILE, structure(document=[QUERY]), "expected one model, and SparseStaticEmbedding alone or the same model"),
        (FILE, structure(query=[QUERY, SPLADE]), "has the routes query: .*, .*SpladePooling; document: .* expected"),
        (FILE, structure(query=[SPLADE]), "expected one model"),
        (FILE, structure(document=[MODEL]), "lists Transformer; expected a Transformer and a SpladePooling"),
        (FILE, lambda data: data | {"types": data["types"] | {QUERY: f"mine.{QUERY[8:]}"}}, "mine.*expected o"),
        (FILE, lambda data: data | {"types": data["types"] | {MODEL: "os.path"}}, "names 'os.path', but only"),
        (FILE, parameters(default_route="text"), "'default_route' must be document or query, found 'text'"),
        (FILE, parameters(route_mappings={"('a', 'text')": "query"}), "'route_mappings' .* are not known here"),
        (f"{QUERY}/config.json", {"scale": 2}, "config.json has 'scale', not known here; known are frozen, path"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "one model, and StaticEmbedd"),
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


# -- of a SentenceTransformer ------------------------------------------------------------------------------------

TABLE, ONE, HEADS = "sentences-router", "sentences-router-of-one", "sentences-router-of-heads"


def test_queries_of_a_table_are_the_mean_of_its_rows() -> None:
    encoder = opened(TABLE)
    rows = load_file(REFERENCE / TABLE / "query_0_StaticEmbedding" / "model.safetensors")["embedding.weight"]
    dense = load_file(REFERENCE / TABLE / "1_Dense" / "model.safetensors")
    for text, vector in zip(TEXTS, encoder.encode_query(TEXTS, prompt=""), strict=True):
        ids = encoder.embeddings.tokenizer.pieces(text)
        x = rows[ids].mean(axis=0) if ids else np.zeros(8)
        y = np.tanh(x @ dense["linear.weight"].T + dense["linear.bias"])
        assert np.abs(vector - y / np.linalg.norm(y)).max() <= 2e-6
    assert encoder.encode_query([], prompt="").shape == (0, 6)
    many = encoder.encode_query(TEXTS * 300)
    alone = np.array([encoder.encode_query(text) for text in TEXTS])
    for found in (many[-4:], many[:4], list(encoder.encode_stream(TEXTS, "query", task="query"))):
        assert np.abs(found - alone).max() <= 2e-6
    again = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(again.encode_query(TEXTS), encoder.encode_query(TEXTS))
    assert encoder.tokens_cut(TEXTS, task="query").tolist() == [0, 0, 0, 0]
    assert encoder.tokens_cut(TEXTS, task="document").max() > 0


@pytest.mark.parametrize(
    ("change", "default"),
    [
        (parameters(), "document"), (parameters(default_route="query"), "query"),
        (parameters(default_route=None, allow_empty_key=True), "query"),
        (parameters(default_route=None, allow_empty_key=False), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [TABLE, HEADS])
def test_the_route_of_a_sentence_without_a_task(tmp_path: Path, name: str, change: Any, default: str | None) -> None:
    encoder = changed(tmp_path, name, FILE, change)
    routes = {"query": encoder.encode_query(TEXTS, prompt=""), "document": encoder.encode_document(TEXTS)}
    assert np.abs(routes["query"] - routes["document"]).max() > 0.05
    if default is None:
        with pytest.raises(ValueError, match="this model has no default route; use encode_query or encode_document"):
            encoder.encode(TEXTS)
        return
    assert np.abs(encoder.encode(TEXTS) - routes[default]).max() <= 2e-6


@pytest.mark.parametrize(
    "change", [parameters(default_route="query"), parameters(default_route=None, allow_empty_key=False)]
)
@pytest.mark.parametrize("name", [TABLE, HEADS])
def test_stored_vectors_are_those_of_documents(tmp_path: Path, name: str, change: Any) -> None:
    """Whatever the default route: a search compares them with queries."""
    encoder = changed(tmp_path, name, FILE, change)
    found = open_vectors(tmp_path / "model").pipeline.all(TEXTS)
    assert np.abs(found - encoder.encode_document(TEXTS)).max() <= 2e-6


def test_a_table_is_known_by_its_sum_and_may_be_read_at_once(tmp_path: Path) -> None:
    """Without its sum, a search would compare with another table's queries and say nothing."""
    folder = shutil.copytree(REFERENCE / TABLE, tmp_path / "model")
    sums = open_vectors(folder).sha256()
    assert {f"query_0_StaticEmbedding/{name}" for name in ("model.safetensors", "tokenizer.json")} <= sums.keys()
    encoder, want = minibert.load_encoder(folder, mmap=False), opened(TABLE).encode_query(TEXTS)
    (folder / "query_0_StaticEmbedding" / "model.safetensors").unlink()
    assert np.array_equal(encoder.encode_query(TEXTS), want)


def other_model(data: Any) -> Any:
    """The document's route through another transformer."""
    data["types"]["other"] = data["types"]["query_0_Transformer"]
    data["structure"]["document"][0] = "other"
    return data


def without_pooling(data: Any) -> Any:
    data["structure"]["document"].pop(1)
    return data


def with_cnn(data: Any) -> Any:
    data["types"]["query_2_Dense"] = "sentence_transformers.sentence_transformer.modules.cnn.CNN"
    return data


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_model, "expected one model, and StaticEmbedding first or the same model"),
        (without_pooling, "the Router lists Transformer, Dense, Normalize; expected a Transformer, a Pooling"),
        (with_cnn, "the Router names '.*CNN', but only Transformer"),
        (parameters(route_mappings={"x": 1}), "'route_mappings' .* are not known here"),
        (parameters(default_route="passage"), "'default_route' must be document or query"),
    ],
)
def test_what_is_no_such_router_of_sentences(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(minibert.CheckpointError, match=said):
        changed(tmp_path, HEADS, FILE, change)


def test_routes_of_two_widths_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / TABLE, tmp_path / "model")
    path = folder / "query_0_StaticEmbedding" / "model.safetensors"
    save_file({"embedding.weight": load_file(path)["embedding.weight"][:, :7].copy()}, path)
    with pytest.raises(
        minibert.CheckpointError, match="Dense maps 8 numbers to 6, but 7 come out of the module before"
    ):
        minibert.load_encoder(folder).encode_query(TEXTS)
