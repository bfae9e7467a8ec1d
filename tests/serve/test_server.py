"""The server over real HTTP: its vectors are those of `encode`, its order that of `rank`, and what it refuses."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE
from served import SECONDS, Address, Answer, needs_server, opened, served

import minibert
from minibert.equations.input_layer import Array
from minibert.serve.app import INLINE, Server
from minibert.serve.fields import LONGEST_TEXT, Limits, body_for
from minibert.serve.requests import LONGEST_QUERY

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

NORMED, PROMPTS, LENGTHS, RERANKER = "sentences-last-token", "sentences-prompts", "sentences-residual", "uses-reranker"
LATE = "late-fixed"
TEXTS = ["we lived above the clouds", "dog", "", "the clouds we lived above, we above the clouds"]
# a text's numbers move by its neighbours, which here are other requests'; measured 1.2e-7
NEIGHBOURS = 1e-6


def server(name: str = NORMED, **options: Any) -> Server:
    return Server([opened(REFERENCE / name, f"org/{name}"), opened(REFERENCE / RERANKER)], **options)


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with served(server()) as found:
        yield found


@pytest.fixture(scope="module")
def encoder() -> minibert.Encoder:
    return minibert.load_encoder(REFERENCE / NORMED)


def vectors(answer: Answer) -> Array:
    assert answer.status == 200, answer.body
    data = answer.json["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each["embedding"] for each in data], np.float32)


def near(found: Any, want: Any) -> bool:
    found, want = np.asarray(found), np.asarray(want)
    return found.shape == want.shape and float(np.abs(found - want).max()) <= NEIGHBOURS


def test_vectors_are_those_of_encode(address: Address, encoder: minibert.Encoder) -> None:
    assert near(vectors(address.embed(TEXTS)), encoder.encode(TEXTS))
    assert near(vectors(address.embed("dog")), encoder.encode(["dog"]))
    many = [f"we lived {'above ' * (i % 7)}the clouds" for i in range(3 * INLINE)]
    assert near(vectors(address.embed(many, encoding_format="float")), encoder.encode(many))


def test_base64_holds_the_same_numbers(address: Address) -> None:
    answer = address.embed(TEXTS, encoding_format="base64").json
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
    assert near(np.stack(found), vectors(address.embed(TEXTS)))


def test_an_answer_has_openais_form(address: Address, encoder: minibert.Encoder) -> None:
    answer = address.embed(TEXTS[:2], model=NORMED, user="me", dimensions=None)
    tokens = int(encoder.tokenize(TEXTS[:2])["attention_mask"].sum())
    assert answer.headers["content-type"] == "application/json"
    assert {name: value for name, value in answer.json.items() if name != "data"} == {
        "object": "list", "model": NORMED, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}, "truncated": 0,
    }  # fmt: skip
    assert {each["object"] for each in answer.json["data"]} == {"embedding"}


def test_dimensions_cut_and_normalize_again_where_the_model_does(address: Address, encoder: minibert.Encoder) -> None:
    short = encoder.encode(TEXTS, truncate_dim=3, normalize_embeddings=True)
    assert near(vectors(address.embed(TEXTS, dimensions=3)), short)
    assert near(vectors(address.embed(TEXTS, dimensions=8)), encoder.encode(TEXTS))
    assert "at most 8, found 9" in address.embed("a", dimensions=9).error
    with served(server(LENGTHS)) as other:
        plain = minibert.load_encoder(REFERENCE / LENGTHS)
        found = vectors(other.embed(TEXTS, dimensions=2))
        assert near(found, plain.encode(TEXTS, truncate_dim=2))
        assert not np.allclose(np.linalg.norm(found, axis=1), 1), "a model whose vectors are not of length 1"


def test_a_task_takes_its_prompt_and_its_length() -> None:
    with served(server(PROMPTS)) as address:
        encoder = minibert.load_encoder(REFERENCE / PROMPTS)
        for task, want in (
            (None, encoder.encode(TEXTS)), ("query", encoder.encode_query(TEXTS)),
            ("document", encoder.encode_document(TEXTS)), ("passage", encoder.encode(TEXTS, "passage")),
        ):  # fmt: skip
            assert near(vectors(address.embed(TEXTS, task=task)), want), task
        refused = "task must be one of this model's 'query', 'document', 'passage', found 'find'"
        assert refused in address.embed("a", task="find").error
    with served(server(LENGTHS)) as address:
        encoder = minibert.load_encoder(REFERENCE / LENGTHS)
        found = address.embed(TEXTS, task="query")
        assert near(vectors(found), encoder.encode_query(TEXTS))
        assert not near(vectors(found), encoder.encode(TEXTS)), "queries are cut at 4 tokens"


def test_truncated_texts_are_counted_or_refused(address: Address, encoder: minibert.Encoder) -> None:
    texts = ["dog", "the clouds " * 40]
    assert encoder.tokens_cut(texts).astype(bool).tolist() == [False, True]
    answer = address.embed(texts)
    assert near(vectors(answer), encoder.encode(texts)) and answer.json["truncated"] == 1
    refused = address.embed(texts, truncate=False)
    assert (refused.status, refused.json["error"]["param"]) == (400, "input")
    assert refused.error.startswith("input[1] has more tokens than this model takes")
    assert address.embed("dog", truncate=False).status == 200
    later = address.embed(["dog"] * 2000 + texts, truncate=False)  # in the second step of the worker
    assert later.error.startswith("input[2001] has more tokens")


def test_null_counts_as_left_out(address: Address) -> None:
    nulls = dict.fromkeys(["model", "encoding_format", "dimensions", "user", "task", "truncate", "any_other"])
    assert address.embed("dog", **nulls).json == address.embed("dog").json
    asked = {"query": "clouds", "documents": TEXTS}
    names = ["model", "texts", "top_n", "return_documents", "raw_scores", "truncate", "max_tokens_per_doc", "priority"]
    nulls = dict.fromkeys([*names, "rank_fields", "max_chunks_per_doc"])
    assert address.ask("/rerank", asked | nulls).json == address.ask("/rerank", asked).json


def test_a_query_may_be_as_long_as_the_page_says(address: Address) -> None:
    assert LONGEST_QUERY == 10_000
    assert address.ask("/rerank", {"query": "a" * 10_000, "documents": ["b"]}).status == 200


def test_rerank_gives_the_order_of_rank(address: Address) -> None:
    reranker = minibert.load_encoder(REFERENCE / RERANKER)
    want = reranker.rank("clouds", TEXTS, return_documents=True)
    body = {"query": "clouds", "documents": TEXTS, "return_documents": True, "model": RERANKER}
    answer = address.ask("/rerank", body).json["results"]
    objects = [{"text": text} for text in TEXTS]  # Cohere's first version, Jina's API
    assert address.ask("/rerank", body | {"documents": objects}).json["results"] == answer
    assert [(each["index"], each["document"]["text"]) for each in answer] == [
        (each["corpus_id"], each["text"]) for each in want
    ]
    scores = np.array([each["score"] for each in want])
    assert near(np.array([each["relevance_score"] for each in answer]), scores)
    plain = address.ask("/v1/rerank", {"query": "clouds", "texts": TEXTS, "top_n": 2}).json
    assert [each["index"] for each in plain] == [each["corpus_id"] for each in want[:2]]
    assert near(np.array([each["score"] for each in plain]), scores[:2]) and set(plain[0]) == {"index", "score"}
    raw = reranker.rank("clouds", TEXTS, activation_fn=lambda x: x)
    body = {"query": "clouds", "texts": TEXTS, "raw_scores": True, "return_text": True}
    found = address.ask("/v2/rerank", body).json
    assert near(np.array([each["score"] for each in found]), np.array([each["score"] for each in raw]))
    assert [each["text"] for each in found] == [TEXTS[each["corpus_id"]] for each in raw]


@pytest.mark.parametrize("beside", [False, True])
def test_late_interaction_answers_rerank(beside: bool) -> None:
    """As the model itself, or as the reranker of another; two requests at once, each with its own query."""
    late = minibert.load_encoder(REFERENCE / LATE)
    folders = [NORMED, LATE] if beside else [LATE]
    with served(Server([opened(REFERENCE / name) for name in folders])) as address, ThreadPoolExecutor(2) as pool:
        queries = ["the clouds", "we lived", "dog"]
        bodies = [{"query": query, "documents": TEXTS, "raw_scores": i == 1} for i, query in enumerate(queries)]
        answers = list(pool.map(lambda body: address.ask("/rerank", body).json["results"], bodies))
        for query, answer in zip(queries, answers, strict=True):
            want = late.rank(query, TEXTS)
            assert [each["index"] for each in answer] == [each["corpus_id"] for each in want]
            found = np.array([each["relevance_score"] for each in answer])
            assert near(found / 12, np.array([each["score"] for each in want]) / 12)  # a sum over 12 tokens
        if beside:
            assert address.embed("dog").status == 200
        else:
            refused = address.embed("dog")
            assert refused.status == 404 and f"gives vectors; it was started with {LATE!r}" in refused.error
            info = address.ask("/info").json
            assert (info["gives"], info["similarity"], info["dimension"]) == (["scores of documents"], "maxsim", 6)
            cut = {"query": "the clouds", "documents": TEXTS, "max_tokens_per_doc": 1}
            (first,) = [each for each in address.ask("/rerank", cut).json["results"] if each["index"] == 0]
            assert near(first["relevance_score"] / 12, late.rank("the clouds", ["we"])[0]["score"] / 12)
            long = {"query": "a", "texts": ["the clouds", "the clouds " * 99]}
            assert address.ask("/rerank", long).status == 200
            assert "texts[1] has more tokens" in address.ask("/rerank", long | {"truncate": False}).error


def test_many_clients_at_once_get_their_own(address: Address, encoder: minibert.Encoder) -> None:
    """Eight clients send different texts; one request in four is refused, and the others are not disturbed."""
    texts = [f"we lived above {'the clouds ' * (i % 9)}dog {i}" for i in range(160)]
    want = encoder.encode(texts)

    def client(number: int) -> None:
        for i in range(number, len(texts), 8):
            if i % 4 == 3:
                assert address.embed([texts[i], 7]).status == 400
            assert near(vectors(address.embed([texts[i], "dog"]))[:1], want[i : i + 1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "expected a body of JSON in UTF-8"),
        (b"{", 400, "expected a body of JSON in UTF-8"),
        (b'{"input": "\xff"}', 400, "expected a body of JSON in UTF-8"),
        (b"[" * 100_000, 400, "expected a body of JSON in UTF-8"),
        (b'{"input": "a", "dimensions": ' + b"9" * 5000 + b"}", 400, "expected a body of JSON in UTF-8"),
        (b"7", 400, "expected a JSON object, found 7"),
        ({}, 400, "input must be a string or a list of strings, found nothing"),
        ({"input": []}, 400, "'input' is empty"),
        ({"input": {}}, 400, "input must be a string or a list of strings, found an object"),
        ({"input": ["a", None]}, 400, "input[1] must be a string, found nothing"),
        ({"input": [1, 2]}, 400, "'input' must be text, found token ids"),
        ({"input": [[1, 2]]}, 400, "if the server was started with --token-ids"),
        ({"input": ["a", "b\ud800"]}, 400, "input[1] has a lone surrogate U+D800 at index 1"),
        ({"input": "a" * (LONGEST_TEXT + 1)}, 400, f"input[0] has {LONGEST_TEXT + 1} characters"),
        ({"input": ["a"] * 2049}, 413, "'input' has 2049 texts, at most 2048"),
        ({"input": "a", "dimension": 3}, 400, "there is no field 'dimension'; did you mean 'dimensions'?"),
        ({"input": "a", "dimensions": True}, 400, "dimensions must be an integer >= 1, found True"),
        ({"input": "a", "encoding_format": "int8"}, 400, "must be one of 'float', 'base64', 'binary', 'ubinary'"),
        ({"input": "a", "embedding_type": ["float"]}, 400, "embedding_type must be one of 'float', 'base64', 'binary'"),
        ({"input": "a", "embedding_type": "binary", "encoding_format": "float"}, 400, "are names of one field here"),
        ({"input": "a", "late_chunking": True}, 400, "late_chunking is not computed here"),
        ({"input": ["a", {"image": "b"}]}, 400, "input[1].text must be a string, found nothing"),
        (b'{"input": "a", "in\\u0070ut": "b"}', 400, "the field 'input' is given twice; send it once"),
        (b'{"input": "a", "\\ud800": 1}', 400, "there is no field '\\ud800'"),
        ({"input": "a", "model": "other"}, 404, f"has {NORMED!r} and {RERANKER!r}, and not the model 'other'"),
        ({"input": "a", "model": 7}, 400, "model must be a string, found 7"),
        ({"input": "a", "truncate": "no"}, 400, "truncate must be true or false, found 'no'"),
    ],
    ids=lambda value: f"{value!r:.40}",
)  # fmt: skip
def test_a_bad_request_for_vectors_is_refused_in_words(address: Address, body: Any, status: int, message: str) -> None:
    answer = address.ask("/v1/embeddings", body)
    assert (answer.status, answer.json["error"]["type"]) == (status, "invalid_request_error")
    assert message in answer.error and len(answer.body) < 500
    assert json.dumps(answer.json, ensure_ascii=False).encode(), "half of a pair of surrogates is no UTF-8"


ASKED = {"query": "a", "documents": ["b"]}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": "a"}, 400, "expected 'documents' or 'texts', one of them"),
        (ASKED | {"texts": ["b"]}, 400, "expected 'documents' or 'texts', one of them"),
        ({"documents": ["b"]}, 400, "query must be a string, found nothing"),
        (ASKED | {"documents": "b"}, 400, "documents must be a list of strings, found 'b'"),
        (ASKED | {"documents": [{"text": None}]}, 400, "documents[0].text must be a string, found nothing"),
        (ASKED | {"documents": [{"title": "b"}]}, 400, "documents[0].text must be a string, found nothing"),
        (ASKED | {"documents": [{"text": "b", "id": 7}]}, 400, "documents[0].id must be a string, found 7"),
        (ASKED | {"documents": [{"text": "b", "\ud800": "c"}]}, 400, "the name of a field of documents[0] has a lone"),
        (ASKED | {"rank_fields": ["title"], "documents": [{"text": "b"}]}, 400, "documents[0].title must be a string"),
        (ASKED | {"rank_fields": ["title", "text"]}, 400, "rank_fields must be a list of one field's name; join"),
        (ASKED | {"rank_fields": "text"}, 400, "rank_fields must be a list of one field's name"),
        ({"query": "a", "texts": [{"text": "b"}]}, 400, "texts[0] must be a string, found an object"),
        (ASKED | {"query": "a" * (LONGEST_QUERY + 1)}, 400, f"at most {LONGEST_QUERY} are read"),
        (ASKED | {"top_n": -1}, 400, "top_n must be an integer >= 1"),
        (ASKED | {"truncation_direction": "Left"}, 400, "truncation_direction 'Left' is not computed here"),
        (ASKED | {"truncation_direction": 7}, 400, "truncation_direction must be 'Right', found 7"),
        (ASKED | {"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc must be an integer >= 1, found 0"),
        (ASKED | {"max_chunks_per_doc": 0}, 400, "max_chunks_per_doc must be an integer >= 1, found 0"),
        (ASKED | {"model": NORMED}, 404, f"the model {NORMED!r} does not give scores of documents; ask {RERANKER!r}"),
    ],
)
def test_a_bad_request_for_scores_is_refused_in_words(address: Address, body: Any, status: int, message: str) -> None:
    answer = address.ask("/rerank", body)
    assert answer.status == status and message in answer.error


def test_other_routes_and_methods(address: Address) -> None:
    assert address.ask("/health").json == {"status": "ok"}
    assert "POST /v1/embeddings" in address.ask("/").error
    elsewhere = address.ask("/health/", Host="evil.com")
    assert (elsewhere.status, "location" in elsewhere.headers) == (404, False)
    wrong = address.ask("/v1/embeddings")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    found = address.ask("/info").json
    assert (found["model"], found["dimension"], found["max_seq_length"], found["gives"]) == (NORMED, 8, 30, ["vectors"])
    assert [each["model"] for each in found["models"]] == [NORMED, RERANKER]
    assert found["tasks"] == {"query": "Instruct: find\nQuery:", "document": ""}
    assert found["limits"] == {"waiting": 256, "body": 16777216, "texts": 2048, "grace": 60}


def test_without_a_reranker_nothing_is_ordered() -> None:
    with served(Server([opened(REFERENCE / NORMED)])) as address:
        answer = address.ask("/rerank", {"query": "a", "documents": ["b"]})
        assert answer.status == 404
        assert answer.error == f"no model of this server gives scores of documents; it was started with {NORMED!r}"


@pytest.mark.parametrize("name", [NORMED, LENGTHS])
def test_token_ids_give_what_their_text_gives(name: str) -> None:
    """Where they are asked for: with the special tokens, of which none is added."""
    with served(server(name, token_ids=True)) as address:
        encoder = minibert.load_encoder(REFERENCE / name)
        texts = [*TEXTS[:3], "clouds"]
        ids = encoder.sentence_tokenizer.encode(texts, truncation=True, max_length=encoder.max_seq_length)
        rows = [each.input_ids for each in ids]
        assert near(vectors(address.embed(rows)), encoder.encode(texts))
        assert near(vectors(address.embed(rows[0])), encoder.encode(texts[:1]))
        assert near(vectors(address.embed(texts)), encoder.encode(texts)), "texts are taken too"
        assert near(vectors(address.embed(rows[3], task="document")), encoder.encode_document(["clouds"]))
        assert address.embed(rows).json["usage"]["prompt_tokens"] == sum(map(len, rows))
        many = rows[:2] * 1000  # more than one step of the worker
        assert near(vectors(address.embed(many)), np.tile(encoder.encode(texts[:2]), (1000, 1)))


def test_token_ids_that_the_tokenizer_cannot_give_are_refused(encoder: minibert.Encoder) -> None:
    """cl100k's ids, which LangChain sends, mostly lie beyond the vocabulary."""
    size = encoder.sentence_tokenizer.size
    with served(server(token_ids=True)) as address:
        for given, message in (
            ([[1, 2], [3, size]], f"input[1] has the token id {size}, and those of this model end at {size - 1}"),
            ([10**30], f"input[0] has the token id {10**30}"),
            ([1] * 31, "input[0] has 31 token ids, at most 30 are read"),
            ([[1], []], "input[1] must be a list of token ids"), ([[1], "dog"], "input[1] must be a list of token ids"),
            ([1, -1], "input[0] must be a list of token ids"), ([1, True], "input[0] must be a list of token ids"),
            (["dog", [1]], "input[1] must be a string, found a list"), ([[1]] * 2049, "has 2049 texts, at most 2048"),
        ):  # fmt: skip
            answer = address.embed(given)
            assert answer.status in (400, 413) and message in answer.error, answer.error
        assert "with the task 'query' a prompt stands before each text" in address.embed([1], task="query").error
        assert "must be text, found token ids" in address.ask("/embed", {"inputs": [[1]]}).error
        assert address.ask("/embed", {"inputs": [["a"]]}).error == "inputs[0] must be a string, found a list"
        refused = address.ask("/embed", {"inputs": "a", "prompt_name": "find"})
        assert "prompt_name must be one of" in refused.error and refused.json["error"]["param"] == "prompt_name"
    with served(server(PROMPTS, token_ids=True)) as address:
        refused = address.embed([1])
        assert (refused.status, "without a task this model's default prompt stands" in refused.error) == (400, True)


