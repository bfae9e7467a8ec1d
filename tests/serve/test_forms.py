"""The forms of text-embeddings-inference, Cohere and OpenAI beside `encode`: what a client of theirs would get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE
from served import Address, needs_server, opened, served

import minibert
from minibert.serve.app import Server
from minibert.serve.kinds import names_of, reranker_of

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

LENGTHS, PROMPTS, RERANKER, SPARSE = "sentences-residual", "sentences-prompts", "uses-reranker", "uses-sparse"
PAIRS, TOPICS = "uses-inference", "uses-topics"
TEXTS = ["we lived above the clouds", "dog", "the clouds we lived above, we above the clouds"]
LONG = "the clouds " * 40
NEIGHBOURS = 1e-6  # a text's numbers move by its neighbours; measured 1.2e-7
OF_SPARSE = 1e-5  # of the sparse folder's weights, which are larger; measured 2.9e-6


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with served(
        Server([opened(REFERENCE / each) for each in (LENGTHS, PROMPTS, RERANKER, SPARSE, PAIRS, TOPICS)])
    ) as found:
        yield found


def near(found: Any, want: Any, tolerance: float = NEIGHBOURS) -> bool:
    found, want = np.array(found), np.array(want)
    return bool(found.shape == want.shape and np.abs(found - want).max() <= tolerance)


# -- text-embeddings-inference -----------------------------------------------------------------------------------


def test_embed_normalizes_unless_told_not_to(address: Address) -> None:
    """The model's own vectors are not of length 1: a server that forgets either would show."""
    encoder = minibert.load_encoder(REFERENCE / LENGTHS)
    plain, unit = encoder.encode(TEXTS), encoder.encode(TEXTS, normalize_embeddings=True)
    assert not near(plain, unit)
    assert near(address.ask("/embed", {"inputs": TEXTS}).json, unit)
    assert near(address.ask("/embed", {"inputs": TEXTS, "normalize": False, "truncate": True}).json, plain)
    assert near(address.ask("/embed", {"inputs": TEXTS[0], "truncation_direction": "Right"}).json, unit[:1])
    short = encoder.encode(TEXTS, truncate_dim=2, normalize_embeddings=True)
    assert near(address.ask("/embed", {"inputs": TEXTS, "dimensions": 2}).json, short)
    assert near(address.ask("/", {"inputs": TEXTS}).json, unit), "the first model's own route"


def test_embed_takes_a_prompt_by_its_name(address: Address) -> None:
    encoder = minibert.load_encoder(REFERENCE / PROMPTS)
    want = encoder.encode(TEXTS, prompt_name="passage", normalize_embeddings=True)
    assert near(address.ask("/embed", {"inputs": TEXTS, "model": PROMPTS, "prompt_name": "passage"}).json, want)
    answer = address.ask("/embed", {"inputs": TEXTS, "model": PROMPTS, "prompt_name": "find"})
    assert (answer.status, "must be one of this model's" in answer.error) == (400, True)


def test_embed_sparse_gives_what_encode_sparse_gives(address: Address) -> None:
    encoder = minibert.load_encoder(REFERENCE / SPARSE)
    many = [f"we lived {'above ' * (i % 7)}the clouds" for i in range(1500)]  # several steps of the worker
    for texts in (TEXTS, many):
        found = address.ask("/embed_sparse", {"inputs": texts}).json
        for row, want in zip(found, encoder.encode_sparse(texts), strict=True):
            assert [each["index"] for each in row] == want.ids.tolist()
            assert near([each["value"] for each in row], want.weights, OF_SPARSE)
    assert len(address.ask("/embed_sparse", {"inputs": "dog"}).json) == 1
    refused = address.ask("/embed_sparse", {"inputs": "dog", "normalize": True})
    assert "there is no field 'normalize'" in refused.error


