"""Whatever is sent, the answer is no error of the server, and in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE
from served import Answer, needs_server, opened, straight

from minibert.serve.app import Server
from minibert.serve.requests import Limits

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

ROUTES = st.sampled_from(["/v1/embeddings", "/rerank", "/embed", "/embed_sparse", "/predict"])
# half of a pair of surrogates among them: JSON can write it, and no tokenizer read it
LETTERS = st.text(st.characters(codec=None), max_size=20) | st.sampled_from(["\ud800", "a\x00b", "[SEP]", "the clouds"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | LETTERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(LETTERS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "input", "model", "encoding_format", "dimensions", "user", "task", "truncate", "query", "documents", "texts",
    "top_n", "return_documents", "return_text", "raw_scores", "inputs", "prompt_name", "normalize", "parameters",
    "truncation_direction", "max_tokens_per_doc", "priority", "rank_fields", "max_chunks_per_doc", "embedding_type",
    "encoding_type", "normalized", "late_chunking", "top_k", "input_type", "truncate_prompt_tokens", "return_len",
)  # fmt: skip
LIKELY = {
    "/v1/embeddings": {"input": LETTERS | st.lists(LETTERS, max_size=5), "dimensions": st.integers(-1, 9)},
    "/rerank": {
        "query": LETTERS,
        "documents": st.lists(LETTERS | st.dictionaries(LETTERS | st.just("text"), LETTERS, max_size=3), max_size=5),
        "return_documents": st.booleans(),
        "top_n": st.integers(-1, 9),
        "max_tokens_per_doc": st.integers(0, 10**30),
        "truncate_prompt_tokens": st.integers(-1, 0),
    },
    "/embed": {
        "inputs": LETTERS | st.lists(LETTERS, max_size=5),
        "normalize": st.booleans(),
        "truncate": st.booleans(),
        "truncate_prompt_tokens": st.integers(-2, 10**30),
    },
    "/embed_sparse": {"inputs": LETTERS | st.lists(LETTERS, max_size=5), "truncate": st.booleans()},
    "/predict": {
        "inputs": LETTERS | st.lists(LETTERS, max_size=2) | st.lists(st.lists(LETTERS, max_size=3), max_size=3),
        "model": st.sampled_from(["uses-reranker", "uses-inference", None]),
        "raw_scores": st.booleans(),
    },
}


@pytest.fixture(scope="module")
def server() -> Server:
    folders = ("sentences-prompts", "uses-reranker", "uses-sparse", "uses-inference")
    return Server([opened(REFERENCE / name) for name in folders], limits=Limits(body=100_000, texts=4))


def check(answer: Answer) -> None:
    assert answer.status < 500, answer.body
    assert json.dumps(answer.json, ensure_ascii=False).encode(), "half of a pair of surrogates is no UTF-8"
    assert answer.status == 200 or (answer.error and answer.json["error"]["type"] == "invalid_request_error")


@given(route=ROUTES, body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=60)
@example(route="/rerank", body=b"\xef\xbb\xbf{}")
@example(route="/rerank", body=b"[" * 50_000)
@example(route="/v1/embeddings", body=b'{"input": ' + b"9" * 9_000 + b"}")
@example(route="/v1/embeddings", body=b"x" * 100_001)
def test_any_bytes(server: Server, route: str, body: bytes) -> None:
    answer = straight(server, route, body)
    check(answer)
    assert answer.status != 200, "no such bytes are a request"


@given(route=ROUTES, body=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5) | VALUES)
@settings(max_examples=150)
def test_any_json(server: Server, route: str, body: Any) -> None:
    check(straight(server, route, json.dumps(body).encode()))


@given(data=st.data(), route=ROUTES)
@settings(max_examples=100)
def test_nearly_right_requests(server: Server, data: st.DataObject, route: str) -> None:
    """Most of these are answered, so that what is behind the checks sees odd texts too."""
    body = {name: data.draw(values) for name, values in LIKELY[route].items()}
    check(straight(server, route, json.dumps(body).encode()))


@given(value=st.text(st.characters(max_codepoint=255), max_size=30))
@settings(max_examples=30)
def test_any_length_that_a_header_claims(server: Server, value: str) -> None:
    check(straight(server, "/v1/embeddings", b'{"input": "dog"}', **{"content-length": value}))