def test_as_many_texts_as_one_request_may_have_fit_into_its_bytes(address: Address) -> None:
    """However JSON writes them; before, 2048 texts of 512 tokens were too many bytes."""
    asked = ["\u0434" * 512 * 2 + " dog"] * 2048
    assert len(json.dumps({"input": asked})) > 1 << 23
    assert address.embed(asked).status == 200
    assert address.embed("\U0001f600" * LONGEST_TEXT).status == 200
    with served(server(limits=Limits(body=body_for(1), texts=1))) as one:
        assert one.embed("\U0001f600" * LONGEST_TEXT).status == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_too_large_is_refused_before_it_is_read_whole(chunked: bool) -> None:
    with served(server(limits=Limits(body=1000))) as address:
        body = json.dumps({"input": "a" * 5_000_000}).encode()
        sent = (body[i : i + 65536] for i in range(0, len(body), 65536)) if chunked else body
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=SECONDS)
        connection.request("POST", "/v1/embeddings", sent, encode_chunked=chunked, headers=(
            {"Transfer-Encoding": "chunked"} if chunked else {}
        ))  # fmt: skip
        answer = connection.getresponse()
        assert answer.status == 413
        assert "more than 1000 bytes; send fewer" in json.loads(answer.read())["error"]["message"]
        connection.close()
        assert address.embed("a" * 900).status == 200