def test_predict_gives_labels_and_their_probabilities(address: Address) -> None:
    """Of texts what `classify` gives; of pairs a softmax of the logits, or the logits."""
    topics, pairs = (minibert.load_encoder(REFERENCE / name) for name in (TOPICS, PAIRS))
    for inputs, want in ((TEXTS[0], topics.classify(TEXTS[0])), ([TEXTS[0]], topics.classify(TEXTS[0]))):
        found = address.ask("/predict", {"inputs": inputs, "model": TOPICS}).json
        assert [each["label"] for each in found] == [each.label for each in want]
        assert near([each["score"] for each in found], [each.probability for each in want])
    both = [["dog", "we lived"], ["we lived", "dog"]]
    logits = pairs.predict(both, activation_fn=lambda x: x)
    raw = address.ask("/predict", {"inputs": both, "model": PAIRS, "raw_scores": True}).json
    assert near([[each["score"] for each in row] for row in raw], -np.sort(-logits))
    found = address.ask("/predict", {"inputs": both, "model": PAIRS}).json
    assert near([sum(each["score"] for each in row) for row in found], [1, 1])
    single = address.ask("/predict", {"inputs": both[0], "model": PAIRS}).json
    assert single[0].keys() == {"score", "label"} and single[0]["label"] == found[0][0]["label"]
    mixed = address.ask("/predict", {"inputs": [["dog"], both[0]], "model": PAIRS}).json
    assert near([each["score"] for each in mixed[1]], [each["score"] for each in found[0]])
    for wrong in ([], [["a", "b", "c"]], ["a", "b", "c"], [7], {}, ["a", ["b"]]):
        answer = address.ask("/predict", {"inputs": wrong, "model": PAIRS})
        assert (answer.status, answer.json["error"]["param"]) == (400, "inputs"), wrong


def test_truncate_false_refuses_only_what_is_too_long(address: Address) -> None:
    for path, short, long in (
        ("/embed", {"inputs": TEXTS}, {"inputs": ["dog", LONG]}),
        ("/embed_sparse", {"inputs": TEXTS}, {"inputs": ["dog", LONG]}),
        ("/predict", {"inputs": [["dog", "a"]]}, {"inputs": [["dog"], ["dog", LONG]]}),
        ("/rerank", {"query": "a", "texts": TEXTS}, {"query": "a", "texts": ["dog", LONG]}),
        ("/rerank", {"query": "a", "documents": TEXTS}, {"query": "a", "documents": ["dog", LONG]}),
    ):
        own = "uses-reranker" if path in ("/predict", "/rerank") else None
        for asked in (short, long, short | {"truncate": False}):
            assert address.ask(path, asked | {"model": own}).status == 200, path
        answer = address.ask(path, long | {"truncate": False, "model": own})
        field = next(name for name in long if name != "query")
        assert answer.status == 400
        assert answer.error.startswith(f"{field}[1] has more tokens than this model takes"), path


def test_predict_takes_the_empty_parameters_of_huggingface_hub(address: Address) -> None:
    asked = {"inputs": "dog", "model": TOPICS}
    assert address.ask("/predict", asked | {"parameters": {"top_k": None}}).json == address.ask("/predict", asked).json
    answer = address.ask("/predict", asked | {"parameters": {"top_k": 2}})
    assert (answer.status, answer.error) == (
        400, "parameters must be an object without fields, found an object",
    )  # fmt: skip


# -- Jina --------------------------------------------------------------------------------------------------------


def test_jinas_fields_and_the_bits_of_a_vector(address: Address) -> None:
    """Each name of the form; objects with a text; vectors of length 1 of a model whose own are not."""
    encoder = minibert.load_encoder(REFERENCE / LENGTHS)
    plain = {"input": [{"text": text} for text in TEXTS], "task": None, "late_chunking": False}
    for name in ("encoding_format", "embedding_type", "encoding_type"):
        for form in ("float", "binary", "ubinary"):
            found = address.ask("/v1/embeddings", plain | {name: form, "embedding_type": form}).json["data"]
            want = encoder.encode(TEXTS, precision={"float": "float32"}.get(form, form))
            assert near([each["embedding"] for each in found], want, NEIGHBOURS if form == "float" else 0), (name, form)
    asked = plain | {"normalized": True, "dimensions": 2}
    want = encoder.encode(TEXTS, truncate_dim=2, normalize_embeddings=True)
    assert near([each["embedding"] for each in address.ask("/embeddings", asked).json["data"]], want)


# -- Cohere ------------------------------------------------------------------------------------------------------


