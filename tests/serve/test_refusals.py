"""The server refuses in words, with a status of the client's, and in OpenAI's form."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE
from served import SECONDS, Address, Answer, needs_server, opened, served, straight

from minibert.equations.input_layer import Array
from minibert.serve import options, requests
from minibert.serve.app import ENDPOINTS, Server
from minibert.serve.options import DEFAULTS, Limits
from minibert.serve.worker import VECTORS, Prepared

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

NORMED, PROMPTS, RERANKER, SPARSE = "sentences-last-token", "sentences-prompts", "uses-reranker", "uses-sparse"
PAIRS, TOPICS = "uses-inference", "uses-topics"
LONG = "the clouds " * 40


def server(*names: str, **options: Any) -> Server:
    return Server([opened(REFERENCE / name) for name in names or (NORMED, RERANKER)], **options)


def computing(compute: Callable[[list[Any]], Array], **options: Any) -> Server:
    """A server whose model reads no text and computes something else."""
    model = opened(REFERENCE / NORMED)
    kind = model.kinds[VECTORS][None]._replace(prepare=lambda items, start: Prepared(items), compute=compute)
    return Server([model._replace(kinds={VECTORS: {None: kind}})], **options)


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with served(server(NORMED, PROMPTS, RERANKER, SPARSE, PAIRS)) as found:
        yield found


def check(answer: Answer) -> None:
    assert answer.status < 500, answer.body
    assert json.dumps(answer.json, ensure_ascii=False).encode(), "half of a pair of surrogates is no UTF-8"
    assert answer.status == 200 or (answer.error and answer.json["error"]["type"] == "invalid_request_error")


# -- one wrong thing each ----------------------------------------------------------------------------------------

ASKED, NO_JSON = {"query": "a", "documents": ["b"]}, "expected a body of JSON in UTF-8"
V, R, P = "/v1/embeddings", "/rerank", "/predict"
OF_PREDICT = "inputs must be a text, a pair [text, text], or a list of [text] and [text, text]"
REFUSED: list[tuple[str, Any, int, str]] = [
    *((V, body, 400, NO_JSON) for body in (b"", b"{", b'{"input": "\xff"}', b"[" * 100_000)),
    (V, b'{"input": "a", "dimensions": ' + b"9" * 5000 + b"}", 400, NO_JSON), (V, b"7", 400, ", found 7"),
    (V, {}, 400, "input must be a string or a list of strings, found nothing"),
    (V, {"input": []}, 400, "'input' is empty"),
    (V, {"input": {}}, 400, "input must be a string or a list of strings, found an object"),
    (V, {"input": ["a", None]}, 400, "input[1] must be a string, found nothing"),
    (V, {"input": [1, 2]}, 400, "'input' must be text, found token ids"),
    (V, {"input": [[1, 2]]}, 400, "send the texts (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False"),
    (V, {"input": ["a", "b\ud800"]}, 400, "input[1] has a lone surrogate U+D800 at index 1"),
    (V, {"input": "a" * (DEFAULTS.characters + 1)}, 400, f"input[0] has {DEFAULTS.characters + 1} characters"),
    (V, {"input": ["a"] * 2049}, 413, "'input' has 2049 texts, a request may have 2048"),
    (V, {"input": "a", "dimension": 3}, 400, "there is no field 'dimension'; did you mean 'dimensions'?"),
    (V, {"input": "a", "zzzzzzzz": 3}, 400, "known are model"),
    (V, {"input": "a", "dimensions": True}, 400, "dimensions must be an integer >= 1, found True"),
    (V, {"input": "a", "encoding_format": "int8"}, 400, "must be one of 'float', 'base64', 'binary', 'ubinary'"),
    (V, {"input": "a", "embedding_type": ["float"]}, 400, "embedding_type must be one of 'float', 'base64', 'binary'"),
    (V, {"input": "a", "embedding_type": "binary", "encoding_format": "float"}, 400, "are names of one field here"),
    (V, {"input": "a", "late_chunking": True}, 400, "late_chunking must be false: each text is encoded alone"),
    (V, {"input": ["a", {"text": "b"}]}, 400, "input[1] must be a string, found an object with 'text'"),
    (V, b'{"input": "a", "in\\u0070ut": "b"}', 400, "the field 'input' is given twice; send it once"),
    (V, b'{"input": "a", "\\ud800": 1}', 400, "there is no field '\\ud800'"),
    (V, {"input": "a", "model": "other"}, 404, f"this server does not have the model 'other'; it has {NORMED!r} and"),
    (V, {"input": "a", "model": 7}, 400, "model must be a string, found 7"),
    (V, {"input": "a", "output_dimension": 2}, 400, "output_dimension is not known here, and would"),
    (V, {"input": "a", "prompt": "b"}, 400, "would change the answer; send prompt_name, or put the prompt before each"),
    (V, {"input": "a", "add_special_tokens": False}, 400, "add_special_tokens must be true: special tokens are always"),
    (V, {"input": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens must be -1 or an integer >= 1"),
    (V, {"input": "a", "task": "query", "input_type": "document"}, 400, "are names of one field here"),
    (V, {"input": {"source_sentence": "a", "sentences": ["b"]}}, 400, "no similarities are computed here; send all"),
    (V, {"input": "a", "truncate": "no"}, 400, "truncate must be true or false, found 'no'"),
    (R, {"query": "a"}, 400, "to sort, found neither"), (R, ASKED | {"texts": ["b"]}, 400, "to sort, found both"),
    (R, {"documents": ["b"]}, 400, "query must be a string, found nothing"),
    (R, ASKED | {"documents": "b"}, 400, "documents must be a list of strings, found 'b'"),
    (R, ASKED | {"documents": [{"\ud800": "b"}]}, 400, "documents[0] must be a string, found an object with '\\ud800'"),
    (R, ASKED | {"rank_fields": ["title"]}, 400, "would change the answer; send each document as one string"),
    (R, {"query": "a", "texts": [{"text": "b"}]}, 400, "texts[0] must be a string, found an object"),
    (R, ASKED | {"query": "a" * (DEFAULTS.query + 1)}, 400, f"at most {DEFAULTS.query} are allowed"),
    (R, ASKED | {"top_n": -1}, 400, "top_n must be an integer >= 1"),
    (R, ASKED | {"truncation_direction": "Left"}, 400, "must be 'Right': the end of a text is cut off here"),
    (R, ASKED | {"truncate_prompt_tokens": 9}, 400, "must be -1; to truncate documents send max_tokens_per_doc"),
    (R, ASKED | {"top_n": 1, "top_k": 2}, 400, "top_n and top_k are names of one field here; send one of them"),
    (R, ASKED | {"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc must be an integer >= 1, found 0"),
    (R, ASKED | {"max_chunks_per_doc": 0}, 400, "max_chunks_per_doc must be an integer >= 1, found 0"),
    (R, ASKED | {"model": NORMED}, 404, f"the model {NORMED!r} does not compute scores of documents; ask {RERANKER!r}"),
    (V, {"input": "a", "dimensions": 9}, 400, "at most 8, found 9"),
    (V, {"input": "a", "task": "find", "model": PROMPTS}, 400, "task must be one of this model's 'query', 'document'"),
    ("/embed", {"inputs": "a", "model": PROMPTS, "prompt_name": "find"}, 400, "prompt_name must be one of this"),
    ("/embed_sparse", {"inputs": "a", "normalize": True}, 400, "there is no field 'normalize'"),
    (P, {"inputs": "a", "parameters": {"top_k": 2}}, 400, "parameters must be an object without fields;"),
    (P, {"inputs": "a", "parameters": {"top_k": 2}}, 400, "; raw_scores is sent beside inputs, found an object with"),
    (P, {"inputs": []}, 400, "'inputs' is empty; send at least one text"),
    *((P, {"inputs": each}, 400, OF_PREDICT) for each in ([7], {}, [["a", "b", "c"]], ["a", "b", "c"], ["a", ["b"]])),
    # of the longest text that the model takes none is refused, of a longer one each
    (V, {"input": ["dog", LONG], "truncate": False}, 400, "input[1] has more tokens than this model allows"),
    (V, {"input": ["dog"] * 2000 + [LONG], "truncate": False}, 400, "input[2000] has more tokens"),  # a later step
    ("/embed", {"inputs": ["dog", LONG], "truncate": False}, 400, "inputs[1] has more tokens than this model allows"),
    ("/embed_sparse", {"inputs": ["dog", LONG], "truncate": False}, 400, "inputs[1] has more tokens"),
    (P, {"inputs": [["dog"], ["dog", LONG]], "truncate": False, "model": RERANKER}, 400, "inputs[1] has more tokens"),
    (R, {"query": "a", "texts": ["dog", LONG], "truncate": False}, 400, "texts[1] has more tokens"),
    (R, {"query": "a", "documents": ["dog", LONG], "truncate": False}, 400, "documents[1] has more tokens"),
    # another use, another path
    (V, {"input": "a", "model": RERANKER}, 404, f"the model {RERANKER!r} does not compute vectors; ask {NORMED!r}"),
    ("/embed_sparse", {"inputs": "a", "model": NORMED}, 404, f"does not compute sparse vectors; ask {SPARSE!r}"),
    (R, ASKED | {"model": PAIRS}, 404, f"does not compute scores of documents; ask {RERANKER!r}"),
    (P, {"inputs": "a", "model": SPARSE}, 404, f"the model {SPARSE!r} does not compute labels; ask {RERANKER!r}"),
    ("/v1/models/other", None, 404, "this server does not have the model 'other'"),
    ("/embeds", {}, 404, "GET /v1/models, /v1/models/NAME, /info, /metrics, /health"),
    ("/", None, 405, "POST /v1/embeddings"), (V, None, 405, "Method Not Allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "message"), REFUSED, ids=lambda value: f"{value!r:.40}")
def test_a_wrong_request_is_refused_in_words(address: Address, path: str, body: Any, status: int, message: str) -> None:
    answer = address.ask(path, body)
    code = "model_not_found" if "the model" in answer.error else None
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert message in answer.error and len(answer.body) < 500
    check(answer)
    assert "known are " not in answer.error or "output_dimension" not in answer.error, "only what is taken"
    if "has more tokens" in message:  # only what is too long
        assert address.ask(path, {each: body[each] for each in body if each != "truncate"}).status == 200
        short = {each: "dog" if each in ("input", "inputs") else value for each, value in body.items()}
        short |= {each: ["dog"] for each in ("texts", "documents") if each in body}
        assert address.ask(path, short).status == 200


def test_a_path_that_is_not_there_leads_nowhere(address: Address) -> None:
    for host, status in (("localhost", 404), ("evil.com", 403)):
        elsewhere = address.ask("/health/", Host=host)
        assert (elsewhere.status, "location" in elsewhere.headers) == (status, False)
    assert address.ask("/v1/embeddings").headers["allow"] == "POST"


def test_what_cannot_be_computed_or_written_is_an_error_of_the_server() -> None:
    nan, full = computing(lambda items: np.full((len(items), 8), np.nan)), computing(Mock(side_effect=MemoryError))
    for failing, form, said in (
        *((nan, form, "NaN or infinity") for form in (b"float", b"base64", b"binary")),
        (full, b"float", "the texts could not be computed: MemoryError"),
    ):
        answer = straight(failing, V, b'{"input": "dog", "encoding_format": "%s"}' % form)
        assert (answer.status, said in answer.error) == (500, True), said


# -- too much ----------------------------------------------------------------------------------------------------


def test_as_many_texts_as_one_request_may_have_fit_into_its_bytes() -> None:
    """However JSON writes them; the model gives zeros, since only the bytes are in question."""
    for texts, sent in ((2048, ["\u0434" * 512 * 2 + " dog"] * 2048), (1, ["\U0001f600" * DEFAULTS.characters])):
        body = json.dumps({"input": sent}).encode()
        assert texts == 1 or len(body) > 1 << 23
        limits = options.limits_of(SimpleNamespace(**options.from_variables() | {"max_texts": texts}))
        zeros = computing(lambda items: np.zeros((len(items), 8)), limits=limits)
        assert straight(zeros, V, body).status == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_too_large_is_refused_before_it_is_read_whole(chunked: bool) -> None:
    with served(server(limits=Limits(body=1000))) as address:
        body = json.dumps({"input": "a" * 5_000_000}).encode()
        sent = (body[i : i + 65536] for i in range(0, len(body), 65536)) if chunked else body
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=SECONDS)
        headers = {"Transfer-Encoding": "chunked"} if chunked else {}
        connection.request("POST", "/v1/embeddings", sent, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        assert answer.status == 413
        assert "more than 1000 bytes; send fewer" in json.loads(answer.read())["error"]["message"]
        connection.close()
        with socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
            client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 413 "), "it waits for a body that it will refuse"
        assert address.embed("a" * 900).status == 200
        assert address.embed("a" * 1000).status == 413


# -- who asks ----------------------------------------------------------------------------------------------------

# each path that needs a token, or a name of this machine; the last has no route
GUARDED = [
    *((path, {}) for path in [*ENDPOINTS, "/"]),
    *((path, None) for path in ("/info", "/v1/models/a", "/metrics", "/no/route")),
]


def test_with_a_token_all_but_health_needs_it() -> None:
    with served(server(token="geheim")) as address:
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic geheim"}, {"Authorization": ""}):
            for path, body in GUARDED:
                answer = address.ask(path, body, **sent)
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


# -- anything ----------------------------------------------------------------------------------------------------

ROUTES = st.sampled_from([*ENDPOINTS])
# half of a pair of surrogates among them: JSON can write it, and no tokenizer read it
LETTERS = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(["\ud800", "a\x00b", "[SEP]", "the clouds"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | LETTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(LETTERS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*requests.OPENAI, *requests.TEI, *requests.RERANK, *requests.PREDICT})
SOME, SURE = LETTERS | st.lists(LETTERS, max_size=5), st.booleans()
OBJECTS = st.dictionaries(LETTERS | st.just("text"), LETTERS, max_size=3)
LIKELY = {
    "/v1/embeddings": {"input": SOME, "dimensions": st.integers(-1, 9)},
    "/rerank": {
        "query": LETTERS, "documents": st.lists(LETTERS | OBJECTS, max_size=5), "return_documents": SURE,
        "top_n": st.integers(-1, 9), "max_tokens_per_doc": st.integers(0, 10**30),
        "truncate_prompt_tokens": st.integers(-1, 0),
    },
    "/embed": {
        "inputs": SOME, "normalize": SURE, "truncate": SURE, "truncate_prompt_tokens": st.integers(-2, 10**30),
    },
    "/embed_sparse": {"inputs": SOME, "truncate": SURE},
    "/predict": {
        "inputs": LETTERS | st.lists(LETTERS, max_size=2) | st.lists(st.lists(LETTERS, max_size=3), max_size=3),
        "model": st.sampled_from([RERANKER, PAIRS, None]), "raw_scores": SURE,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Server:
    return server(PROMPTS, RERANKER, SPARSE, PAIRS, limits=Limits(body=100_000, texts=4))


@given(route=ROUTES, body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=60)
@example(route="/rerank", body=b"\xef\xbb\xbf{}")
@example(route="/rerank", body=b"[" * 50_000)
@example(route="/v1/embeddings", body=b'{"input": ' + b"9" * 9_000 + b"}")
@example(route="/v1/embeddings", body=b"x" * 100_001)
def test_any_bytes(small: Server, route: str, body: bytes) -> None:
    answer = straight(small, route, body)
    check(answer)
    assert answer.status != 200, "no such bytes are a request"


@given(route=ROUTES, body=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5) | VALUES)
@settings(max_examples=150)
def test_any_json(small: Server, route: str, body: Any) -> None:
    check(straight(small, route, json.dumps(body).encode()))


@given(data=st.data(), route=ROUTES)
@settings(max_examples=100)
def test_nearly_right_requests(small: Server, data: st.DataObject, route: str) -> None:
    """Most of these are answered, so that what is behind the checks sees odd texts too."""
    body = {name: data.draw(values) for name, values in LIKELY[route].items()}
    check(straight(small, route, json.dumps(body).encode()))


@given(value=st.text(st.characters(max_codepoint=255), max_size=30))
@settings(max_examples=30)
def test_any_length_that_a_header_claims(small: Server, value: str) -> None:
    check(straight(small, V, b'{"input": "dog"}', **{"content-length": value}))
