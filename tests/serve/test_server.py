"""The server over real HTTP: its vectors are those of `encode`, its order that of `rank`, and what it refuses."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE
from served import SECONDS, Address, Answer, needs_server, opened, served, straight

import minibert
from minibert.equations.input_layer import Array
from minibert.serve import options
from minibert.serve.app import INLINE, Server
from minibert.serve.kinds import VECTORS
from minibert.serve.requests import LONGEST_QUERY, LONGEST_TEXT, Limits
from minibert.serve.worker import Prepared

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

NORMED, PROMPTS, LENGTHS, RERANKER = "sentences-last-token", "sentences-prompts", "sentences-residual", "uses-reranker"
LATE = "late-fixed"
TEXTS = ["we lived above the clouds", "dog", "", "the clouds we lived above, we above the clouds"]
# a text's numbers move by its neighbours, which here are other requests'; measured 1.2e-7
NEIGHBOURS = 1e-6


def server(name: str = NORMED, **options: Any) -> Server:
    return Server([opened(REFERENCE / name, f"org/{name}"), opened(REFERENCE / RERANKER)], **options)


def computing(compute: Callable[[list[Any]], Array], **options: Any) -> Server:
    """A server whose model reads no text and computes something else."""
    model = opened(REFERENCE / NORMED)
    kind = model.work[VECTORS][None]._replace(prepare=lambda items, start: Prepared(items), compute=compute)
    return Server([model._replace(work={VECTORS: {None: kind}})], **options)


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
        for name, task in (
            ("input_type", "search_query"), ("task", "retrieval.query"), ("prompt_name", "query"),
            ("input_type", "passage"), ("input_type", "search_document"), ("task", "retrieval.passage"),
        ):  # fmt: skip
            own = {"search_query": "query", "retrieval.query": "query", "query": "query", "passage": "passage"}
            want = encoder.encode(TEXTS, own.get(task, "document"))
            assert near(vectors(address.embed(TEXTS, **{name: task})), want), (name, task)
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
        (b"7", 400, "the body must be a JSON object, found 7"),
        ({}, 400, "input must be a string or a list of strings, found nothing"),
        ({"input": []}, 400, "'input' is empty"),
        ({"input": {}}, 400, "input must be a string or a list of strings, found an object"),
        ({"input": ["a", None]}, 400, "input[1] must be a string, found nothing"),
        ({"input": [1, 2]}, 400, "'input' must be text, found token ids"),
        ({"input": [[1, 2]]}, 400, "send the texts (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False"),
        ({"input": ["a", "b\ud800"]}, 400, "input[1] has a lone surrogate U+D800 at index 1"),
        ({"input": "a" * (LONGEST_TEXT + 1)}, 400, f"input[0] has {LONGEST_TEXT + 1} characters"),
        ({"input": ["a"] * 2049}, 413, "'input' has 2049 texts, at most 2048"),
        ({"input": "a", "dimension": 3}, 400, "there is no field 'dimension'; did you mean 'dimensions'?"),
        ({"input": "a", "dimensions": True}, 400, "dimensions must be an integer >= 1, found True"),
        ({"input": "a", "encoding_format": "int8"}, 400, "must be one of 'float', 'base64', 'binary', 'ubinary'"),
        ({"input": "a", "embedding_type": ["float"]}, 400, "embedding_type must be one of 'float', 'base64', 'binary'"),
        ({"input": "a", "embedding_type": "binary", "encoding_format": "float"}, 400, "are names of one field here"),
        ({"input": "a", "late_chunking": True}, 400, "late_chunking must be false: each text has a vector of its own"),
        ({"input": ["a", {"image": "b"}]}, 400, "input[1].text must be a string, found nothing"),
        (b'{"input": "a", "in\\u0070ut": "b"}', 400, "the field 'input' is given twice; send it once"),
        (b'{"input": "a", "\\ud800": 1}', 400, "there is no field '\\ud800'"),
        ({"input": "a", "model": "other"}, 404, f"has {NORMED!r} and {RERANKER!r}, and not the model 'other'"),
        ({"input": "a", "model": 7}, 400, "model must be a string, found 7"),
        ({"input": "a", "output_dimension": 2}, 400, "output_dimension is not known here, and would"),
        ({"input": "a", "prompt": "b"}, 400, "would change the answer; send prompt_name, or put the words before each"),
        ({"input": "a", "add_special_tokens": False}, 400, "add_special_tokens must be true: they are always added"),
        ({"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens must be -1 or an integer >= 1"),
        ({"input": "a", "task": "query", "input_type": "document"}, 400, "are names of one field here"),
        ({"input": {"source_sentence": "a", "sentences": ["b"]}}, 400, "no similarities are computed here; send all"),
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
        (ASKED | {"truncation_direction": "Left"}, 400, "must be 'Right': texts lose their end here"),
        (ASKED | {"truncate_prompt_tokens": 9}, 400, "must be -1; of documents send max_tokens_per_doc"),
        (ASKED | {"top_n": 1, "top_k": 2}, 400, "top_n and top_k are names of one field here; send one of them"),
        (ASKED | {"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc must be an integer >= 1, found 0"),
        (ASKED | {"max_chunks_per_doc": 0}, 400, "max_chunks_per_doc must be an integer >= 1, found 0"),
        (ASKED | {"model": NORMED}, 404, f"the model {NORMED!r} does not give scores of documents; ask {RERANKER!r}"),
    ],
)
def test_a_bad_request_for_scores_is_refused_in_words(address: Address, body: Any, status: int, message: str) -> None:
    answer = address.ask("/rerank", body)
    assert answer.status == status and message in answer.error


def test_fields_that_clients_add_and_that_change_nothing(address: Address) -> None:
    more = {"user": {"id": 7}, "return_len": True, "add_special_tokens": True, "truncate_prompt_tokens": -1}
    assert address.embed("dog", **more, query_prefix=None).json == address.embed("dog").json
    asked = {"query": "clouds", "documents": TEXTS}
    best = address.ask("/rerank", asked | {"top_n": 2}).json
    assert address.ask("/rerank", asked | more | {"top_k": 2, "priority": 3}).json == best and len(best["results"]) == 2


def test_truncate_prompt_tokens_keeps_the_first_tokens(address: Address, encoder: minibert.Encoder) -> None:
    """Special ones among them, as vLLM counts."""
    for texts in (TEXTS, "dog"):
        short = minibert.load_encoder(REFERENCE / NORMED, max_seq_length=4).encode(texts)
        assert near(vectors(address.embed(texts, truncate_prompt_tokens=4)), np.atleast_2d(short))
        assert near(vectors(address.embed(texts, truncate_prompt_tokens=99)), np.atleast_2d(encoder.encode(texts)))


def test_other_routes_and_methods(address: Address) -> None:
    gone = address.ask("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}})
    assert gone.status == 404 and "ask /embed for the vectors: the dot product of two is their cosine" in gone.error
    assert "GET /v1/models, /v1/models/NAME, /info, /metrics, /health" in address.ask("/embeds", {}).error
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


@pytest.mark.parametrize("first", [LATE, NORMED])
def test_a_request_without_model_goes_to_the_reranker(first: str) -> None:
    """Also where another model can score too: with its scores the order would be another."""
    models = [opened(REFERENCE / first), opened(REFERENCE / RERANKER)]
    want = minibert.load_encoder(REFERENCE / RERANKER).rank("clouds", TEXTS)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = json.dumps({"query": "clouds", "documents": TEXTS}).encode()
        answer = straight(Server(models, ranks=models[1]), path, body).json
        assert answer["model"] == RERANKER
        assert [each["index"] for each in answer["results"]] == [each["corpus_id"] for each in want]
    if first == LATE:
        assert straight(Server(models), "/rerank", body).json["model"] == LATE, "without one the first that can"


def test_without_a_reranker_nothing_is_ordered() -> None:
    with served(Server([opened(REFERENCE / NORMED)])) as address:
        answer = address.ask("/rerank", {"query": "a", "documents": ["b"]})
        assert answer.status == 404
        assert answer.error == f"no model of this server gives scores of documents; it was started with {NORMED!r}"


def test_as_many_texts_as_one_request_may_have_fit_into_its_bytes() -> None:
    """However JSON writes them; the model gives zeros, since only the bytes are in question."""
    for texts, sent in ((2048, ["\u0434" * 512 * 2 + " dog"] * 2048), (1, ["\U0001f600" * LONGEST_TEXT])):
        body = json.dumps({"input": sent}).encode()
        assert texts == 1 or len(body) > 1 << 23
        limits = options.limits_of(SimpleNamespace(**options.from_variables() | {"max_texts": texts}))
        assert (
            straight(computing(lambda items: np.zeros((len(items), 8)), limits=limits), "/v1/embeddings", body).status
            == 200
        )


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
    ("/v1/embeddings", {"input": "a"}), ("/rerank", {}), ("/embed", {}), ("/embed_sparse", {}),
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
    answer = straight(computing(lambda items: np.full((len(items), 8), np.nan)), "/v1/embeddings", b'{"input": "dog"}')
    assert (answer.status, "NaN or infinity" in answer.error) == (500, True)