def test_max_tokens_per_doc_truncates_each_document(address: Address) -> None:
    """A document's first tokens are all that is scored; the query and shorter documents stay whole."""
    encoder = minibert.load_encoder(REFERENCE / RERANKER)
    documents, query = [LONG, "we lived above the clouds", "above"], "the dog we lived above"
    tokenizer = encoder.sentence_tokenizer
    cut = [tokenizer.decode(tokenizer.pieces(text)[:3]) for text in documents]
    want = encoder.predict([(query, text) for text in cut])
    asked = {"query": query, "documents": documents, "max_tokens_per_doc": 3, "priority": 999}
    answer = address.ask("/v2/rerank", asked).json
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert near([found[i] for i in range(3)], want)
    whole = {each["index"]: each["relevance_score"] for each in address.ask("/rerank", asked | {
        "max_tokens_per_doc": 4096
    }).json["results"]}  # fmt: skip
    assert near([whole[i] for i in range(3)], encoder.predict([(query, text) for text in documents]))
    assert answer["usage"]["total_tokens"] == int(
        encoder.tokenize([query] * 3, cut)["attention_mask"].sum()
    ), "the tokens of what was cut"  # fmt: skip


def test_documents_of_several_fields_are_scored_by_one_and_given_back(address: Address) -> None:
    """Cohere's first version: `text` unless `rank_fields` names another; the first document is truncated."""
    encoder = minibert.load_encoder(REFERENCE / RERANKER)
    texts = [LONG, "we lived", "dog"]
    documents = [{"text": text, "title": f"above {i}", "url": None} for i, text in enumerate(texts)]
    asked = {"query": "clouds", "documents": documents, "return_documents": True, "max_chunks_per_doc": 10}
    for name, truncated in (("text", 1), ("title", 0)):
        answer = address.ask("/v1/rerank", asked | {"rank_fields": None if name == "text" else [name]}).json
        scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
        want = encoder.predict([("clouds", str(each[name])) for each in documents])
        assert near([scores[i] for i in range(3)], want)
        assert all(each["document"] == documents[each["index"]] for each in answer["results"])
        assert answer["truncated"] == truncated


# -- names -------------------------------------------------------------------------------------------------------


def test_the_names_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of("org/name") == ("name", "org/name")
    assert names_of("name", ["a", "b"]) == ("a", "b", "name", "sentence-transformers/name")
    folder = tmp_path / "models--org--some--name" / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    assert names_of(str(folder)) == ("some--name", "org/some--name", str(folder))
    (tmp_path / "current").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert names_of("current/") == ("current", "current/", str(tmp_path / "current"), str(folder))
    assert names_of(".")[0] == tmp_path.name
    assert names_of("..")[0] == tmp_path.parent.name


def test_the_list_of_models(address: Address) -> None:
    answer = address.ask("/v1/models").json
    assert [each["id"] for each in answer["data"]] == [LENGTHS, PROMPTS, RERANKER, SPARSE, PAIRS, TOPICS]
    assert answer["object"] == "list" and {each["object"] for each in answer["data"]} == {"model"}
    path = str(REFERENCE / SPARSE)
    for name in (RERANKER, path):
        assert address.ask(f"/v1/models/{name}").json["id"] == name
    assert (missing := address.ask("/v1/models/other")).status == 404 and "not the model 'other'" in missing.error


def test_what_a_model_does_not_give(address: Address) -> None:
    for path, body, what in (
        ("/v1/embeddings", {"input": "a", "model": RERANKER}, "vectors; ask 'sentences-residual'"),
        ("/embed_sparse", {"inputs": "a", "model": LENGTHS}, "sparse vectors; ask 'uses-sparse'"),
        ("/rerank", {"query": "a", "texts": ["b"], "model": PAIRS}, "scores of documents; ask 'uses-reranker'"),
        ("/predict", {"inputs": "a", "model": SPARSE}, "labels; ask 'uses-reranker'"),
    ):
        answer = address.ask(path, body)
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
        assert answer.error == f"the model {body['model']!r} does not give {what}"
    with pytest.raises(ValueError, match="saved as a SentenceTransformer"):
        reranker_of(minibert.load_encoder(REFERENCE / LENGTHS), ["a"])
    with pytest.raises(ValueError, match="3 labels"):
        reranker_of(minibert.load_encoder(REFERENCE / PAIRS), ["a"])