# -- the token -------------------------------------------------------------------------------------------------


# each route that needs a token, or a name of this machine
GUARDED = (
    ("/v1/embeddings", {"input": "a"}), ("/rerank", {}), ("/embed", {}), ("/embed_sparse", {}), ("/similarity", {}),
    ("/predict", {}), ("/", {}), ("/info", None), ("/v1/models", None), ("/v1/models/a", None), ("/metrics", None),
)  # fmt: skip


def test_with_a_token_all_but_health_needs_it() -> None:
    with served(server(token="geheim")) as address:
        for sent in (None, "Bearer wrong", "Basic geheim", ""):
            for path, body in GUARDED:
                answer = address.ask(path, body, **({} if sent is None else {"Authorization": sent}))
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert "Authorization: Bearer TOKEN" in answer.error
        assert address.ask("/health").status == 200
        assert address.ask("/v1/embeddings", {"input": "a"}, Authorization="Bearer geheim").status == 200
        named = {"Host": "vectors.example.com", "Authorization": "bearer geheim"}
        assert address.ask("/info", **named).status == 200, "with a token any name is answered"


def test_without_a_token_a_name_of_the_web_is_refused(address: Address) -> None:
    """A page's own name can be made to lead to 127.0.0.1; in a browser that page could read the answers."""
    for host in ("evil.com", "evil.com:8000", "127.0.0.1.evil.com", "localhost.evil.com.", "a.1b"):
        for path, body in GUARDED:
            answer = address.ask(path, body, Host=host)
            assert (answer.status, repr(host) in answer.error) == (403, True)
    near = ["localhost", "127.0.0.1:80", "[::1]:80", "[::1]", "me.localhost", "host.docker.internal:8000", "box", ""]
    for host in near:
        assert address.ask("/info", Host=host).status == 200, host


def test_numbers_that_json_has_no_word_for_are_an_error() -> None:
    broken = server()
    model: Any = broken.models[0]
    steps = model.kinds[None]
    model.kinds = {None: steps._replace(compute=lambda items: np.full((len(items), 8), np.nan, np.float32))}
    with served(broken) as address:
        answer = address.embed("dog")
        assert answer.status == 500
        assert "NaN or infinity" in answer.error
